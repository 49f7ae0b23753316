"""Integer types of the C library's headers that a text declares itself, such as ``typedef ptrdiff_t intptr_t;``.

CUDA's C++ library declares these names, too, and two declarations of a name have to be of the same type. The text's name is
then a macro for another name, after the headers of the library.
"""

import re
from collections.abc import Collection, Mapping

__all__ = ["own_integers", "renamed"]

_DECLARED = re.compile(r"\btypedef\s+([\w ]{1,64}?)\s*\b(\w+)\s*;|\busing\s+(\w+)\s*=\s*([\w :]{1,64}?)\s*;")
_RENAMED = re.compile(r"#define (\w+) (CupyopsOwn_\w+)")


def own_integers(code: str, declared: Collection[str], integers: Mapping[str, str]) -> list[str]:
    """Returns the names of integers that a text declares with another type than the library has, in the order of the alphabet.

    Args:
        code: the text and its headers, without comments, directives and literals.
        declared: names that the text declares.
        integers: the types that the library has, by name.
    """
    if integers.keys().isdisjoint(declared):
        return []
    found = ((m[2] or m[3], m[1] or m[4]) for m in _DECLARED.finditer(code))
    return sorted({n for n, of in found if n in declared and n in integers and _words(of) != _words(integers[n])})


def _words(of: str) -> list[str]:
    """Returns the words of a type, sorted and without those that may be left out: equal for ``unsigned long int`` and ``long unsigned``."""
    words = of.split()
    without = ("int",) if "char" in words else ("int", "signed")
    return sorted(word for word in words if word not in without)


def renamed(lines: Collection[str]) -> dict[str, str]:
    """Returns the macros of such names in the lines of a prelude."""
    return {m[1]: m[2] for line in lines if (m := _RENAMED.fullmatch(line))}
