"""C++ that clang evaluates by itself: names of types, limits, and traits. None needs a Python meaning.

The traits are clang's own builtins, and the limits its predefined macros, so the header is short.
"""

from .words import declare, methods, word

__all__: list[str] = []

_SIZED = " ".join(
    f"typedef {sign}{base} {letter}int{bits}_t, {letter}int_fast{bits}_t, {letter}int_least{bits}_t;"
    for sign, letter in (("signed ", ""), ("unsigned ", "u"))
    for bits, base in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
)
_OTHER = ("size_t", "ptrdiff_t", "intptr_t", "uintptr_t", "intmax_t", "uintmax_t", "nullptr_t")
_USING = " ".join(
    f"using ::{name};"
    for name in (
        *_OTHER,
        *(f"{u}int{kind}{bits}_t" for u in ("", "u") for kind in ("", "_fast", "_least") for bits in (8, 16, 32, 64)),
    )
)

# The words are for both sides, as kernels use some of them. The module standard ends this.
declare("#pragma clang force_cuda_host_device begin")
declare(f"""{_SIZED}
typedef unsigned long size_t, uintptr_t, uintmax_t, ulong; typedef long ptrdiff_t, intptr_t, intmax_t, ssize_t;
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef decltype(nullptr) nullptr_t;
namespace std {{ {_USING} }}""")

declare("""#define NULL __null
#define CHAR_BIT 8
#define SCHAR_MAX __SCHAR_MAX__
#define SCHAR_MIN (-SCHAR_MAX - 1)
#define UCHAR_MAX (SCHAR_MAX * 2 + 1)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define SHRT_MAX __SHRT_MAX__
#define SHRT_MIN (-SHRT_MAX - 1)
#define USHRT_MAX (SHRT_MAX * 2 + 1)
#define INT_MAX __INT_MAX__
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX (INT_MAX * 2U + 1U)
#define LONG_MAX __LONG_MAX__
#define LONG_MIN (-LONG_MAX - 1L)
#define ULONG_MAX (LONG_MAX * 2UL + 1UL)
#define LLONG_MAX __LONG_LONG_MAX__
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define ULLONG_MAX (LLONG_MAX * 2ULL + 1ULL)
#define INT8_MAX SCHAR_MAX
#define INT8_MIN SCHAR_MIN
#define UINT8_MAX UCHAR_MAX
#define INT16_MAX SHRT_MAX
#define INT16_MIN SHRT_MIN
#define UINT16_MAX USHRT_MAX
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX LONG_MAX
#define INT64_MIN LONG_MIN
#define UINT64_MAX ULONG_MAX
#define SIZE_MAX ULONG_MAX
#define PTRDIFF_MAX LONG_MAX
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define FLT_DIG __FLT_DIG__
#define FLT_MANT_DIG __FLT_MANT_DIG__
#define FLT_MIN_EXP __FLT_MIN_EXP__
#define FLT_MAX_EXP __FLT_MAX_EXP__
#define DBL_MAX __DBL_MAX__
#define DBL_MIN __DBL_MIN__
#define DBL_EPSILON __DBL_EPSILON__
#define DBL_DIG __DBL_DIG__
#define DBL_MANT_DIG __DBL_MANT_DIG__
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VAL (__builtin_inf())
#define HUGE_VALF (__builtin_inff())
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440""")

# Also for a class or an enumeration. The last three take two types.
_TESTS = (
    "integral", "floating_point", "arithmetic", "void", "pointer", "const", "signed", "unsigned", "enum", "class", "array",
    "function", "reference", "lvalue_reference", "rvalue_reference", "fundamental", "scalar", "trivially_copyable", "empty",
    "same", "base_of", "convertible",
)  # fmt: skip
_CHANGES = (
    "remove_cv", "remove_const", "remove_volatile", "remove_reference", "remove_cvref", "remove_pointer", "remove_extent",
    "add_pointer", "add_lvalue_reference", "add_rvalue_reference", "make_signed", "make_unsigned", "decay", "underlying_type",
)  # fmt: skip


def _traits() -> str:
    lines = []
    for name in _TESTS:
        two = name in _TESTS[-3:]
        head, types = ("template <class T, class U>", "T, U") if two else ("template <class T>", "T")
        lines.append(
            f"{head} struct is_{name} : bool_constant<__is_{name}({types})> {{}};"
            f" {head} inline constexpr bool is_{name}_v = __is_{name}({types});"
        )
    for name in _CHANGES:
        builtin = {"remove_reference": "__remove_reference_t"}.get(name, f"__{name}")
        lines.append(
            f"template <class T> struct {name} {{ using type = {builtin}(T); }};"
            f" template <class T> using {name}_t = {builtin}(T);"
        )
    return "\n".join(lines)


declare(f"""namespace std {{
template <class T, T v> struct integral_constant {{
  static constexpr T value = v; using value_type = T; using type = integral_constant;
  constexpr operator T() const {{ return v; }} constexpr T operator()() const {{ return v; }} }};
template <bool b> using bool_constant = integral_constant<bool, b>;
template <class T> struct alignment_of : integral_constant<size_t, alignof(T)> {{}};
template <size_t n, size_t a = 16> struct aligned_storage {{ struct alignas(a) type {{ unsigned char data[n]; }}; }};
using true_type = bool_constant<true>; using false_type = bool_constant<false>;
{_traits()}
template <class T> using add_const_t = const T;
template <bool b, class T = void> struct enable_if {{}}; template <class T> struct enable_if<true, T> {{ using type = T; }};
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <bool b, class T, class U> struct conditional {{ using type = T; }};
template <class T, class U> struct conditional<false, T, U> {{ using type = U; }};
template <bool b, class T, class U> using conditional_t = typename conditional<b, T, U>::type;
template <class... T> using void_t = void;
template <class T> T&& declval() noexcept;
template <class T, class... U> struct common_type {{ using type = typename common_type<T, typename common_type<U...>::type>::type; }};
template <class T> struct common_type<T> {{ using type = decay_t<T>; }};
template <class T, class U> struct common_type<T, U> {{ using type = decay_t<decltype(true ? declval<T>() : declval<U>())>; }};
template <class... T> using common_type_t = typename common_type<T...>::type;
template <class... T> struct conjunction : bool_constant<(bool(T::value) && ...)> {{}};
template <class... T> struct disjunction : bool_constant<(bool(T::value) || ...)> {{}};
template <class T> struct negation : bool_constant<!bool(T::value)> {{}};
template <class... T> inline constexpr bool conjunction_v = (bool(T::value) && ...);
template <class... T> inline constexpr bool disjunction_v = (bool(T::value) || ...);
template <class F, class... A> struct invoke_result {{ using type = decltype(declval<F>()(declval<A>()...)); }};
template <class F, class... A> using invoke_result_t = typename invoke_result<F, A...>::type;
template <class T, T... i> struct integer_sequence {{ static constexpr size_t size() {{ return sizeof...(i); }} }};
template <size_t... i> using index_sequence = integer_sequence<size_t, i...>;
template <class T, T n> using make_integer_sequence = __make_integer_seq<integer_sequence, T, n>;
template <size_t n> using make_index_sequence = __make_integer_seq<integer_sequence, size_t, n>;
template <class... T> using index_sequence_for = make_index_sequence<sizeof...(T)>;
template <class T> struct numeric_limits {{
  static constexpr bool is_specialized = true, is_integer = true, is_exact = true, is_signed = T(-1) < T(0);
  static constexpr bool has_infinity = false, has_quiet_NaN = false; static constexpr int digits = 8 * sizeof(T) - is_signed;
  static constexpr T max() noexcept {{ return T(~0UL >> (64 - digits)); }}
  static constexpr T min() noexcept {{ return is_signed ? T(-max() - 1) : T(0); }}
  static constexpr T lowest() noexcept {{ return min(); }} static constexpr T epsilon() noexcept {{ return 0; }} }};
#define CUPYOPS_LIMITS(T, F, f) template <> struct numeric_limits<T> {{ \\
  static constexpr bool is_specialized = true, is_integer = false, is_exact = false, is_signed = true; \\
  static constexpr bool has_infinity = true, has_quiet_NaN = true; \\
  static constexpr int digits = __##F##_MANT_DIG__, digits10 = __##F##_DIG__, max_digits10 = __##F##_DECIMAL_DIG__; \\
  static constexpr T max() noexcept {{ return __##F##_MAX__; }} static constexpr T min() noexcept {{ return __##F##_MIN__; }} \\
  static constexpr T lowest() noexcept {{ return -__##F##_MAX__; }} \\
  static constexpr T epsilon() noexcept {{ return __##F##_EPSILON__; }} \\
  static constexpr T denorm_min() noexcept {{ return __##F##_DENORM_MIN__; }} \\
  static constexpr T infinity() noexcept {{ return __builtin_inf##f(); }} \\
  static constexpr T quiet_NaN() noexcept {{ return __builtin_nan##f(""); }} }};
CUPYOPS_LIMITS(float, FLT, f) CUPYOPS_LIMITS(double, DBL,)
#undef CUPYOPS_LIMITS
template <> struct numeric_limits<bool> {{ static constexpr bool max() noexcept {{ return true; }}
  static constexpr bool min() noexcept {{ return false; }} static constexpr bool lowest() noexcept {{ return false; }} }};
template <class T> class initializer_list {{ const T* _begin; size_t _size; public: using value_type = T;
  constexpr initializer_list() noexcept : _begin(nullptr), _size(0) {{}} constexpr size_t size() const noexcept {{ return _size; }}
  constexpr const T* begin() const noexcept {{ return _begin; }} constexpr const T* end() const noexcept {{ return _begin + _size; }} }};
}}""")

# An object of a constant is its value.
word("std::integral_constant", typed=True, methods="std::integral_constant_")(lambda kind, value: value)
methods("std::integral_constant_", {"operator_call": lambda value: value, "operator_bool": bool})
