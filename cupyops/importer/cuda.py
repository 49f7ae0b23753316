"""Translations of CUDA's names: its attributes and types for clang, with the vectors and the 16-bit floats in Python."""

import math
from collections.abc import Callable
from typing import Any

from . import memory
from .numbers import NUMBERS
from .words import declare, word

__all__ = ["Vector", "dim3", "enum", "memory"]


def enum(name: str, values: dict[str, int], prefix: str = "") -> None:
    """Declares an enumeration and its values, which are integers in Python."""
    declare(f"enum {name} {{ {', '.join(f'{prefix}{n} = {v}' for n, v in values.items())} }};")
    for enumerator, value in values.items():
        word(f"{prefix}{enumerator}")(value)


# Attributes and types

declare("""
#define __CUDACC__ 1
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((device))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __inline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
#define CUDART_CB
#define CUDAAPI
typedef unsigned long size_t;
#pragma clang force_cuda_host_device begin
""")


class Vector:
    """The base class of CUDA's vectors."""

    fields: tuple[tuple[str, Any], ...]
    alignment: int
    __slots__ = ("w", "x", "y", "z")

    def __init__(self, *values: Any) -> None:
        for i, (name, kind) in enumerate(self.fields):
            setattr(self, name, values[i] if i < len(values) else kind(0))

    def as_argument(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name, _ in self.fields)

    def copy(self) -> Any:
        return type(self)(*self.as_argument())

    def assign(self, other: Any) -> None:
        for name, _ in self.fields:
            setattr(self, name, getattr(other, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and type(other) is type(self) and self.as_argument() == other.as_argument()

    def __hash__(self) -> int:
        return hash(self.as_argument())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.as_argument()}"


def _vectors() -> None:
    """Declares char1 to double4 with make_char1 to make_double4."""
    names = {"char": "int8", "short": "int16", "int": "int32", "long": "int64", "longlong": "int64"}
    kinds = {f"{u}{name}": f"{u}{kind}" for name, kind in names.items() for u in ("", "u")}
    spelled = {"char": "signed char", "longlong": "long long", "ulonglong": "unsigned long long"}
    for name, kind in {**kinds, "float": "float32", "double": "float64"}.items():
        number = NUMBERS[kind]
        base = spelled.get(name) or (f"unsigned {name[1:]}" if name[0] == "u" else name)
        for width in (1, 2, 3, 4):
            members = "xyzw"[:width]
            alignment = min(16, width * number.size) if width in (2, 4) else number.size
            of_class = {"fields": tuple((m, number) for m in members), "alignment": alignment, "__slots__": ()}
            made = type(f"{name}{width}", (Vector,), of_class)
            aligned = f"__align__({alignment}) "
            listed = ", ".join(f"{base} {m}" for m in members)
            word(made.__name__, f"struct {aligned}{made.__name__} {{ {base} {', '.join(members)}; }};")(made)
            word(f"make_{made.__name__}", f"{made.__name__} make_{made.__name__}({listed});")(_maker(made))
            memory.KINDS[made.__name__] = made


def _maker(kind: Any) -> Callable[..., Any]:
    return lambda *values: kind(*values)


_vectors()


@word(
    "dim3",
    "struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} "
    "constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {} };",
)
class dim3(Vector):  # noqa: N801  CUDA's name
    """CUDA's three sizes, of a grid or a block."""

    fields = tuple((name, NUMBERS["uint32"]) for name in "xyz")
    alignment = 4
    __slots__ = ()

    def __init__(self, x: Any = 1, y: int = 1, z: int = 1) -> None:
        self.x, self.y, self.z = x.as_argument() if isinstance(x, Vector) else (x, y, z)


memory.KINDS["dim3"] = dim3

declare("""
typedef float2 cuFloatComplex; typedef cuFloatComplex cuComplex; typedef double2 cuDoubleComplex;
extern "C" unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, void* = 0);
""")


@word("make_cuComplex", "cuFloatComplex make_cuComplex(float, float);")
@word("make_cuFloatComplex", "cuFloatComplex make_cuFloatComplex(float, float);")
def make_complex(x: float, y: float) -> Any:
    return memory.KINDS["float2"](x, y)


@word("make_cuDoubleComplex", "cuDoubleComplex make_cuDoubleComplex(double, double);")
def make_double_complex(x: float, y: float) -> Any:
    return memory.KINDS["double2"](x, y)


declare("".join(f"\n#define {name} {value}" for name, value in {
    "CUDART_NORM_HUGE_F": "3.402823466e38f", "CUDART_MAX_NORMAL_F": "3.402823466e38f", "CUDART_MIN_DENORM_F": "1.4012984643e-45f",
    "CUDART_TWO_TO_23_F": "8388608.0f", "CUDART_SQRT_TWO_F": "1.414213562f", "CUDART_SQRT_HALF_F": "0.707106781f",
    "CUDART_L2E_F": "1.442695041f", "CUDART_LN2_F": "0.693147181f", "CUDART_PIO2_F": "1.570796327f",
    "CUDART_PIO4_F": "0.785398163f", "CUDART_LNT_F": "0.693147181f", "CUDART_L2T_F": "3.321928094f",
    "CUDART_SQRT_2OVERPI": "7.9788456080286536e-1", "CUDART_SQRT_TWO": "1.4142135623730951e+0",
}.items()) + "\n")  # fmt: skip
for _name, _value in {"INF": math.inf, "NAN": math.nan, "PI": math.pi, "ZERO": 0.0, "ONE": 1.0}.items():
    for _suffix, _type in (("_F", "float"), ("", "double")):
        _text = {"INF": "__builtin_inf()", "NAN": '__builtin_nan("")'}.get(_name, repr(_value))
        word(f"CUDART_{_name}{_suffix}", f"constexpr {_type} CUDART_{_name}{_suffix} = {_text};")(
            NUMBERS["float32" if _suffix else "float64"](_value)
        )


def _half(name: str, number: str, pair: str, more: str) -> None:
    """Declares a 16-bit float, whose values are rounded Python floats, its vector of two, and its operators."""
    operators = "".join(
        f"{name} operator{o}(const {name}&, const {name}&); {name}& operator{o}=({name}&, const {name}&); "
        f"{pair} operator{o}(const {pair}&, const {pair}&); {pair}& operator{o}=({pair}&, const {pair}&); "
        for o in "+-*/"
    )
    compared = "".join(f"bool operator{o}(const {name}&, const {name}&); " for o in ("==", "!=", "<", ">", "<=", ">="))
    conversions = " ".join(f"{name}({t});" for t in ("float", "double", "int", "unsigned", "long", "short"))
    members = f"unsigned short bits; {name}() = default; {conversions} operator float() const;"
    declare(f"struct __align__(2) {name} {{ {members} }};")
    declare(f"struct __align__(4) {pair} {{ {name} x, y; {pair}() = default; {pair}({name}, {name}); }};")
    declare(f"{operators} {compared} {name} operator-(const {name}&); {more}")
    kind = NUMBERS[number]
    word(name)(kind)
    made = type(pair, (Vector,), {"fields": (("x", kind), ("y", kind)), "alignment": 4, "__slots__": ()})
    word(pair)(made)
    memory.KINDS.update({name: kind, pair: made})


_half("__half", "float16", "__half2", "typedef __half half; typedef __half2 half2; typedef __half nv_half;")
_half(
    "__nv_bfloat16",
    "bfloat16",
    "__nv_bfloat162",
    "typedef __nv_bfloat16 nv_bfloat16; typedef __nv_bfloat162 nv_bfloat162;",
)
memory.KINDS |= {"half": memory.KINDS["__half"], "half2": memory.KINDS["__half2"]}

for _name, _half_type, _number in (("half", "__half", "float16"), ("bfloat16", "__nv_bfloat16", "bfloat16")):
    word(f"__float2{_name}", f"{_half_type} __float2{_name}(float);")(NUMBERS[_number])
    word(f"__float2{_name}_rn", f"{_half_type} __float2{_name}_rn(float);")(NUMBERS[_number])
    word(f"__{_name}2float", f"float __{_name}2float({_half_type});")(NUMBERS["float32"])
