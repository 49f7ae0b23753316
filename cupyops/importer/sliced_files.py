"""The files of a parsed program, and their declarations in clang's tree."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cupyops.compile.cuda_text import Code, scan
from cupyops.compile.definitions import angles

from .tree import clang

__all__ = [
    "CLASSES",
    "CONSTEXPR",
    "NAME",
    "File",
    "Item",
    "as_bytes",
    "behind_template",
    "blank",
    "declarations_in",
    "inclusions",
    "is_constant",
    "line_of",
    "marks_in_class",
    "marks_of",
    "of_user",
    "span",
    "text_of",
    "whole_end",
]

NAME = re.compile(r"[A-Za-z_]\w*")
CONSTEXPR = frozenset(("constexpr", "consteval"))
_TEMPLATE = re.compile(r"\s*template\b")
_ITS_END = re.compile(r"\s*;")
_OPENED = frozenset(("if", "ifdef", "ifndef"))
_BRACES = re.compile(r"[{}();]")
CLASSES = frozenset(
    ("STRUCT_DECL", "CLASS_DECL", "UNION_DECL", "CLASS_TEMPLATE", "CLASS_TEMPLATE_PARTIAL_SPECIALIZATION")
)


@dataclass(eq=False)
class Item:
    """A declaration of file or namespace scope, or several that share text: the declarators of one, or those of a macro.

    Attributes:
        file: the name of the file.
        start, end: offsets in bytes, with the semicolon.
        cursors: the declarations.
        names: the names that they declare.
        usable: whether a kernel can use one of them.
        kernel: the names of the kernels among them.
    """

    file: str
    start: int
    end: int
    cursors: list[Any] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    usable: bool = False
    kernel: set[str] = field(default_factory=set)


@dataclass
class File:
    """A file of the user. The text has one character for each byte of the file, as clang counts."""

    name: str
    text: str
    code: Code = field(init=False)
    items: list[Item] = field(default_factory=list)
    braces: list[tuple[int, int]] = field(default_factory=list)  # of namespaces, with their heads

    def __post_init__(self) -> None:
        self.code = scan(self.text)

    @cached_property
    def segments(self) -> tuple[list[int], list[bool]]:
        """The offsets where the directives of conditions part the text, and whether each part lies in a condition. An
        include guard does not count."""
        starts, within, opened = [0], [False], list[bool]()
        given = self.code.directives
        for i, directive in enumerate(given):
            if directive.name in _OPENED:
                following = given[i + 1] if i + 1 < len(given) else directive
                guard = directive.name == "ifndef" and following.name == "define"
                opened.append(not (guard and following.rest.split()[:1] == directive.rest.split()[:1]))
            elif directive.name == "endif" and opened:
                opened.pop()
            elif directive.name not in ("elif", "else"):
                continue
            starts.append(directive.end)
            within.append(any(opened))
        return starts, within

    def in_condition(self, place: int) -> bool:
        """Returns whether an offset lies in a condition, other than the guard of a header."""
        starts, within = self.segments
        return within[bisect_right(starts, place) - 1]

    @cached_property
    def _read(self) -> set[int]:
        return {bisect_right(self.segments[0], item.start) for item in self.items if item.cursors}

    def is_left_out(self, place: int) -> bool:
        """Returns whether a condition leaves code out of the host's view: the tree has no declaration beside it."""
        return self.in_condition(place) and bisect_right(self.segments[0], place) not in self._read


def as_bytes(text: str) -> str:
    """Returns a text with one character for each byte."""
    return text if text.isascii() else text.encode().decode("latin-1")


def text_of(given: str) -> str:
    return given if given.isascii() else given.encode("latin-1").decode(errors="replace")


def blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def whole_end(bare: str, start: int, end: int) -> int:
    """Returns the end of a declaration, semicolon included. If clang could not resolve a declaration, its extent in the tree may
    cover only the first tokens; that of ``int x(1);`` lacks the parenthesis."""
    if (semicolon := _ITS_END.match(bare, end)) is not None:
        return semicolon.end()
    code = bare[start:end].rstrip()
    depth = code.count("(") - code.count(")")
    if not code or (code[-1] in "};)" and depth <= 0):
        return end
    depth = max(depth, 0)
    for mark in re.finditer(r"[{}();]", bare[end:]):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(mark[0], 0)
        if depth < 0:
            return end
        if depth == 0 and mark[0] in "};":
            return end + mark.end()
    return end


def is_constant(cursor: Any, head: str) -> bool:
    """Returns whether a variable is a constant that device code may read: one of numbers, or of any type with ``constexpr``."""
    if not CONSTEXPR.isdisjoint(NAME.findall(head)):
        return True
    kind = cursor.type
    constant = kind.is_const_qualified()
    while "ARRAY" in kind.kind.name:
        constant, kind = (
            constant or kind.spelling.startswith("const ") or kind.element_type.is_const_qualified(),
            kind.element_type,
        )
    return constant and kind.get_canonical().kind.name != "RECORD"


def behind_template(code: str) -> int:
    """Returns the offset after ``template <...>``."""
    at = 0
    while (found := _TEMPLATE.match(code, at)) and (parameters := angles(code, found.end(), len(code))):
        at = parameters[1]
    return at


def declarations_in(bare: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the spans of the declarations in code, each to its semicolon or closing brace."""
    depth = 0
    for mark in _BRACES.finditer(bare, start, end):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(mark[0], 0)
        if depth <= 0 and mark[0] in "};":
            behind = _ITS_END.match(bare, mark.end(), end)
            stop = behind.end() if behind else mark.end()
            begin = start + len(bare[start:stop]) - len(bare[start:stop].lstrip("; \t\r\n"))
            if begin < stop and depth == 0:
                yield begin, stop
            start, depth = stop, 0


def of_user(unit: Any, files: Iterable[str]) -> list[Any]:
    """Returns the declarations of the user's files. Those of the words precede them."""
    every = list(unit.cursor.get_children())
    names = set(files)

    def mine(cursor: Any) -> bool:
        file = cursor.location.file
        return file is not None and file.name in names

    return every[bisect_left(every, True, key=mine) :]


def span(cursor: Any) -> tuple[str, int, int]:
    """Returns the file and the offsets of a declaration; those of the macro's use if a macro declares it."""
    extent = cursor.extent
    start, end = extent.start, extent.end
    return (start.file.name if start.file else ""), start.offset, end.offset


_ATTRIBUTES = {"CUDADEVICE_ATTR": "device", "CUDAGLOBAL_ATTR": "global", "CUDAHOST_ATTR": "host"}
_ATTRIBUTES |= {"CUDACONSTANT_ATTR": "device", "CUDASHARED_ATTR": "device"}


def marks_of(cursor: Any) -> set[str]:
    """Returns for which side a declaration is marked: ``"device"``, ``"global"``, ``"host"``."""
    cindex, found = clang(), set[str]()

    def visit(child: Any, parent: Any, data: Any) -> int:
        kind = child._kind_id
        if kind in ids:
            found.add(ids[kind])
        return 0 if kind in stops else 1

    ids, stops = _kinds(cindex)
    visitor: Callable[..., Any] = cindex.callbacks["cursor_visit"](visit)
    cindex.conf.lib.clang_visitChildren(cursor, visitor, None)
    return found


def marks_in_class(cursor: Any) -> set[str]:
    """Returns the marks of a member function that is defined outside its class, as its declaration in the class has them. nvcc applies
    them to the definition."""
    parent = cursor.semantic_parent
    if parent is None or parent.kind.name not in CLASSES:
        return set()
    name, kind = cursor.spelling, cursor.type.spelling
    same = [c for c in parent.get_children() if c.spelling == name and c.type.spelling == kind]
    return set[str]().union(*map(marks_of, same))


def _kinds(cindex: Any) -> tuple[dict[int, str], set[int]]:
    kinds = cindex.CursorKind
    ids = {getattr(kinds, name).value: mark for name, mark in _ATTRIBUTES.items()}
    return ids, {kinds.PARM_DECL.value, kinds.COMPOUND_STMT.value}


def inclusions(unit: Any) -> dict[tuple[str, int], str]:
    """Returns which of the user's files a directive includes, by the directive's file and line."""
    found = {}
    for inclusion in unit.cursor.translation_unit.get_includes():
        place = inclusion.location
        if place.file is not None and place.file.name in unit.files and inclusion.include.name in unit.files:
            found[place.file.name, place.line] = inclusion.include.name
    return found
