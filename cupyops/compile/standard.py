"""The names of the C and C++ libraries that a kernel may use under NVRTC and in the simulator alike.

nvcc includes the host's ``<math.h>``, ``<stdint.h>`` and others before every text, and kernels written for nvcc use their
names. NVRTC has none of these headers. The prelude of a text therefore defines the names of this list that the text uses.
A name of ``std`` that is not in this list is refused.
"""

import re
from collections.abc import Collection, Set
from functools import cache, lru_cache

from .cpp_library import STD, library_lines, names_in, specialized, thrust_lines
from .declarations import WORD
from .own_integers import own_integers

__all__ = ["INTEGERS", "NUMBERS", "as_library", "definitions", "for_libraries", "known_of_std", "unknown"]

INTEGERS = {
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
# The formats of <cinttypes>, ``PRIu64`` and the like.
_FORMATS = {
    f"PRI{letter}{bits}": f'"{"" if bits in ("8", "16", "32") else "ll"}{letter}"'
    for letter in "diouxX"
    for bits in ("8", "16", "32", "64", "MAX", "PTR")
}
C = "c.cuh"
# The floating numbers that formulas use, by their names.
NUMBERS = {
    name: float(value.rstrip("f"))
    for name, value in names_in(C).macros.items()
    if name[:2] == "M_" or name in ("FLT_MAX", "FLT_MIN", "FLT_EPSILON")
}
MATH = "math.cuh"
_MATH = names_in(MATH).defined.keys() - {"CupyopsInteger", "CupyopsNumber", "j0", "j1", "y0", "y1"} | {
    "abs",
    "modf",
    "remquo",
}
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
_NAMED_BEHIND = re.compile(r"\}\s*([A-Za-z_]\w*)\s*;")  # the name in a typedef of an unnamed class
_SIZES = frozenset(("size_t", "ptrdiff_t", "nullptr_t"))
_BYTES = frozenset(("memcpy", "memset", "printf"))  # built in
_OWN_OF_STD = {"real", "imag", "conj", "norm", "bit_cast"}  # which the host's library lacks, or has for its own types
_PLACED = re.compile(r"\bnew\s*\(")  # an object in memory that is there


@cache
def known_of_std() -> Set[str]:
    """Returns the names of ``std`` that kernels may use."""
    found = names_in(STD)
    own = _MATH | _MATH_OF_FLOAT | _BUILT_IN | _SIZES | _BYTES | {n for n in INTEGERS if n.endswith("_t")}
    return own | found.imported.keys() | found.defined.keys()


@lru_cache(256)
def unknown(code: str) -> tuple[tuple[int, str], ...]:
    """Returns the offsets and the names ``std::...`` in code that kernels cannot use.

    Results are cached: texts share headers, and each compilation of a kernel asks for them all.
    """
    return tuple((m.start(), m[1]) for m in _STD.finditer(code) if m[1] not in known_of_std())


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
    words = set(WORD.findall(code)) - set(declared) - set(_NAMED_BEHIND.findall(code))
    of_std = {m[1] for m in _STD.finditer(code)} if "std" in words else set()
    of_std |= specialized(code)
    macros = names_in(C).macros | _FORMATS
    numbers = [f"#ifndef {n}\n#define {n} {macros[n]}\n#endif" for n in sorted(words & macros.keys())]
    numbers += names_in(C).definitions(words)
    thrust = thrust_lines(code) if "thrust" in words and not given_thrust else []
    if simulated:
        hosts = [re.sub(r".*/(\w+)>", r"\1", include) for include in library_lines(of_std)[0]]
        hosts += ["functional"] if not of_std.isdisjoint(("unary_function", "binary_function")) else []
        hosts += ["iterator"] if "iterator" in of_std else []
        hosts += ["algorithm", "cmath", "cstdint", "cstddef", "initializer_list"] if of_std else []
        # Not every library of a host has these in std.
        within = [f"using ::{name};" for name in sorted(of_std & (_MATH_OF_FLOAT | _BYTES))]
        within += names_in(STD).definitions(of_std & _OWN_OF_STD)
        hosts += ["new"] if _PLACED.search(code) else []
        hosts += ["bit"] if "bit_cast" in of_std else []
        lines = [*as_library([f"<{name}>" for name in dict.fromkeys(hosts)]), *thrust, *numbers]
        # Types of the host's headers, which the text may declare with another type of 64 bits.
        own = sorted(n for n in INTEGERS.keys() & set(declared) - of_std if "long long" in INTEGERS[n])
        # Functions of the host's <math.h>, beside which the text's own would be ambiguous.
        own += sorted(n for n in words if _MATH_OF_THE_HOST.fullmatch(n) and _defines(n).search(code))
        lines += [f"#undef {name}\n#define {name} CupyopsOwn_{name}" for name in own]
        return [*lines, *(["namespace std {", *within, "}"] if within else [])]
    lines = ["#include <math_constants.h>"] if any(map(_CUDA_CONSTANT.fullmatch, words)) else []
    lines += [f"typedef {INTEGERS[name]} {name};" for name in sorted(words & INTEGERS.keys())]
    lines += names_in(MATH).definitions(
        n for n in names_in(MATH).defined if n in words and not _defines(n).search(code)
    )
    within = names_in(STD).definitions(of_std)
    within += [
        f"using ::{name};"
        for name in sorted(of_std & (_MATH | _MATH_OF_FLOAT | _SIZES | _BYTES | INTEGERS.keys()) - {"nullptr_t"})
    ]
    within += ["using nullptr_t = decltype(nullptr);"] if "nullptr_t" in of_std else []
    includes, names = library_lines(of_std)
    lines += [*includes, *thrust]
    within += names
    if numbers and (library or any(line.startswith("#include <cuda/") for line in lines)):
        lines += [f"#include <cuda/std/{name}>" for name in ("cfloat", "climits", "cstdint")]
    lines += [*(["namespace std {", *within, "}"] if within else []), *numbers]
    if library or any(line.startswith("#include <cuda/") for line in lines):
        own = sorted({*own_integers(code, declared, INTEGERS)} - of_std)
        lines += ["#include <cuda/std/cstdint>"] if own else []
        lines += [f"#define {name} CupyopsOwn_{name}" for name in own]
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
