"""Finds what members say of classes: the device functions that a text defines outside of their classes, and constructors that are
``constexpr``."""

import re
from collections.abc import Collection
from functools import lru_cache

from .cuda_text import scan

__all__ = ["behind_labels", "class_of", "is_literal", "is_of_device"]

_OUTSIDE = re.compile(
    r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>\s*)?::\s*(~?[A-Za-z_]\w*|operator\s*[^\s\w(]+|operator\s*\(\s*\))\s*\("
)
_PATH = re.compile(r"(?:(?<!\w)[A-Za-z_]\w*\s*(?:<[^<>;{}]*>\s*)?::\s*)*\Z")  # what stands before the class
_STEP = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>]*>\s*)?::")
_CONVERSION = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>\s*)?::\s*operator\s+\w[^(){};]*\(")
# A class has its name behind `struct`, or behind one more word: a macro for attributes.
_CLASS = re.compile(r"\b(?:struct|class)\s+(?:(\w+)\s+)?(\w+)\b[^;{}()]*\{")
_LABEL = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
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
    if found is None:
        return False
    outer = _STEP.findall(_PATH.search(head, 0, found.start())[0])  # type: ignore[index]
    # Classes of one name may lie in different classes. Of those whose outer classes the head names, the innermost counts.
    fitting = [
        (len(classes), found[2] in names)
        for text in texts
        for classes, names in _members(text).get(found[1], ())
        if list(classes) == outer[len(outer) - len(classes) :]
    ]
    depth = max((depth for depth, _ in fitting), default=0)
    return (depth, True) in fitting


@lru_cache(64)
def _members(text: str) -> dict[str, list[tuple[tuple[str, ...], set[str]]]]:
    """Returns, for each name of a class of a text, the classes around such a class, and the names of the member functions that are
    declared with ``__device__``."""
    code = scan(text)
    found: dict[str, list[tuple[tuple[str, ...], set[str]]]] = {}
    around: list[tuple[int, str]] = []  # the ends and the names of the classes that are open
    for opened in _CLASS.finditer(code.bare) if "__device__" in code.bare else ():
        end = code.end_of_function(opened.end() - 1)
        around = [of for of in around if of[0] > opened.start()]
        names = {
            member[1]
            for piece in re.split(r"[;{}]", code.bare[opened.end() : end])
            for member in _MEMBER.finditer(piece.partition("__device__")[2])
        }
        for name in filter(None, opened.groups()):
            found.setdefault(name, []).append((tuple(name for _, name in around), names))
        around.append((end, opened[2]))
    return found


def behind_labels(signature: str) -> int:
    """Returns the offset behind the last label of a member's signature, ``public:`` for one."""
    return max((label.end() for label in _LABEL.finditer(signature)), default=0)


def is_literal(piece: str, names: Collection[str]) -> bool:
    """Returns whether the declaration of a class of one of the names has a ``constexpr`` constructor. Kernels may read constants of
    the class, and have them as template arguments."""
    return any(re.search(rf"\bconstexpr\s+(?:explicit\s+)?{re.escape(name)}\s*\(", piece) for name in names)
