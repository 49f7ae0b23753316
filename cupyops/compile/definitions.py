"""Finds the ``__global__`` functions of CUDA C++ text.

A function is found wherever C++ allows it: in namespaces, as a template, with its return type, attributes and launch
bounds in any order, and with macros among them. :class:`Function` says where its parts lie.

Comments, literals and directives have been blanked before (:mod:`cupyops.compile.cuda_text`). The search takes time
linear in the length of any text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["BOUNDS", "Blocks", "Function", "angles", "functions", "split"]

BOUNDS = frozenset(("__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__"))
# Words that take parentheses and stand beside a function's name or after its parameters.
_WITH_PARENTHESES = BOUNDS | {"__attribute__", "__declspec", "__align__", "alignas", "noexcept"}
_SPECIFIERS = frozenset(
    ("static", "inline", "void", "constexpr", "__inline__", "__forceinline__", "__noinline__", "__host__", "__device__")
)

_BRACE = re.compile(r"[{};]")
_LINKAGE = re.compile(r"(?:.*\W)?extern\s*\"C\"\s*", re.DOTALL)
_NAMESPACE = re.compile(r"\bnamespace\b([\w:\s]*)")
_STOP = re.compile(r"[;{}(]")
_TOKEN = re.compile(r"(?P<linkage>\bextern\s*\"C\")|\w+|[^\s\w]")
_WORD = re.compile(r"\s*([A-Za-z_]\w*)")
_OF_TYPE = re.compile(r"\s*(?:typename|class)\b")
_PATH = re.compile(r"\w*(?:\s*::\s*\w+)*")
_BLANK = re.compile(r"\s*")
_OPENING = re.compile(r"\s*\(")
_ANGLE = re.compile(r"\s*<")
_BRACKETS = re.compile(r"[<>()]")


@dataclass(frozen=True)
class Function:
    """A ``__global__`` function, declared or defined.

    Attributes:
        name: the function's name.
        start: offset of the first specifier.
        named: offset of the name.
        parameters: offset after the parenthesis that opens the parameter list.
        end: offset of the parenthesis that closes the parameter list; -1 without such a parenthesis.
        linkage: the function is declared ``extern "C"``, or lies in an ``extern "C"`` block.
        template: the text between the angle brackets of the template's parameters; None for another function.
        special: a specialization or an explicit instantiation of a template.
        defined: a body follows the parameter list.
        scope: names of the enclosing namespaces.
        nesting: the enclosing namespaces with the unnamed ones, whose names are ``""``.
    """

    name: str
    start: int
    named: int
    parameters: int
    end: int
    linkage: bool
    template: str | None
    special: bool
    defined: bool
    scope: tuple[str, ...]
    nesting: tuple[str, ...]

    @property
    def path(self) -> str:
        """The name with its namespaces, ``a::b::name``."""
        return "::".join((*self.scope, self.name))


class _Scope(NamedTuple):
    """A namespace: the one around it, and its names, ``a::b``; ``""`` for an unnamed one. The outermost has no names."""

    outer: "_Scope | None"
    names: tuple[str, ...]

    def nesting(self) -> tuple[str, ...]:
        """Returns the names of all namespaces, the outermost first."""
        found: list[tuple[str, ...]] = []
        scope: _Scope | None = self
        while scope is not None:
            found.append(scope.names)
            scope = scope.outer
        return tuple(name for names in reversed(found) for name in names)


_OUTERMOST = _Scope(None, ())


# Whether a text is extern "C", and its namespaces; None inside another block.
_Inside = tuple[_Scope | None, bool]
# The open braces, the innermost first, each with its place among the marks and what is around it; and what is inside the innermost.
_State = tuple[Any, _Inside]


class Blocks:
    """The braces and semicolons of a text, and the matching bracket of each.

    Of a conditional whose branches leave other braces open, such as `if (a) {` before `#else` and `if (b) {` after it, the first
    branch counts after the conditional.

    Args:
        bare: the text without comments, directives and literals.
        conditionals: the offsets and the names of the conditional directives.
    """

    def __init__(self, bare: str, conditionals: Iterable[tuple[int, str]]) -> None:
        self._length = len(bare)
        self._marks: list[int] = []
        self._ends: list[int] = []  # offset after the closing brace or the semicolon
        self._places: list[int] = []
        self._insides: list[_Inside] = []  # after each place
        state: _State = (None, (_OUTERMOST, False))
        branches: list[tuple[_State, _State | None]] = []  # before the conditional, and after its first branch
        behind = 0
        for place, mark in sorted([*((m.start(), m[0]) for m in _BRACE.finditer(bare)), *conditionals]):
            opened, (scope, linkage) = state
            if mark.startswith("if"):
                branches.append((state, None))
            elif mark.startswith("e"):
                before, after = branches.pop() if branches else (state, None)
                after = after or state
                state = after if mark == "endif" else before
                branches += [] if mark == "endif" else [(before, after)]
            else:
                self._marks.append(place)
                self._ends.append(place + 1 if mark == ";" else self._length)
                if mark == "{":
                    opened = len(self._marks) - 1, (scope, linkage), opened
                    if bare.find('"C"', behind, place) >= 0 and _LINKAGE.fullmatch(bare, behind, place):
                        linkage = True
                    elif scope is not None:
                        # Only the last word `namespace` is examined, so that the time stays linear in the text.
                        word = bare.rfind("namespace", behind, place)
                        named = _NAMESPACE.fullmatch(bare, word, place) if word >= 0 else None
                        names = named[1].replace("::", " ").split() if named else []
                        scope = _Scope(scope, tuple(names or [""])) if named else None
                elif mark == "}" and opened:
                    at, (scope, linkage), opened = opened
                    self._ends[at] = self._ends[-1] = place + 1
                behind = place + 1
                state = opened, (scope, linkage)
            self._places.append(place)
            self._insides.append(state[1])
        self._closing = _brackets(bare)

    def end(self, start: int) -> int:
        at = bisect_left(self._marks, start)
        return self._ends[at] if at < len(self._marks) else self._length

    def closing(self, opening: int) -> int:
        """Returns the offset of the bracket that closes the parenthesis or the square bracket at an offset, or -1."""
        return self._closing.get(opening, -1)

    def scope(self, place: int) -> tuple[str, ...] | None:
        scope = self._at(place)[0]
        return None if scope is None else tuple(filter(None, scope.nesting()))

    def nesting(self, place: int) -> tuple[str, ...]:
        scope = self._at(place)[0]
        return () if scope is None else scope.nesting()

    def linkage(self, place: int) -> bool:
        return self._at(place)[1]

    def _at(self, place: int) -> _Inside:
        at = bisect_right(self._places, place)
        return self._insides[at - 1] if at else (_OUTERMOST, False)


def _brackets(bare: str) -> dict[int, int]:
    """Returns the offset of the closing bracket of each parenthesis and square bracket. No pair contains a brace."""
    found: dict[int, int] = {}
    opened: dict[str, list[int]] = {"(": [], "[": []}
    for match in re.finditer(r"[][(){}]", bare):
        if match[0] in opened:
            opened[match[0]].append(match.start())
        elif match[0] in "{}":
            opened = {"(": [], "[": []}
        elif places := opened["(" if match[0] == ")" else "["]:
            found[places.pop()] = match.start()
    return found


def functions(bare: str, blocks: Blocks, markers: Mapping[str, str]) -> Iterator[Function]:
    """Yields the ``__global__`` functions of a text.

    Args:
        bare: the text without comments, directives and literals.
        blocks: the blocks of `bare`.
        markers: macros whose text contains ``__global__``, and their texts.
    """
    words = "|".join(rf"{word}(?<!\w{word})" for word in map(re.escape, ("__global__", *markers)))
    seen = 0
    for match in re.finditer(rf"(?:{words})\b", bare):
        if match.start() < seen:
            continue
        begin = max(seen, *(bare.rfind(c, seen, match.start()) + 1 for c in ";{}"))
        marker = markers.get(match[0], "")
        head = _head(bare, begin, match.start(), blocks)
        named, name, special, scope, seen = _named(bare, match.end(), blocks)
        if not name:
            continue
        end = blocks.closing(seen - 1)
        yield Function(
            name,
            head.start,
            named,
            seen,
            end,
            head.linkage or blocks.linkage(head.start) or '"C"' in marker,
            head.template,
            special or head.special,
            end >= 0 and bare.startswith("{", _behind(bare, end + 1, blocks)),
            (*(blocks.scope(head.start) or ()), *scope),
            (*blocks.nesting(head.start), *scope),
        )


@dataclass
class _Head:
    """The text before ``__global__``."""

    start: int
    linkage: bool = False
    template: str | None = None
    special: bool = False


def _head(bare: str, begin: int, end: int, blocks: Blocks) -> _Head:
    """Returns the specifiers directly before an offset.

    An unknown word ends the search: it may be a macro without a replacement. After ``template <...>`` every word
    belongs to the function.
    """
    found, at = _Head(end), begin
    while (token := _TOKEN.search(bare, at, end)) is not None:
        word, at = token[0], token.end()
        within = found.template is not None or found.special
        if token["linkage"]:
            found.linkage = True
        elif word == "template":
            found = found if found.linkage or within else _Head(token.start())
            closed = angles(bare, at, end)
            if closed is None:
                if _ANGLE.match(bare, at, end):
                    return _Head(end)
                found.special = True
            else:
                found.template, found.special, at = closed[0], not closed[0].strip(), closed[1]
        elif word in _WITH_PARENTHESES or (within and word == "("):
            opening = _OPENING.match(bare, at if word != "(" else token.start(), end)
            closing = blocks.closing(opening.end() - 1) if opening else -1
            if 0 <= closing < end:
                at = closing + 1
            elif not within:
                found = _Head(end)
                continue
        elif word == "[" and bare.startswith("[", at):
            at = bare.find("]]", at, end) + 2
            if at < 2:
                return _Head(end)
        elif word not in _SPECIFIERS and not within:
            found = _Head(end)
            continue
        found.start = min(found.start, token.start())
    return found


def angles(bare: str, at: int, end: int) -> tuple[str, int] | None:
    """Returns the text between the angle brackets that follow an offset, and the offset after them."""
    opening = _ANGLE.match(bare, at, end)
    if opening is None:
        return None
    depth = parentheses = 0
    for match in _BRACKETS.finditer(bare, opening.end() - 1, end):
        parentheses += (match[0] == "(") - (match[0] == ")")
        if not parentheses:
            depth += (match[0] == "<") - (match[0] == ">")
            if not depth:
                return bare[opening.end() : match.start()], match.end()
    return None


def _named(bare: str, at: int, blocks: Blocks) -> tuple[int, str, bool, tuple[str, ...], int]:
    """Returns the function's name after an offset: its offset, the name, whether template arguments follow the name,
    the namespaces before the name, and the offset after the opening parenthesis.

    Without a parameter list, the name is ``""``, and the last offset is where the search ended.
    """
    while True:
        stop = _STOP.search(bare, at)
        if stop is None:
            return 0, "", False, (), len(bare)
        if stop[0] != "(":
            return 0, "", False, (), stop.end()
        closing = blocks.closing(stop.start())
        piece = bare[at : stop.start()].rstrip()
        special = piece.endswith(">")
        if special:
            piece = piece[: _opening_angle(piece)].rstrip()
        # A reversed search takes time linear in the text.
        *scope, name = "".join(_PATH.match(piece[::-1])[0][::-1].split()).split("::")  # type: ignore[index]
        if not name:
            return 0, "", False, (), stop.end()
        follows = _WORD.match(bare, closing + 1) if closing >= 0 else None
        # A word after the parentheses, as in `LAUNCH_BOUNDS(256) name(...)`: they are not a parameter list.
        if name in _WITH_PARENTHESES or (follows and follows[1] not in _WITH_PARENTHESES):
            if closing < 0:
                return 0, "", False, (), stop.end()
            at = closing + 1
            continue
        return at + len(piece) - len(name), name, special, tuple(scope), stop.end()


def _opening_angle(piece: str) -> int:
    """Returns the offset of the angle bracket that the last character of a piece of code closes."""
    depth = 0
    for at in range(len(piece) - 1, -1, -1):
        depth += (piece[at] == ">") - (piece[at] == "<")
        if not depth:
            return at
    return 0


def _behind(bare: str, at: int, blocks: Blocks) -> int:
    """Returns the offset of the first code after an offset that is not an attribute."""
    while (word := _WORD.match(bare, at)) is not None and word[1] in _WITH_PARENTHESES:
        opening = _OPENING.match(bare, word.end())
        closing = blocks.closing(opening.end() - 1) if opening else -1
        if closing < 0:
            return word.end()
        at = closing + 1
    blank = _BLANK.match(bare, at)
    return blank.end() if blank else at


def split(listed: str, separator: str = ",") -> list[tuple[int, str]]:
    """Returns the parts of a list with their offsets, split at separators outside all brackets.

    Angle brackets count until the first ``=`` of a part: after it, ``<`` may compare, unless the default is a type.
    """
    parts, start, depth, angles, value = [], 0, 0, 0, False
    for match in re.finditer(rf"[][(){{}}<>={separator}]", listed):
        c = match[0]
        if c == separator and not depth and not angles:
            parts.append((start, listed[start : match.start()]))
            start, value = match.end(), False
        elif c == "=":
            value = value or not (depth or angles or _OF_TYPE.match(listed, start))
        elif c in "<>":
            angles = max(0, angles + (0 if value else 1 if c == "<" else -1))
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
    return [*parts, (start, listed[start:])]
