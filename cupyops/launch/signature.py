"""Parses a kernel's parameters from its declaration in the text.

The declaration gives the names, the order, ``const``, the pointer types and the scalar widths of the arguments. The
comment behind a parameter, or on a line of its own above the parameter, gives its shape::

    extern "C" __global__ void scale(
        const scalar_t* __restrict__ x,  // (M, N)
        scalar_t* __restrict__ y,        // (M, N)
        long long M, long long N, acc_t factor)

``// (M, N)`` means that the array is contiguous and has M·N elements. A pointer without a shape comment is a view,
whose layout and bounds are not checked. A comment behind the parameter stands before or after the comma. A
shape comment that may belong to two parameters, or to none, raises an error. A comment such as ``// (M * N)``, or with a name
that is no integer of the kernel, gives no shape, with a warning. Non-``const`` pointers are outputs. With
``// (N) or null`` a call may give None, which is a null pointer in the kernel.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.compile.definitions import split
from cupyops.compile.preprocess import CONDITIONALS, Preprocessed, preprocess
from cupyops.dtypes import DTYPES, INTEGERS
from cupyops.sharing import computed_once

from . import accessors
from .accessors import Accessor
from .definitions import ATTRIBUTES, declarations, entry_in, overloads
from .elements import element_of, opaque, resolved
from .library_types import REFUSED, Element, complex_of
from .packing import BFloat16Struct
from .shape_comments import Piece, foreign_names, shape_comments, shape_of
from .template import Entry, parameter_types
from .typenames import TypeNames, dtype_of, type_names

__all__ = ["Parameter", "Signature"]

_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "void"))

# Words in a declaration that do not change how an argument is passed.
_QUALIFIERS = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename)\b")
_ENUM = re.compile(r"\benum (?=\w)")
# An array of addresses, T**, and whether the kernel only reads it: T* const*.
_ADDRESSES = re.compile(r"[^*]*\*\s*(const\b)?\s*\*\s*(?:const\b)?\s*([A-Za-z_]\w*)")
_ARRAY = re.compile(r"(.*\W)(\w+)\s*\[[^][]*\]", re.DOTALL)
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"Int64s\s*<\s*(\w+)\s*>\s*(\w+)")
_PACK = re.compile(r"(.*\S)\s*\.\.\.\s*(\w+)", re.DOTALL)  # of parameters
_NAMED_TYPE = re.compile(r"(?:(const) )?([\w:]+(?:\s*<(?:[^<>]|<[^<>]*>)*>)?) (\w+)")
_FUNCTION = re.compile(r"[^()]*\(\s*\*\s*(?:const\s+)?(\w+)\s*\)\s*\(.*\)", re.DOTALL)  # a pointer to a function
_MAP_BYTES = 128
_IN_ARGUMENTS = {"*": "\1", "&": "\2", "const": "\3"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: the name in the text.
        type: a dtype name, or a type that the prelude defines: ``scalar_t``, ``acc_t`` or another undeclared type name.
        pointer: the parameter is an array.
        const: the kernel does not write the parameter; True for every scalar.
        shape: names and numbers whose product is the number of elements, or None for a view.
        length: the length of an ``Int64s<length>``, a number or the name of a constant; None for another type.
        nullable: a call may give None for the array.
        optional: a call may leave the array out: the declaration has the default ``nullptr``.
        map_of: the name ``x`` of the array of a tensor map ``const __grid_constant__ TensorMap x_map``
            (:mod:`cupyops.launch.tensor_map`); None for another type.
        element: the vector type, the struct, or the kind of texture of the parameter; None for a number and for an
            array of numbers. `type` is then the dtype of the array, and `shape` ends with the last dimension.
        untyped: a ``void*`` or a pointer to a struct whose layout Python does not know; such a parameter takes an array of any
            dtype, and `type` is then ``uint8``. Or a pointer to a type that only a compiler knows; `type` is then its name in C++. The
            array decides the dtype, and the compiler refuses another one than the type's (:mod:`.parameter_types`).
        accessor: the layout of a packed accessor, which the launch fills from the array; None for another type.
    """

    name: str
    type: str
    pointer: bool = False
    const: bool = True
    shape: tuple[str, ...] | None = None
    length: str | None = None
    nullable: bool = False
    map_of: str | None = None
    element: Element | None = None
    untyped: bool = False
    accessor: Accessor | None = None
    optional: bool = False

    def c_type(self, types: Mapping[str, str]) -> str:
        """Returns the name of the parameter's dtype under a choice of types."""
        if self.type == "acc_t":
            return DTYPES[types["scalar_t"]].acc
        found = types.get(self.type, self.type)
        return "uint8" if self.untyped and found not in DTYPES else found


@dataclass(frozen=True)
class Signature:
    """The parameters of one ``__global__`` function, in the order of the declaration.

    `entry` is the kernel's C++ name, or None for an ``extern "C"`` function.
    """

    kernel: str
    parameters: tuple[Parameter, ...]
    entry: Entry | None = None

    @computed_once
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @computed_once
    def has_arrays(self) -> bool:
        return any(p.pointer for p in self.parameters)

    @computed_once
    def objects(self) -> tuple[Parameter, ...]:
        """The vectors, structs, textures and surfaces that are passed by value."""
        return tuple(p for p in self.parameters if p.element is not None and not p.pointer)

    @computed_once
    def accessors(self) -> tuple[Parameter, ...]:
        """The packed accessors."""
        return tuple(p for p in self.parameters if p.accessor is not None)

    @property
    def bindings(self) -> dict[str, tuple[int, ...]]:
        """Maps each type that the caller's arrays decide to the positions of its arrays.

        The first array that is not None decides the type.
        """
        found: dict[str, list[int]] = {}
        for i, p in enumerate(self.parameters):
            if p.pointer and p.type not in DTYPES and p.type != "acc_t":
                found.setdefault(p.type, []).append(i)
        return {name: tuple(positions) for name, positions in found.items()}

    def packing(
        self, types: Mapping[str, str], constants: Mapping[str, int]
    ) -> tuple[struct.Struct | BFloat16Struct, list[tuple[int, int]]]:
        """Returns the memory layout of the arguments: a :class:`struct.Struct` that packs all values in order, and the
        (offset, size) of each parameter in bytes."""
        codes, fields, offset = [], [], 0
        values = 0
        bfloat16s: list[int] = []
        for p in self.parameters:
            if p.map_of is not None:
                pad = -offset % 64
                codes.append(f"{pad}x{_MAP_BYTES}s")
                fields.append((offset + pad, _MAP_BYTES))
                offset += pad + _MAP_BYTES
                values += 1
                continue
            count, aligned = 1, p.element.alignment if p.element else 0
            if p.accessor is not None:
                codes.append(f"{-offset % 8}x{p.accessor.packing(constants)[0]}")
                fields.append((offset + -offset % 8, p.accessor.packing(constants)[1]))
                offset = sum(fields[-1])
                values += p.accessor.values(constants)
                continue
            if p.pointer:
                code, size = "Q", 8
            elif p.element is not None and p.element.record is not None:
                code, size = "s", p.element.width
            else:
                dtype = DTYPES[p.c_type(types)]
                count = int(constants.get(p.length, p.length)) if p.length is not None else 1
                bfloat16s += range(values, values + count) if dtype.name == "bfloat16" else ()
                code, size = dtype.code, dtype.itemsize
            pad = -offset % (size if p.pointer or not aligned else aligned)
            codes.append(f"{pad}x{size if code == 's' else count}{code}")
            fields.append((offset + pad, size * count))
            offset += pad + size * count
            values += count
        layout = "=" + "".join(codes)
        return BFloat16Struct(layout, bfloat16s) if bfloat16s else struct.Struct(layout), fields

    @classmethod
    def parse(
        cls,
        text: str,
        kernel: str,
        headers: Mapping[str, str] | None = None,
        defines: Mapping[str, str] | None = None,
        structs: Mapping[str, Element] = MappingProxyType({}),
    ) -> "Signature":
        """Parses the declaration of ``kernel`` in CUDA C++ text.

        Args:
            text: CUDA C++.
            kernel: the kernel's name, also with namespaces and template arguments.
            headers: the texts of the included headers, by name.
            defines: macros that are defined before the text; None if they are not known yet, so that any name may be in a
                shape.
            structs: the layouts of the text's structs, by name.

        Raises:
            ValueError: the text has no ``__global__`` function of this name (the message suggests the closest name).
            TypeError: no Python value can be passed for a parameter.
        """
        code = scan(text)
        first, *others = declarations(code, kernel)
        entry = entry_in(text, kernel)
        given, hidden = (entry.arguments(), entry.names) if entry else ({}, frozenset[str]())
        packs = entry.packs() if entry else {}
        names = type_names(text, headers or {}, defines or {}, first.start, first.scope, given, hidden)
        follow = partial(preprocess, text, headers or {}, defines or {})
        if others:
            live = follow(None)
            states = [live.live("", f.start) for f in (first, *others)]
            compiled = [f for f, state in zip((first, *others), states, strict=True) if state is not False]
            first, *others = compiled or (first, *others)
            if (
                None not in states
                and len({parameter_types(code.bare[f.parameters : f.end]) for f in (first, *others)}) > 1
            ):
                raise ValueError(
                    f"{kernel}: the text has several functions of this name; name one with the types of its parameters: "
                    f"{overloads(code, (first, *others))}"
                )
        parameters = _parameters(kernel, text, code, first, names, follow, structs, packs)
        for other in others:
            if _parameters(kernel, text, code, other, names, follow, structs, packs) != parameters:
                lines = " and ".join(str(text.count("\n", 0, f.start) + 1) for f in (first, other))
                raise ValueError(
                    f"{kernel}: the text has different definitions of it (lines {lines}), and only a compiler can "
                    f"decide which one is compiled; declare it once, or give each kernel a name of its own"
                )
        integers = {p.name for p in parameters if not p.pointer and p.type in INTEGERS and p.length is None}
        constants = {*(defines or {}), *(entry.names if entry else ())}
        parameters = tuple(
            replace(p, shape=None)
            if defines is not None and p.shape and foreign_names(kernel, p.name, p.shape, integers, constants)
            else p
            for p in parameters
        )
        parameters = tuple(resolved(kernel, p, structs) for p in parameters)
        parameters = opaque(kernel, parameters, (text, *(headers or {}).values()))
        return cls(kernel, parameters, entry)


def _parameters(
    kernel: str,
    text: str,
    code: Code,
    function: Function,
    names: TypeNames,
    follow: Callable[[int | None], Preprocessed],
    structs: Mapping[str, Element],
    packs: Mapping[str, Sequence[str]],
) -> tuple[Parameter, ...]:
    start, end = function.parameters, function.end
    if end < 0:
        raise ValueError(f"{kernel}: its list of parameters has no end")
    pieces: list[Piece] = []
    listed, comments = _live(kernel, text, code, start, end, follow)
    for place, piece in split(listed):
        at = start + place
        if piece.strip() and piece.split() != ["void"]:
            first = at + len(piece) - len(piece.lstrip())
            pieces += [
                Piece(one, first, at + len(piece.rstrip()), at + len(piece))
                for listed_here in _listed(piece, names)
                for one in _unpacked(kernel, listed_here, packs)
            ]
    bare = [_parameter(kernel, i, piece.declaration, names, structs) for i, piece in enumerate(pieces)]
    comments_of = shape_comments(kernel, text, code, end, comments, pieces, [p.pointer for p in bare])
    found = []
    for p, comment in zip(bare, comments_of, strict=True):
        shape, nullable = shape_of(kernel, p.name, comment) if p.pointer and comment else (None, False)
        found.append(replace(p, shape=shape, nullable=nullable))
    # The launch runs where its arrays are, so that one array must be given.
    by_default = [
        p.pointer and p.accessor is None and _has_null(piece.declaration) for p, piece in zip(bare, pieces, strict=True)
    ]
    if any(p.pointer and not p.nullable and not null for p, null in zip(found, by_default, strict=True)):
        found = [
            replace(p, nullable=True, optional=True) if null else p for p, null in zip(found, by_default, strict=True)
        ]
    return tuple(found)


def _has_null(declaration: str) -> bool:
    """Returns whether the default of a parameter is the null pointer."""
    _, *default = split(declaration, "=")
    return bool(default) and default[0][1].strip() in ("nullptr", "NULL", "0", "{}")


def _listed(declaration: str, names: TypeNames) -> list[str]:
    """Returns the parameters of a macro that stands for several, or the one parameter of another declaration."""
    if not declaration.strip().isidentifier():
        return [declaration]
    return [one for _, one in split(names.expanded(declaration)) if one.strip()]


def _unpacked(kernel: str, declaration: str, packs: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the parameters of a pack, ``const Ts*... xs``, or the one parameter of another declaration.

    Raises:
        TypeError: the kernel's name does not give the types of the pack.
    """
    found = _PACK.fullmatch(declaration.strip())
    if found is None:
        return [declaration]
    pack = next((word for word in re.findall(r"\w+", found[1]) if word in packs), "")
    if not pack:
        raise TypeError(
            f"{kernel}: `{declaration.strip()}` is a pack of parameters: give their types in the kernel's name, "
            f"{kernel.partition('<')[0]}<float, int>"
        )
    name = re.compile(rf"\b{pack}\b")
    return [f"{name.sub(argument, found[1])} {found[2]}{number}" for number, argument in enumerate(packs[pack])]


def _live(
    kernel: str, text: str, code: Code, start: int, end: int, follow: Callable[[int | None], Preprocessed]
) -> tuple[str, list[tuple[int, int]]]:
    """Returns a parameter list with blanks for what its conditionals remove, and the places of the comments that remain.

    Raises:
        TypeError: the list has another directive, or a conditional that only a compiler decides.
    """
    directives = code.directives_between(start, end)
    listed, comments = code.bare[start:end], code.comments_between(start, end)
    if not directives:
        return listed, comments
    found = follow(end)
    for i, directive in enumerate(directives):
        behind = directives[i + 1].start if i + 1 < len(directives) else end
        live = found.live("", directive.end) if directive.name in CONDITIONALS else None
        if live is None:
            line = text[directive.start : directive.end].strip()
            raise TypeError(f"{kernel}: `{line}` is in the parameter list, which must be the same in every compilation")
        if not live:
            first, last = directive.end - start, behind - start
            listed = listed[:first] + " " * (last - first) + listed[last:]
    return listed, [span for span in comments if found.live("", span[0])]


def _parameter(
    kernel: str, position: int, declaration: str, names: TypeNames, structs: Mapping[str, Element]
) -> Parameter:
    if tensor_map := _TENSOR_MAP.fullmatch(" ".join(declaration.split())):
        return Parameter(f"{tensor_map[1]}_map", "TensorMap", map_of=tensor_map[1])
    words = names.expanded(ATTRIBUTES.sub(" ", split(declaration, "=")[0][1]))
    words = _ENUM.sub("", " ".join(_QUALIFIERS.sub(" ", words).replace("*", " * ").split()))
    if accessor := _accessor(kernel, words, names, structs):
        return accessor
    if function := _FUNCTION.fullmatch(words):
        return Parameter(function[1], "uint64")
    words = _hidden(words)
    if alias := _NAMED_TYPE.fullmatch(words):  # a typedef or an alias template may be of a pointer
        target = names.target(_shown(alias[2]))
        if "*" in re.sub(r"<.*>", "", target):
            words = f"{' '.join(_QUALIFIERS.sub(' ', target).replace('*', ' * ').split())} {alias[3]}"
    if vector := _INT64S.fullmatch(re.sub(r"\bconst\b", " ", words).strip()):
        return Parameter(vector[2], "int64", length=vector[1])
    if (array := _ARRAY.fullmatch(words)) and "[" not in array[1]:
        words = f"{array[1].rstrip()} * {array[2]}"  # an array parameter is a pointer
    # A reference is passed as the address of its object, like a pointer.
    words = re.sub(r"\s*(?<!&)&(?!&)\s*", " * ", words).rstrip()
    if _is_unnamed(words, names, structs):
        words = f"{words} parameter{position}"
    pointer = "*" in words
    if words.count("*") > 2 or "&" in words or "[" in words:
        raise TypeError(
            f"{kernel}: parameter `{declaration.strip()}`: pass arrays as T*, numbers by value, small tuples as Int64s<N>"
        )
    if addresses := _ADDRESSES.fullmatch(words):
        return Parameter(addresses[2], "uint64", pointer=True, const=addresses[1] is not None)
    left, _, name = words.rpartition(" ")
    pointee, _, qualifiers = left.partition("*")
    base = _shown(" ".join(w for w in pointee.split() if w != "const"))
    if not base or qualifiers.strip() not in ("", "const") or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in _WORDS:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    target = names.target(base)
    known = dtype_of(base) or dtype_of(target) or next((of for of in (base, target) if element_of(of, structs)), base)
    if known not in DTYPES and element_of(known, structs) is None and element_of(names.instance(base), structs):
        known = names.instance(base)
    if known in REFUSED:
        raise TypeError(f"{kernel}: parameter `{name}` is of {known}, {REFUSED[known]}")
    const = not pointer or "const" in pointee.split() or "const" in target.split()
    if pointer and "void" in (base, target.replace("const", " ").strip()):
        return Parameter(name, "uint8", pointer=True, const=const, untyped=True)
    # A name for a class of a library or of an absent header, whose layout Python does not know.
    if (
        known == base
        and known not in (*DTYPES, *_WORDS)
        and not element_of(known, structs)
        and re.search("[<:(]", target)
    ):
        known = base = target
    if known not in DTYPES and (
        known in _WORDS or not (known.removeprefix("struct ").isidentifier() or element_of(known, structs))
    ):
        if pointer and known not in _WORDS and not base.startswith("Int64s"):
            return Parameter(name, known, pointer=True, const=const, untyped=True)
        raise TypeError(
            f"{kernel}: parameter `{name}` has type {base!r}, for which no Python value can be passed{_instead(base, names)}"
        )
    return Parameter(name, known, pointer=pointer, const=const)


def _hidden(words: str) -> str:
    """Returns a declaration with other characters in place of what qualifies the types in the arguments of a template."""
    depth, found = 0, []
    for part in re.split(r"([<>*&]|\bconst\b)", words):
        depth += (part == "<") - (part == ">")
        found.append(_IN_ARGUMENTS.get(part, part) if depth else part)
    return "".join(found)


def _shown(words: str) -> str:
    """Returns what :func:`_hidden` hides."""
    for part, hidden in _IN_ARGUMENTS.items():
        words = words.replace(hidden, part)
    return words


def _instead(base: str, names: TypeNames) -> str:
    """Returns what to declare instead of a parameter of a type that no Python value can be passed for."""
    number = names.argument(outer := base.partition("::")[0].strip())
    if "::" in base and number is not None and dtype_of(number):
        return f": {number}, which the kernel's name gives for {outer}, has no members"
    if base.rpartition("::")[2].startswith("TensorInfo"):
        return "; declare PackedTensorAccessor32<T, N>, which the launch fills from an array of N dimensions"
    if "::" in base or "<" in base:
        return "; declare its members as parameters of their own, or a struct of the text, whose layout is given as structs={...}"
    return ""


def _is_unnamed(words: str, names: TypeNames, structs: Mapping[str, Element]) -> bool:
    """Returns whether a declaration has a type and no name."""
    if words.endswith(("*", ">")) or re.search(r"\*\s*const$", words):
        return True
    base = " ".join(word for word in words.split() if word != "const")
    known = dtype_of(base) or dtype_of(names.target(base)) or element_of(base, structs)
    return known is not None and "*" not in base and (" " not in base or base.split()[-1] in _WORDS)


def _accessor(kernel: str, words: str, names: TypeNames, structs: Mapping[str, Element]) -> Parameter | None:
    """Returns the parameter of a packed accessor, or None for another declaration."""

    def bits_of(base: str) -> int:
        return 8 * DTYPES[dtype].itemsize if (dtype := dtype_of(base) or dtype_of(names.target(base))) else 0

    found = accessors.declared(kernel, words, bits_of)
    if found is None and (alias := _NAMED_TYPE.fullmatch(words)):
        target = names.target(alias[2])
        if target == alias[2]:
            return None
        found = accessors.declared(kernel, " ".join(filter(None, (alias[1], target, alias[3]))), bits_of)
    if found is None:
        return None
    base = dtype_of(found.type) or dtype_of(names.target(found.type)) or found.type
    if base not in DTYPES and (number := complex_of(names.target(found.type))) is not None:
        accessor = replace(found.accessor, paired=True)
        return Parameter(found.name, number.dtype, pointer=True, const=found.const, accessor=accessor, element=number)
    if base not in DTYPES and (base in _WORDS or not base.isidentifier() or element_of(base, structs)):
        raise TypeError(f"{kernel}: parameter `{found.name}` has elements of {found.type!r}, which is no dtype")
    return Parameter(found.name, base, pointer=True, const=found.const, accessor=found.accessor)
