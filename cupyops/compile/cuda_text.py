"""Scans CUDA C++ text without a compiler.

:func:`scan` finds the comments, the directives, the code that a literal condition such as ``#if 0`` removes, and the
``__global__`` functions.

Scanning takes time linear in the length of any text: the regular expressions below do not backtrack, or each match ends
where the next begins.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from cupyops.sharing import computed_once

from .definitions import Blocks, Function, functions

__all__ = ["CONDITIONALS", "LINKAGE", "Code", "Directive", "Function", "scan"]

CONDITIONALS = frozenset(("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif"))
LINKAGE = re.compile(r'extern(?<!\wextern)\s*"C"(?=\w)')  # C++11 reads "C"__global__ as a literal with a suffix
# An unterminated comment extends to the end of the text. An unterminated string or character extends to the end of the
# line.
_COMMENT = r"//(?:\\\r?\n|[^\n])*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?"
_STRING = r"\"(?:\\[\s\S]|[^\"\\\n])*\"?"
_RAW = r"\bR\"(?P<delimiter>[^()\\\s\"]{0,16})\([\s\S]*?(?:\)(?P=delimiter)\"|\Z)"
_CHARACTER = r"'(?:\\[\s\S]|[^'\\\n])+'?"
# A number has an alternative of its own, because C++ allows quotes between digits: 1'000'000.
# Most characters begin none of the alternatives, which the first line finds out faster.
_NOT_CODE = re.compile(
    r"(?=[/\"'R\d#\t ])(?:"
    rf"(?P<comment>{_COMMENT})|{_RAW}|(?P<string>{_STRING})|(?P<number>\b\d(?:'?[\w.])*)|{_CHARACTER}"
    rf"|(?P<directive>^[ \t]*\#(?:\\(?:[ \t]*\r?\n|[\s\S])|{_COMMENT}|{_STRING}|{_CHARACTER}|[^\n\\])*))",
    re.MULTILINE | re.ASCII,
)
# The name of a header, <torch//extension.h>, has no comment.
_IN_DIRECTIVE = re.compile(rf"(?<=include)[ \t]*<[^>\n]*>|\\[ \t]*\r?\n|(?P<comment>{_COMMENT})|{_STRING}|{_CHARACTER}")
_WORDS_OF_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)", re.DOTALL)
_HEADER = re.compile(r'["<]([^">]+)[">]')
_CONTINUED = re.compile(r"\\(?=\r?\n)")  # the end of a line that the next line continues
# The braces of an initializer, as in the default argument `int n = {3}`: no block begins there.
_INITIALIZER = re.compile(r"(=[ \t]*)\{([^{};()]*)\}")
_DEFINED = re.compile(r"(\w+)\s(.*)", re.DOTALL)  # a macro without parameters
_LITERAL = re.compile(r"(?P<not>!?)(?:(?P<zero>(?:0[xX])?0+[uUlL]*|false)|(?:0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*|true)")


@dataclass(frozen=True)
class Directive:
    """A preprocessor directive.

    Attributes:
        start, end: offsets in the text; the directive ends at the end of its last line.
        name, rest: ``define`` and ``N 3`` for ``#define N 3``, without comments and line continuations.
    """

    start: int
    end: int
    name: str
    rest: str

    @property
    def header(self) -> str:
        """The name of the header that the directive includes; ``""`` for another directive."""
        found = _HEADER.match(self.rest) if self.name == "include" else None
        return found[1] if found else ""


class Code:
    """The result of :func:`scan`.

    Attributes:
        bare: the text with blanks in place of comments, directives, string and character literals, backslashes that
            continue a line, and code that a literal condition removes. Every other character keeps its offset.
        comments: start and end offsets of the comments.
        directives: the directives that no literal condition removes, and the conditional directives themselves.
    """

    def __init__(self, text: str) -> None:
        pieces, at = [], 0
        comments, directives = [], []
        conditions: list[_Condition] = []
        dead = False  # a literal condition removes the code from `at` on
        for match in _NOT_CODE.finditer(text):
            if match["number"] is not None or match[0] == '"C"':
                continue
            start, end = match.span()
            if match["directive"] is None:
                if match["comment"] is not None and not dead:
                    comments.append((start, end))
                if not dead:
                    pieces += [text[at:start], _blank(match[0])]
                    at = end
                continue
            pieces += [_blank(text[at:start]) if dead else text[at:start], _blank(match[0])]
            at = end
            found = _directive(match[0], start)
            if _follow(conditions, found) or not dead:
                directives.append(found)
            dead = any(c.dead for c in conditions[-1:])
        pieces.append(_blank(text[at:]) if dead else text[at:])
        self.bare = _CONTINUED.sub(" ", "".join(pieces))
        self.comments = comments
        self.directives = directives

    def comments_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the comments that begin between two offsets."""
        return self.comments[bisect_left(self.comments, (start, 0)) : bisect_left(self.comments, (end, 0))]

    def directives_between(self, start: int, end: int) -> list[Directive]:
        """Returns the directives that begin between two offsets."""
        first = bisect_left(self.directives, start, key=lambda d: d.start)
        return self.directives[first : bisect_left(self.directives, end, key=lambda d: d.start)]

    @computed_once
    def functions(self) -> list[Function]:
        """The ``__global__`` functions, in the order of the text."""
        found = (_DEFINED.match(d.rest) for d in self.directives if d.name == "define" and "__global__" in d.rest)
        return list(functions(self.bare, self._blocks, {m[1]: m[2] for m in found if m}))

    @computed_once
    def _blocks(self) -> Blocks:
        conditionals = [(d.start, d.name) for d in self.directives if d.name in CONDITIONALS]
        return Blocks(_INITIALIZER.sub(r"\1 \2 ", self.bare), conditionals)

    def scope(self, place: int) -> tuple[str, ...] | None:
        """Returns the names of the namespaces around an offset, or None inside a function, a class or another block."""
        return self._blocks.scope(place)

    def closing(self, opening: int) -> int:
        """Returns the offset of the bracket that closes the parenthesis or the square bracket at an offset, or -1."""
        return self._blocks.closing(opening)

    def end_of_function(self, start: int) -> int:
        """Returns the offset after the closing brace of the next body, or after the semicolon of a prototype."""
        return self._blocks.end(start)


@lru_cache(256)
def scan(text: str) -> Code:
    """Returns the :class:`Code` of a text.

    Results are cached: several kernels share a text, and texts share headers.
    """
    return Code(text)


def _blank(piece: str) -> str:
    if "\n" not in piece:
        return " " * len(piece)
    return "\n".join([" " * len(line) for line in piece.split("\n")])


# Directives


@dataclass
class _Condition:
    """An open conditional: `dead` if the current branch is removed, `settled` if a literal true condition removes all
    later branches, `within_dead` if an enclosing conditional removes the whole conditional."""

    dead: bool
    settled: bool
    within_dead: bool


def _directive(text: str, start: int) -> Directive:
    plain = _IN_DIRECTIVE.sub(lambda m: " " if m["comment"] is not None else "" if m[0][0] == "\\" else m[0], text)
    found = _WORDS_OF_DIRECTIVE.match(plain)
    name, rest = (found[1], found[2].strip()) if found else ("", "")
    return Directive(start, start + len(text), name, rest)


def _follow(conditions: list[_Condition], directive: Directive) -> bool:
    """Updates the open conditionals with a directive. Returns whether the directive is a conditional one."""
    name = directive.name
    if name in ("if", "ifdef", "ifndef"):
        outer = bool(conditions) and conditions[-1].dead
        conditions.append(_Condition(outer, False, outer))
    if name == "endif":
        del conditions[-1:]
    elif name in CONDITIONALS and conditions:
        value = True if name == "else" else _literal(directive.rest) if name in ("if", "elif") else None
        last = conditions[-1]
        last.dead = last.within_dead or last.settled or value is False
        last.settled = last.settled or value is True
    return name in CONDITIONALS


def _literal(condition: str) -> bool | None:
    """Returns the value of a literal condition: an integer, true or false, with ``!`` and parentheses.

    Returns None for another condition.
    """
    found = _LITERAL.fullmatch(re.sub(r"[()\s]", "", condition)) if len(condition) < 100 else None
    return None if found is None else bool(found["zero"]) == bool(found["not"])
