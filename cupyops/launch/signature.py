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

:mod:`.scanned` reads the text. For types that the text does not determine, the compiler is asked (:mod:`.asked`,
:mod:`.told`).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cupyops.dtypes import DTYPES
from cupyops.sharing import computed_once

from .elements import resolved
from .library_types import Element, library_type
from .packing import BFloat16Struct
from .parameter import OPEN, Parameter
from .scanned import Scanned
from .template import Entry
from .typenames import dtype_of, taken_apart

__all__ = ["Parameter", "Signature"]


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

    def compare(self, spellings: Sequence[str], types: Mapping[str, str]) -> str:
        """Returns what is wrong with the types of a compiled kernel's parameters, or ``""``.

        A launch passes the types that were read from the text, and the compiler has the last word about them.

        Args:
            spellings: the types as the compiler spells them, ``float const*``.
            types: the dtypes of the types that the arrays decide.
        """
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
