"""Takes from a parsed program what its kernels reach: the text that NVRTC compiles.

The text keeps its lines. Blanks take the place of the declarations that no kernel reaches. A declaration is reached by
its name: every identifier in the text of a kept declaration, and in the macros that this text uses, counts, so calls
that only an instantiation resolves are found, too, and so is the code of conditions that hold on a GPU alone. What the
identifiers find is kept if kernels can have it, by the tree: functions with ``__device__`` or ``constexpr``, types,
constants, device variables. The tree decides where a name alone does not: a declaration that names types of the host
needs a reference to it.
"""

import atexit
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from cupyops.compile.cpp_library import FOREIGN_THRUST
from cupyops.compile.cuda_text import Code, scan
from cupyops.compile.device_half import MARKS, names_host
from cupyops.compile.macros import expanded, macro_of

from .errors import NotTranslated
from .tree import Unit, clang, header_file, parse

__all__ = ["sliced", "sliced_texts"]

# An identifier, unless it names a member of an object.
_WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*|(?<=\.\.\.)[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_CONSTEXPR = frozenset(("constexpr", "consteval"))
_HEAD = re.compile(r"[^{;]*")
_INSTANCE = re.compile(r"(?:extern\s+)?template\s*(?![\s<])")
_ITS_END = re.compile(r"\s*;")
_NO_CODE = re.compile(r"[\s;]*\Z")
_GIVEN = re.compile(r"=\s*(?:default|delete|0)\s*;?\s*\Z")
_OPERATORS = re.compile(r"operator\b(?!\s+(?:new|delete)\b)|begin\Z|end\Z|swap\Z|get\Z|tuple_(?:size|element)\Z")
_SOURCE = "text.cu"
_KEPT_DIRECTIVES = frozenset(("if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef"))
_CONDITIONS = frozenset(("if", "ifdef", "ifndef", "elif"))
_PRAGMA_ONCE = re.compile(r"(?m)^[ \t]*#[ \t]*pragma[ \t]+once\b")
_OPENED = frozenset(("if", "ifdef", "ifndef"))
_TYPE = re.compile(
    r"(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?|concept|namespace|using(?!\s+namespace))\s+"
    r"(?:alignas\s*\([^()]*\)\s*)?(\w+)"
)
_LAST = re.compile(r"(\w+)\s*(?:<[^;{}()]*>\s*)?(?:\[[^\]]*\]\s*)*\Z")
_BRACES = re.compile(r"[{}();]")
_SPACE = re.compile(r"(?:inline\s+)?namespace\b[\w\s:]*\Z")
_USING = re.compile(r"using\s+namespace\s+(?:::\s*)?([\w:]+)")
_DECLARED_SPACE = re.compile(r"\bnamespace\s+([A-Za-z_]\w*)[\w:\s]*[{=]")
_SPACES = frozenset(("cooperative_groups", "cg", "nvcuda", "wmma", "cuda", "cub"))
# :mod:`cupyops.compile.source` declares them.
_SPACES_OF_LIBRARIES = frozenset(("thrust", "torch", "at", "at::cuda::detail", "c10", "cute", "cutlass", "glm"))
_LINKAGE = re.compile(r'extern\s*"C(?:\+\+)?"\s*\Z')

_FUNCTIONS = frozenset(
    ("FUNCTION_DECL", "FUNCTION_TEMPLATE", "CXX_METHOD", "CONSTRUCTOR", "DESTRUCTOR", "CONVERSION_FUNCTION")
)
_CLASSES = frozenset(
    ("STRUCT_DECL", "CLASS_DECL", "UNION_DECL", "CLASS_TEMPLATE", "CLASS_TEMPLATE_PARTIAL_SPECIALIZATION")
)
_TYPES = _CLASSES | {"ENUM_DECL", "TYPEDEF_DECL", "TYPE_ALIAS_DECL", "TYPE_ALIAS_TEMPLATE_DECL", "CONCEPT_DECL"}
_USINGS = frozenset(("USING_DECLARATION", "NAMESPACE_ALIAS"))


@dataclass(eq=False)
class Item:
    """A declaration of file or namespace scope, or several that share text: the declarators of one, or those of a macro.

    Attributes:
        file: the name of the file.
        start, end: offsets in bytes, with the semicolon.
        cursors: the declarations.
        names: what they declare.
        usable: whether a kernel can have one of them.
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
        """The offsets where the directives of conditions part the text, and whether each part lies in a condition. The guard of a
        header is none."""
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


def sliced(unit: Any, names: Sequence[str] | None = None) -> str:
    """Returns what kernels reach of a parsed program, as one text with ``#line`` directives for the files of the user.

    Args:
        unit: the program, a :class:`.tree.Unit`.
        names: the kernels, also with template arguments: ``"ns::scale<float, Twice>"``; None for all.

    Raises:
        NotTranslated: a template argument is a lambda, which has no name for NVRTC.
    """
    return Slice(unit, names).text()


def sliced_texts(
    text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...], names: Sequence[str]
) -> dict[str, str]:
    """Returns what kernels reach of a text, by ``""``, and of its headers, by name. Directives that include files stay.

    Args:
        text: CUDA C++.
        headers: the names and the texts of the headers that it includes.
        options: of :func:`.tree.parse`.
        names: the kernels, and other names that are read.

    Raises:
        MissingDependencyError: libclang is not installed.
    """
    found = Slice(_parsed(text, headers, options), names).texts()
    return {"": found[f"/cupyops/{_SOURCE}"], **{name: found[header_file(name)] for name, _ in headers}}


@lru_cache(2)
def _parsed(text: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> Unit:
    """Returns the tree, which the kernels of a text share."""
    return parse([(_SOURCE, text)], options, headers=dict(headers))


atexit.register(_parsed.cache_clear)  # while clang's library is there


class Slice:
    """What kernels reach of a program: see :func:`sliced`."""

    def __init__(self, unit: Any, names: Sequence[str] | None = None) -> None:
        self.files = {name: File(name, _bytes(text)) for name, text in unit.files.items()}
        self._macros, self._marks = self._read_macros()
        for cursor in _of_user(unit, self.files):
            self._add(cursor, None)
        for file in self.files.values():
            self._close(file)
        self._declares: dict[str, list[Item]] = {}
        for item in self._items():
            for name in item.names:
                self._declares.setdefault(name, []).append(item)
        self._kept: set[Item] = set()
        self._included = _inclusions(unit)  # by file and line of the directive
        self._spelled: dict[str, str] = {}  # by the text of the directive
        self._heads: set[Item] = set()  # functions whose declarations are kept without their bodies
        self._cut: dict[Item, list[tuple[int, int]]] = {}
        self._mentioned: set[str] = set()
        self._follow_directives()
        self._reach(names)

    # The declarations.

    def _items(self) -> Iterator[Item]:
        for file in self.files.values():
            yield from file.items

    def _read_macros(self) -> tuple[dict[str, set[str]], frozenset[str]]:
        """Returns the words in the texts of the macros, and the macros that mark code for the GPU."""
        macros: dict[str, set[str]] = {}
        for file in self.files.values():
            for directive in file.code.directives:
                if directive.name == "define" and (name := _NAME.match(directive.rest)):
                    words = set(_NAME.findall(directive.rest, name.end()))
                    if "##" in directive.rest:
                        words.add("##")
                    macros.setdefault(name[0], set()).update(words)
        marks = set(MARKS)
        while more := {name for name, words in macros.items() if not marks.isdisjoint(words)} - marks:
            marks |= more
        return macros, frozenset(marks)

    def _add(self, cursor: Any, outer: tuple[int, int] | None) -> None:
        """Adds a declaration, with those in a namespace or in ``extern "C" { }``."""
        kind = cursor.kind.name
        file, start, end = _span(cursor)
        given = self.files.get(file)
        if given is None:
            return
        bare = given.code.bare
        if kind in ("NAMESPACE", "LINKAGE_SPEC"):
            opening = bare.find("{", start, end)
            head = bare[start:opening] if opening >= 0 else bare[start:end]
            if (_SPACE if kind == "NAMESPACE" else _LINKAGE).match(head) and opening >= 0:
                given.braces += [(start, opening + 1), *([(end - 1, end)] if bare[end - 1 : end] == "}" else [])]
                outer = None
            elif kind == "LINKAGE_SPEC" and head.startswith("extern"):
                outer = start, end
            for child in cursor.get_children():
                self._add(child, outer)
            return
        start, end = outer or (start, end)
        if kind == "UNEXPOSED_DECL" and _NO_CODE.match(bare[start:end]):
            return
        end = _whole_end(bare, start, end)
        last = given.items[-1] if given.items else None
        if last is not None and start < last.end and last.start < end:
            last.start, last.end, item = min(last.start, start), max(last.end, end), last
        elif last is not None and start < last.start:  # a file that is included again
            item = next((i for i in given.items if i.start < end and start < i.end), None) or Item(file, start, end)
            if not item.cursors:
                given.items.append(item)
        else:
            item = Item(file, start, end)
            given.items.append(item)
        item.cursors.append(cursor)

    def _close(self, file: File) -> None:
        """Finds what the items of a file declare."""
        file.items.sort(key=lambda item: item.start)
        bare = file.code.bare
        for start, end in [*self._gaps(file)]:
            for begin, behind in _declarations(bare, start, end):
                code = bare[begin:behind]
                if not _INSTANCE.match(code) and not code.startswith("using namespace"):
                    item = Item(file.name, begin, behind)
                    item.names, item.usable, item.kernel = self._declared_by(code)
                    if item.kernel and (kernels := {f.name for f in self._kernels_in(file, item)}):
                        item.names = item.kernel = kernels
                    file.items.append(item)
        file.items.sort(key=lambda item: item.start)
        for item in file.items:
            for cursor in item.cursors:
                names, usable, kernel = self._declared(file, item, cursor)
                item.names |= names
                item.usable |= usable
                item.kernel |= names if kernel else set()

    def _declared(self, file: File, item: Item, cursor: Any) -> tuple[set[str], bool, bool]:
        """Returns what a declaration declares, whether a kernel can have it, and whether it is a kernel."""
        kind, name = cursor.kind.name, cursor.spelling
        parent = cursor.semantic_parent
        owner = parent.spelling if parent is not None and parent.kind.name in _CLASSES else ""
        bare = file.code.bare
        head = _HEAD.match(bare, item.start, max(item.start, item.end))[0]  # type: ignore[index]  # a file may be cut off
        if _INSTANCE.match(head):
            return set(), False, False
        if kind in _FUNCTIONS:
            marks = _marks_of(cursor) or _marks_in_class(cursor)
            if "global" in marks:
                return {name}, True, True
            words = self._with_macros(_NAME.findall(head))
            by_text = _CONSTEXPR if len(item.cursors) > 1 else self._marks | _CONSTEXPR
            # Of a class that is kept, the device functions that are defined outside of it are kept.
            name = owner or name.split("<")[0]
            return {name}, "device" in marks or not words.isdisjoint(by_text), False
        if kind == "ENUM_DECL":
            return {cursor.spelling, *(c.spelling for c in cursor.get_children())}, True, False
        if kind in _TYPES:
            return {name}, True, False
        if kind == "VAR_DECL" and "__global__" in self._with_macros(_NAME.findall(head)):
            return (
                {f.name for f in self._kernels_in(file, item)},
                True,
                True,
            )  # a kernel with words that clang does not know
        if kind == "VAR_DECL":
            marked = bool(_marks_of(cursor)) or not self._marks.isdisjoint(_NAME.findall(head))
            return {owner or name}, marked or bool(owner) or _is_constant(cursor, head), False
        if kind in _USINGS:
            return {name or bare[item.start : item.end].rstrip("; \n").rpartition("::")[2].strip()}, True, False
        if kind in ("USING_DIRECTIVE", "STATIC_ASSERT"):
            return set(), False, False
        if name.startswith("<deduction guide for "):
            return {name[len("<deduction guide for ") : -1]}, True, False
        names, usable, kernels = self._declared_by(bare[item.start : item.end])
        return ({name} if name else names), usable, bool(kernels)

    def _declared_by(self, code: str) -> tuple[set[str], bool, set[str]]:
        """Returns what code declares by its text, for what the tree does not tell: templates of variables, concepts, and what
        clang could not resolve."""
        head = code[_behind_template(code) :].lstrip()
        if (found := _TYPE.match(head)) is not None:
            used = re.fullmatch(r"using\s+[\w\s:]*::\s*(\w+)\s*;", head)
            return {used[1] if used else found[1]}, True, set()
        before = re.split(r"[({;=]", head, maxsplit=1)[0]
        words = self._with_macros(_NAME.findall(before)) | self._with_macros(
            _NAME.findall(code[: len(code) - len(head)])
        )
        last = _LAST.search(before.rstrip())
        names = {last[1]} if last else set[str]()
        usable = not words.isdisjoint(self._marks | _CONSTEXPR | {"const"})
        return names, usable, names if "__global__" in words else set()

    def _with_macros(self, words: Iterable[str]) -> set[str]:
        """Returns words with those of the macros that they name."""
        found, unread = set[str](), list(words)
        while unread:
            word = unread.pop()
            if word not in found:
                found.add(word)
                unread += self._macros.get(word, ())
        return found

    def _words(self, item: Item) -> set[str]:
        """Returns the identifiers in an item, and in the macros that it uses."""
        words = self._with_macros(_WORD.findall(self._own_code(item)))
        if "##" in words:  # the tree has the names that macros make
            words |= {w for of in item.cursors for c in of.walk_preorder() for w in _NAME.findall(c.spelling)}
        return words

    def _own_code(self, item: Item) -> str:
        """Returns the code of an item without the host's members of classes."""
        bare, at, pieces = self.files[item.file].code.bare, item.start, []
        for start, end in self._members_cut(item):
            pieces.append(bare[at:start])
            at = max(at, end)
        return "".join([*pieces, bare[at : item.end]])

    def _members_cut(self, item: Item) -> list[tuple[int, int]]:
        if item not in self._cut:
            file = self.files[item.file]
            classes = [c for c in item.cursors if c.kind.name in _CLASSES]
            self._cut[item] = sorted({span for c in classes for span in self._members(file, c)})
        return self._cut[item]

    # What is reached.

    def _follow_directives(self) -> None:
        """Finds which files the directives name, and which macros conditions ask for."""
        for name, file in self.files.items():
            for d in file.code.directives:
                if d.name == "include" and (inner := self._included.get((name, _line_of(file.text, d.start)))):
                    self._spelled[d.rest] = inner
                if d.name in _CONDITIONS:
                    self._mentioned.update(self._with_macros(_NAME.findall(d.rest)))

    def _reach(self, names: Sequence[str] | None) -> None:
        wanted = None if names is None else {_last_name(name) for name in names}
        given = set[str]()
        for name in names or ():
            if "lambda" in name:
                raise NotTranslated(
                    f"{name}: a kernel's template argument is a lambda, which has no name on the device"
                )
            given |= set(_NAME.findall(name))
        unread: list[tuple[set[str], Item | None, bool]] = [(given, None, True)]
        for item in self._items():
            if item.kernel and (wanted is None or not item.kernel.isdisjoint(wanted)):
                self._kept.add(item)
                unread.append((self._words(item), item, True))
        unread += [(words, None, False) for words in self._unseen()]
        if names is None:
            unread.append((self._launched(), None, False))
        waiting: list[Item] = []
        while unread or waiting:
            while unread:
                words, reader, sure = unread.pop()
                for item in [i for word in words for i in self._declares.get(word, ())]:
                    if item in self._kept or item.kernel:
                        continue
                    if not item.usable:
                        if reader is not None and self._called_by_constexpr(reader, item):
                            self._heads.add(item)
                        continue
                    if self._is_foreign(item) and not (sure and self._refers(reader, item)):
                        continue
                    self._kept.add(item)
                    unread.append((self._words(item), item, True))
                self._mentioned |= words
            waiting = [item for item in self._silent() if item not in self._kept]
            self._kept.update(waiting)
            unread += [(self._words(item), item, True) for item in waiting]

    def _called_by_constexpr(self, reader: Item, item: Item) -> bool:
        """Returns whether a ``constexpr`` function may name a function of the host, where no constant and no kernel gets: NVRTC
        needs the declaration."""
        if not all(c.kind.name in _FUNCTIONS for c in (*reader.cursors, *item.cursors)) or self._is_foreign(item):
            return False
        head = _HEAD.match(self.files[reader.file].code.bare, reader.start, reader.end)[0]  # type: ignore[index]
        return not _CONSTEXPR.isdisjoint(self._with_macros(_NAME.findall(head)))

    def _silent(self) -> Iterator[Item]:
        """Yields the functions that code calls without their names, such as operators, if their types are kept."""
        for name, items in self._declares.items():
            if not _OPERATORS.match(name):
                continue
            for item in items:
                if item.usable and item not in self._kept and not item.kernel and not self._is_foreign(item):
                    bare = self.files[item.file].code.bare
                    head = _HEAD.match(bare, item.start, max(item.start, item.end))[0]  # type: ignore[index]  # a file may be cut off
                    types = [t for w in _NAME.findall(head) for t in self._declares.get(w, ()) if t is not item]
                    types = [t for t in types if any(c.kind.name in _TYPES for c in t.cursors)]
                    if all(t in self._kept for t in types):
                        yield item

    def _unseen(self) -> Iterator[set[str]]:
        """Yields the identifiers of code that conditions take out of the host's view."""
        for file in self.files.values():
            for start, end in self._gaps(file):
                if self._stays(file, start, end):
                    yield self._with_macros(_NAME.findall(file.code.bare, start, end))

    def _launched(self) -> set[str]:
        """Returns the types that host code names: a launch may have them as template arguments."""
        words = set[str]()
        for item in self._items():
            if not item.usable and any(c.kind.name in _FUNCTIONS for c in item.cursors):
                words |= self._with_macros(_NAME.findall(self.files[item.file].code.bare, item.start, item.end))
        types = {n for i in self._items() if any(c.kind.name in _TYPES for c in i.cursors) for n in i.names}
        return words & types

    def _is_foreign(self, item: Item) -> bool:
        """Returns whether a declaration names types of the host's libraries."""
        return names_host(self._own_code(item))

    def _refers(self, reader: Item | None, item: Item) -> bool:
        """Returns whether a declaration means another one by its name: it neither declares the name itself nor refers by it to
        something else."""
        if reader is None:
            return True
        own = other = False
        hashes = {c.hash for c in item.cursors}
        for cursor in (c for of in reader.cursors for c in of.walk_preorder()):
            if cursor.spelling.split("<")[0].rpartition(" ")[2].rpartition("::")[2] not in item.names:
                continue
            referenced = cursor.referenced
            if cursor.kind.name == "OVERLOADED_DECL_REF":
                return True
            if referenced is not None and referenced.canonical.hash in hashes | {
                c.canonical.hash for c in item.cursors
            }:
                return True
            own |= cursor.kind.is_declaration()
            other |= referenced is not None and not cursor.kind.is_declaration()
        return not (own or other)

    # The text.

    def _gaps(self, file: File) -> Iterator[tuple[int, int]]:
        """Yields the spans of code that belongs to no declaration of the tree."""
        covered = sorted([*((i.start, i.end) for i in file.items), *file.braces])
        at = 0
        for start, end in [*covered, (len(file.text), len(file.text))]:
            # Directives separate what conditions leave out from what clang could not read.
            for a, b in self._pieces(file, at, start):
                if not _NO_CODE.match(file.code.bare[a:b]):
                    yield a, b
            at = max(at, end)

    def _pieces(self, file: File, start: int, end: int) -> Iterator[tuple[int, int]]:
        for directive in file.code.directives_between(start, end):
            yield start, directive.start
            start = directive.end
        if start < end:
            yield start, end

    def _stays(self, file: File, start: int, end: int) -> bool:
        """Returns whether code that is not in the tree stays: code that a condition leaves out for the host, and device code that
        clang could not read. The explicit instantiation of a function does not."""
        code = file.code.bare[start:end].strip("; \t\r\n")
        if _INSTANCE.match(code):
            return False
        words = _NAME.findall(code)
        if (space := _USING.match(code)) is not None:
            return self._has_space(space[1])
        return file.is_left_out(start) or self._macros.keys() >= {*words}

    def _cuts(self, file: File) -> Iterator[tuple[int, int, str]]:
        """Yields the spans that blanks replace, with what stands before the blanks."""
        for start, end in self._gaps(file):
            if not self._stays(file, start, end):
                yield start, end, ""
        for item in file.items:
            if item in self._kept:
                yield from ((start, end, "") for start, end in self._members_cut(item))
                if instead := self._expansion(file, item):
                    yield item.start, item.end, instead
            elif item in self._heads:
                head = _HEAD.match(file.code.bare, item.start, item.end)[0]  # type: ignore[index]
                yield item.start + len(head), item.end, ";"
            elif not self._holds(file, item):
                yield item.start, item.end, ""

    def _expansion(self, file: File, item: Item) -> str:
        """Returns the text of a macro that declares kernels, without its functions for the host; ``""`` for other items. A kernel
        needs a declaration in the text."""
        bare = file.code.bare
        called = _NAME.match(bare, item.start)
        if not item.kernel or called is None or item.kernel <= {f.name for f in self._kernels_in(file, item)}:
            return ""
        macros = {m.name: m for other in self.files.values() for d in other.code.directives if (m := macro_of(d))}
        for directive in file.code.directives_between(0, item.start):
            if (macro := macro_of(directive)) is not None:
                macros[macro.name] = macro
        text = expanded(file.text[item.start : item.end], macros)
        kept = []
        for start, end in _declarations(text, 0, len(text)):
            words = set(_NAME.findall(_HEAD.match(text, start, end)[0]))  # type: ignore[index]
            function = re.search(r"\)[^(){};=]*\{", text[start:end]) and not _TYPE.match(text, start)
            if not _INSTANCE.match(text, start) and (not function or not words.isdisjoint(MARKS | _CONSTEXPR)):
                kept.append(text[start:end])
        return " ".join(kept)

    def _kernels_in(self, file: File, item: Item) -> list[Any]:
        return [f for f in file.code.functions if item.start <= f.start < item.end]

    def _holds(self, file: File, item: Item) -> bool:
        """Returns whether a directive for namespaces, or a static assertion, holds in what is kept."""
        kinds = {c.kind.name for c in item.cursors}
        code = file.code.bare[item.start : item.end]
        words = _NAME.findall(code)
        if "STATIC_ASSERT" in kinds:
            mine = [i for w in words for i in self._declares.get(w, ())]
            return not names_host(code) and all(i in self._kept for i in mine)
        return "USING_DIRECTIVE" in kinds and (space := _USING.match(code)) is not None and self._has_space(space[1])

    def _has_space(self, path: str) -> bool:
        """Returns whether kernels have a namespace of a ``using`` directive: CUDA's, the user's, and some of libraries."""
        if path in _SPACES_OF_LIBRARIES or FOREIGN_THRUST.search(path):
            return path in _SPACES_OF_LIBRARIES
        first = path.partition("::")[0]
        return first in _SPACES or any(first in _DECLARED_SPACE.findall(f.code.bare) for f in self.files.values())

    def _members(self, file: File, cursor: Any) -> Iterator[tuple[int, int]]:
        """Yields the spans of a class's members that are of the host: functions without ``__device__``, friends and static
        variables."""
        bare = file.code.bare
        for member in cursor.get_children():
            kind = member.kind.name
            if kind in _CLASSES:
                yield from self._members(file, member)
                continue
            if kind not in _FUNCTIONS and kind not in ("VAR_DECL", "FRIEND_DECL"):
                continue
            where, start, end = _span(member)
            if where != file.name:
                continue
            end = _whole_end(bare, start, end)
            piece = bare[start:end]
            functions = [member] if kind in _FUNCTIONS else []
            if kind == "FRIEND_DECL":
                functions = [m for m in member.get_children() if m.kind.name in _FUNCTIONS]
            if not functions:
                of_host = names_host(piece)
            else:
                head = self._with_macros(_NAME.findall(_HEAD.match(piece)[0]))  # type: ignore[index]
                of_host = "device" not in _marks_of(functions[0]) and head.isdisjoint(self._marks)
                of_host = of_host and (head.isdisjoint(_CONSTEXPR) or names_host(piece)) and not _GIVEN.search(piece)
            if of_host:
                yield start, end

    def texts(self) -> dict[str, str]:
        """Returns the text of each file."""
        return {name: _text_of(self._written(file)) for name, file in self.files.items()}

    def text(self) -> str:
        """Returns the sources, with the files that they include in the places of the directives."""
        pieces = {name: self._written(file) for name, file in self.files.items()}
        within = {*self._included.values()}
        sources = [name for name in self.files if name not in within]
        seen = set[str]()
        found = [self._joined(name, pieces, (), seen, True) for name in sources]
        if len(found) > 1:
            found = [f'#line 1 "{name}"\n{text}\n' for name, text in zip(sources, found, strict=True)]
        return _text_of("".join(found))

    def _written(self, file: File) -> str:
        """Returns the text of a file with blanks for what is not kept."""
        pieces, at = [], 0
        for start, end, instead in sorted(self._cuts(file)):
            if end <= at:
                continue
            start = max(start, at)
            pieces += [file.text[at:start], instead]
            for directive in [d for d in file.code.directives_between(start, end) if d.name in _KEPT_DIRECTIVES]:
                pieces += [_blank(file.text[start : directive.start]), file.text[directive.start : directive.end]]
                start = directive.end
            pieces.append(_blank(file.text[start:end]))
            at = end
        return "".join(pieces) + file.text[at:]

    def _needs(self, name: str, around: tuple[str, ...] = ()) -> bool:
        """Returns whether a file, or a file that it includes, has a kept declaration or a macro that code or a condition uses."""
        file = self.files[name]
        if any(item in self._kept for item in file.items) or any(file.is_left_out(gap[0]) for gap in self._gaps(file)):
            return True
        defined = {found[0] for d in file.code.directives if d.name == "define" and (found := _NAME.match(d.rest))}
        if not defined.isdisjoint(self._mentioned):
            return True
        inner = {i for (where, _), i in self._included.items() if where == name} - {name, *around}
        return any(self._needs(i, (*around, name)) for i in inner)

    def _joined(self, name: str, pieces: dict[str, str], around: tuple[str, ...], seen: set[str], sure: bool) -> str:
        """Returns a file's text with the user's files that it includes and that kernels need.

        The conditions of device code may leave a directive out, so a file stands at each of its directives, in a guard if it asks to
        be read once; a directive behind one that no condition leaves out needs it no more.

        Args:
            around: the files that include this one.
            seen: the files that need not be read again.
            sure: no condition leaves the file out.
        """
        file, text, found, at = self.files[name], pieces[name], [], 0
        for directive in file.code.directives:
            if directive.name != "include":
                continue
            inner = self._included.get((name, _line_of(file.text, directive.start))) or self._spelled.get(
                directive.rest
            )
            if inner is None:
                continue
            once = any(d.name == "pragma" and d.rest.split()[:1] == ["once"] for d in self.files[inner].code.directives)
            of_inner, always = "", sure and not file.in_condition(directive.start)
            if inner not in (*around, name) and inner not in seen and self._needs(inner):
                of_inner = self._joined(inner, pieces, (*around, name), seen, always)
                of_inner = _PRAGMA_ONCE.sub(lambda m: " " * len(m[0]), of_inner)
                of_inner = f'#line 1 "{inner}"\n{of_inner}\n'
                guard = f"CUPYOPS_ONCE_{[*self.files].index(inner)}"
                of_inner = f"#ifndef {guard}\n#define {guard}\n{of_inner}#endif\n" if once else of_inner
                of_inner += f'#line {_line_of(text, directive.end) + 1} "{name}"'
                seen.update([inner] if once and always else [])
            found += [text[at : directive.start], of_inner]
            at = directive.end
        return "".join(found) + text[at:]


def _bytes(text: str) -> str:
    """Returns a text with one character for each byte."""
    return text if text.isascii() else text.encode().decode("latin-1")


def _text_of(given: str) -> str:
    return given if given.isascii() else given.encode("latin-1").decode(errors="replace")


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _last_name(name: str) -> str:
    """Returns the last name of a kernel's path, ``"f"`` of ``"a::f<b::c>(int)"``."""
    return re.split(r"[<(]", name, maxsplit=1)[0].rpartition("::")[2].strip()


def _whole_end(bare: str, start: int, end: int) -> int:
    """Returns the end of a declaration with its semicolon. Of a declaration that clang could not resolve the tree may have the
    begin alone."""
    if (semicolon := _ITS_END.match(bare, end)) is not None:
        return semicolon.end()
    code = bare[start:end].rstrip()
    if not code or code[-1] in "};)":
        return end
    depth = 0
    for mark in re.finditer(r"[{}();]", bare[end:]):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(mark[0], 0)
        if depth < 0:
            return end
        if depth == 0 and mark[0] in "};":
            return end + mark.end()
    return end


def _is_constant(cursor: Any, head: str) -> bool:
    """Returns whether a variable is a constant that device code may read: one of numbers, or of any type with ``constexpr``."""
    if not _CONSTEXPR.isdisjoint(_NAME.findall(head)):
        return True
    kind = cursor.type
    constant = kind.is_const_qualified()
    while "ARRAY" in kind.kind.name:
        constant, kind = (
            constant or kind.spelling.startswith("const ") or kind.element_type.is_const_qualified(),
            kind.element_type,
        )
    return constant and kind.get_canonical().kind.name != "RECORD"


def _behind_template(code: str) -> int:
    """Returns the offset behind ``template <...>`` and ``requires``."""
    at = 0
    while (found := re.compile(r"\s*template\s*<").match(code, at)) is not None:
        depth, at = 1, found.end()
        for mark in re.compile(r"<(?!=)|(?<!-)>|[({]").finditer(code, at):
            depth += {"<": 1, ">": -1}.get(mark[0], 0)
            at = mark.end()
            if depth == 0 or mark[0] in "({":
                break
    return at


def _declarations(bare: str, start: int, end: int) -> Iterator[tuple[int, int]]:
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


# The tree.


def _of_user(unit: Any, files: Iterable[str]) -> list[Any]:
    """Returns the declarations of the user's files. Those of the words precede them."""
    every = list(unit.cursor.get_children())
    names = set(files)

    def mine(cursor: Any) -> bool:
        file = cursor.location.file
        return file is not None and file.name in names

    return every[bisect_left(every, True, key=mine) :]


def _span(cursor: Any) -> tuple[str, int, int]:
    """Returns the file and the offsets of a declaration; those of the macro's use if a macro declares it."""
    extent = cursor.extent
    start, end = extent.start, extent.end
    return (start.file.name if start.file else ""), start.offset, end.offset


_ATTRIBUTES = {"CUDADEVICE_ATTR": "device", "CUDAGLOBAL_ATTR": "global", "CUDAHOST_ATTR": "host"}
_ATTRIBUTES |= {"CUDACONSTANT_ATTR": "device", "CUDASHARED_ATTR": "device"}


def _marks_of(cursor: Any) -> set[str]:
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


def _marks_in_class(cursor: Any) -> set[str]:
    """Returns the marks of the declaration, in its class, of a function that is defined outside of it. nvcc takes them over."""
    parent = cursor.semantic_parent
    if parent is None or parent.kind.name not in _CLASSES:
        return set()
    name, kind = cursor.spelling, cursor.type.spelling
    same = [c for c in parent.get_children() if c.spelling == name and c.type.spelling == kind]
    return set[str]().union(*map(_marks_of, same))


def _kinds(cindex: Any) -> tuple[dict[int, str], set[int]]:
    kinds = cindex.CursorKind
    ids = {getattr(kinds, name).value: mark for name, mark in _ATTRIBUTES.items()}
    return ids, {kinds.PARM_DECL.value, kinds.COMPOUND_STMT.value}


def _inclusions(unit: Any) -> dict[tuple[str, int], str]:
    """Returns which of the user's files a directive includes, by the directive's file and line."""
    found = {}
    for inclusion in unit.cursor.translation_unit.get_includes():
        place = inclusion.location
        if place.file is not None and place.file.name in unit.files and inclusion.include.name in unit.files:
            found[place.file.name, place.line] = inclusion.include.name
    return found
