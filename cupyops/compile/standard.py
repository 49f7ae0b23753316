"""The names of the C and C++ libraries that a kernel may use under NVRTC and in the simulator alike.

nvcc includes the host's ``<math.h>``, ``<stdint.h>`` and others before every text, and kernels written for nvcc use their
names. NVRTC has none of these headers. The prelude of a text therefore defines the names of this list that the text uses.
A name of ``std`` that is not in this list is refused.
"""

import re
import sys
from collections.abc import Collection
from functools import lru_cache

from .cpp_library import FUNCTORS, LIBRARY, OF_COMPLEX, OF_STD, OWN, library_lines, specialized, thrust_lines
from .own_integers import own_integers

__all__ = ["NUMBERS", "as_library", "definitions", "for_libraries", "unknown"]

_INTEGERS = {
    **{
        f"{u}int{bits}_t": f"{sign} {c}"
        for bits, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for u, sign in (("", "signed"), ("u", "unsigned"))
    },
    **{
        f"{u}int_{kind}{bits}_t": f"{sign} {c}"  # as CUDA's C++ library has them
        for kind in ("least", "fast")
        for bits, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for u, sign in (("", "signed"), ("u", "unsigned"))
    },
    "intptr_t": "long long",
    "uintptr_t": "unsigned long long",
    "intmax_t": "long long",
    "uintmax_t": "unsigned long long",
    "uint": "unsigned int",
    "ushort": "unsigned short",
    "ulong": "unsigned long",
    "ssize_t": "long long",
}
# Types of libraries' headers that are not included, because they are of host code.
_OF_LIBRARIES = {
    "cufftReal": "float",
    "cufftDoubleReal": "double",
    "cufftComplex": "float2",
    "cufftDoubleComplex": "double2",
    "CUtexObject": "unsigned long long",
    "CUsurfObject": "unsigned long long",
    "CUtensorMap": "struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; }",
}
# Functions of headers that are not included: of the runtime for the GPU, of PyTorch's former headers, and what the host's `assert`
# calls.
_DEPENDENT = (  # launches that begin before the launch before them ends; NVRTC has them in a text that is linked
    "#ifndef __CUDACC_RDC__\nstatic __device__ __forceinline__ void {} {{\n#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900\n"
    'asm volatile("griddepcontrol.{};" ::: "memory");\n#endif\n}}\n#endif'
)
# A constexpr function of a project may have PyTorch's checks.
_CHECKS = ("TORCH_CHECK", "TORCH_INTERNAL_ASSERT")
_CHECKED = "#ifndef {0}\n#define {0}(condition, ...) ((condition) ? (void)0 : __trap())\n#endif"
_FUNCTIONS = {
    **{name: _CHECKED.format(name) for name in _CHECKS},
    "cudaGridDependencySynchronize": _DEPENDENT.format("cudaGridDependencySynchronize()", "wait"),
    "cudaTriggerProgrammaticLaunchCompletion": _DEPENDENT.format(
        "cudaTriggerProgrammaticLaunchCompletion()", "launch_dependents"
    ),
    "THCCeilDiv": "template <class T> __host__ __device__ __forceinline__ T THCCeilDiv(T a, T b) { return (a + b - 1) / b; }",
    "__assert_fail": "static __device__ __forceinline__ void __assert_fail(const char* expression, const char* file, unsigned line, "
    "const char* function) { __assertfail(expression, file, line, function, 1); }",
}

_NUMBERS = {
    "INFINITY": "__builtin_bit_cast(float, 0x7f800000)",
    "NAN": "__builtin_bit_cast(float, 0x7fffffff)",
    "HUGE_VALF": "__builtin_bit_cast(float, 0x7f800000)",
    "HUGE_VAL": "__builtin_bit_cast(double, 0x7ff0000000000000LL)",
    "M_E": "2.7182818284590452354",
    "M_LOG2E": "1.4426950408889634074",
    "M_LOG10E": "0.43429448190325182765",
    "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402",
    "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962",
    "M_1_PI": "0.31830988618379067154",
    "M_2_PI": "0.63661977236758134308",
    "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-07f",
    "FLT_DIG": "6",
    "FLT_MANT_DIG": "24",
    "FLT_RADIX": "2",
    "FLT_MAX_EXP": "128",
    "FLT_MIN_EXP": "(-125)",
    "DBL_MAX": "1.7976931348623157e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "DBL_DIG": "15",
    "FE_TONEAREST": "0",
    "FE_DOWNWARD": "0x400",
    "FE_UPWARD": "0x800",
    "FE_TOWARDZERO": "0xc00",
    "DBL_MANT_DIG": "53",
    "DBL_MAX_EXP": "1024",
    "DBL_MIN_EXP": "(-1021)",
    "CHAR_BIT": "8",
    "CLOCKS_PER_SEC": "1000" if sys.platform == "win32" else "1000000",
    "CHAR_MIN": "(-128)",
    "CHAR_MAX": "127",
    "SCHAR_MIN": "(-128)",
    "SCHAR_MAX": "127",
    "UCHAR_MAX": "255",
    "SHRT_MIN": "(-32768)",
    "SHRT_MAX": "32767",
    "USHRT_MAX": "65535",
    "INT_MIN": "(-2147483647 - 1)",
    "INT_MAX": "2147483647",
    "UINT_MAX": "4294967295U",
    "LLONG_MIN": "(-9223372036854775807LL - 1)",
    "LLONG_MAX": "9223372036854775807LL",
    "ULLONG_MAX": "18446744073709551615ULL",
    "SIZE_MAX": "((size_t)-1)",
    "LONG_MAX": "((long)(~0ul >> 1))",
    "LONG_MIN": "(-(long)(~0ul >> 1) - 1)",
    "ULONG_MAX": "(~0ul)",
    "INT8_MIN": "(-128)",
    "INT8_MAX": "127",
    "UINT8_MAX": "255",
    "INT16_MIN": "(-32768)",
    "INT16_MAX": "32767",
    "UINT16_MAX": "65535",
    "INT32_MIN": "(-2147483647 - 1)",
    "INT32_MAX": "2147483647",
    "UINT32_MAX": "4294967295U",
    "INT64_MIN": "(-9223372036854775807LL - 1)",
    "INT64_MAX": "9223372036854775807LL",
    "UINT64_MAX": "18446744073709551615ULL",
}
# The formats of <cinttypes>, ``PRIu64`` and the like.
_FORMATS = {
    f"PRI{letter}{bits}": f'"{"" if bits in ("8", "16", "32") else "ll"}{letter}"'
    for letter in "diouxX"
    for bits in ("8", "16", "32", "64", "MAX", "PTR")
}
_MACROS = _NUMBERS | _FORMATS
# The names of floating numbers that formulas use.
NUMBERS = {
    name: float(value.rstrip("f"))
    for name, value in _NUMBERS.items()
    if name[:2] == "M_" or name in ("FLT_MAX", "FLT_MIN", "FLT_EPSILON")
}
_MATH = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "copysign",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "fdim",
        "floor",
        "fma",
        "fmax",
        "fmin",
        "fmod",
        "frexp",
        "hypot",
        "ilogb",
        "isfinite",
        "isinf",
        "isnan",
        "ldexp",
        "lgamma",
        "llrint",
        "llround",
        "log",
        "log10",
        "log1p",
        "log2",
        "logb",
        "lrint",
        "lround",
        "modf",
        "nearbyint",
        "nextafter",
        "pow",
        "remainder",
        "remquo",
        "rint",
        "round",
        "scalbln",
        "scalbn",
        "signbit",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
        "tgamma",
        "trunc",
    ]
)
# The functions of <cmath> for float, which the host's library has in `std`, too.
_MATH_OF_FLOAT = frozenset(f"{name}f" for name in _MATH - {"abs", "isfinite", "isinf", "isnan", "signbit"})
# Functions of <math.h> and <cmath> that NVRTC does not have. Those of long double end with an l.
_MATH_OF_THE_HOST = re.compile(
    r"(?:a?(?:cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp(?:2|10|m1)?|fabs|fdim|floor|fma|fmax|fmin|fmod|frexp|hypot|ilogb|[jy][01n]|ldexp"
    r"|lgamma|ll?r(?:int|ound)|log(?:10|1p|2|b)?|modf|nan|nearbyint|nextafter|pow|remainder|remquo|rint|round|scalbl?n|sqrt|tgamma|trunc)l"
    r"|drem[fl]?|finite[fl]?|gamma[fl]?|lgamma[fl]?_r|scalb[fl]?|significand[fl]?|nexttoward[fl]?|roundeven[fl]?|next(?:up|down)[fl]?|llogb[fl]?"
    r"|fpclassify|is(?:greater|less)(?:equal)?|islessgreater|isunordered|isnormal|issignaling|iszero|iseqsig"
    r"|f(?:max|min)imum(?:_mag)?(?:_num)?[fl]?|canonicalize[fl]?|totalorder(?:mag)?[fl]?"
)
_BUILT_IN = frozenset(("move", "forward", "initializer_list"))  # NVRTC has them
_CUDA_CONSTANT = re.compile(r"CUDART_[A-Z0-9_]+")
_OF_CPP = (
    *("array", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdlib", "cstring", "functional"),
    *("initializer_list", "limits", "tuple", "type_traits", "utility"),
)
_OF_C = ("assert.h", "float.h", "limits.h", "math.h", "stddef.h", "stdio.h", "stdlib.h", "string.h", "cstdio")
_STD = re.compile(r"(?<![\w:])(?:::\s*)?std\s*::\s*(\w+)")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_NAMED_BEHIND = re.compile(r"\}\s*([A-Za-z_]\w*)\s*;")  # the name in a typedef of an unnamed class
_SIZES = frozenset(("size_t", "ptrdiff_t", "nullptr_t"))
_BYTES = frozenset(("memcpy", "memset", "printf"))  # built in
# Functions that the host's library, and nvcc with it, has for integers and for numbers of two types, which become double.
_OF_TWO = frozenset(("atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "nextafter", "pow", "remainder"))
_OF_ONE = (
    (_MATH | frozenset(("j0", "j1", "y0", "y1")))
    - _OF_TWO
    - {"abs", "fma", "frexp", "ilogb", "isfinite", "isinf", "isnan", "ldexp", "llrint", "llround", "lrint", "lround"}
    - {"modf", "remquo", "scalbln", "scalbn", "signbit"}
)
# Functions of one such number, whose result is not a double, and the second parameter of those that have one.
_OF_ANOTHER_RESULT = {
    **dict.fromkeys(("ilogb", "isfinite", "isinf", "isnan", "llrint", "llround", "lrint", "lround", "signbit"), ""),
    "frexp": "int*",
    "ldexp": "int",
    "scalbln": "long",
    "scalbn": "int",
}
_INTEGER_TYPES = (
    *("bool", "char", "signed char", "unsigned char", "wchar_t", "short", "unsigned short", "int", "unsigned int"),
    *("long", "unsigned long", "long long", "unsigned long long"),
)
# Spellings of keywords that nvcc knows and NVRTC does not.
_KEYWORDS = {"__asm__": "asm", "__asm": "asm", "register": ""}
# Functions of g++ on bits, which nvcc has: the value in a constant expression, and CUDA's function for the rest.
_BITS = {
    "popcount": ("for (int i = 0; i < BITS; ++i) n += x >> i & 1;", "__popc(x)"),
    "clz": ("while (n < BITS && !(x >> (BITS - 1 - n) & 1)) ++n;", "__clz(x)"),
    "ctz": ("while (n < BITS && !(x >> n & 1)) ++n;", "__ffs(x) - 1"),
    "ffs": ("while (x && !(x >> n++ & 1)) {}", "__ffs(x)"),
}
_OF_GCC = {
    f"__builtin_{name}{width}": (
        f"static __device__ __forceinline__ constexpr int cupyops_{name}{width}(unsigned {'long long' if width else 'int'} x) "
        f"{{ int n = 0; if (__builtin_is_constant_evaluated()) {{ {known.replace('BITS', '64' if width else '32')} return n; }} "
        f"return {of_cuda.replace('(', 'll(') if width else of_cuda}; }}"
    )
    for name, (known, of_cuda) in _BITS.items()
    for width in ("", "l", "ll")
}
# The macros that g++ defines by itself.
_PREDEFINED = {
    "__CHAR_BIT__": "8",
    "__SCHAR_MAX__": "127",
    "__SHRT_MAX__": "32767",
    "__INT_MAX__": "2147483647",
    "__LONG_MAX__": "((long)(~0ul >> 1))",
    "__LONG_LONG_MAX__": "9223372036854775807LL",
    "__FLT_MAX__": "3.402823466e+38f",
    "__FLT_MIN__": "1.175494351e-38f",
    "__FLT_EPSILON__": "1.192092896e-07f",
    "__DBL_MAX__": "1.7976931348623157e+308",
    "__DBL_MIN__": "2.2250738585072014e-308",
    "__DBL_EPSILON__": "2.2204460492503131e-16",
    **{
        f"__SIZEOF_{name.upper().replace(' ', '_')}__": f"sizeof({name})"
        for name in ("short", "int", "long", "long long", "float", "double")
    },
    "__SIZEOF_POINTER__": "sizeof(void*)",
}
_PLACED = re.compile(r"\bnew\s*\(")  # an object in memory that is there
_KNOWN_OF_STD = (
    _MATH
    | _MATH_OF_FLOAT
    | OF_STD
    | _BUILT_IN
    | OWN.keys()
    | _SIZES
    | _BYTES
    | {n for n in _INTEGERS if n.endswith("_t")}
)


@lru_cache(256)
def unknown(code: str) -> tuple[tuple[int, str], ...]:
    """Returns the offsets and the names ``std::...`` in code that kernels cannot use.

    Results are cached: texts share headers, and each compilation of a kernel asks for them all.
    """
    return tuple((m.start(), m[1]) for m in _STD.finditer(code) if m[1] not in _KNOWN_OF_STD)


def definitions(
    code: str, declared: Collection[str], simulated: bool, library: bool = False, given_thrust: bool = False
) -> list[str]:
    """Returns the lines that define the names of the list that a text uses.

    Args:
        code: the text and its headers, without comments, directives and literals, and the texts of its macros.
        declared: names that the text itself declares.
        simulated: whether the simulator compiles the text. Its compiler has the C library's names.
        library: whether the text includes CUDA's C++ library, which defines the numbers of <cfloat> and <climits>.
        given_thrust: whether a folder of the options has the headers of Thrust.
    """
    words = set(_WORD.findall(code)) - set(declared) - set(_NAMED_BEHIND.findall(code))
    of_std = {m[1] for m in _STD.finditer(code)} if "std" in words else set()
    of_std |= specialized(code)
    numbers = [f"#ifndef {n}\n#define {n} {_MACROS[n]}\n#endif" for n in sorted(words & _MACROS.keys())]
    numbers += [f"typedef {_OF_LIBRARIES[n]} {n};" for n in sorted(words & _OF_LIBRARIES.keys())]
    # The simulator has a function of its own for a failed assertion.
    own_assert = {"__assert_fail": "#define __assert_fail cupyops_assert"} if simulated else {}
    numbers += [own_assert.get(n, _FUNCTIONS[n]) for n in sorted(words & _FUNCTIONS.keys())]
    # nvcc accepts the storage class that C++17 removed, too.
    numbers += [
        f"#define {n} {_KEYWORDS[n]}".rstrip()
        for n in sorted(words & _KEYWORDS.keys())
        if not simulated or n == "register"
    ]
    predefined = [f"#define {n} {_PREDEFINED[n]}" for n in sorted(words & _PREDEFINED.keys())]
    thrust = thrust_lines(code) if "thrust" in words and not given_thrust else []
    if simulated:
        hosts = [host for names, _, host in LIBRARY if of_std & names]
        hosts += ["functional"] if "functional" not in hosts and not of_std.isdisjoint(FUNCTORS) else []
        hosts += ["iterator"] if "iterator" in of_std else []
        hosts += ["algorithm", "cmath", "cstdint", "cstddef", "initializer_list"] if of_std else []
        # Not every library of a host has these in std.
        within = [f"using ::{name};" for name in sorted(of_std & (_MATH_OF_FLOAT | _BYTES))]
        within += [OF_COMPLEX[name] for name in sorted(of_std & OF_COMPLEX.keys())]
        hosts += ["new"] if _PLACED.search(code) else []
        if "bit_cast" in of_std:  # C++20 has it in <bit>
            hosts += ["bit"]
            within += ["#if !defined(__cpp_lib_bit_cast)", OWN["bit_cast"], "#endif"]
        lines = [*as_library([f"<{name}>" for name in hosts]), *thrust, *numbers]
        # Types of the host's headers, which the text may declare with another type of 64 bits.
        own = sorted(n for n in _INTEGERS.keys() & set(declared) - of_std if "long long" in _INTEGERS[n])
        # Functions of the host's <math.h>, beside which the text's own would be ambiguous.
        own += sorted(n for n in words if _MATH_OF_THE_HOST.fullmatch(n) and _defines(n).search(code))
        lines += [f"#undef {name}\n#define {name} CupyopsOwn_{name}" for name in own]
        lines += predefined
        return [*lines, *(["namespace std {", *within, "}"] if within else [])]
    lines = ["#include <math_constants.h>"] if any(map(_CUDA_CONSTANT.fullmatch, words)) else []
    for name in sorted(words & _OF_GCC.keys()):
        lines += [_OF_GCC[name], f"#define {name} cupyops_{name.removeprefix('__builtin_')}"]
    lines += ["#define offsetof(T, member) __INTADDR__(&(((T*)0)->member))"] if "offsetof" in words else []
    lines += predefined
    lines += [f"typedef {_INTEGERS[name]} {name};" for name in sorted(words & _INTEGERS.keys())]
    lines += _for_integers(code, words)
    within = [OWN[name] for name in sorted(of_std & OWN.keys())]
    within += [
        f"using ::{name};"
        for name in sorted(of_std & (_MATH | _MATH_OF_FLOAT | _SIZES | _BYTES | _INTEGERS.keys()) - {"nullptr_t"})
    ]
    within += ["using nullptr_t = decltype(nullptr);"] if "nullptr_t" in of_std else []
    includes, names = library_lines(of_std)
    lines += [*includes, *thrust]
    within += names
    if numbers and (library or any(line.startswith("#include <cuda/") for line in lines)):
        lines += [f"#include <cuda/std/{name}>" for name in ("cfloat", "climits", "cstdint")]
    lines += [*(["namespace std {", *within, "}"] if within else []), *numbers]
    if library or any(line.startswith("#include <cuda/") for line in lines):
        own = sorted({*own_integers(code, declared, _INTEGERS)} - of_std)
        lines += ["#include <cuda/std/cstdint>"] if own else []
        lines += [f"#define {name} CupyopsOwn_{name}" for name in own]
    return lines


def _for_integers(code: str, words: Collection[str]) -> list[str]:
    """Returns the lines that define the overloads of the mathematical functions that a text calls, unless the text defines a
    function of the name.

    A function without a template is preferred where the types fit it, so float and double have CUDA's functions.
    """
    known = _OF_ONE | _OF_TWO | _OF_ANOTHER_RESULT.keys() | {"fma"}
    used = sorted(name for name in known & set(words) if not _defines(name).search(code))
    if not used:
        return []
    lines = ["template <class T> struct CupyopsInteger {};", "template <class T> struct CupyopsNumber {};"]
    for types, name in ((_INTEGER_TYPES, "Integer"), ((*_INTEGER_TYPES, "float", "double"), "Number")):
        lines += [f"template <> struct Cupyops{name}<{of}> {{ typedef double type; }};" for of in types]
    device = "__device__ __forceinline__"
    for name in used:
        if name in _OF_ONE:
            lines.append(
                f"template <class T> {device} typename CupyopsInteger<T>::type {name}(T x) {{ return {name}((double)x); }}"
            )
        elif name in _OF_TWO:
            lines.append(
                f"template <class A, class B, class = typename CupyopsNumber<A>::type> {device} "
                f"typename CupyopsNumber<B>::type {name}(A a, B b) {{ return {name}((double)a, (double)b); }}"
            )
        elif name == "fma":
            lines.append(
                "template <class A, class B, class C, class = typename CupyopsNumber<A>::type, class = typename "
                f"CupyopsNumber<B>::type> {device} typename CupyopsNumber<C>::type fma(A a, B b, C c) "
                "{ return fma((double)a, (double)b, (double)c); }"
            )
        else:
            second = _OF_ANOTHER_RESULT[name]
            declared, given = (f", {second} y", ", y") if second else ("", "")
            call = f"{name}((double)x{given})"
            lines.append(
                f"template <class T, class = typename CupyopsInteger<T>::type> {device} auto {name}(T x{declared}) "
                f"-> decltype({call}) {{ return {call}; }}"
            )
    return lines


@lru_cache(64)
def _defines(name: str) -> re.Pattern[str]:
    """Returns the expression of the definition of a function."""
    return re.compile(rf"[\w>*&]\s+{name}\s*\([^{{}};()]*\)\s*(?:noexcept\s*)?\{{")


def for_libraries() -> dict[str, str]:
    """Returns, by name, the standard headers that NVRTC gives to a library's headers in the folders of the options ``-I``.

    CUDA's C++ library takes the place of the host's. The headers of the C library are empty, since NVRTC has the functions.
    """
    found = dict.fromkeys(_OF_C, "")
    version = "(__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)"  # as in CUDA's file, which includes others
    found["cuda.h"] = f"#ifndef CUDA_VERSION\n#define CUDA_VERSION {version}\n#endif\n"
    for name in _OF_CPP:
        found[name] = (
            f"#pragma once\n#include <cuda/std/cstddef>\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"
        )
    return found


def as_library(headers: Collection[str]) -> list[str]:
    """Returns the lines with which the simulator includes headers that are not written for CUDA."""
    includes = [f"#include {header}" for header in headers]
    return ['#include "library_only.h"', *includes, '#include "text_only.h"'] if includes else []
