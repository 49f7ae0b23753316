"""Derives the layouts of structs and unions from a text: of numbers, vectors, pointers, arrays and other such structs, also as
instances of templates.

The compiler compares a derived layout, like a layout of ``structs=``, with its own (:func:`.elements.assertions`). A
struct with bases, bit fields, references or members of unknown types has no derived layout.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kernels_cu
from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split
from cupyops.compile.preprocess import value_of
from cupyops.compile.source import included
from cupyops.dtypes import DTYPES

from .definitions import ATTRIBUTES, declarations, entry_in
from .elements import Element, struct_elements, vector_of
from .typenames import TypeNames, c_dtype, type_names

__all__ = ["derived_structs", "struct_layouts"]

_ALIGN = r"(?:\s*(?:__align__|alignas|__builtin_align__)\s*\(\s*(?P<{0}>\d+)\s*\))?"
_STRUCT = re.compile(
    r"\b(?P<kind>struct|union)\b"
    + _ALIGN.format("align")
    + r"(?:\s+(?P<tag>[A-Za-z_]\w*))?\s*(?:final\s*)?(?P<open>\{)",
    re.DOTALL,
)
_TYPEDEF = re.compile(r"\}" + _ALIGN.format("align") + r"\s*([A-Za-z_]\w*)\s*;")
_FIELD = re.compile(
    r"(?P<pointers>[*\s]*)(?:const\b|__restrict__\b|\s)*(?P<name>[A-Za-z_]\w*)\s*(?P<sizes>(?:\[[^][]*\]\s*)*)\Z"
)
_INTEGER = r"(?:unsigned|signed|long|short|int|char)\b"
_BASE = re.compile(rf"\s*({_INTEGER}(?:\s*\b{_INTEGER})*|[\w:]+(?:\s*<[^<>]*(?:<[^<>]*>[^<>]*)*>)?)(.*)", re.DOTALL)
_TEMPLATE = re.compile(r"\btemplate\s*<([^;{}]*)>\Z")
_NESTED = re.compile(r"\benum\b\s*(?:class\b|struct\b)?\s*(\w+)\s*(?::\s*([\w:\s]+?))?\s*\{[^{}]*\}\s*;")
_NUMBER = re.compile(
    r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?\w+\s+(\w+)\s*(?:=\s*([^;{}]+)|\{([^;{}]*)\})\s*;"
)
_HANDLES = frozenset(("cudaStream_t", "cudaEvent_t"))  # of the host, pointers
_SKIPPED = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
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
    if isinstance(text, kernels_cu.Text) or not re.search(r"\b(?:struct|union)\b", text + "\n".join(headers.values())):
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
    words = set(re.findall(r"\b[A-Za-z_]\w*\b", listed))
    structs = {name: found for source in (text, *headers.values()) for name, found in _structs(source).items()}
    wanted = (words & structs.keys()) - known.keys()
    if not wanted:
        return {}
    given, hidden = (entry.arguments(), entry.names) if entry else ({}, frozenset[str]())
    names = type_names(text, headers, {**defines}, function.start, function.scope, given, hidden)
    numbers = {m[1]: m[2] or m[3] for source in (text, *headers.values()) for m in _NUMBER.finditer(scan(source).bare)}
    layouts = _Layouts(structs, names, {**numbers, **defines})
    instances = {
        names.instance(found) for name in sorted(wanted) if structs[name].parameters for found in _ids(listed, name)
    }
    found = {}
    for name in sorted({name for name in wanted if not structs[name].parameters} | instances):
        if name not in known and (layout := layouts.of(name, 0)) is not None:
            dtype, alignment = layout
            struct = structs[name.partition("<")[0]]
            spelling = "::".join((*struct.scope, name)) if struct.scope or struct.parameters else ""
            found[name] = Element(name, "uint8", dtype.itemsize, min(alignment, 16), dtype, spelling=spelling)
    return found


def _ids(listed: str, name: str) -> Iterator[str]:
    """Yields the instances of a template in the text of a parameter list, ``Pair<T, 2>``."""
    for match in re.finditer(rf"\b{name}\s*<", listed):
        depth = 0
        for mark in re.finditer(r"[<>]", listed[match.start() :]):
            depth += 1 if mark[0] == "<" else -1
            if not depth:
                yield listed[match.start() : match.start() + mark.end()]
                break


class _Struct(NamedTuple):
    """A struct of a text: its body, its declared alignment, whether it is a union, the parameters of its template, and its
    namespaces."""

    body: str
    alignment: int
    union: bool
    parameters: tuple[str, ...]
    scope: tuple[str, ...]


def _structs(text: str) -> dict[str, _Struct]:
    """Returns the structs and unions that a text defines outside functions and classes, by name."""
    bare, found = scan(text).bare, {}
    for match in _STRUCT.finditer(bare):
        before = bare[max(0, match.start() - 400) : match.start()].rstrip()
        scope = scan(text).scope(match.start())
        template = _TEMPLATE.search(before) if before.endswith(">") else None
        if scope is None or (before.endswith(">") and template is None):
            continue  # within a class
        names = [re.findall(r"\w+", part.partition("=")[0])[-1:] for _, part in split(template[1])] if template else []
        parameters = tuple(name[0] for name in names if name)
        end = scan(text).end_of_function(match.start("open"))
        body = bare[match.end() : end - 1]
        behind = _TYPEDEF.match(bare, end - 1) if before.endswith("typedef") else None
        align = int(match["align"] or (behind and behind["align"]) or 1)
        for name in (match["tag"], behind[2] if behind else None):
            if name:
                found[name] = _Struct(body, align, match["kind"] == "union", parameters, scope)
    return found


class _Layouts:
    def __init__(self, structs: Mapping[str, _Struct], names: TypeNames, defines: Mapping[str, str]) -> None:
        self._structs, self._names, self._defines = structs, names, defines

    def of(self, name: str, depth: int) -> tuple[Any, int] | None:
        """Returns the NumPy dtype and the alignment of a struct, or None."""
        import numpy

        struct = self._structs.get(name.partition("<")[0])
        if depth > _DEPTH or struct is None:
            return None
        body, alignment = struct.body, struct.alignment
        if struct.parameters:
            given = [" ".join(part.split()) for _, part in split(name.partition("<")[2].removesuffix(">"))]
            if len(given) != len(struct.parameters):
                return None
            by_name = dict(zip(struct.parameters, given, strict=True))
            body = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: by_name.get(word[0], word[0]), body)
        for enumeration in _NESTED.finditer(body):  # an enumeration within the struct
            body = re.sub(rf"\b{enumeration[1]}\b(?!\s*(?::|\{{))", (enumeration[2] or "int").strip(), body)
        fields: dict[str, tuple[Any, int]] = {}
        offset = 0
        for member in _members(_NESTED.sub(" ", body)):
            found = self._field(member, depth)
            if found is None:
                return None
            for field, dtype, aligned in found:
                offset = 0 if struct.union else offset + -offset % aligned
                fields[field] = (dtype, offset)
                offset, alignment = offset + dtype.itemsize, max(alignment, aligned)
        if not fields:
            return None
        formats, offsets = zip(*fields.values(), strict=True)
        size = max(at + dtype.itemsize for dtype, at in fields.values())
        size += -size % alignment
        layout: Any = {"names": list(fields), "formats": list(formats), "offsets": list(offsets), "itemsize": size}
        return numpy.dtype(layout), alignment

    def _field(self, member: str, depth: int) -> list[tuple[str, Any, int]] | None:
        """Returns the name, the dtype and the alignment of each field that a member declares, or None."""
        import numpy

        code = self._names.expanded(ATTRIBUTES.sub(" ", member))
        code = re.sub(r"\b(?:const|volatile|struct|enum|mutable|__restrict__)\b", " ", code)
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
            kind = (numpy.dtype("u8"), 8) if "*" in field["pointers"] else base
            sizes = [self._number(size) for size in re.findall(r"\[([^][]*)\]", field["sizes"])]
            if kind is None or None in sizes:
                return None
            dtype = numpy.dtype((kind[0], tuple(sizes))) if sizes else kind[0]
            found.append((field["name"], dtype, kind[1]))
        return found

    def _base(self, name: str, depth: int) -> tuple[Any, int] | None:
        import numpy

        for base in (name, self._names.target(name)):
            dtype = c_dtype(re.sub(r"^(?:::)?std::", "", base))
            if dtype is not None and dtype != "bfloat16":
                return numpy.dtype(dtype), DTYPES[dtype].itemsize
            if (vector := vector_of(base)) is not None and vector.dtype != "bfloat16":
                return numpy.dtype([(axis, vector.dtype) for axis in "xyzw"[: vector.width]]), vector.alignment
            if (layout := self.of(self._names.instance(base), depth + 1)) is not None:
                return layout
            if base in _HANDLES:
                return numpy.dtype("u8"), 8
        return None

    def _number(self, size: str) -> int | None:
        text = self._names.expanded(size).strip()
        text = self._defines.get(text, text)
        for _ in range(_DEPTH):
            text = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: f"({self._defines.get(word[0], word[0])})", text)
            if not re.search(r"[A-Za-z_]\w*", text):
                break
        value = value_of(text)
        return value if value is not None and value > 0 else None


def _members(body: str) -> Sequence[str]:
    """Returns the declarations of data in the body of a struct, without functions."""
    body = _SKIPPED.sub(" ", body)
    while "{" in body:  # the bodies of functions, from within
        body, count = re.subn(r"\{[^{}]*\}", ";", body)
        if not count:
            break
    found = (part.strip() for part in body.split(";"))
    # A pointer to a function is data, of no type that a dtype has.
    return [
        p
        for p in found
        if p
        and ("(" not in p or "(*" in p)
        and not re.match(r"(?:static|using|typedef|friend|template|enum|static_assert)\b", p)
    ]
