"""The functions of <cmath>, and CUDA's ``min`` and ``max``, at global scope and in std, for the host and the device.

Python computes in double precision. Generated code rounds the result of an overload of float.
"""

import math
from collections.abc import Callable
from typing import Any

from . import traits  # noqa: F401  its C++ text comes first
from .numbers import divide
from .words import declare, word

__all__: list[str] = []


def _real(function: Callable[..., float], poles: dict[float, float] | None = None) -> Callable[..., float]:
    """Returns a function of Python's math with IEEE 754's results in place of exceptions.

    Args:
        function: of one or two numbers.
        poles: arguments at which it is infinite, with the result.
    """

    def call(*x: float) -> float:
        try:
            return float(function(*x))
        except OverflowError:
            negative = x[0] < 0 and (function is math.sinh or (function is math.pow and x[1] % 2 == 1))
            return -math.inf if negative else math.inf
        except ValueError:
            if function is math.pow and x[0] == 0:
                return math.copysign(math.inf, x[0]) if x[1] % 2 == 1 else math.inf
            return (poles or {}).get(x[0], math.nan)

    return call


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """Returns a function that rounds to a whole number and keeps the sign of zero, infinities and NaN."""
    return lambda x: math.copysign(float(function(x)), x) if math.isfinite(x) else float(x)


def _away(x: float) -> int:
    """Returns a value rounded to a whole number, halves away from zero."""
    whole = math.trunc(x)
    return whole + int(math.copysign(1, x)) if abs(x - whole) >= 0.5 else whole


def fmin(x: float, y: float) -> float:
    return float(y if math.isnan(x) or y < x else x)


def fmax(x: float, y: float) -> float:
    return float(y if math.isnan(x) or y > x else x)


def fdim(x: float, y: float) -> float:
    return x - y if not x <= y else 0.0


def ldexp(x: float, exponent: int) -> float:
    return _real(math.ldexp)(x, exponent)


def _cbrt(x: float) -> float:
    root = math.copysign(abs(x) ** (1 / 3), x)
    if root and math.isfinite(root):
        root -= (root * root * root - x) / (3 * root * root)  # the power is not correctly rounded
    near = float(round(root))
    return near if math.isfinite(x) and near**3 == x else root


def _exp2(x: float) -> float:
    return math.pow(2.0, x)


def _rsqrt(x: float) -> float:
    return divide(1.0, _real(math.sqrt)(x))


_ZERO = {0.0: -math.inf}
_ONE = {
    "sqrt": _real(math.sqrt), "cbrt": lambda x: _cbrt(x) if math.isfinite(x) else x, "fabs": lambda x: abs(float(x)),
    "exp": _real(math.exp), "exp2": _real(_exp2), "expm1": _real(math.expm1),
    "log": _real(math.log, _ZERO), "log2": _real(math.log2, _ZERO), "log10": _real(math.log10, _ZERO),
    "log1p": _real(math.log1p, {-1.0: -math.inf}), "sin": _real(math.sin), "cos": _real(math.cos), "tan": _real(math.tan),
    "asin": _real(math.asin), "acos": _real(math.acos), "atan": _real(math.atan), "sinh": _real(math.sinh),
    "cosh": _real(math.cosh), "tanh": _real(math.tanh), "asinh": _real(math.asinh), "acosh": _real(math.acosh),
    "atanh": _real(math.atanh, {1.0: math.inf, -1.0: -math.inf}), "erf": _real(math.erf), "erfc": _real(math.erfc),
    "tgamma": _real(math.gamma, {0.0: math.inf}), "lgamma": _real(math.lgamma),
    "ceil": _whole(math.ceil), "floor": _whole(math.floor), "trunc": _whole(math.trunc), "round": _whole(_away),
    "rint": _whole(round), "nearbyint": _whole(round), "rsqrt": _rsqrt,
}  # fmt: skip
_TWO = {
    "pow": _real(math.pow), "fmod": _real(math.fmod), "atan2": _real(math.atan2), "hypot": _real(math.hypot),
    "copysign": math.copysign, "remainder": _real(math.remainder), "fmin": fmin, "fmax": fmax, "fdim": fdim,
    "nextafter": math.nextafter,
}  # fmt: skip
_ROUNDED = {"lround": _away, "llround": _away, "lrint": round, "llrint": round}
_TESTS: dict[str, Callable[[float], bool]] = {
    "isnan": math.isnan, "isinf": math.isinf, "isfinite": math.isfinite, "signbit": lambda x: math.copysign(1, x) < 0,
}  # fmt: skip

_INTEGER = "template <class T> ::cupyops::whole<T, {}> F(T);"


def _define(names: Any, text: str, suffixed: str = "") -> str:
    """Returns the declarations of functions by a macro, for each name."""
    macro = f"#define CUPYOPS_FUNCTION(F) {text} {suffixed}"
    return "\n".join([macro, " ".join(f"CUPYOPS_FUNCTION({name})" for name in names), "#undef CUPYOPS_FUNCTION"])


_NUMBERED = ("int", "unsigned", "long", "unsigned long", "long long", "unsigned long long", "float", "double")
_MIXED = {("float", "double"): "double"} | {
    (kind, f"unsigned {kind}" if kind != "int" else "unsigned"): f"unsigned {kind}"
    for kind in ("int", "long", "long long")
}
_SMALLEST = " ".join(
    [f"{t} F({t}, {t});" for t in _NUMBERED]
    + [f"{result} F({a}, {b}); {result} F({b}, {a});" for (a, b), result in _MIXED.items()]
)
_OF_FLOAT = [f"{name}f" for name in (*_ONE, *_TWO, *_ROUNDED, "fma", "ldexp", "frexp", "modf")]
_OF_BOTH = [*_ONE, *_TWO, *_ROUNDED, *_TESTS, "fma", "ldexp", "frexp", "modf", "abs", "labs"]
_IN_STD = " ".join(f"using ::{name};" for name in (*_OF_BOTH, *_OF_FLOAT))
declare(
    "namespace cupyops { template <class T, class R> using whole = typename std::enable_if<__is_integral(T), R>::type;\n"
    "template <class T, class U> using mixed = typename std::enable_if<__is_arithmetic(T) && __is_arithmetic(U), double>::type; }\n"
    + "\n".join(
        [
            _define(_ONE, "float F(float); double F(double);", f"{_INTEGER.format('double')} float F##f(float);"),
            _define(
                _TWO,
                "float F(float, float); double F(double, double);",
                "template <class T, class U> ::cupyops::mixed<T, U> F(T, U); float F##f(float, float);",
            ),
            _define(_ROUNDED, "long F(float); long F(double);", f"{_INTEGER.format('long')} long F##f(float);"),
            _define(_TESTS, "bool F(float); bool F(double);", _INTEGER.format("bool")),
            _define(("min", "max"), _SMALLEST),
            "float fma(float, float, float); double fma(double, double, double); float fmaf(float, float, float);",
            "float ldexp(float, int); double ldexp(double, int); float ldexpf(float, int);",
            "float frexp(float, int*); double frexp(double, int*); float frexpf(float, int*);",
            "float modf(float, float*); double modf(double, double*); float modff(float, float*);",
            "int abs(int); long abs(long); long long abs(long long); float abs(float);",
            "double abs(double); long labs(long);",
            f"namespace std {{ {_IN_STD} }}",
        ]
    )
)

for _name, _function in (_ONE | _TWO | _ROUNDED).items():
    word(_name)(_function)
    word(f"{_name}f")(_function)
for _name, _test in _TESTS.items():
    word(_name)(_test)
for _name in ("ldexp", "ldexpf"):
    word(_name)(ldexp)


@word("frexp")
@word("frexpf")
def frexp(x: float, exponent: Any) -> float:
    """Returns ``m`` of ``x = m * 2**e``, and puts ``e`` into a place."""
    mantissa, exponent[0] = math.frexp(x)
    return mantissa


@word("modf")
@word("modff")
def modf(x: float, whole: Any) -> float:
    """Returns the part of a number after the point, and puts its whole part into a place."""
    rest, whole[0] = math.modf(x) if math.isfinite(x) else (0.0 if math.isinf(x) else x, x)
    return math.copysign(rest, x)


for _name in ("abs", "labs"):
    word(_name)(abs)
for _name in ("__builtin_inf", "__builtin_inff"):
    word(_name)(lambda: math.inf)
word("__builtin_nanf")(lambda text: math.nan)
word("__builtin_nan")(lambda text: math.nan)


@word("fma")
@word("fmaf")
def fma(x: float, y: float, z: float) -> float:
    """Returns ``x * y + z``, rounded once."""
    from fractions import Fraction

    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return float(exact) if exact else x * y + z


_ORDERED = """template <class T> constexpr const T& {0}(const T&, const T&);
template <class T, class C> constexpr const T& {0}(const T&, const T&, C); template <class T> constexpr T {0}(initializer_list<T>);"""


@word("min")
@word("std::min", _ORDERED.format("min"))
def least(a: Any, b: Any = None, before: Callable[[Any, Any], bool] | None = None) -> Any:
    """Returns the first of two values unless the second is less; of a list, the first that no other is less than."""
    if b is None:
        return min(a)
    return b if (before(b, a) if before else b < a) else a


@word("max")
@word("std::max", _ORDERED.format("max"))
def greatest(a: Any, b: Any = None, before: Callable[[Any, Any], bool] | None = None) -> Any:
    """Returns the first of two values unless it is less than the second; of a list, the first that is less than no other."""
    if b is None:
        return max(a)
    return b if (before(a, b) if before else a < b) else a


@word("std::clamp", "template <class T> constexpr const T& clamp(const T&, const T&, const T&);")
def clamp(x: Any, low: Any, high: Any) -> Any:
    return low if x < low else high if high < x else x


@word("std::gcd", "template <class T, class U> constexpr common_type_t<T, U> gcd(T, U);")
def gcd(a: int, b: int) -> int:
    return math.gcd(a, b)


@word("std::lcm", "template <class T, class U> constexpr common_type_t<T, U> lcm(T, U);")
def lcm(a: int, b: int) -> int:
    return math.lcm(a, b)


# Functions that compilers know without a declaration. Those of zero are undefined.
for _suffix, _bits in (("", 32), ("l", 64), ("ll", 64)):
    word(f"__builtin_popcount{_suffix}")(lambda x, bits=_bits: (x & ((1 << bits) - 1)).bit_count())
    word(f"__builtin_clz{_suffix}")(lambda x, bits=_bits: bits - x.bit_length())
    word(f"__builtin_ctz{_suffix}")(lambda x: (x & -x).bit_length() - 1)
    word(f"__builtin_ffs{_suffix}")(lambda x: (x & -x).bit_length())
word("__builtin_expect")(lambda value, expected: value)
