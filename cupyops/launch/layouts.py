"""Derives the layouts of structs, unions and classes from a text. The members may be numbers, vectors, pointers, arrays
and other structs with derived layouts. A struct may be an instance of a template, and may have bases. A typedef of an
array, ``typedef float vec3[3]``, is a vector type.

The compiler compares a derived layout with its own (:func:`.elements.assertions`), as it does a layout of ``structs=``.
For a class with private data, it compares only the size of the class. A struct with virtual bases, with virtual functions
and bases, with private bases, bit fields, references or members of unknown types has no derived layout.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kernels_cu
from cupyops.arrays import numpy_dtype
from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split
from cupyops.compile.preprocess import preprocess, value_of
from cupyops.compile.source import included
from cupyops.dtypes import DTYPES

from .definitions import ATTRIBUTES, declarations, entry_in
from .elements import struct_elements
from .library_types import STD_ARRAY, Element, library_type, vector_of
from .structs import (
    Struct,
    aliases_in,
    arguments_in,
    hoisted,
    key_of,
    members_in,
    private_names,
    specialized,
    structs_in,
    substituted,
)
from .typenames import TypeNames, c_dtype, type_names

__all__ = ["derived_structs", "struct_layouts"]

# Neither expression matches across another `typedef`, so that the time stays linear in the text.
_ARRAYS = re.compile(
    r"\btypedef\s+(?:const\s+)?((?:(?!\btypedef\b)[\w:\s])+?)\s*\b([A-Za-z_]\w*)\s*((?:\[[^][;]*\]\s*)+);"
)
_FIELD = re.compile(
    r"(?P<pointers>[*\s]*)(?:const\b|__restrict__\b|\s)*(?P<name>[A-Za-z_]\w*)\s*(?P<sizes>(?:\[(?:[^][]|\[[^][]*\])*\]\s*)*)\Z"
)
_SIZE = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]")
_INTEGER = r"(?:unsigned|signed|long|short|int|char)\b"
_BASE = re.compile(
    rf"\s*({_INTEGER}(?:\s*\b{_INTEGER})*|[\w:]+(?:\s*<[^<>]*(?:<[^<>]*>[^<>]*)*>(?:::\w+)*)?)(.*)", re.DOTALL
)
_TYPE = re.compile(r"[A-Za-z_][\w:]*(?:\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)?")
_NESTED = re.compile(r"\benum\b\s*(?:class\b|struct\b)?\s*(\w+)\s*(?::\s*([\w:\s]+?))?\s*\{[^{}]*\}\s*;")
_ENUMERATED = re.compile(r"\benum\b\s*(?:class\b|struct\b)?\s*\w*\s*(?::\s*([\w:\s]+?))?\s*\{[^{}]*\}(?=\s*\w)")
_NUMBER = re.compile(
    r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?\w+\s+(\w+)\s*(?:=\s*([^;{}]+)|\{([^;{}]*)\})\s*;"
)
_TABLE = re.compile(
    r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?\w+\s+(\w+)\s*\[[^][;]*\]\s*=?\s*\{([^{};]*)\}\s*;"
)
_FUNCTION = re.compile(r"[^(]*\(\s*\*\s*(\w+)\s*\)\s*\(.*\)", re.DOTALL)  # a pointer to a function
_ALONE = re.compile(r"^[ \t]*[A-Z][A-Z0-9_]{2,}[ \t]*$", re.MULTILINE)  # a macro for members
_UNNAMED = re.compile(r".*::Unnamed\d+")
# Pointers of the host, and the numbers of textures and surfaces.
_HANDLES = frozenset(("cudaStream_t", "cudaEvent_t", "cudaTextureObject_t", "cudaSurfaceObject_t"))
_ASSIGNS = re.compile(r"\boperator\s*=\s*\(")
_DECLARES = re.compile(r"\b(?:struct|union|class)\b|\btypedef\b(?:(?!\btypedef\b)[^;{}])*\]\s*;")
_DEPTH = 8  # structs within one another


def struct_layouts(
    kernel: str, given: Mapping[str, Any] | None, text: str, headers: Mapping[str, str], defines: Mapping[str, str]
) -> dict[str, Element]:
    """Returns the elements of ``structs=``, and of the other structs of a kernel's parameters whose layouts can be
    derived.

    Raises:
        TypeError, ValueError: those of :func:`.elements.struct_elements` and of :func:`derived_structs`.
    """
    found = struct_elements(kernel, given)
    if isinstance(text, kernels_cu.Text) or not _DECLARES.search(text + "\n".join(headers.values())):
        return found
    return found | derived_structs(text, kernel, included(text, headers), defines, found)


def derived_structs(
    text: str, kernel: str, headers: Mapping[str, str], defines: Mapping[str, str], known: Mapping[str, Element]
) -> dict[str, Element]:
    """Returns the elements of the structs of a kernel's parameters that `known` lacks and whose layouts can be derived.

    Raises:
        ValueError: the text does not declare the kernel.
    """
    code = scan(text)
    function = declarations(code, kernel)[0]
    entry = entry_in(text, kernel)
    listed = code.bare[function.parameters : max(function.end, function.parameters)]
    listed = "; ".join([listed, *(entry.given if entry else ())])
    given, hidden = (entry.arguments(), entry.names) if entry else ({}, frozenset[str]())
    names = type_names(text, headers, {**defines}, function.start, function.scope, given, hidden)
    listed = "; ".join([listed, *_targets(listed, names)])
    words = set(re.findall(r"\b[A-Za-z_]\w*\b", listed))
    followed = preprocess(text, headers, defines)
    sources = {source: followed.compiled(where, scan(source).bare) for where, source in (("", text), *headers.items())}
    structs = {name: found for source, bare in sources.items() for name, found in structs_in(source, bare).items()}
    arrays = {m[2]: (m[1], m[3]) for bare in sources.values() for m in _ARRAYS.finditer(bare)}
    wanted = (words & structs.keys()) - known.keys()
    nested = {name for name in structs if "::" in name and words.issuperset(name.split("::"))}
    vectors = (words & arrays.keys()) - known.keys()
    if not (wanted or nested or vectors):
        return {}
    numbers = {m[1]: m[2] or m[3] for bare in sources.values() for m in _NUMBER.finditer(bare)}
    tables = {m[1]: m[2].split(",") for bare in sources.values() for m in _TABLE.finditer(bare)}
    layouts = _Layouts(structs, names, {**numbers, **defines}, tables)
    found = {name: element for name in sorted(vectors) if (element := layouts.array(name, *arrays[name])) is not None}
    instances = {
        names.instance(found)
        for name in sorted(wanted)
        if structs[name].parameters
        for found in _ids(listed, name)
        if "" not in arguments_in(found) or structs[name].defaults  # a character is blank here
    }
    for name in sorted(nested):
        outer, _, member = name.partition("::")
        of = map(names.instance, _ids(listed, outer)) if structs[name].parameters else (outer,)
        instances |= {f"{instance}::{member}" for instance in of}
    for name in sorted({name for name in wanted if not structs[name].parameters} | instances):
        if name not in known and (layout := layouts.of(name, 0)) is not None:
            dtype, alignment, *_ = layout
            struct = structs[key_of(name)]
            spelling = "::".join((*struct.scope, name)) if struct.scope or not name.isidentifier() else ""
            found[name] = Element(name, "uint8", dtype.itemsize, min(alignment, 16), dtype, spelling=spelling)
    return found


def _targets(listed: str, names: TypeNames) -> list[str]:
    """Returns the types that the names of types in the text of a parameter list stand for, where they are others."""
    types = {" ".join(match[0].split()) for match in _TYPE.finditer(listed)}
    return sorted({names.target(base) for base in types if library_type(base) is None} - types)


def _ids(listed: str, name: str) -> Iterator[str]:
    """Yields the instances of a template in the text of a parameter list, ``Pair<T, 2>``."""
    for match in re.finditer(rf"\b{name}\s*<", listed):
        depth = 0
        within = 0  # parentheses, in which the brackets compare
        for mark in re.finditer(r"[<>()]", listed[match.start() :]):
            within += (mark[0] == "(") - (mark[0] == ")")
            depth += 0 if within else (mark[0] == "<") - (mark[0] == ">")
            if not depth:
                yield listed[match.start() : match.start() + mark.end()]
                break


class _Layout(NamedTuple):
    """The layout of a type: its NumPy dtype, its alignment, its size without the padding at its end that a derived
    struct may use, and the empty classes at its first byte."""

    dtype: Any
    alignment: int
    data: int
    empty: frozenset[str] = frozenset()


class _Layouts:
    def __init__(
        self,
        structs: Mapping[str, Struct],
        names: TypeNames,
        defines: Mapping[str, str],
        tables: Mapping[str, Sequence[str]],
    ) -> None:
        self._structs, self._names, self._defines, self._tables = dict(structs), names, defines, tables

    def of(self, name: str, depth: int) -> _Layout | None:
        """Returns the layout of a struct, or None. An empty struct has a dtype without fields."""
        import numpy

        struct = self._struct(name)
        if depth > _DEPTH or struct is None:
            return None
        virtual = re.search(r"\bvirtual\b", struct.body) is not None
        if virtual and struct.bases:
            return None
        try:
            body, *texts = (substituted(t, struct, name) for t in (struct.body, *struct.alignments, *struct.bases))
            body = _ALONE.sub(lambda macro: self._names.expanded(macro[0]), body)
            body, unnamed = hoisted(_renamed(body, self._aliases(name, depth)))
        except ValueError:
            return None
        alignments = [self._alignment(text, depth) for text in texts[: len(struct.alignments)]]
        bases = [self._based(text, struct.kind, depth) for text in texts[len(struct.alignments) :]]
        for enumeration in _NESTED.finditer(body):  # an enumeration within the struct
            body = re.sub(rf"\b{enumeration[1]}\b(?!\s*(?::|\{{))", (enumeration[2] or "int").strip(), body)
        body = _ENUMERATED.sub(lambda of: f"{of[1] or 'int'} ", _NESTED.sub(" ", body))
        for inner, (kind, of_inner) in unnamed.items():
            self._structs[f"{name}::{inner}"] = Struct(of_inner, (), kind, (), struct.scope, ())
        body = _renamed(body, {inner: f"{name}::{inner}" for inner in unnamed} | self._classes(name))
        if None in alignments or None in bases:
            return None
        # By the Itanium C++ ABI, an object with virtual functions begins with the address of their table. A kernel calls none of
        # them: the address is of the host.
        offset = 8 if virtual else 0
        alignment = max(offset, 1, *filter(None, alignments)) if alignments else max(offset, 1)
        fields: dict[str, tuple[Any, int]] = {}
        empty: frozenset[str] = frozenset()
        for base in filter(None, bases):
            # Two objects of an empty class have two addresses. Such a pair of bases is left to structs=.
            if not empty.isdisjoint(base.empty):
                return None
            empty |= base.empty if not offset else frozenset()
            if base.dtype.names:
                offset += -offset % base.alignment
                inherited = {f: (base.dtype.fields[f][0], offset + base.dtype.fields[f][1]) for f in base.dtype.names}
                if not inherited.keys().isdisjoint(fields):
                    return None
                fields |= inherited
                offset += base.data
            alignment = max(alignment, base.alignment)
        for member in members_in(body):
            found = self._field(member, depth)
            if found is None:
                return None
            for field, dtype, aligned, own in found:
                named = dtype.names if not field else (field,)
                if not fields.keys().isdisjoint(named):
                    return None
                offset = 0 if struct.kind == "union" else offset + -offset % aligned
                # An empty base and a first member of the same empty class have two addresses.
                offset += 0 if offset or empty.isdisjoint(own) else aligned
                empty |= own if not offset else frozenset()
                if field:
                    fields[field] = (dtype, offset)
                else:  # the names of a class without a name are those of the class around it
                    fields |= {name: (dtype.fields[name][0], offset + dtype.fields[name][1]) for name in named}
                offset, alignment = offset + dtype.itemsize, max(alignment, aligned)
        if virtual and not fields:
            return None
        data = max([offset, *(at + dtype.itemsize for dtype, at in fields.values())])
        size = max(data + -data % alignment, 1)
        formats, offsets = [dtype for dtype, _ in fields.values()], [at for _, at in fields.values()]
        layout: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size}
        # By the Itanium C++ ABI, a derived struct has its members in the padding at the end of a base that is no POD.
        plain = (
            not bases
            and not virtual
            and not private_names(struct)
            and not _ASSIGNS.search(body)
            and not re.search(rf"~?\b{_tag(name)}\s*\(", body)
        )
        empty |= frozenset() if fields else frozenset((name,))
        return _Layout(numpy.dtype(layout), alignment, size if plain else data, empty)

    def _struct(self, name: str) -> Struct | None:
        return self._structs.get(name) or specialized(self._structs, name) or self._structs.get(key_of(name))

    def array(self, name: str, base: str, sizes: str) -> Element | None:
        """Returns the element that an array's typedef declares, such as ``typedef float vec3[3]``, or None."""
        dtype = c_dtype(base) or c_dtype(self._names.target(base))
        counts = [self._number(size) for size in re.findall(r"\[([^][]*)\]", sizes)]
        if dtype is None or None in counts:
            return None
        return Element(name, dtype, math.prod(filter(None, counts)), DTYPES[dtype].itemsize)

    def _aliases(self, name: str, depth: int) -> dict[str, str]:
        """Returns the types that a struct and its bases declare by ``using`` and ``typedef``, by name.

        Raises:
            ValueError: a name of a template has another number of arguments than the template.
        """
        struct = self._struct(name)
        found: dict[str, str] = {}
        if depth > _DEPTH or struct is None:
            return found
        for base in struct.bases:
            found |= self._aliases(self._name_of_base(substituted(base, struct, name)), depth + 1)
        for alias, target in aliases_in(substituted(struct.body, struct, name)).items():
            found[alias] = _renamed(target, found)
        return found

    def _name_of_base(self, text: str) -> str:
        """Returns the name of a struct in a base, ``public Shape<T>``."""
        return self._names.instance(re.sub(r"\b(?:public|private|protected|typename)\b", " ", text))

    def _based(self, text: str, kind: str, depth: int) -> _Layout | None:
        """Returns the layout of a base, ``public Shape<T>``, or None."""
        words = set(re.findall(r"\w+", text))
        found = self.of(self._name_of_base(text), depth + 1)
        public = "public" in words or (kind == "struct" and words.isdisjoint(("private", "protected")))
        if found is None or "virtual" in words or not (public or not found.dtype.names):
            return None
        return found

    def _alignment(self, text: str, depth: int) -> int | None:
        """Returns the value of an alignment, ``16`` or ``sizeof(float) * 4``, or None."""

        def size(match: re.Match[str]) -> str:
            found = self._base(match[1].strip(), depth)
            return str(found.dtype.itemsize) if found else match[0]

        # A macro may stand for the attribute.
        named = re.fullmatch(r"\s*(?:__align__|alignas|__builtin_align__)\s*\((.*)\)\s*", self._names.expanded(text))
        text = named[1] if named else text
        return self._number(re.sub(r"\b(?:sizeof|alignof)\s*\(([^()]*)\)", size, text))

    def _field(self, member: str, depth: int) -> list[tuple[str, Any, int, frozenset[str]]] | None:
        """Returns the name, the dtype, the alignment and the empty classes at the first byte of each field that a member
        declares, or None. A class without a name as a member has the name ``""``."""
        import numpy

        if _UNNAMED.fullmatch(member):
            within = self.of(member, depth + 1)
            return None if within is None else [("", within.dtype, within.alignment, within.empty)]
        read_only = re.match(r"[^*]*\bconst\b", member) is not None
        code = self._names.expanded(ATTRIBUTES.sub(" ", member))
        code = re.sub(r"\b(?:const|volatile|struct|enum|mutable|__restrict__)\b", " ", code)
        if function := _FUNCTION.fullmatch(code.partition("=")[0].strip()):
            return [(function[1], numpy.dtype("u8"), 8, frozenset())]
        first, *others = (part.partition("=")[0] for _, part in split(code))
        head = _BASE.match(first)
        if head is None:
            return None
        base = self._base(head[1], depth)
        found = []
        for declarator in (head[2], *others):
            field = _FIELD.fullmatch(declarator.strip())
            if field is None:
                return None
            pointed = self._pointed(head[1] + field["pointers"])
            kind = base if pointed is None else _Layout(_pointer(pointed, read_only), 8, 8)
            sizes = [self._number(size) for size in _SIZE.findall(field["sizes"])]
            if kind is None or None in sizes:
                return None
            dtype = numpy.dtype((kind.dtype, tuple(sizes))) if sizes else kind.dtype
            found.append((field["name"], dtype, kind.alignment, kind.empty))
        return found

    def _classes(self, name: str) -> dict[str, str]:
        """Returns the full names of the classes within a class, and of those beside it in the class around it."""
        found: dict[str, str] = {}
        outer = name.rpartition("::")[0] if "::" in key_of(name) else ""
        for scope in filter(None, (outer, name)):
            prefix = f"{key_of(scope)}::"
            inner = (key.removeprefix(prefix) for key in self._structs if key.startswith(prefix))
            found |= {short: f"{scope}::{short}" for short in inner if "::" not in short}
        return found

    def _pointed(self, declared: str) -> str | None:
        """Returns the type to which a type points, or None for another type."""
        target = declared if "*" in declared else self._names.target(declared.strip())
        return target.rpartition("*")[0].strip() if "*" in target and "(" not in target else None

    def _base(self, name: str, depth: int) -> _Layout | None:
        import numpy

        for base in (name, self._names.target(name)):
            dtype = c_dtype(re.sub(r"^(?:::)?std::", "", base))
            if dtype is not None:
                return _Layout(numpy_dtype(dtype), DTYPES[dtype].itemsize, DTYPES[dtype].itemsize)
            if array := STD_ARRAY.fullmatch(base):
                of, count = self._base(array[1].strip(), depth), self._number(array[2])
                if of is None or count is None:
                    return None
                return _Layout(numpy.dtype((of.dtype, (count,))), of.alignment, of.dtype.itemsize * count)
            if "::" in key_of(base) and not self._structs.keys().isdisjoint((base, key_of(base))):
                return self.of(base, depth + 1)
            if (vector := vector_of(base)) is not None:
                of_axes = numpy.dtype([(axis, numpy_dtype(vector.dtype)) for axis in "xyzw"[: vector.width]])
                return _Layout(of_axes, vector.alignment, of_axes.itemsize)
            if (layout := self.of(self._names.instance(base), depth + 1)) is not None and layout.dtype.names:
                return layout
            if base in _HANDLES:
                return _Layout(numpy.dtype("u8"), 8, 8)
        return None

    def _number(self, size: str) -> int | None:
        """Returns the value of an expression for a size, or None."""
        value = self._value(size)
        return value if value is not None and value > 0 else None

    def _value(self, expression: str) -> int | None:
        def entry(found: re.Match[str]) -> str:
            table, at = self._tables.get(found[1], ()), self._value(found[2])
            return f"({table[at]})" if at is not None and 0 <= at < len(table) else found[0]

        text = self._names.expanded(re.sub(r"(\w+)\s*\[([^][]*)\]", entry, expression)).strip()
        text = re.sub(r"\b(true|false)\b", lambda word: str(int(word[0] == "true")), text)
        text = self._defines.get(text, text)
        for _ in range(_DEPTH):
            text = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: f"({self._defines.get(word[0], word[0])})", text)
            if not re.search(r"[A-Za-z_]\w*", text):
                break
        return None if re.search(r"[A-Za-z_]\w*", text) else value_of(text)


def _pointer(pointed: str, read_only: bool) -> Any:
    """Returns the dtype of a pointer, which says of which dtype an array at the address is, and whether kernels only read it."""
    import numpy

    return numpy.dtype("u8", metadata={"pointer": (c_dtype(pointed) or "", read_only)})


def _tag(name: str) -> str:
    return re.escape(name.partition("<")[0])


def _renamed(text: str, aliases: Mapping[str, str]) -> str:
    """Returns a text with the names of types replaced by the types. A name behind ``::`` is of another struct."""
    return re.sub(r"(?<![\w:])[A-Za-z_]\w*\b", lambda word: aliases.get(word[0], word[0]), text) if aliases else text
