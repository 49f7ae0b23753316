"""The declarations in the files of a program, and whether a kernel can use them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from cupyops.compile.device_half import MARKS, names_host

from .sliced_files import (
    CLASSES,
    CONSTEXPR,
    NAME,
    File,
    Item,
    as_bytes,
    behind_template,
    declarations_in,
    is_constant,
    marks_in_class,
    marks_of,
    of_user,
    span,
    whole_end,
)

__all__ = ["FUNCTIONS", "HEAD", "INSTANCE", "TYPE", "TYPES", "Declarations"]

# An identifier, unless it names a member of an object.
_WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*|(?<=\.\.\.)[A-Za-z_]\w*")
HEAD = re.compile(r"[^{;]*")
INSTANCE = re.compile(r"(?:extern\s+)?template\s*(?![\s<])")
_NO_CODE = re.compile(r"[\s;]*\Z")
_GIVEN = re.compile(r"=\s*(?:default|delete|0)\s*;?\s*\Z")
TYPE = re.compile(
    r"(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?|concept|namespace|using(?!\s+namespace))\s+"
    r"(?:alignas\s*\([^()]*\)\s*)?(\w+)"
)
_LAST = re.compile(r"(\w+)\s*(?:<[^;{}()]*>\s*)?(?:\[[^\]]*\]\s*)*\Z")
_SPACE = re.compile(r"(?:inline\s+)?namespace\b[\w\s:]*\Z")
_LINKAGE = re.compile(r'extern\s*"C(?:\+\+)?"\s*\Z')
FUNCTIONS = frozenset(
    ("FUNCTION_DECL", "FUNCTION_TEMPLATE", "CXX_METHOD", "CONSTRUCTOR", "DESTRUCTOR", "CONVERSION_FUNCTION")
)
TYPES = CLASSES | {"ENUM_DECL", "TYPEDEF_DECL", "TYPE_ALIAS_DECL", "TYPE_ALIAS_TEMPLATE_DECL", "CONCEPT_DECL"}
_USINGS = frozenset(("USING_DECLARATION", "NAMESPACE_ALIAS"))


class Declarations:
    """The declarations in the files of a program, by the tree, and by the text where the tree lacks them."""

    def __init__(self, unit: Any) -> None:
        self.files = {name: File(name, as_bytes(text)) for name, text in unit.files.items()}
        self._macros, self._marks = self._read_macros()
        for cursor in of_user(unit, self.files):
            self._add(cursor, None)
        for file in self.files.values():
            self._close(file)
        self._declares: dict[str, list[Item]] = {}
        for item in self._items():
            for name in item.names:
                self._declares.setdefault(name, []).append(item)
        self._cut: dict[Item, list[tuple[int, int]]] = {}

    def _items(self) -> Iterator[Item]:
        for file in self.files.values():
            yield from file.items

    def _read_macros(self) -> tuple[dict[str, set[str]], frozenset[str]]:
        """Returns the words in the texts of the macros, and the macros that mark code for the GPU."""
        macros: dict[str, set[str]] = {}
        for file in self.files.values():
            for directive in file.code.directives:
                if directive.name == "define" and (name := NAME.match(directive.rest)):
                    words = set(NAME.findall(directive.rest, name.end()))
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
        file, start, end = span(cursor)
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
        end = whole_end(bare, start, end)
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
        """Finds the names that the items of a file declare."""
        file.items.sort(key=lambda item: item.start)
        bare = file.code.bare
        for start, end in [*self._gaps(file)]:
            for begin, behind in declarations_in(bare, start, end):
                code = bare[begin:behind]
                if not INSTANCE.match(code) and not code.startswith("using namespace"):
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
        """Returns the names of a declaration, whether a kernel can use it, and whether it is a kernel."""
        kind, name = cursor.kind.name, cursor.spelling
        parent = cursor.semantic_parent
        owner = parent.spelling if parent is not None and parent.kind.name in CLASSES else ""
        bare = file.code.bare
        head = HEAD.match(bare, item.start, max(item.start, item.end))[0]  # type: ignore[index]  # a file may be cut off
        if INSTANCE.match(head):
            return set(), False, False
        if kind in FUNCTIONS:
            marks = marks_of(cursor) or marks_in_class(cursor)
            if "global" in marks:
                return {name}, True, True
            words = self._with_macros(NAME.findall(head))
            by_text = CONSTEXPR if len(item.cursors) > 1 else self._marks | CONSTEXPR
            # The device functions of a kept class that are defined outside of it are kept.
            name = owner or name.split("<")[0]
            return {name}, "device" in marks or not words.isdisjoint(by_text), False
        if kind == "ENUM_DECL":
            return {cursor.spelling, *(c.spelling for c in cursor.get_children())}, True, False
        if kind in TYPES:
            return {name}, True, False
        if kind == "VAR_DECL" and "__global__" in self._with_macros(NAME.findall(head)):
            return (
                {f.name for f in self._kernels_in(file, item)},
                True,
                True,
            )  # a kernel with words that clang does not know
        if kind == "VAR_DECL":
            marked = bool(marks_of(cursor)) or not self._marks.isdisjoint(NAME.findall(head))
            return {owner or name}, marked or bool(owner) or is_constant(cursor, head), False
        if kind in _USINGS:
            return {name or bare[item.start : item.end].rstrip("; \n").rpartition("::")[2].strip()}, True, False
        if kind in ("USING_DIRECTIVE", "STATIC_ASSERT"):
            return set(), False, False
        if name.startswith("<deduction guide for "):
            return {name[len("<deduction guide for ") : -1]}, True, False
        names, usable, kernels = self._declared_by(bare[item.start : item.end])
        return ({name} if name else names), usable, bool(kernels)

    def _declared_by(self, code: str) -> tuple[set[str], bool, set[str]]:
        """Returns the names that code declares by its text, for declarations that the tree lacks: variable templates,
        concepts, and code that clang could not resolve."""
        head = code[behind_template(code) :].lstrip()
        if (found := TYPE.match(head)) is not None:
            used = re.fullmatch(r"using\s+[\w\s:]*::\s*(\w+)\s*;", head)
            return {used[1] if used else found[1]}, True, set()
        before = re.split(r"[({;=]", head, maxsplit=1)[0]
        words = self._with_macros(NAME.findall(before)) | self._with_macros(NAME.findall(code[: len(code) - len(head)]))
        last = _LAST.search(before.rstrip())
        names = {last[1]} if last else set[str]()
        usable = not words.isdisjoint(self._marks | CONSTEXPR | {"const"})
        return names, usable, names if "__global__" in words else set()

    def _with_macros(self, words: Iterable[str]) -> set[str]:
        """Returns words together with the words of the macros that they name."""
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
            words |= {w for of in item.cursors for c in of.walk_preorder() for w in NAME.findall(c.spelling)}
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
            classes = [c for c in item.cursors if c.kind.name in CLASSES]
            self._cut[item] = sorted({span for c in classes for span in self._members(file, c)})
        return self._cut[item]

    def _gaps(self, file: File) -> Iterator[tuple[int, int]]:
        """Yields the spans of code that belongs to no declaration of the tree."""
        covered = sorted([*((i.start, i.end) for i in file.items), *file.braces])
        at = 0
        for start, end in [*covered, (len(file.text), len(file.text))]:
            # Directives separate code that conditions leave out from code that clang could not read.
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

    def _kernels_in(self, file: File, item: Item) -> list[Any]:
        return [f for f in file.code.functions if item.start <= f.start < item.end]

    def _members(self, file: File, cursor: Any) -> Iterator[tuple[int, int]]:
        """Yields the spans of a class's members that are of the host: functions without ``__device__``, friends and static
        variables."""
        bare = file.code.bare
        for member in cursor.get_children():
            kind = member.kind.name
            if kind in CLASSES:
                yield from self._members(file, member)
                continue
            if kind not in FUNCTIONS and kind not in ("VAR_DECL", "FRIEND_DECL"):
                continue
            where, start, end = span(member)
            if where != file.name:
                continue
            end = whole_end(bare, start, end)
            piece = bare[start:end]
            functions = [member] if kind in FUNCTIONS else []
            if kind == "FRIEND_DECL":
                functions = [m for m in member.get_children() if m.kind.name in FUNCTIONS]
            if not functions:
                of_host = names_host(piece)
            else:
                head = self._with_macros(NAME.findall(HEAD.match(piece)[0]))  # type: ignore[index]
                of_host = "device" not in marks_of(functions[0]) and head.isdisjoint(self._marks)
                of_host = of_host and (head.isdisjoint(CONSTEXPR) or names_host(piece)) and not _GIVEN.search(piece)
            if of_host:
                yield start, end
