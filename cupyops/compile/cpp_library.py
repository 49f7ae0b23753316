"""The names of the C++ library and of Thrust that kernels may use, and where CUDA's C++ library has them.

nvcc reads the host's library, whose templates kernels may instantiate if they are ``constexpr``. Under NVRTC, CUDA's C++
library has the same names. Thrust is mostly host code. The types and function objects that kernels use of it are those of CUDA's
C++ library.
"""

import re
from collections.abc import Collection

from .algorithms import ALGORITHMS, algorithm_lines
from .cuda_text import scan
from .random_numbers import RANDOM, random_lines

__all__ = [
    "CONCEPTS",
    "FOREIGN_THRUST",
    "FUNCTIONS",
    "FUNCTORS",
    "LIBRARY",
    "OF_COMPLEX",
    "OF_STD",
    "OWN",
    "THRUST",
    "TRAITS",
    "library_lines",
    "specializations",
    "specialized",
    "thrust_lines",
]

TRAITS = frozenset(
    [
        "add_const",
        "add_cv",
        "add_lvalue_reference",
        "add_pointer",
        "add_rvalue_reference",
        "add_volatile",
        "aligned_storage",
        "aligned_storage_t",
        "alignment_of",
        "alignment_of_v",
        "bool_constant",
        "common_type",
        "common_type_t",
        "conditional",
        "conditional_t",
        "conjunction",
        "conjunction_v",
        "decay",
        "decay_t",
        "disjunction",
        "disjunction_v",
        "enable_if",
        "enable_if_t",
        "extent",
        "extent_v",
        "false_type",
        "integral_constant",
        "invoke_result",
        "invoke_result_t",
        "is_arithmetic",
        "is_arithmetic_v",
        "is_array",
        "is_array_v",
        "is_assignable",
        "is_base_of",
        "is_base_of_v",
        "is_class",
        "is_class_v",
        "is_const",
        "is_const_v",
        "is_constructible",
        "is_constructible_v",
        "is_convertible",
        "is_convertible_v",
        "is_copy_constructible",
        "is_default_constructible",
        "is_default_constructible_v",
        "is_empty",
        "is_empty_v",
        "is_enum",
        "is_enum_v",
        "is_floating_point",
        "is_floating_point_v",
        "is_function",
        "is_function_v",
        "is_fundamental",
        "is_fundamental_v",
        "is_integral",
        "is_integral_v",
        "is_invocable",
        "is_invocable_v",
        "is_lvalue_reference",
        "is_lvalue_reference_v",
        "is_null_pointer",
        "is_object",
        "is_object_v",
        "is_pointer",
        "is_pointer_v",
        "is_reference",
        "is_reference_v",
        "is_rvalue_reference",
        "is_rvalue_reference_v",
        "is_same",
        "is_same_v",
        "is_scalar",
        "is_scalar_v",
        "is_signed",
        "is_signed_v",
        "is_standard_layout",
        "is_standard_layout_v",
        "is_trivial",
        "is_trivial_v",
        "is_trivially_copyable",
        "is_trivially_copyable_v",
        "is_trivially_default_constructible",
        "is_unsigned",
        "is_unsigned_v",
        "is_void",
        "is_void_v",
        "is_volatile",
        "is_volatile_v",
        "make_signed",
        "make_signed_t",
        "make_unsigned",
        "make_unsigned_t",
        "negation",
        "negation_v",
        "rank",
        "rank_v",
        "remove_all_extents",
        "remove_all_extents_t",
        "remove_const",
        "remove_const_t",
        "remove_cv",
        "remove_cv_t",
        "remove_extent",
        "remove_extent_t",
        "remove_pointer",
        "remove_pointer_t",
        "remove_reference",
        "remove_reference_t",
        "remove_volatile",
        "remove_volatile_t",
        "true_type",
        "add_const_t",
        "add_cv_t",
        "add_lvalue_reference_t",
        "add_pointer_t",
        "add_rvalue_reference_t",
        "underlying_type",
        "underlying_type_t",
        "void_t",
    ]
)
CONCEPTS = frozenset(  # of C++20
    [
        "assignable_from",
        "common_reference_with",
        "common_with",
        "constructible_from",
        "convertible_to",
        "copy_constructible",
        "copyable",
        "default_initializable",
        "derived_from",
        "destructible",
        "equality_comparable",
        "equality_comparable_with",
        "floating_point",
        "integral",
        "invocable",
        "movable",
        "move_constructible",
        "predicate",
        "regular",
        "regular_invocable",
        "same_as",
        "semiregular",
        "signed_integral",
        "swappable",
        "totally_ordered",
        "unsigned_integral",
    ]
)
_UTILITIES = frozenset(
    [
        "as_const",
        "declval",
        "exchange",
        "index_sequence",
        "index_sequence_for",
        "integer_sequence",
        "make_index_sequence",
        "make_integer_sequence",
        "make_pair",
        "pair",
    ]
)
_TAGS = ("input", "output", "forward", "bidirectional", "random_access")
_ITERATORS = frozenset(
    [
        *("advance", "begin", "data", "distance", "end", "iterator_traits", "make_reverse_iterator", "next", "prev"),
        *("reverse_iterator", "size"),
        *(f"{tag}_iterator_tag" for tag in _TAGS),
    ]
)
_TUPLES = frozenset(
    [
        "apply",
        "forward_as_tuple",
        "get",
        "ignore",
        "make_tuple",
        "tie",
        "tuple",
        "tuple_cat",
        "tuple_element",
        "tuple_element_t",
        "tuple_size",
        "tuple_size_v",
    ]
)
FUNCTIONS = frozenset(
    [
        "bit_and",
        "bit_not",
        "bit_or",
        "bit_xor",
        "divides",
        "equal_to",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "logical_and",
        "logical_not",
        "logical_or",
        "minus",
        "modulus",
        "multiplies",
        "negate",
        "not_equal_to",
        "plus",
    ]
)
_COMPLEX_FUNCTIONS = frozenset(
    ["abs", "arg", "conj", "exp", "log", "norm", "polar", "pow", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"]
)

_LIMITS = frozenset(
    [
        *("numeric_limits", "float_denorm_style", "denorm_absent", "denorm_indeterminate", "denorm_present"),
        *("float_round_style", "round_indeterminate", "round_to_nearest", "round_toward_infinity"),
        *("round_toward_neg_infinity", "round_toward_zero"),
    ]
)
LIBRARY = (  # names, header of CUDA's C++ library, header of the host's
    (TRAITS, "cuda/std/type_traits", "type_traits"),
    (CONCEPTS, "cuda/std/concepts", "concepts"),
    (_LIMITS, "cuda/std/limits", "limits"),
    (_UTILITIES, "cuda/std/utility", "utility"),
    (frozenset(("array",)), "cuda/std/array", "array"),
    (frozenset(("byte",)), "cuda/std/cstddef", "cstddef"),
    (_ITERATORS, "cuda/std/iterator", "iterator"),
    (_TUPLES, "cuda/std/tuple", "tuple"),
    (FUNCTIONS, "cuda/std/functional", "functional"),
)
OF_STD = frozenset[str]().union(*(names for names, _, _ in LIBRARY))

_SPECIALIZED = re.compile(rf"\btemplate\s*<[^<>;{{}}]*>\s*(?:struct|class)\s+({'|'.join(sorted(OF_STD))})\s*<")
_OPENS_STD = re.compile(r"\bnamespace\s+std\s*\{")

# Functions that take their arguments by reference, as the library's do.
_CHOICE = (
    "template <class T> __host__ __device__ constexpr const T& {0}(const T& a, const T& b) {{ return {1} ? b : a; }}\n"
    "template <class T, class F> __host__ __device__ constexpr const T& {0}(const T& a, const T& b, F less) "
    "{{ return {2} ? b : a; }}"
)
_OF_LIST = (
    "\ntemplate <class T> __host__ __device__ constexpr T {0}(initializer_list<T> values) "
    "{{ T found = *values.begin(); for (const T& v : values) found = {1} ? v : found; return found; }}"
)
FUNCTORS = {  # C++17 removed them, and host libraries still have them
    "unary_function": "template <class A, class R> struct unary_function { typedef A argument_type; typedef R result_type; };",
    "binary_function": "template <class A, class B, class R> struct binary_function "
    "{ typedef A first_argument_type; typedef B second_argument_type; typedef R result_type; };",
}
_OF_PARTS = "template <class C> __host__ __device__ auto {0}(const C& z) -> decltype({1}) {{ return {1}; }}"
OF_COMPLEX = {  # for the complex numbers of PyTorch
    "real": _OF_PARTS.format("real", "z.real()"),
    "imag": _OF_PARTS.format("imag", "z.imag()"),
    "conj": _OF_PARTS.format("conj", "C(z.real(), -z.imag())"),
    "norm": _OF_PARTS.format("norm", "z.real() * z.real() + z.imag() * z.imag()"),
}
OWN = {
    **FUNCTORS,
    "iterator": "template <class C, class T, class D = decltype((char*)0 - (char*)0), class P = T*, class R = T&> struct iterator "
    "{ typedef C iterator_category; typedef T value_type; typedef D difference_type; typedef P pointer; typedef R reference; };",
    **OF_COMPLEX,
    "max": _CHOICE.format("max", "a < b", "less(a, b)") + _OF_LIST.format("max", "found < v"),
    "min": _CHOICE.format("min", "b < a", "less(b, a)") + _OF_LIST.format("min", "v < found"),
    "swap": "template <class T> __host__ __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }",
    "bit_cast": "template <class To, class From> __host__ __device__ constexpr To bit_cast(const From& from) "
    '{ static_assert(sizeof(To) == sizeof(From), "a bit_cast needs types of one size"); return __builtin_bit_cast(To, from); }',
    "clamp": "template <class T> __host__ __device__ constexpr const T& clamp(const T& v, const T& low, const T& high) "
    "{ return v < low ? low : high < v ? high : v; }",
}

_OF_CUDA = {  # names of Thrust: the header of CUDA's C++ library that has them
    **dict.fromkeys(("pair", "make_pair", "swap"), "cuda/std/utility"),
    **dict.fromkeys(("tuple", "make_tuple", "tie", "get", "tuple_size", "tuple_element", "ignore"), "cuda/std/tuple"),
    **dict.fromkeys(FUNCTIONS, "cuda/std/functional"),
    **dict.fromkeys(("maximum", "minimum"), "cuda/functional"),
    **dict.fromkeys({"complex"} | _COMPLEX_FUNCTIONS, "cuda/std/complex"),
}
_OWN_OF_THRUST = {
    **FUNCTORS,
    "max": _CHOICE.format("max", "a < b", "less(a, b)"),
    "min": _CHOICE.format("min", "b < a", "less(b, a)"),
    "identity": "template <class T = void> struct identity { __host__ __device__ constexpr const T& operator()(const T& x) const { return x; } };",
}
THRUST = _OF_CUDA.keys() | _OWN_OF_THRUST.keys() | ALGORITHMS | RANDOM.keys()
# Names of Thrust that kernels do not have.
FOREIGN_THRUST = re.compile(rf"\bthrust\s*::\s*(?!(?:{'|'.join(sorted(THRUST))})\b)(\w+)")
_OF_THRUST = re.compile(r"(?<![\w:])(?:::\s*)?thrust\s*::\s*(\w+)")


def library_lines(of_std: Collection[str]) -> tuple[list[str], list[str]]:
    """Returns the lines that include the headers of CUDA's C++ library for names of ``std``, and those that are in the
    namespace ``std``."""
    includes: list[str] = []
    within: list[str] = []
    for names, header, _ in LIBRARY:
        if used := sorted(names.intersection(of_std)):
            includes.append(f"#include <{header}>")
            # CUDA's C++ library declares the others in std itself.
            within += [f"using cuda::std::{name};" for name in used if name not in ("tuple_size", "tuple_element")]
    return includes, within


def thrust_lines(code: str) -> list[str]:
    """Returns the lines that define the names of Thrust that code uses."""
    used = {m[1] for m in _OF_THRUST.finditer(code)}
    includes = [f"#include <{name}>" for name in sorted({_OF_CUDA[n] for n in used & _OF_CUDA.keys()})]
    within = [
        f"using cuda::{'std::' if _OF_CUDA[n].startswith('cuda/std/') else ''}{n};"
        for n in sorted(used & _OF_CUDA.keys())
    ]
    within += [_OWN_OF_THRUST[n] for n in sorted(used & _OWN_OF_THRUST.keys())]
    within += algorithm_lines(used) + random_lines(used)
    return [*includes, "namespace thrust {", *within, "}"] if within else []


def specialized(code: str) -> frozenset[str]:
    """Returns the classes of ``std`` that code specializes in ``namespace std``."""
    return frozenset(_SPECIALIZED.findall(code)) if _OPENS_STD.search(code) else frozenset()


def specializations(text: str, own: str) -> str:
    """Returns a text for NVRTC that specializes library classes, such as ``numeric_limits``, in ``namespace
    cuda::std``, where NVRTC has them, not in ``namespace std``. `own` is the code of the text without shared
    headers."""
    if not _OPENS_STD.search(own) or not _SPECIALIZED.search(own):
        return text
    code = scan(text)
    for match in reversed([*_SPECIALIZED.finditer(code.bare)]):
        end = code.bare.find(";", code.end_of_function(match.start())) + 1
        if end and code.scope(match.start()) == ("std",):
            inner = text[match.start() : end]
            text = f"{text[: match.start()]}}} namespace cuda {{ namespace std {{ {inner} }} }} namespace std {{{text[end:]}"
    return text
