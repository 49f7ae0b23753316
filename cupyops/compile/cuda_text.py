"""Scans CUDA C++ text without a compiler.

:func:`scan` finds the comments, the directives, the code that a literal condition such as ``#if 0`` removes, and the
``__global__`` functions.

Scanning takes time linear in the length of any text: the regular expressions below do not backtrack, or each match ends
where the next begins.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from cupyops.sharing import computed_once

__all__ = ["Code", "Directive", "Function", "scan"]

# An unterminated comment extends to the end of the text. An unterminated string or character extends to the end of the
# line.
_COMMENT = r"//(?:\\\r?\n|[^\n])*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?"
_STRING = r"\"(?:\\[\s\S]|[^\"\\\n])*\"?"
_CHARACTER = r"'(?:\\[\s\S]|[^'\\\n])+'?"
# A number has an alternative of its own, because C++ allows quotes between digits: 1'000'000.
_NOT_CODE = re.compile(
    rf"(?P<comment>{_COMMENT})|(?P<string>{_STRING})|(?P<number>\b\d(?:'?[\w.])*)|{_CHARACTER}"
    rf"|(?P<directive>^[ \t]*\#(?:\\[\s\S]|{_COMMENT}|{_STRING}|{_CHARACTER}|[^\n\\])*)",
    re.MULTILINE,
)
_IN_DIRECTIVE = re.compile(rf"\\\r?\n|(?P<comment>{_COMMENT})|{_STRING}|{_CHARACTER}")
_WORDS_OF_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)", re.DOTALL)
_CONTINUED = re.compile(r"\\(?=\r?\n)")  # the end of a line that the next line continues
_LITERAL = re.compile(r"(!?)(?:(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*|(true|false))")

_BRACE = re.compile(r"(?P<linkage>\bextern\s*\"C\"\s*)?(?P<open>\{)|\}|;")
_NAMESPACE = re.compile(r"\bnamespace\b([\w:\s]*)")
_STOP = re.compile(r"[;{}()]")
_BOUNDS = frozenset(("__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__"))
_SPECIFIER = re.compile(r"(?P<linkage>\bextern\s*\"C\")|\w+|[<>()]|[^\s\w]")


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


@dataclass(frozen=True)
class Function:
    """A ``__global__`` function, declared or defined.

    Attributes:
        name: the function's name.
        start: offset of the first specifier.
        parameters: offset after the parenthesis that opens the parameter list.
        end: offset of the parenthesis that closes the parameter list; -1 without such a parenthesis.
        linkage: the function is declared ``extern "C"``, or lies in an ``extern "C"`` block.
        template: the function is a template.
        defined: a body follows the parameter list.
        scope: names of the enclosing namespaces.
    """

    name: str
    start: int
    parameters: int
    end: int
    linkage: bool
    template: bool
    defined: bool
    scope: tuple[str, ...]


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
        return list(_functions(self.bare, self._blocks))

    @computed_once
    def _blocks(self) -> "_Blocks":
        return _Blocks(self.bare)

    def scope(self, place: int) -> tuple[str, ...] | None:
        """Returns the names of the namespaces around an offset, or None inside a function, a class or another block."""
        return self._blocks.scope(place)

    def end_of_function(self, start: int) -> int:
        """Returns the offset after the closing brace of the next body, or after the semicolon of a prototype."""
        return self._blocks.end(start)


@lru_cache(64)
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
        value = _literal(directive.rest) if name == "if" else None
        conditions.append(_Condition(outer or value is False, value is True, outer))
    elif name in ("elif", "elifdef", "elifndef", "else"):
        if conditions:
            last = conditions[-1]
            value = True if name == "else" else _literal(directive.rest) if name == "elif" else None
            last.dead = last.within_dead or last.settled or value is False
            last.settled = last.settled or value is True
    elif name == "endif":
        if conditions:
            conditions.pop()
    else:
        return False
    return True


def _literal(condition: str) -> bool | None:
    """Returns the value of a literal condition: an integer, true or false, with ``!`` and parentheses.

    Returns None for another condition.
    """
    found = _LITERAL.fullmatch(re.sub(r"[()\s]", "", condition)) if len(condition) < 100 else None
    if found is None:
        return None
    value = found[3] == "true" if found[2] is None else int(found[2], 16 if found[2][:2] in ("0x", "0X") else 10) != 0
    return value != bool(found[1])


# Blocks and functions


class _Blocks:
    """The braces and semicolons of a text, and the matching brace of each brace."""

    def __init__(self, bare: str) -> None:
        self._length = len(bare)
        self._marks: list[int] = []
        self._ends: list[int] = []  # offset after the closing brace or the semicolon
        # After each brace or semicolon: the namespaces (None inside another block), and whether the text is extern "C".
        self._scopes: list[tuple[tuple[str, ...] | None, bool]] = []
        opened: list[tuple[int, tuple[tuple[str, ...] | None, bool]]] = []
        now: tuple[tuple[str, ...] | None, bool] = ((), False)
        behind = 0
        for match in _BRACE.finditer(bare):
            place = match.end() - 1
            self._marks.append(place)
            self._ends.append(place + 1 if bare[place] == ";" else self._length)
            if match["open"]:
                opened.append((len(self._marks) - 1, now))
                scope, linkage = now
                if match["linkage"]:
                    linkage = True
                elif scope is not None:
                    # Only the last word `namespace` is examined, so that the time stays linear in the text.
                    word = bare.rfind("namespace", behind, place)
                    named = _NAMESPACE.fullmatch(bare, word, place) if word >= 0 else None
                    scope = (*scope, *named[1].replace("::", " ").split()) if named else None
                now = (scope, linkage)
            elif bare[place] == "}" and opened:
                at, now = opened.pop()
                self._ends[at] = self._ends[-1] = place + 1
            behind = place + 1
            self._scopes.append(now)

    def end(self, start: int) -> int:
        at = bisect_left(self._marks, start)
        return self._ends[at] if at < len(self._marks) else self._length

    def scope(self, place: int) -> tuple[str, ...] | None:
        return self._at(place)[0]

    def linkage(self, place: int) -> bool:
        return self._at(place)[1]

    def _at(self, place: int) -> tuple[tuple[str, ...] | None, bool]:
        at = bisect_right(self._marks, place)
        return self._scopes[at - 1] if at else ((), False)


def _functions(bare: str, blocks: _Blocks) -> Iterator[Function]:
    seen = closing = 0
    for match in re.finditer(r"\b__global__\b", bare):
        if match.start() < seen:
            continue
        begin = max(seen, *(bare.rfind(c, seen, match.start()) + 1 for c in ";{}"))
        start, linkage, template = _specifiers(bare, begin, match.start())
        name, seen = _name(bare, match.end())
        if not name:
            continue
        if 0 <= closing < seen:  # otherwise the parenthesis found for the previous function still applies
            closing = bare.find(")", seen)
        yield Function(
            name,
            start,
            seen,
            closing,
            linkage or blocks.linkage(start),
            template,
            closing >= 0 and re.compile(r"\s*\{").match(bare, closing + 1) is not None,
            blocks.scope(start) or (),
        )


def _name(bare: str, at: int) -> tuple[str, int]:
    """Returns the name before the next parameter list, and the offset after the opening parenthesis.

    Without a parameter list, returns ``""`` and the offset where the search ended.
    """
    while True:
        stop = _STOP.search(bare, at)
        if stop is None:
            return "", len(bare)
        if stop[0] != "(":
            return "", stop.end()
        end = len(bare[at : stop.start()].rstrip()) + at
        start = end
        while start > at and (bare[start - 1].isalnum() or bare[start - 1] == "_"):
            start -= 1
        if bare[start:end] not in _BOUNDS:
            return bare[start:end], stop.end()
        depth, at = 1, stop.end()
        while depth:
            stop = _STOP.search(bare, at)
            if stop is None or stop[0] in ";{}":
                return "", stop.end() if stop else len(bare)
            depth += 1 if stop[0] == "(" else -1
            at = stop.end()


def _specifiers(bare: str, begin: int, end: int) -> tuple[int, bool, bool]:
    """Returns the offset of the first of the specifiers directly before ``end``, whether ``extern "C"`` is among them,
    and whether a template header is."""
    start, linkage, template = end, False, False
    awaited, angles, parentheses = "", 0, 0
    for token in _SPECIFIER.finditer(bare, begin, end):
        word = token[0]
        if awaited and word != awaited:
            start, linkage, template, awaited = end, False, False, ""
        if angles or parentheses or awaited:
            awaited = ""
            parentheses += (word == "(") - (word == ")")
            angles += ((word == "<") - (word == ">")) if not parentheses else 0
            continue
        if token["linkage"]:
            linkage = True
        elif word == "template":
            template, awaited = True, "<"
        elif word in _BOUNDS:
            awaited = "("
        elif word not in ("static", "inline", "void"):
            start, linkage, template = end, False, False
            continue
        start = min(start, token.start())
    return (end, False, False) if angles or parentheses or awaited else (start, linkage, template)
