"""Extracts the code that the kernels of a parsed program reach: the text that NVRTC compiles.

The text keeps its lines. Blanks take the place of the declarations that no kernel reaches. A declaration is reached by
its name: every identifier in the text of a kept declaration, and in the macros that this text uses, counts, so calls
that only an instantiation resolves are found, too, and so is the code of conditions that hold on a GPU alone. The
declarations of these identifiers are kept if kernels can use them, by the tree: functions with ``__device__`` or
``constexpr``, types, constants, device variables. The tree decides where a name alone does not: a declaration that
names types of the host needs a reference to it.
"""

import atexit
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from cupyops.compile.cpp_library import foreign_thrust
from cupyops.compile.device_half import MARKS, names_host
from cupyops.compile.macros import expanded, macro_of
from cupyops.compile.splicing import Splicing

from .cursors import takes_function
from .errors import NotTranslated
from .sliced_declarations import FUNCTIONS, HEAD, INSTANCE, TYPE, TYPES, Declarations
from .sliced_files import (
    CLASSES,
    CONSTEXPR,
    NAME,
    File,
    Item,
    blank,
    declarations_in,
    inclusions,
    line_of,
    text_of,
)
from .tree import Unit, header_file, parse
from .types import record_word

__all__ = ["sliced", "sliced_texts"]

_OPERATORS = re.compile(r"operator\b(?!\s+(?:new|delete)\b)|begin\Z|end\Z|swap\Z|get\Z|tuple_(?:size|element)\Z")
_SOURCE = "text.cu"
_KEPT_DIRECTIVES = frozenset(("if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef"))
_USING = re.compile(r"using\s+namespace\s+(?:::\s*)?([\w:]+)")
_DECLARED_SPACE = re.compile(r"\bnamespace\s+([A-Za-z_]\w*)[\w:\s]*[{=]")
_SPACES = frozenset(("cooperative_groups", "cg", "nvcuda", "wmma", "cuda", "cub"))
# :mod:`cupyops.compile.source` declares them.
_SPACES_OF_LIBRARIES = frozenset(("thrust", "torch", "at", "at::cuda::detail", "c10", "cute", "cutlass", "glm"))


def sliced(unit: Any, names: Sequence[str] | None = None) -> str:
    """Returns the code of a parsed program that kernels reach, as one text with ``#line`` directives for the user's
    files.

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
    """Returns the code that kernels reach, of a text (under ``""``) and of its headers (by name). Directives that
    include files stay.

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


class Slice(Declarations):
    """The code of a program that kernels reach: see :func:`sliced`."""

    def __init__(self, unit: Any, names: Sequence[str] | None = None) -> None:
        super().__init__(unit)
        self._kept: set[Item] = set()
        self._once = unit.once
        self._included = inclusions(unit)  # by file and line of the directive
        self._spelled: dict[str, str] = {}  # by the text of the directive
        self._heads: set[Item] = set()  # functions whose declarations are kept without their bodies
        self._follow_directives()
        self._reach(names)

    def _follow_directives(self) -> None:
        """Finds which files the directives name."""
        for name, file in self.files.items():
            for d in file.code.directives:
                if d.name == "include" and (inner := self._included.get((name, line_of(file.text, d.start)))):
                    self._spelled[d.rest] = inner

    def _reach(self, names: Sequence[str] | None) -> None:
        wanted = None if names is None else {_last_name(name) for name in names}
        given = set[str]()
        for name in names or ():
            if "lambda" in name:
                raise NotTranslated(
                    f"{name}: a kernel's template argument is a lambda, which has no name on the device"
                )
            given |= set(NAME.findall(name))
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
            waiting = [item for item in self._silent() if item not in self._kept]
            self._kept.update(waiting)
            unread += [(self._words(item), item, True) for item in waiting]

    def _called_by_constexpr(self, reader: Item, item: Item) -> bool:
        """Returns whether a ``constexpr`` function may name a host function in a branch that no constant or kernel
        reaches: NVRTC needs the declaration."""
        if not all(c.kind.name in FUNCTIONS for c in (*reader.cursors, *item.cursors)) or self._is_foreign(item):
            return False
        head = HEAD.match(self.files[reader.file].code.bare, reader.start, reader.end)[0]  # type: ignore[index]
        return not CONSTEXPR.isdisjoint(self._with_macros(NAME.findall(head)))

    def _silent(self) -> Iterator[Item]:
        """Yields the functions that code calls without their names, such as operators, if their types are kept."""
        for name, items in self._declares.items():
            if not _OPERATORS.match(name):
                continue
            for item in items:
                if item.usable and item not in self._kept and not item.kernel and not self._is_foreign(item):
                    bare = self.files[item.file].code.bare
                    head = HEAD.match(bare, item.start, max(item.start, item.end))[0]  # type: ignore[index]  # a file may be cut off
                    types = [t for w in NAME.findall(head) for t in self._declares.get(w, ()) if t is not item]
                    types = [t for t in types if any(c.kind.name in TYPES for c in t.cursors)]
                    if all(t in self._kept for t in types):
                        yield item

    def _unseen(self) -> Iterator[set[str]]:
        """Yields the identifiers of code that conditions take out of the host's view."""
        for file in self.files.values():
            for start, end in self._gaps(file):
                if self._stays(file, start, end):
                    yield self._with_macros(NAME.findall(file.code.bare, start, end))

    def _launched(self) -> set[str]:
        """Returns the types and the functions of the device that host code names: a launch may have them as template arguments."""
        words = set[str]()
        for item in self._items():
            if not item.usable and any(c.kind.name in FUNCTIONS for c in item.cursors):
                words |= self._with_macros(NAME.findall(self.files[item.file].code.bare, item.start, item.end))
        items = [*self._items()]
        kernels = [c for item in items if item.kernel for c in item.cursors]
        functions = any(takes_function(c) for of in kernels for c in of.get_children())
        arguments = {
            name
            for item in items
            if any(c.kind.name in TYPES or (functions and _is_of_device(c)) for c in item.cursors)
            for name in item.names
        }
        return words & arguments

    def _is_foreign(self, item: Item) -> bool:
        """Returns whether a declaration names types of the host's libraries."""
        bases = (
            b
            for c in item.cursors
            if c.kind.name in CLASSES
            for b in c.get_children()
            if b.kind.name == "CXX_BASE_SPECIFIER"
        )
        words = [found.name for b in bases if (found := record_word(b.type)) is not None]
        return any(not name.startswith("std::") for name in words) or names_host(self._own_code(item))

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

    def _stays(self, file: File, start: int, end: int) -> bool:
        """Returns whether code that is not in the tree stays: code that a condition leaves out for the host, and device code that
        clang could not read. The explicit instantiation of a function does not."""
        code = file.code.bare[start:end].strip("; \t\r\n")
        if INSTANCE.match(code):
            return False
        words = NAME.findall(code)
        if (space := _USING.match(code)) is not None:
            return self._has_space(space[1])
        return file.is_left_out(start) or self._macros.keys() >= {*words}

    def _cuts(self, file: File) -> Iterator[tuple[int, int, str]]:
        """Yields the spans that blanks replace, with what is before the blanks."""
        for start, end in self._gaps(file):
            if not self._stays(file, start, end):
                yield start, end, ""
        for item in file.items:
            if item in self._kept:
                yield from ((start, end, "") for start, end in self._members_cut(item))
                if instead := self._expansion(file, item):
                    yield item.start, item.end, instead
            elif item in self._heads:
                head = HEAD.match(file.code.bare, item.start, item.end)[0]  # type: ignore[index]
                yield item.start + len(head), item.end, ";"
            elif not self._holds(file, item):
                yield item.start, item.end, ""

    def _expansion(self, file: File, item: Item) -> str:
        """Returns the text of a macro that declares kernels, without its functions for the host; ``""`` for other items. A kernel
        needs a declaration in the text."""
        bare = file.code.bare
        called = NAME.match(bare, item.start)
        if not item.kernel or called is None or item.kernel <= {f.name for f in self._kernels_in(file, item)}:
            return ""
        macros = {m.name: m for other in self.files.values() for d in other.code.directives if (m := macro_of(d))}
        for directive in file.code.directives_between(0, item.start):
            if (macro := macro_of(directive)) is not None:
                macros[macro.name] = macro
        text = expanded(file.text[item.start : item.end], macros)
        kept = []
        for start, end in declarations_in(text, 0, len(text)):
            words = set(NAME.findall(HEAD.match(text, start, end)[0]))  # type: ignore[index]
            function = re.search(r"\)[^(){};=]*\{", text[start:end]) and not TYPE.match(text, start)
            if not INSTANCE.match(text, start) and (not function or not words.isdisjoint(MARKS | CONSTEXPR)):
                kept.append(text[start:end])
        return " ".join(kept)

    def _holds(self, file: File, item: Item) -> bool:
        """Returns whether a using directive or a static assertion is still valid in the code that is kept."""
        kinds = {c.kind.name for c in item.cursors}
        code = file.code.bare[item.start : item.end]
        words = NAME.findall(code)
        if "STATIC_ASSERT" in kinds:
            mine = [i for w in words for i in self._declares.get(w, ())]
            return not names_host(code) and all(i in self._kept for i in mine)
        return "USING_DIRECTIVE" in kinds and (space := _USING.match(code)) is not None and self._has_space(space[1])

    def _has_space(self, path: str) -> bool:
        """Returns whether device code has the namespace that a ``using`` directive names: CUDA's, the user's, and some libraries'."""
        if path in _SPACES_OF_LIBRARIES or foreign_thrust().search(path):
            return path in _SPACES_OF_LIBRARIES
        first = path.partition("::")[0]
        return first in _SPACES or any(first in _DECLARED_SPACE.findall(f.code.bare) for f in self.files.values())

    def texts(self) -> dict[str, str]:
        """Returns the text of each file."""
        return {name: text_of(self._written(file)) for name, file in self.files.items()}

    def text(self) -> str:
        """Returns the sources, with the files that they include in the places of the directives.

        The conditions of device code may leave a directive out, so that a file may be inserted again after it.
        """
        texts = {name: self._naming(file) for name, file in self.files.items()}
        within = {*self._included.values()}
        sources = [name for name in self.files if name not in within]
        files = {name: File(name, text) for name, text in texts.items()}

        def state(where: str, place: int) -> bool | None:
            return None if files[where].in_condition(place) else True

        splicing = Splicing(texts, texts.keys(), {}, (), state, lambda name, quote: None)
        found, seen = list[str](), set[str]()
        for name in sources:
            found.append(splicing.whole(texts[name], name, seen))
        return text_of("\n".join(found) + "\n" if len(found) > 1 else found[0].partition("\n")[2])

    def _naming(self, file: File) -> str:
        """Returns the kept text of a file whose directives have the whole names of the user's files. Several sources may include a
        header without a guard."""
        text = self._written(file) + ("\n#pragma once" if file.name in self._once else "")
        for directive in reversed(file.code.directives):
            line = self._included.get((file.name, line_of(file.text, directive.start)))
            if directive.name == "include" and (inner := line or self._spelled.get(directive.rest)):
                text = f'{text[: directive.start]}#include "{inner}"{text[directive.end :]}'
        return text

    def _written(self, file: File) -> str:
        """Returns the text of a file with blanks for the code that is not kept."""
        pieces, at = [], 0
        for start, end, instead in sorted(self._cuts(file)):
            if end <= at:
                continue
            start = max(start, at)
            pieces += [file.text[at:start], instead]
            for directive in [d for d in file.code.directives_between(start, end) if d.name in _KEPT_DIRECTIVES]:
                pieces += [blank(file.text[start : directive.start]), file.text[directive.start : directive.end]]
                start = directive.end
            pieces.append(blank(file.text[start:end]))
            at = end
        return "".join(pieces) + file.text[at:]


def _last_name(name: str) -> str:
    """Returns the last name of a kernel's path, ``"f"`` of ``"a::f<b::c>(int)"``."""
    return re.split(r"[<(]", name, maxsplit=1)[0].rpartition("::")[2].strip()


def _is_of_device(declared: Any) -> bool:
    """Returns whether a function is for the device alone, so that the host can only name it."""
    if declared.kind.name not in FUNCTIONS:
        return False
    marks = {c.kind.name for c in declared.get_children() if c.kind.is_attribute()}
    return "CUDADEVICE_ATTR" in marks and "CUDAHOST_ATTR" not in marks
