"""One parameter of a kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cupyops.dtypes import DTYPES

from .accessors import Accessor
from .typenames import Element

__all__ = ["OPEN", "Parameter"]

OPEN = "only the compiler knows"  # in place of the type of a parameter, until the compiler is asked


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
        asked: the compiler has reported the type.
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
    asked: bool = field(default=False, compare=False)

    @property
    def is_number(self) -> bool:
        """Whether a call gives a number, or a tuple of numbers."""
        return not self.pointer and self.map_of is None and (self.element is None or self.length is not None)

    def packing(self, types: Mapping[str, str], constants: Mapping[str, int]) -> tuple[str, int, int, int]:
        """Returns the codes of :mod:`struct` for the parameter, its bytes, its alignment, and how many values are packed."""
        if self.map_of is not None:
            return "128s", 128, 64, 1
        if self.accessor is not None:
            return (*self.accessor.packing(constants), 8, self.accessor.values(constants))
        if self.pointer:
            return "Q", 8, 8, 1
        aligned = self.element.alignment if self.element else 0
        if self.element is not None and self.element.record is not None:
            return f"{self.element.width}s", self.element.width, aligned, 1
        dtype = DTYPES[self.c_type(types)]
        count = 1 if self.length is None else int(constants.get(self.length, self.length))
        return f"{count}{dtype.code}", dtype.itemsize * count, aligned or dtype.itemsize, count

    def c_type(self, types: Mapping[str, str]) -> str:
        """Returns the name of the parameter's dtype under a choice of types."""
        if self.type == "acc_t":
            return DTYPES[types["scalar_t"]].acc
        found = types.get(self.type, self.type)
        return "uint8" if self.untyped and found not in DTYPES else found
