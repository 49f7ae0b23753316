"""What a host compiler takes and NVRTC does not: extensions of g++ to C++, and functions of the C library.

The simulator compiles kernels with a host compiler, and refuses these by name. NVRTC's own messages name them, too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from .cpp_library import CONCEPTS
from .cuda_text import scan

__all__ = ["MATH_OF_THE_HOST", "OF_THE_HOST", "beyond_nvrtc", "declares", "standard_of"]

# Functions of the C library that NVRTC does not have.
OF_THE_HOST = frozenset(
    [
        "abort",
        "aligned_alloc",
        "atof",
        "atoi",
        "atol",
        "atoll",
        "bsearch",
        "calloc",
        "div",
        "exit",
        "fprintf",
        "fputs",
        "getenv",
        "ldiv",
        "lldiv",
        "memchr",
        "memcmp",
        "memmove",
        "perror",
        "putchar",
        "puts",
        "qsort",
        "rand",
        "realloc",
        "scanf",
        "snprintf",
        "srand",
        "strcat",
        "strchr",
        "strcmp",
        "strcpy",
        "strdup",
        "strlen",
        "strncat",
        "strncmp",
        "strncpy",
        "strrchr",
        "strstr",
        "strtod",
        "strtof",
        "strtol",
        "strtoul",
        "system",
        "time",
    ]
)
# Functions of <math.h> and <cmath> that NVRTC does not have. Those of long double end with an l.
MATH_OF_THE_HOST = re.compile(
    r"(?:a?(?:cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp(?:2|10|m1)?|fabs|fdim|floor|fma|fmax|fmin|fmod|frexp|hypot|ilogb|[jy][01n]|ldexp"
    r"|lgamma|ll?r(?:int|ound)|log(?:10|1p|2|b)?|modf|nan|nearbyint|nextafter|pow|remainder|remquo|rint|round|scalbl?n|sqrt|tgamma|trunc)l"
    r"|drem[fl]?|finite[fl]?|gamma[fl]?|lgamma[fl]?_r|scalb[fl]?|significand[fl]?|nexttoward[fl]?|roundeven[fl]?|next(?:up|down)[fl]?|llogb[fl]?"
    r"|fpclassify|is(?:greater|less)(?:equal)?|islessgreater|isunordered|isnormal|issignaling|iszero|iseqsig"
    r"|f(?:max|min)imum(?:_mag)?(?:_num)?[fl]?|canonicalize[fl]?|totalorder(?:mag)?[fl]?"
)
_CALL = re.compile(
    rf"(?<![\w.>:])(?<!\bstruct )(?:::\s*)?({'|'.join(sorted(OF_THE_HOST))}|{MATH_OF_THE_HOST.pattern}|__(?:sync|atomic)_\w+)\s*\("
)
_BUILTIN = re.compile(r"\b__builtin_(\w+)")
_BUILTINS_OF_NVRTC = frozenset(
    [
        "align__",
        "assume",
        "assume_aligned",
        "bit_cast",
        "clz",
        "clzl",
        "clzll",
        "ctz",
        "ctzl",
        "ctzll",
        "expect",
        "ffs",
        "ffsl",
        "ffsll",
        "is_constant_evaluated",
        "offsetof",
        "popcount",
        "popcountl",
        "popcountll",
        "unreachable",
    ]
)
# Blanks stand for a literal, which has two characters or more: `ready ? "yes" : "no"` has its second operand.
_EXTENSIONS = (
    (re.compile(r"\bcase\b(?:(?!\bcase\b)[^:;{}?])*?\.\.\."), "a range in a case"),
    (re.compile(r"\?[ \t]?:(?!:)"), "a conditional without its second operand"),
    (re.compile(r"(?<![\w>\])])\(\s*\{[^{}]*;[^{}]*\}\s*\)"), "a statement in an expression"),
    (re.compile(r"\b(?:__)?typeof(?:__)?\s*\("), "typeof"),
)
_DESIGNATED = re.compile(r"[{,]\s*\.[A-Za-z_]\w*\s*=(?!=)")
_LATER = re.compile(r"-std=(?:c|gnu)\+\+2\w|--std=c\+\+2\w")
# g++, and nvcc with it, takes such functions in former versions, too.
_AUTO = re.compile(
    r"\b(?!(?:for|if|while|switch|catch)\b)[A-Za-z_]\w*\s*\((?:[^(){};=]*,)?\s*(?:const\s+)?auto\b[^(){};=]*\)\s*(?:const\s*)?\{"
)
_OF_CPP20 = re.compile(
    rf"{_DESIGNATED.pattern}|{_AUTO.pattern}|\bstd\s*::\s*(?:{'|'.join(sorted(CONCEPTS))})\b|>\s*concept\s+\w+\s*=|(?<=[>)])\s*requires\b|\bconst(?:eval|init)\b"
)


def standard_of(texts: Iterable[str], options: Sequence[str]) -> tuple[str, ...]:
    """Returns the option ``-std=c++20`` for code that no former version of C++ has: concepts, initializers that name a member,
    functions with parameters of the type ``auto``, ``consteval`` and ``constinit``. Returns no option if `options` choose a version.

    Args:
        texts: CUDA C++.
        options: NVRTC options.
    """
    if any(re.match(r"--?std\b", option) for option in options):
        return ()
    return ("-std=c++20",) if any(_OF_CPP20.search(scan(text).bare) for text in texts) else ()


@lru_cache(256)
def beyond_nvrtc(bare: str, options: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Returns the offsets of what NVRTC refuses in code, in order, the sentences that say so, and the names of functions that are
    called: a header or a macro of the text may define one.

    Results are cached: the final texts of a kernel for other dtypes and constants have the same code.

    Args:
        bare: code without comments, literals and directives.
        options: NVRTC options, which may choose a later version of C++.
    """
    return sorted(_beyond_nvrtc(bare, options))


def _beyond_nvrtc(bare: str, options: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for pattern, what in _EXTENSIONS:
        for match in pattern.finditer(bare):
            yield match.start(), f"{what} is an extension of g++, which NVRTC refuses", ""
    if not any(map(_LATER.match, options)):
        for match in _DESIGNATED.finditer(bare):
            yield match.start(), "an initializer that names a member is of C++20; give the option -std=c++20", ""
    for match in _BUILTIN.finditer(bare):
        if match[1] not in _BUILTINS_OF_NVRTC and not match[1].startswith("va_"):
            yield match.start(), f"{match[0]} is a function of g++, which NVRTC does not have", ""
    for match in _CALL.finditer(bare):
        of = "a function of g++" if match[1].startswith("__") else "of the host's C library"
        yield match.start(1), f"{match[1]} is {of}, which NVRTC does not have", match[1]


def declares(texts: Iterable[str], name: str) -> bool:
    """Returns whether texts have a function, a variable or a macro of a name."""
    declared = re.compile(rf"(?:[\w>*&]\s+|[*&]){name}\s*(?:\([^(){{}};]*\)\s*(?:const\s*)?\{{|[=;,)\[])")
    return any(
        declared.search(code.bare)
        or any(d.name == "define" and re.match(rf"{name}\b", d.rest) for d in code.directives)
        for code in map(scan, texts)
    )
