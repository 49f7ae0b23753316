"""What a host compiler takes and NVRTC does not: extensions of g++ to C++, and functions of the C library.

The simulator compiles kernels with a host compiler, and refuses these by name. NVRTC's own messages name them, too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from .cpp_library import CONCEPTS
from .cuda_text import scan

__all__ = ["OF_THE_HOST", "beyond_nvrtc", "standard_of"]

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
_CALL = re.compile(rf"(?<![\w.>:])(?<!\bstruct )(?:::\s*)?({'|'.join(sorted(OF_THE_HOST))})\s*\(")
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
def beyond_nvrtc(bare: str, options: tuple[str, ...]) -> list[tuple[int, str]]:
    """Returns the offsets of what NVRTC refuses in code, in order, and the sentences that say so.

    Results are cached: the final texts of a kernel for other dtypes and constants have the same code.

    Args:
        bare: code without comments, literals and directives.
        options: NVRTC options, which may choose a later version of C++.
    """
    return sorted(_beyond_nvrtc(bare, options))


def _beyond_nvrtc(bare: str, options: Sequence[str]) -> Iterator[tuple[int, str]]:
    for pattern, what in _EXTENSIONS:
        for match in pattern.finditer(bare):
            yield match.start(), f"{what} is an extension of g++, which NVRTC refuses"
    if not any(map(_LATER.match, options)):
        for match in _DESIGNATED.finditer(bare):
            yield match.start(), "an initializer that names a member is of C++20; give the option -std=c++20"
    for match in _BUILTIN.finditer(bare):
        if match[1] not in _BUILTINS_OF_NVRTC and not match[1].startswith("va_"):
            yield match.start(), f"{match[0]} is a function of g++, which NVRTC does not have"
    declared: dict[str, bool] = {}
    for match in _CALL.finditer(bare):
        name = match[1]
        if name not in declared:  # a function of the text, or a variable of this name
            declared[name] = bool(
                re.search(rf"(?:[\w>*&]\s+|[*&]){name}\s*(?:\([^(){{}};]*\)\s*(?:const\s*)?\{{|[=;,)\[])", bare)
            )
        if not declared[name]:
            yield match.start(1), f"{name} is of the host's C library, which NVRTC does not have"
