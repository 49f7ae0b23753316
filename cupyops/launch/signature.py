"""The parameters of a kernel, from its declaration in the text and from the compiler.

The declaration gives the names, the order, ``const``, the pointer types and the scalar widths of the arguments. The
comment after a parameter, or on a line of its own above the parameter, gives its shape::

    extern "C" __global__ void scale(
        const scalar_t* __restrict__ x,  // (M, N)
        scalar_t* __restrict__ y,        // (M, N)
        long long M, long long N, acc_t factor)

``// (M, N)`` means that the array is contiguous and has M·N elements. A pointer without a shape comment is a view,
whose layout and bounds are not checked. A comment after the parameter is before or after the comma. A
shape comment that may belong to two parameters, or to none, raises an error. A comment such as ``// (M * N)``, or with a name
that is not an integer of the kernel, gives no shape, with a warning. Non-``const`` pointers are outputs. With
``// (N) or null`` a call may give None, which is a null pointer in the kernel.

:mod:`.scanned` reads the text. For types that the text does not determine, the compiler is asked (:mod:`.asked`).
"""

import keyword
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cupyops.dtypes import DTYPES, INTEGERS, bfloat16_bits
from cupyops.errors import nearest
from cupyops.sharing import computed_once

from .definitions import Entry
from .elements import resolved
from .parameter import OPEN, Parameter
from .scanned import Scanned
from .typenames import Element, dtype_of, library_type, taken_apart

__all__ = ["BFloat16Struct", "Parameter", "Signature"]


class BFloat16Struct:
    """A :class:`struct.Struct` that packs some of its numbers as bfloat16.

    Args:
        layout: the format, with ``H`` in place of each bfloat16.
        places: the positions of the bfloat16 numbers among the values.
    """

    def __init__(self, layout: str, places: Sequence[int]) -> None:
        self._struct, self._places = struct.Struct(layout), tuple(places)
        self.size = self._struct.size

    def pack_into(self, buffer: Any, offset: int, *values: Any) -> None:
        self._struct.pack_into(buffer, offset, *self._rounded(values))

    def pack(self, *values: Any) -> bytes:
        return self._struct.pack(*self._rounded(values))

    def _rounded(self, values: Sequence[Any]) -> list[Any]:
        rounded = list(values)
        for place in self._places:
            rounded[place] = bfloat16_bits(rounded[place])
        return rounded


@dataclass(frozen=True)
class Signature:
    """The parameters of one ``__global__`` function, in the order of the declaration.

    `entry` is the kernel's C++ name, or None for an ``extern "C"`` function.
    """

    kernel: str
    parameters: tuple[Parameter, ...]
    entry: Entry | None = None

    @classmethod
    def parse(
        cls, text: str, kernel: str, headers: Mapping[str, str] | None = None, defines: Mapping[str, str] | None = None
    ) -> "Signature":
        """Returns the parameters of a kernel as far as the text tells. The arguments and the errors are those of :class:`.Scanned`."""
        scanned = Scanned(text, kernel, headers or {}, defines)
        return cls.of(scanned, scanned.parameters)

    @classmethod
    def of(cls, scanned: Scanned, parameters: Sequence[Parameter]) -> "Signature":
        """Returns the signature of a scanned declaration whose parameters have these types."""
        return cls(scanned.kernel, tuple(map(resolved, scanned.completed(parameters))), scanned.entry)

    @computed_once
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @computed_once
    def objects(self) -> tuple[Parameter, ...]:
        """The vectors, structs, textures and surfaces that are passed by value."""
        return tuple(p for p in self.parameters if p.element is not None and not p.pointer)

    @computed_once
    def accessors(self) -> tuple[Parameter, ...]:
        """The packed accessors."""
        return tuple(p for p in self.parameters if p.accessor is not None)

    def nullable(self) -> "Signature":
        """Returns the signature with None allowed for every array. A packed accessor has the sizes of an array, and needs one."""
        found = (replace(p, nullable=True) if p.pointer and p.accessor is None else p for p in self.parameters)
        return replace(self, parameters=tuple(found))

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
        layout, fields, offset, values = "=", [], 0, 0
        bfloat16s: list[int] = []
        for p in self.parameters:
            code, size, alignment, count = p.packing(types, constants)
            offset += (pad := -offset % alignment)
            layout += f"{pad}x{code}"
            fields.append((offset, size))
            offset += size
            bfloat16s += range(values, values + count) if p.is_number and p.c_type(types) == "bfloat16" else ()
            values += count
        return BFloat16Struct(layout, bfloat16s) if bfloat16s else struct.Struct(layout), fields

    @computed_once
    def known(self) -> bool:
        """Whether the types of all parameters are known, without a question to the compiler."""
        return all(p.type != OPEN for p in self.parameters)

    @computed_once
    def structs(self) -> dict[str, Element]:
        """The vectors and structs of the parameters, by name."""
        found = (p.element for p in self.parameters if p.element is not None and not p.element.handle)
        return {e.name.rpartition("::")[2]: e for e in found}

    def check(self, sizes: Sequence[str], constants: Mapping[str, int]) -> None:
        """Raises if no call can fit the declaration.

        Args:
            sizes: the size parameters of the geometry.
            constants: macro name to integer.

        Raises:
            TypeError: no array decides the type of a parameter; or a type cannot be passed by value.
            ValueError: a size is not an integer parameter; or a parameter of the template has no argument.
        """
        kernel, bindings = self.kernel, self.bindings
        if not self.known:
            return  # the compiler has not been asked
        if self.entry is not None:
            self.entry.expression(kernel, dict.fromkeys(bindings, "float32"), constants)
        numbers = [p for p in self.parameters if not p.pointer]
        if (arrays := [p for p in self.parameters if p.pointer]) and all(p.nullable for p in arrays):
            raise TypeError(
                f"{kernel}: at least one array must not be `or null`: the launch runs on the GPU of this array"
            )
        named = {a.name for a in arrays}
        for p in self.parameters:
            if p.map_of is not None:
                if p.map_of not in named:
                    raise TypeError(
                        f"{kernel}: `{p.name}` is the tensor map of `{p.map_of}`, and the kernel has no array `{p.map_of}`"
                    )
                continue
            if p.type == "TensorMap":
                raise TypeError(
                    f"{kernel}: declare `{p.name}` as const __grid_constant__ TensorMap, and name it after its array: x_map for x"
                )
            if p.type == "acc_t" and "scalar_t" not in bindings:
                raise TypeError(
                    f"{kernel}: `{p.name}` is an acc_t, which follows scalar_t, and no array is of scalar_t"
                )
            if p.type not in DTYPES and p.type != "acc_t" and p.type not in bindings:
                raise TypeError(
                    f"{kernel}: no array of the call decides the type {p.type!r} of `{p.name}`; pass acc_t or a C type by value, or give "
                    f"the text that declares the type; if a build defines it as a macro, give options=('-D{p.type}=...',)"
                )
            if p.accessor is not None and p.accessor.bits not in (32, 64):
                raise TypeError(
                    f"{kernel}: the accessor `{p.name}` must have indices of 32 or 64 bits; if a parameter of the template is their "
                    f"type, give it in the kernel's name"
                )
            if p.accessor is not None and p.nullable:
                raise TypeError(
                    f"{kernel}: `{p.name}` is an accessor, which has the sizes of an array: leave out `or null`"
                )
            if p.length is not None and not p.length.isdigit() and p.length not in constants:
                raise TypeError(
                    f"{kernel}: the length of `{p.name}`, {p.length}, must be a number or one of the kernel's constants"
                )
        integers = {p.name for p in numbers if p.type in INTEGERS and p.length is None}
        counted = {t for p in self.parameters for t in p.shape or () if not t.isdigit()}
        for size in (*sizes, *sorted(counted - constants.keys())):
            if size in sizes and (keyword.iskeyword(size) or size in ("min", "unit")):
                raise ValueError(
                    f"{kernel}: `{size}` counts threads, and its name is reserved in grid expressions; rename it to `{size}_`"
                )
            if size not in integers:
                raise ValueError(
                    f"{kernel}: `{size}` counts threads or elements, but the kernel has no integer parameter of this name"
                    f"{_other_case(size, integers) or nearest(size, integers)}"
                )

    def compare(self, spellings: Sequence[str], types: Mapping[str, str]) -> str:
        """Returns what is wrong with the types of a compiled kernel's parameters, or ``""``.

        A launch passes the types that were read from the text, and the compiler has the last word about them.

        Args:
            spellings: the types as the compiler spells them, ``float const*``.
            types: the dtypes of the types that the arrays decide.
        """
        if spellings and len(spellings) != len(self.parameters):
            return (
                f"the launch passes {len(self.parameters)} arguments, and the compiler sees {len(spellings)} parameters"
            )
        for p, spelling in zip(self.parameters, spellings, strict=False):
            depth, _, _, base = taken_apart(spelling)
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
                of = "any dtype" if p.untyped and not decided else dtype
                passed = f"an array of {of}" if p.pointer else f"a {of}"
                return f"`{p.name}`: the launch passes {passed}, and the compiler says that it is `{spelling}`"
        return ""


def _other_case(word: str, names: Collection[str]) -> str:
    """Returns the name that differs from a word in the case of its letters alone, as a question, or an empty string."""
    return next((f"; did you mean {name!r}?" for name in sorted(names) if name.lower() == word.lower()), "")
