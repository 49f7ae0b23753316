"""CUDA C++ text as a compiler reads it, as far as that can be told without one: what is a comment, a directive or code, which code
a literal ``#if 0`` takes away, and where the ``__global__`` functions are.

Everything here takes time in proportion to the length of the text, whatever stands in it: each expression below either matches
without looking back, or ends where the next one begins.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["Code", "Directive", "Function", "scan"]

# Where one of these has no end, it goes on to the end of the text or, in quotes, of the line.
_COMMENT = r"//(?:\\\r?\n|[^\n])*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?"
_STRING = r"\"(?:\\[\s\S]|[^\"\\\n])*\"?"
_CHARACTER = r"'(?:\\[\s\S]|[^'\\\n])+'?"
# A number is its own kind, since C++ puts quotes between digits: 1'000'000.
_NOT_CODE = re.compile(
    rf"(?P<comment>{_COMMENT})|(?P<string>{_STRING})|(?P<number>\b\d(?:'?[\w.])*)|{_CHARACTER}"
    rf"|(?P<directive>^[ \t]*\#(?:\\[\s\S]|{_COMMENT}|{_STRING}|{_CHARACTER}|[^\n\\])*)",
    re.MULTILINE,
)
_IN_DIRECTIVE = re.compile(rf"\\\r?\n|(?P<comment>{_COMMENT})|{_STRING}|{_CHARACTER}")
_WORDS_OF_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)", re.DOTALL)
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
        start, end: its place, to the end of its line.
        name, rest: ``define`` and ``N 3``, without comments and continued lines.
    """

    start: int
    end: int
    name: str
    rest: str


@dataclass(frozen=True)
class Function:
    """A ``__global__`` function, declared or defined.

    Attributes:
        name: its name.
        start: of its first specifier.
        parameters: place behind the parenthesis that opens its list of parameters.
        end: place of the parenthesis that closes it; -1 where there is none.
        linkage: ``extern "C"`` stands before it, or a block of that around it.
        template: it is one.
        defined: a body follows.
        scope: names of the namespaces around it.
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
    """What :func:`scan` finds.

    Attributes:
        bare: the text with comments, directives, what stands in quotes, and what a literal condition takes away, as blanks:
            every other character keeps its place.
        comments: places of the comments.
        directives: those that are not taken away, and the conditions themselves.
    """

    def __init__(self, text: str) -> None:
        pieces, at = [], 0
        comments, directives = [], []
        conditions: list[_Condition] = []
        dead = False  # the code from `at` on
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
        self.bare = "".join(pieces)
        self.comments = comments
        self.directives = directives

    def comments_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """The comments that begin there."""
        return self.comments[bisect_left(self.comments, (start, 0)) : bisect_left(self.comments, (end, 0))]

    def directives_between(self, start: int, end: int) -> list[Directive]:
        """The directives that begin there."""
        first = bisect_left(self.directives, start, key=lambda d: d.start)
        return self.directives[first : bisect_left(self.directives, end, key=lambda d: d.start)]

    @cached_property
    def functions(self) -> list[Function]:
        """The ``__global__`` functions in order."""
        return list(_functions(self.bare, self._blocks))

    @cached_property
    def _blocks(self) -> "_Blocks":
        return _Blocks(self.bare)

    def scope(self, place: int) -> tuple[str, ...] | None:
        """Names of the namespaces around a place, or None within a function, class or the like."""
        return self._blocks.scope(place)

    def end_of_function(self, start: int) -> int:
        """Behind the closing brace of the body that follows, or the semicolon of a mere declaration."""
        return self._blocks.end(start)


@lru_cache(64)
def scan(text: str) -> Code:
    """The code of a text. A text has several kernels, and kernels share headers, so that it is kept."""
    return Code(text)


def _blank(piece: str) -> str:
    if "\n" not in piece:
        return " " * len(piece)
    return "\n".join([" " * len(line) for line in piece.split("\n")])


# Directives


@dataclass
class _Condition:
    """An ``#if`` that is open: whether its branch is taken away, or the next ones are, and whether it is so by itself."""

    dead: bool
    settled: bool
    within_dead: bool


def _directive(text: str, start: int) -> Directive:
    plain = _IN_DIRECTIVE.sub(lambda m: " " if m["comment"] is not None else "" if m[0][0] == "\\" else m[0], text)
    found = _WORDS_OF_DIRECTIVE.match(plain)
    name, rest = (found[1], found[2].strip()) if found else ("", "")
    return Directive(start, start + len(text), name, rest)


def _follow(conditions: list[_Condition], directive: Directive) -> bool:
    """Opens, changes and closes conditions; whether the directive is one of theirs."""
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
    """What a condition is that needs no compiler: 0, 1, true, false, with ``!`` and parentheses; None of any other."""
    found = _LITERAL.fullmatch(re.sub(r"[()\s]", "", condition)) if len(condition) < 100 else None
    if found is None:
        return None
    value = found[3] == "true" if found[2] is None else int(found[2], 16 if found[2][:2] in ("0x", "0X") else 10) != 0
    return value != bool(found[1])


# Blocks and functions


class _Blocks:
    """Braces and semicolons, and which brace closes which."""

    def __init__(self, bare: str) -> None:
        self._length = len(bare)
        self._marks: list[int] = []
        self._ends: list[int] = []  # behind the closing brace or the semicolon
        # Namespaces from each mark on; None within any other block, and whether it is within a block of extern "C".
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
                    # The last such word alone is looked at, so that many of them take no longer.
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
        if 0 <= closing < seen:  # else it is the one that was found for the function before
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
    """The name before the next list of parameters, and the place behind its parenthesis; or nothing, and how far nothing
    is."""
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
    """Where the specifiers begin that stand right before ``end``, whether ``extern "C"`` is among them, and a template."""
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
