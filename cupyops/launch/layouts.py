"""Derives the layouts of structs from a text: structs of numbers, vectors, pointers, arrays and other such structs.

The compiler compares a derived layout, like a layout of ``structs=``, with its own (:func:`.elements.assertions`). A
struct with bases, bit fields, references or members of unknown types has no derived layout.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import kernels_cu
from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split
from cupyops.compile.source import included
from cupyops.dtypes import DTYPES

from .definitions import ATTRIBUTES, declarations
from .elements import Element, struct_elements, vector_of
from .signature import c_dtype
from .typenames import TypeNames, type_names

__all__ = ["derived_structs", "struct_layouts"]

_ALIGN = r"(?:\s*(?:__align__|alignas|__builtin_align__)\s*\(\s*(?P<{0}>\d+)\s*\))?"
_STRUCT = re.compile(
    r"\bstruct\b" + _ALIGN.format("align") + r"(?:\s+(?P<tag>[A-Za-z_]\w*))?\s*(?:final\s*)?(?P<open>\{)", re.DOTALL
)
_TYPEDEF = re.compile(r"\}" + _ALIGN.format("align") + r"\s*([A-Za-z_]\w*)\s*;")
_FIELD = re.compile(
    r"(?P<pointers>[*\s]*)(?:const\b|__restrict__\b|\s)*(?P<name>[A-Za-z_]\w*)\s*(?P<sizes>(?:\[[^][]*\]\s*)*)\Z"
)
_INTEGER = r"(?:unsigned|signed|long|short|int|char)\b"
_BASE = re.compile(rf"\s*({_INTEGER}(?:\s*\b{_INTEGER})*|[\w:]+)(.*)", re.DOTALL)
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
    if isinstance(text, kernels_cu.Text) or "struct" not in text + "".join(headers.values()):
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
    words = set(
        re.findall(r"\b[A-Za-z_]\w*\b", code.bare[function.parameters : max(function.end, function.parameters)])
    )
    structs = {name: found for source in (text, *headers.values()) for name, found in _structs(source).items()}
    wanted = (words & structs.keys()) - known.keys()
    if not wanted:
        return {}
    names = type_names(text, headers, {**defines}, function.start, function.scope)
    layouts = _Layouts(structs, names, defines)
    found = {}
    for name in sorted(wanted):
        if (layout := layouts.of(name, 0)) is not None:
            dtype, alignment = layout
            found[name] = Element(name, "uint8", dtype.itemsize, min(alignment, 16), dtype)
    return found


def _structs(text: str) -> dict[str, tuple[str, int]]:
    """Returns the body and the declared alignment of each struct that a text defines outside functions and classes."""
    bare, found = scan(text).bare, {}
    for match in _STRUCT.finditer(bare):
        before = bare[max(0, match.start() - 200) : match.start()].rstrip()
        if scan(text).scope(match.start()) is None or before.endswith(">"):
            continue  # within a class, or a template
        end = scan(text).end_of_function(match.start("open"))
        body = bare[match.end() : end - 1]
        behind = _TYPEDEF.match(bare, end - 1) if before.endswith("typedef") else None
        align = int(match["align"] or (behind and behind["align"]) or 1)
        for name in (match["tag"], behind[2] if behind else None):
            if name:
                found[name] = (body, align)
    return found


class _Layouts:
    def __init__(self, structs: Mapping[str, tuple[str, int]], names: TypeNames, defines: Mapping[str, str]) -> None:
        self._structs, self._names, self._defines = structs, names, defines

    def of(self, name: str, depth: int) -> tuple[Any, int] | None:
        """Returns the NumPy dtype and the alignment of a struct, or None."""
        import numpy

        if depth > _DEPTH or name not in self._structs:
            return None
        body, alignment = self._structs[name]
        fields: dict[str, tuple[Any, int]] = {}
        offset = 0
        for member in _members(body):
            found = self._field(member, depth)
            if found is None:
                return None
            for field, dtype, aligned in found:
                offset += -offset % aligned
                fields[field] = (dtype, offset)
                offset, alignment = offset + dtype.itemsize, max(alignment, aligned)
        if not fields:
            return None
        formats, offsets = zip(*fields.values(), strict=True)
        size = offset + -offset % alignment
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
            if (layout := self.of(base, depth + 1)) is not None:
                return layout
        return None

    def _number(self, size: str) -> int | None:
        text = self._names.expanded(size).strip()
        text = self._defines.get(text, text)
        return int(text) if re.fullmatch(r"[1-9][0-9]*", text) else None


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
        if p and ("(" not in p or "(*" in p) and not re.match(r"(?:static|using|typedef|friend|template)\b", p)
    ]
