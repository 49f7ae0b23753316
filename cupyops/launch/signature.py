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

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from cupyops.compile.ask import ParameterType
from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.compile.definitions import split
from cupyops.compile.preprocess import CONDITIONALS, Preprocessed, preprocess
from cupyops.dtypes import DTYPES, FLOATS, INTEGERS
from cupyops.errors import CompileError
from cupyops.sharing import computed_once

from .accessors import Accessor, accessor_of
from .definitions import ATTRIBUTES, declarations, entry_in, overloads
from .elements import resolved, unknown_struct, without_data
from .library_types import KNOWN, REFUSED, Element, complex_of, library_type
from .packing import BFloat16Struct
from .shape_comments import Piece, foreign_names, shape_comments, shape_of
from .template import Entry, parameter_types
from .typenames import Macros, dtype_of, may_declare

__all__ = ["Answers", "Parameter", "Signature"]

_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "void"))

# Words in a declaration that do not change how an argument is passed.
_QUALIFIERS = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename)\b")
_ENUM = re.compile(r"\benum (?=\w)")
# An array of addresses, T**, and whether the kernel only reads it: T* const*.
_ADDRESSES = re.compile(r"[^*]*\*\s*(const\b)?\s*\*\s*(?:const\b)?\s*([A-Za-z_]\w*)")
_ARRAY = re.compile(r"(.*\W)(\w*)\s*\[[^][]*\]", re.DOTALL)
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"Int64s\s*<\s*(\w+)\s*>\s*(\w+)")
_PACK = re.compile(r"(.*\S)\s*\.\.\.\s*(\w+)", re.DOTALL)  # of parameters
_FUNCTION = re.compile(r"[^()]*\(\s*\*\s*(?:const\s+)?(\w+)\s*\)\s*\(.*\)", re.DOTALL)  # a pointer to a function
_NAMED_WITHIN = re.compile(r"\(\s*[*&]\s*(?:const\s+)?(\w+)\s*\)\s*\[")  # a pointer or a reference to an array
_EXTENTS = re.compile(r"\s*\([*&]\)\s*(?:\[\d*\])+\Z|(?:\s*\[\d*\])+\Z")
_POINTER = re.compile(r"\s*(?:\*|&&?)\s*(const)?\s*(?:volatile\b|(?:__)?restrict(?:__)?\b|\s)*\Z")
_UNDEFINED = re.compile(
    r"identifier \"(\w+)\" is undefined|unknown type name '(\w+)'"
    r"|'(\w+)' (?:was not declared|has not been declared|does not name a type)"
)
_MAP_BYTES = 128
_OPAQUE = "only the compiler knows"  # in place of the type of a parameter, until the compiler is asked


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
            dtype, and `type` is then ``uint8``. Or a pointer to a type that follows from the dtypes of other arrays; `type` is then its
            name in C++. The array decides the dtype, and the compilation for these dtypes compares it (:meth:`Signature.compare`).
        accessor: the layout of a packed accessor, which the launch fills from the array; None for another type.
        asked: the compiler has told the type.
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
    asked: bool = False

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

    @computed_once
    def known(self) -> bool:
        """Whether the types of all parameters are known, without a question to the compiler."""
        return all(p.type != _OPAQUE for p in self.parameters)

    @computed_once
    def structs(self) -> dict[str, Element]:
        """The vectors and structs of the parameters, by name."""
        found = (p.element for p in self.parameters if p.element is not None and not p.element.handle)
        return {e.name.rpartition("::")[2]: e for e in found}

    @classmethod
    def parse(
        cls,
        text: str,
        kernel: str,
        headers: Mapping[str, str] | None = None,
        defines: Mapping[str, str] | None = None,
        structs: Mapping[str, Element] = MappingProxyType({}),
        ask: "Callable[[Mapping[str, str], Sequence[int]], Answers] | None" = None,
        dtypes: Sequence[str] = FLOATS,
    ) -> "Signature":
        """Parses the declaration of ``kernel`` in CUDA C++ text.

        Args:
            text: CUDA C++.
            kernel: the kernel's name, also with namespaces and template arguments.
            headers: the texts of the included headers, by name.
            defines: macros that are defined before the text; None if they are not known yet, so that any name may be in a
                shape.
            structs: the layouts of structs that Python gives, by name.
            ask: returns the compiler's answers for a choice of types. It is called if the text has other types than numbers of C and
                names that nothing declares. Without it, such parameters have no type yet: :attr:`known` is False.
            dtypes: the dtypes of the types that the arrays decide.

        Raises:
            ValueError: the text has no ``__global__`` function of this name (the message suggests the closest name).
            TypeError: no Python value can be passed for a parameter.
            CompileError: the compiler refuses the text.
        """
        code = scan(text)
        first, *others = declarations(code, kernel)
        entry = entry_in(text, kernel)
        given = entry.arguments() if entry else {}
        hidden = entry.names if entry else frozenset[str]()
        found = preprocess(text, headers or {}, defines or {}, first.start)
        # The declaration may use the constants of the kernel by name.
        numbers = {name for name, value in (defines or {}).items() if value.lstrip("-").isdigit()}
        plain = {name: value for name, value in found.macros.items() if name not in numbers}
        names = _Names(
            Macros(plain, found.functions, hidden),
            frozenset[str]().union(*map(may_declare, (text, *(headers or {}).values()))) - hidden,
            given,
            entry.packs() if entry else {},
            structs,
        )
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
        declared = _Declared(kernel, text, code, first, names, follow)
        parameters = declared.parameters(None)
        for other in others:
            if _Declared(kernel, text, code, other, names, follow).parameters(None) != parameters:
                lines = " and ".join(str(text.count("\n", 0, f.start) + 1) for f in (first, other))
                raise ValueError(
                    f"{kernel}: the text has different definitions of it (lines {lines}), and only a compiler can "
                    f"decide which one is compiled; declare it once, or give each kernel a name of its own"
                )
        if ask is not None and any(p.type == _OPAQUE for p in parameters):
            types = entry.parameters if entry else ()
            open_types = [
                p.name for p in types if p.kind == "type" and p.name and p.name not in given and p.default is None
            ]
            answered = _answered(kernel, parameters, declared.bases(), open_types, ask, dtypes, structs)
            parameters = declared.parameters(answered)
            for p, base in zip(parameters, declared.bases(), strict=True):
                if p.asked and p.untyped and p.type == "uint8" and p.shape is not None:
                    raise unknown_struct(kernel, p.name, base.removeprefix("struct "))
        integers = {p.name for p in parameters if not p.pointer and p.type in (*INTEGERS, _OPAQUE) and p.length is None}
        constants = {*(defines or {}), *(entry.names if entry else ())}
        parameters = tuple(
            replace(p, shape=None)
            if defines is not None and p.shape and foreign_names(kernel, p.name, p.shape, integers, constants)
            else p
            for p in parameters
        )
        return cls(kernel, tuple(map(resolved, parameters)), entry)

    def compare(self, spellings: Sequence[str], types: Mapping[str, str]) -> str:
        """Returns what is wrong with the types of a compiled kernel's parameters, or ``""``.

        A launch passes the types that were read from the text, and the compiler has the last word about them.

        Args:
            spellings: the types as the compiler tells them, ``float const*``.
            types: the dtypes of the types that the arrays decide.
        """
        for p, spelling in zip(self.parameters, spellings, strict=False):
            depth, _, _, base = _taken_apart(spelling)
            dtype, element, decided = p.c_type(types), library_type(base), p.untyped and types.get(p.type)
            has = "uint64" if depth == 2 or "(" in base else dtype_of(base) or (element.dtype if element else None)
            if p.map_of is not None or (p.length is not None and p.element is None):
                continue
            if decided or (p.asked and not p.untyped):
                fits = has in (dtype, None) or p.element is not None
            elif p.asked:
                fits = True
            elif p.untyped:
                fits = depth == 1 and base == "void"
            else:
                fits = (depth > 0) == p.pointer and has == dtype
            if not fits:
                passed = (
                    "an array of any dtype"
                    if p.untyped and not decided
                    else f"an array of {dtype}"
                    if p.pointer
                    else f"a {dtype}"
                )
                instead = (
                    "pass an array of this type" if p.type in types else f"declare `{p.name}` with the C type itself"
                )
                return (
                    f"`{p.name}`: the launch passes {passed}, and the compiler says that it is `{spelling}`; {instead}"
                )
        return ""


class Answers(Protocol):
    """What the compiler says about a kernel's parameters for a choice of types."""

    @property
    def parameters(self) -> Sequence[ParameterType]:
        """The types, in the order of the declaration."""
        ...

    def record(self, position: int, given: Element | None) -> tuple[object, int]:
        """Returns the NumPy dtype of the class of a parameter, or None without one, and its bytes. The dtype has the members that a
        given struct has, if there is one."""
        ...


@dataclass(frozen=True)
class _Names:
    """What the names in a declaration are: macros, names of types that a text may declare, the arguments of the kernel's template and
    of its pack, and the structs that Python gives."""

    macros: Macros
    declared: frozenset[str]
    given: Mapping[str, str]
    packs: Mapping[str, Sequence[str]]
    structs: Mapping[str, Element]


class _Declared:
    """The declaration of a kernel in its text."""

    def __init__(
        self,
        kernel: str,
        text: str,
        code: Code,
        function: Function,
        names: _Names,
        follow: Callable[[int | None], Preprocessed],
    ) -> None:
        self._kernel, self._text, self._code, self._end = kernel, text, code, function.end
        start, end = function.parameters, function.end
        if end < 0:
            raise ValueError(f"{kernel}: its list of parameters has no end")
        listed, self._comments = _live(kernel, text, code, start, end, follow)
        self._pieces: list[Piece] = []
        for place, piece in split(listed):
            at = start + place
            if piece.strip() and piece.split() != ["void"]:
                first = at + len(piece) - len(piece.lstrip())
                self._pieces += [
                    Piece(one, first, at + len(piece.rstrip()), at + len(piece))
                    for listed_here in _listed(piece, names.macros)
                    for one in _unpacked(kernel, listed_here, names.packs)
                ]
        self._read = [_parameter(kernel, i, piece.declaration, names) for i, piece in enumerate(self._pieces)]

    def bases(self) -> list[str]:
        """Returns what the type of each parameter is without ``const``, pointers and references, as the text has it."""
        return [base for _, base in self._read]

    def parameters(self, answered: Sequence[Parameter] | None) -> tuple[Parameter, ...]:
        """Returns the parameters with their shapes.

        Args:
            answered: the parameters with the types of the compiler; None if it is not asked.
        """
        bare = answered or [p for p, _ in self._read]
        # A type that only the compiler knows may be a pointer.
        pointers = [p.pointer or p.type == _OPAQUE for p in bare]
        comments = shape_comments(
            self._kernel, self._text, self._code, self._end, self._comments, self._pieces, pointers
        )
        found = []
        for p, comment in zip(bare, comments, strict=True):
            shape, nullable = shape_of(self._kernel, p.name, comment) if p.pointer and comment else (None, False)
            found.append(replace(p, shape=shape, nullable=nullable))
        # The launch runs where its arrays are, so that one array must be given.
        nulls = [
            p.pointer and p.accessor is None and _has_null(piece.declaration)
            for p, piece in zip(bare, self._pieces, strict=True)
        ]
        if any(p.pointer and not p.nullable and not null for p, null in zip(found, nulls, strict=True)):
            found = [replace(p, nullable=True, optional=True) if n else p for p, n in zip(found, nulls, strict=True)]
        return tuple(found)


def _has_null(declaration: str) -> bool:
    """Returns whether the default of a parameter is the null pointer."""
    _, *default = split(declaration, "=")
    return bool(default) and default[0][1].strip() in ("nullptr", "NULL", "0", "{}")


def _listed(declaration: str, names: Macros) -> list[str]:
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


def _parameter(kernel: str, position: int, declaration: str, names: _Names) -> tuple[Parameter, str]:
    """Returns a parameter as its declaration reads, and its type without ``const``, pointers and references. The type of the parameter
    is left open if it is no number of C, no type of CUDA, and may be declared by a text: the compiler is asked."""
    if tensor_map := _TENSOR_MAP.fullmatch(" ".join(declaration.split())):
        return Parameter(f"{tensor_map[1]}_map", "TensorMap", map_of=tensor_map[1]), "TensorMap"
    words = names.macros.expanded(ATTRIBUTES.sub(" ", split(declaration, "=")[0][1]))
    words = _ENUM.sub("", " ".join(re.sub(r"([*&])", r" \1 ", _QUALIFIERS.sub(" ", words)).split()))
    if function := _FUNCTION.fullmatch(words):
        return Parameter(function[1], "uint64"), ""
    if (vector := _INT64S.fullmatch(re.sub(r"\bconst\b", " ", words).strip())) and "Int64s" not in names.declared:
        return Parameter(vector[2], "int64", length=vector[1]), ""
    if within := _NAMED_WITHIN.search(words):
        return Parameter(within[1], _OPAQUE, pointer=True), ""
    if array := _ARRAY.fullmatch(words):  # an array parameter is a pointer
        if "[" in array[1]:
            return Parameter(re.sub(r"\[.*", "", array[1]).split()[-1], _OPAQUE, pointer=True), ""
        words = f"{array[1].rstrip()} * {array[2]}"
    if _is_unnamed(words, names):
        words = f"{words} parameter{position}"
    left, _, name = words.rpartition(" ")
    if not left or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in _WORDS:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    if left.startswith("Int64s") and "*" in left and "Int64s" not in names.declared:
        raise TypeError(f"{kernel}: parameter `{name}` has type {left!r}, for which no Python value can be passed")
    if "<" in left:  # the compiler takes it apart
        outside = left.rpartition(">")[2].split()
        pointer = not {"*", "&"}.isdisjoint(outside)
        base = re.sub(r"\Aconst | const\Z", "", left.rstrip("*& "))
        return Parameter(name, _OPAQUE, pointer=pointer, const="const" in (left.split()[0], *outside)), base
    # A reference is passed as the address of its object, like a pointer.
    plain = re.sub(r"& &|&", lambda m: m[0] if " " in m[0] else "*", left)
    pointee, star, qualifiers = plain.partition("*")
    pointer, const = bool(star), not star or "const" in pointee.split()
    base = " ".join(word for word in pointee.split() if word != "const")
    if {*qualifiers.split()} - {"const", "*"}:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    if "&" in plain or plain.count("*") > 2 or "[" in plain:
        raise TypeError(
            f"{kernel}: parameter `{declaration.strip()}`: pass arrays as T*, numbers by value, small tuples as Int64s<N>"
        )
    if plain.count("*") == 2:
        return Parameter(name, "uint64", pointer=True, const="const" in qualifiers.partition("*")[0].split()), base
    given = names.given.get(base, base)
    const, base = const or given.startswith("const "), given.removeprefix("const ")
    if base in REFUSED:
        raise TypeError(f"{kernel}: parameter `{name}` is of {base}, {REFUSED[base]}")
    if base == "void" and pointer:
        return Parameter(name, "uint8", pointer=True, const=const, untyped=True), base
    declared = base.removeprefix("struct ") in names.declared
    if not declared and (dtype := dtype_of(base)) is not None:
        return Parameter(name, dtype, pointer=pointer, const=const), base
    if not declared and base.isidentifier() and (element := library_type(base)) is not None:
        return Parameter(name, base, pointer=pointer, const=const, element=element), base
    if _WORDS.issuperset(base.split()) or base == "Int64s":
        raise TypeError(f"{kernel}: parameter `{name}` has type {base!r}, for which no Python value can be passed")
    if declared or not base.isidentifier() or base in names.structs:
        return Parameter(name, _OPAQUE, pointer=pointer, const="const" in left.split()), base
    return Parameter(name, base, pointer=pointer, const=const), base


def _is_unnamed(words: str, names: _Names) -> bool:
    """Returns whether a declaration has a type and no name."""
    if words.endswith(("*", "&", ">")) or re.search(r"\*\s*const$", words):
        return True
    base = " ".join(word for word in words.split() if word != "const")
    if " " not in base and "::" in base:
        return True
    known = dtype_of(base) is not None or base in KNOWN or base in names.declared
    return known and (" " not in base or base.split()[-1] in _WORDS)


# The compiler's answers


def _answered(
    kernel: str,
    parameters: Sequence[Parameter],
    bases: Sequence[str],
    open_types: Sequence[str],
    ask: Callable[[Mapping[str, str], Sequence[int]], Answers],
    dtypes: Sequence[str],
    structs: Mapping[str, Element],
) -> list[Parameter]:
    """Returns the parameters of a declaration with the types that the compiler tells.

    Args:
        kernel: the kernel's name, for messages.
        parameters, bases: the parameters as the text has them, and the types in it.
        open_types: the parameters of the kernel's template that its name gives no type.
        ask, dtypes, structs: see :meth:`Signature.parse`.
    """
    parameters = list(parameters)
    low = next((d for d in dtypes if d in ("float16", "bfloat16")), dtypes[0])
    high = next(d for d in (*reversed(dtypes), "float32", "float64") if d not in (low, "float16", "bfloat16"))
    open_places = [i for i, p in enumerate(parameters) if p.type == _OPAQUE]
    asked = {bases[i] for i in open_places}
    words = {word for i in open_places for word in re.findall(r"\w+", bases[i])}
    decided = [p.type for p in parameters if p.type not in (*DTYPES, _OPAQUE, "TensorMap") and p.element is None]
    undecided = list(dict.fromkeys([*decided, *open_types]))
    if "acc_t" in undecided:
        undecided = [name for name in dict.fromkeys(["scalar_t", *undecided]) if name != "acc_t"]
    undecided = [name for name in undecided if name not in asked or name in open_types]
    first: CompileError | None = None
    while True:
        try:
            answers = ask(dict.fromkeys(undecided, low), open_places)
            break
        except CompileError as error:
            first = first or error
            # Nothing declares these names, not even what seems to, as in a branch that a condition removes: the arrays decide them.
            names = {name for found in _UNDEFINED.findall(str(error)) for name in found if name} & words - {*undecided}
            if not names or any(f"removes the declaration of `{name}`" in str(error) for name in names):
                raise first from None
            undecided += sorted({"scalar_t" if name == "acc_t" else name for name in names})
    if len(answers.parameters) != len(parameters):
        raise TypeError(
            f"{kernel}: the text shows {len(parameters)} parameters, and the compiler sees {len(answers.parameters)}: "
            f"declare each parameter without a macro for several"
        )

    def told(answers: Answers) -> list[Parameter]:
        return [
            replace(_told(kernel, p, base, answers, i, structs), asked=True) if p.type == _OPAQUE else p
            for i, (p, base) in enumerate(zip(parameters, bases, strict=True))
        ]

    low_ones = told(answers)
    found = list(low_ones)
    for name in undecided:
        try:
            high_ones = told(ask({**dict.fromkeys(undecided, low), name: high}, open_places))
        except CompileError:
            continue  # the text takes one dtype alone
        for i, (p, q) in enumerate(zip(low_ones, high_ones, strict=True)):
            if parameters[i].type != _OPAQUE or p in (q, replace(q, accessor=p.accessor)):
                continue
            if (p.type, replace(q, type=p.type)) == (low, p) and q.type == high:
                found[i] = replace(p, type=name)
            elif name == "scalar_t" and (p.type, q.type) == (DTYPES[low].acc, DTYPES[high].acc) and not p.pointer:
                found[i] = replace(p, type="acc_t")
            elif p.pointer:
                spelled = bases[i] if not bases[i].isidentifier() else f"decltype({p.name})"
                found[i] = Parameter(p.name, spelled, pointer=True, const=p.const, untyped=True, asked=True)
            else:
                raise TypeError(
                    f"{kernel}: parameter `{p.name}` has type {bases[i]!r}, which follows from the dtype of the arrays: declare "
                    f"scalar_t, acc_t or a C type, or give the arguments of the template in the kernel's name"
                )
    return found


def _told(
    kernel: str, p: Parameter, base: str, answers: Answers, position: int, structs: Mapping[str, Element]
) -> Parameter:
    """Returns a parameter with the type that the compiler tells."""
    answer = answers.parameters[position]
    depth, pointer_const, const, spelled = _taken_apart(answer.spelling)
    if depth > 2 or (depth == 2 and "(" in answer.spelling):
        raise TypeError(f"{kernel}: parameter `{p.name}` is of type `{answer.spelling}`: pass arrays as T*")
    if depth == 2:
        return Parameter(p.name, "uint64", pointer=True, const=pointer_const)
    if "(" in spelled.partition("<")[0]:  # a pointer to a function
        return Parameter(p.name, "uint64")
    pointer = depth == 1
    plain = Parameter(p.name, "uint8", pointer=pointer, const=const if pointer else True)
    if pointer and spelled == "void":
        return replace(plain, untyped=True)
    name = spelled.rpartition("::")[2] if "<" not in spelled else spelled
    if not pointer and (found := accessor_of(spelled)) is not None:
        of, accessor = found
        reads = p.const or of.endswith(" const")
        of = of.removesuffix(" const")
        if (dtype := dtype_of(of)) is not None:
            return Parameter(p.name, dtype, pointer=True, const=reads, accessor=accessor)
        if (number := complex_of(of)) is not None:
            accessor = replace(accessor, paired=True)
            return Parameter(p.name, number.dtype, pointer=True, const=reads, accessor=accessor, element=number)
        raise TypeError(f"{kernel}: parameter `{p.name}` has elements of {of!r}, which is no dtype")
    if (dtype := dtype_of(spelled) or (dtype_of(answer.element) if answer.kind == "e" else None)) is not None:
        if rows := re.search(
            r"\(\*\)\s*((?:\[\d+\])+)\Z", answer.spelling
        ):  # a pointer to arrays, as of typedef float vec3[3]
            width = math.prod(map(int, re.findall(r"\d+", rows[1])))
            return replace(plain, type=dtype, element=Element(base, dtype, width, DTYPES[dtype].itemsize))
        return replace(plain, type=dtype)
    if spelled.startswith("Int64s<"):
        return replace(plain, type="int64", length=spelled[7:].rstrip(">ul"))
    given = structs.get(name) or structs.get(base.removeprefix("struct "))
    if given is None and (element := library_type(spelled)) is not None:
        return replace(plain, type=element.dtype, element=replace(element, name=base or element.name))
    if answer.kind == "o" and given is None:
        return replace(
            plain, element=Element(spelled, "uint8", answer.size, answer.alignment, without_data(answer.size))
        )
    if answer.kind in "so":
        record, size = answers.record(position, given)
        if given is not None:
            return replace(plain, element=given)
        if record is not None:
            own = Element(base if base.isidentifier() else spelled, "uint8", size, min(answer.alignment, 16), record)
            return replace(plain, element=own)
    if pointer and answer.kind in "si":
        return replace(plain, untyped=True)
    if answer.kind in "si":
        raise unknown_struct(kernel, p.name, base.removeprefix("struct ") or name)
    raise TypeError(
        f"{kernel}: parameter `{p.name}` has type {answer.spelling!r}, for which no Python value can be passed"
    )


def _taken_apart(spelling: str) -> tuple[int, bool, bool, str]:
    """Returns the pointers and references of a type, whether the outer pointer's target is a ``const`` pointer, whether the element is
    ``const``, and the element.

    >>> _taken_apart("float const*")
    (1, False, True, 'float')
    """
    depth, pointer_const = 0, False
    if extents := _EXTENTS.search(spelling):
        depth, spelling = 1, spelling[: extents.start()]
    while (found := _POINTER.search(spelling)) and not spelling.endswith(">"):
        pointer_const = pointer_const or (depth == 1 and found[1] is not None)
        depth, spelling = depth + 1, spelling[: found.start()]
    words = spelling.split(" ")
    const = "const" in words[-2:]
    while words[-1] in ("const", "volatile"):
        words.pop()
    return depth, pointer_const, const, " ".join(words)
