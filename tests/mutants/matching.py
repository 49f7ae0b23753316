"""Finds a piece of CUDA C++ in a text token by token, so that formatting, comments and, where a pattern says so, names do not matter.

A pattern is written as code. White space, line breaks, backslashes at a line's end and comments stand for nothing in
the pattern and in the text. ``$name`` in a pattern matches any identifier, and the same one wherever ``$name`` stands
again; in a replacement ``$name`` is what the pattern found.
The first and the last token of a pattern may be the end and the beginning of an identifier or a number in the text,
where no whole token fits.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

__all__ = ["occurrences", "replace_once", "tokens_of"]

_TOKEN = re.compile(
    r"(?P<nothing>\s+|\\\r?\n|//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)"
    r'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
    r"|\$?[A-Za-z_]\w*|\d(?:[\w.']|(?<=[eEpP])[+-])*"
    r"|.",
    re.DOTALL,
)
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Token:
    """A token and where it begins in its text."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Occurrence:
    """A match of a pattern in a text: its place, and the identifiers of its ``$name``."""

    start: int
    end: int
    names: dict[str, str]


@cache
def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens of a text, without white space and comments; each sign is a token of its own."""
    return tuple(Token(m[0], m.start()) for m in _TOKEN.finditer(text) if m["nothing"] is None)


def occurrences(text: str, pattern: str) -> list[Occurrence]:
    """Every place of a pattern in a text: those of whole tokens, or, if there is none, those that cut the outermost tokens.

    Raises:
        ValueError: the pattern holds no token.
    """
    wanted = [t.text for t in tokens_of(pattern)]
    if not wanted:
        raise ValueError(f"{pattern!r} holds no code")
    given = tokens_of(text)
    return list(_found(given, wanted, cut=False)) or list(_found(given, wanted, cut=True))


def _found(given: Sequence[Token], wanted: Sequence[str], cut: bool) -> Iterator[Occurrence]:
    first, last = wanted[0], wanted[-1]
    whole = not cut and not first.startswith("$")
    for i, begin in enumerate(given[: max(len(given) - len(wanted) + 1, 0)]):
        if whole and begin.text != first:
            continue
        end = given[i + len(wanted) - 1]
        names: dict[str, str] = {}
        if not _fits(begin.text, first, names, cut and begin.text.endswith(first)):
            continue
        if not all(_fits(given[i + k].text, wanted[k], names) for k in range(1, len(wanted) - 1)):
            continue
        if len(wanted) == 1:
            yield Occurrence(begin.start if first.startswith("$") else begin.end - len(first), begin.end, names)
        elif _fits(end.text, last, names, cut and end.text.startswith(last)):
            start = begin.start if first.startswith("$") else begin.end - len(first)
            yield Occurrence(start, end.end if last.startswith("$") else end.start + len(last), names)


def _fits(given: str, wanted: str, names: dict[str, str], part: bool = False) -> bool:
    if wanted.startswith("$"):
        return _NAME.fullmatch(given) is not None and names.setdefault(wanted[1:], given) == given
    return given == wanted or (part and _WORD.fullmatch(wanted) is not None and _WORD.fullmatch(given) is not None)


def replace_once(text: str, pattern: str, replacement: str) -> str:
    """The text with what a pattern matches replaced.

    Raises:
        ValueError: the pattern does not stand in the text exactly once; the replacement names what the pattern does not.
    """
    found = occurrences(text, pattern)
    if len(found) != 1:
        raise ValueError(f"{pattern!r} stands there {len(found)} times; once is wanted")
    (place,) = found

    def name_of(match: re.Match[str]) -> str:
        if match[1] not in place.names:
            raise ValueError(f"{replacement!r} names ${match[1]}, which {pattern!r} does not")
        return place.names[match[1]]

    before, new = text[: place.start], re.sub(r"\$(\w+)", name_of, replacement.strip())
    if new.startswith("#") and before.rpartition("\n")[2].strip():
        new = "\n" + new  # a directive begins a line
    return before + new + text[place.end :]
