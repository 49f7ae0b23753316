"""Finds the device functions of classes that a text defines outside of their classes."""

import re
from functools import lru_cache

from .cuda_text import scan

__all__ = ["class_of", "is_of_device"]

_OUTSIDE = re.compile(
    r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>\s*)?::\s*(~?[A-Za-z_]\w*|operator\s*[^\s\w(]+|operator\s*\(\s*\))\s*\("
)


_CONVERSION = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>\s*)?::\s*operator\s+\w[^(){};]*\(")
# A class has its name behind `struct`, or behind one more word: a macro for attributes.
_CLASS = re.compile(r"\b(?:struct|class)\s+(?:(\w+)\s+)?(\w+)\b[^;{}()]*\{")
_MEMBER = re.compile(r"(~?[A-Za-z_]\w*|operator\s*[^\s\w(]+|operator\s*\(\s*\))\s*\(")


def class_of(head: str) -> str:
    """Returns the name of the class of a member function that is defined outside of its class, or ``""``."""
    found = _CONVERSION.search(head) or _OUTSIDE.search(head)
    return found[1] if found is not None else ""


def is_of_device(head: str, *texts: str) -> bool:
    """Returns whether a function that is defined outside of its class is a device function by its declaration in the class.

    Args:
        head: the code before the body.
        texts: the texts that may have the class.
    """
    found = _OUTSIDE.search(head)
    return found is not None and any(found[2] in _members(text).get(found[1], ()) for text in texts)


@lru_cache(64)
def _members(text: str) -> dict[str, set[str]]:
    """Returns, by the name of each class of a text, the names of the member functions that are declared with ``__device__``."""
    code, found = scan(text), dict[str, set[str]]()
    for opened in _CLASS.finditer(code.bare) if "__device__" in code.bare else ():
        body = code.bare[opened.end() : code.end_of_function(opened.end() - 1)]
        names = {
            member[1]
            for piece in re.split(r"[;{}]", body)
            for member in _MEMBER.finditer(piece.partition("__device__")[2])
        }
        for name in opened.groups() if names else ():
            if name is not None:
                found.setdefault(name, set()).update(names)
    return found
