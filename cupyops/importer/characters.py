"""Pointers to characters. A ``const char*`` of host code is a ``str``, and one that has been moved is a :class:`Text`.

An array of characters is a list of numbers, and a pointer into it a :class:`.references.Pointer`. The functions take both.
"""

from typing import Any

from .errors import NotTranslated
from .references import Pointer

__all__ = ["Text", "char_at", "distance", "moved", "string_at"]


class Text(str):
    """A pointer into a text: the characters from there to the end.

    Attributes:
        whole: the text.
        offset: where it points, in characters.
    """

    __slots__ = ("offset", "whole")
    whole: str
    offset: int

    def __new__(cls, whole: str, offset: int) -> "Text":
        """Points to a character of a text, or to the zero after its last one.

        Raises:
            IndexError: neither.
        """
        if not 0 <= offset <= len(whole):
            raise IndexError(f"a pointer to character {offset} of a text of {len(whole)}")
        made = super().__new__(cls, whole[offset:])
        made.whole, made.offset = whole, offset
        return made


def _place(pointer: str) -> tuple[str, int]:
    return (pointer.whole, pointer.offset) if isinstance(pointer, Text) else (pointer, 0)


def moved(pointer: Any, count: int) -> Any:
    """Returns ``p + count``."""
    if not isinstance(pointer, str):
        return pointer + count
    whole, offset = _place(pointer)
    return Text(whole, offset + count)


def char_at(pointer: Any, index: int = 0) -> int:
    """Returns ``p[index]``, a signed ``char``; 0 after the last character of the string."""
    if not isinstance(pointer, str):
        return int(pointer[index])
    rest = moved(pointer, index)
    code = ord(rest[0]) if rest else 0
    return code - 256 if 127 < code < 256 else code


def distance(a: Any, b: Any) -> int:
    """Returns ``a - b``.

    Raises:
        NotTranslated: the pointers point into different strings.
    """
    if not isinstance(a, str):
        return int(a - b)
    (one, first), (other, second) = _place(a), _place(b)
    if one != other:
        raise NotTranslated("the difference of pointers into two texts")
    return first - second


def string_at(pointer: Any) -> Any:
    """Returns the text to which a ``const char*`` points, up to a zero; None for the null pointer."""
    if not isinstance(pointer, Pointer):
        return pointer
    codes: list[str] = []
    while code := pointer[len(codes)]:
        codes.append(chr(code & 255))
    return "".join(codes)
