"""Parameters that are packed accessors of PyTorch, such as ``torch::PackedTensorAccessor32<scalar_t, 2>``, and
``at::cuda::detail::TensorInfo<scalar_t, int>``.

A call passes the array. The launch fills the accessor, which the header ``pytorch.cuh`` defines: the address of the first
element, then the sizes, then the strides, in elements, as 32-bit or 64-bit integers. A ``TensorInfo`` has room for 25
dimensions, and their number after the strides. An accessor that is declared ``const`` is an input. Any other accessor is an
output.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import Info
from cupyops.compile.ask import arguments_in
from cupyops.dtypes import DTYPES
from cupyops.errors import expected

from .typenames import dtype_of

__all__ = ["Accessor", "accessor_of", "check_accessor", "conditions", "moved", "numbers", "written"]

_CLASS = re.compile(r"(?:at|torch|c10)::(?:\w+::)*(GenericPackedTensorAccessor|TensorInfo)<")
_LARGEST_32 = 2**31 - 1
_MOST = 25  # dimensions of a TensorInfo


@dataclass(frozen=True)
class Accessor:
    """The layout of a packed accessor.

    Attributes:
        rank: the number of dimensions.
        bits: the bits of a size or stride, 32 or 64.
        counted: the accessor has room for ``rank`` dimensions, and the number of the array's dimensions: a TensorInfo.
        paired: the elements are complex numbers, which are the last dimension of the array: 2. The sizes and strides
        describe the other dimensions.
    """

    rank: str
    bits: int
    counted: bool = False
    paired: bool = False

    def dimensions(self, constants: Mapping[str, int]) -> int:
        """Returns the number of dimensions for which the accessor has sizes and strides."""
        return int(constants.get(self.rank, self.rank))

    def packing(self, constants: Mapping[str, int]) -> tuple[str, int]:
        """Returns the codes of :mod:`struct` for an accessor, and its bytes."""
        count = 2 * self.dimensions(constants)
        code, size = f"Q{count}{'i' if self.bits == 32 else 'q'}", 8 + count * self.bits // 8
        return (f"{code}i4x", size + 8) if self.counted else (code, size)

    def values(self, constants: Mapping[str, int]) -> int:
        """Returns how many values :meth:`packing` packs."""
        return 1 + 2 * self.dimensions(constants) + self.counted


def accessor_of(spelling: str) -> tuple[str, Accessor] | None:
    """Returns the type of the elements and the layout of an accessor, or None for another type.

    Args:
        spelling: the type as the compiler spells it, ``at::GenericPackedTensorAccessor<float, 2ul,
        at::DefaultPtrTraits, int>``.
    """
    found = _CLASS.match(spelling)
    if found is None:
        return None
    given = arguments_in(spelling)
    counted = found[1] == "TensorInfo"
    rank, index = (str(_MOST), given[1]) if counted else (given[1].rstrip("ul"), given[3])
    return given[0], Accessor(rank, 8 * DTYPES[dtype_of(index) or "uint8"].itemsize, counted)


def numbers(accessor: Accessor, info: Info) -> tuple[int, ...]:
    """Returns the sizes and the strides, which the launch writes into an accessor after the address."""
    shape, strides = _of_elements(accessor, info)
    if not accessor.counted:
        return (*shape, *strides)
    rest = (0,) * (_MOST - len(shape))
    return (*shape, *rest, *strides, *rest, len(shape))


def _of_elements(accessor: Accessor, info: Info) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the sizes of an array and its strides in elements of the accessor."""
    if accessor.paired:
        return info.shape[:-1], tuple(stride // 2 for stride in info.strides[:-1])
    return info.shape, info.strides


def written(accessor: Accessor, x: str) -> str:
    """Returns the expressions of :func:`numbers` for the tensor `x` of a generated launch."""
    shape, strides, dims = f"*{x}.shape", f"*{x}.stride()", f"{x}.dim()"
    if accessor.paired:
        shape, strides, dims = f"{shape}[:-1]", f"*(s // 2 for s in {x}.stride()[:-1])", f"{dims} - 1"
    if not accessor.counted:
        return f"{shape}, {strides}"
    rest = f"*(0,) * ({_MOST} - ({dims}))"
    return f"{shape}, {rest}, {strides}, {rest}, {dims}"


def moved(address: Any, pointer: int) -> Any:
    """Returns an array's argument for the driver with its address replaced. The argument is an address or a whole
    accessor."""
    return (pointer, *address[1:]) if isinstance(address, tuple) else pointer


def check_accessor(kernel: str, p: Any, info: Info, constants: Mapping[str, int]) -> None:
    """Raises unless an array fits an accessor.

    Raises:
        ValueError: the array has another number of dimensions, or 32-bit indices do not reach its last element.
    """
    pairs = int(p.accessor.paired)
    rank = p.accessor.dimensions(constants) + pairs
    if p.accessor.counted and len(info.shape) > _MOST + pairs:
        raise ValueError(
            expected(kernel, p.name, f"have at most {_MOST + pairs} dimensions", f"shape {tuple(info.shape)}")
        )
    if not p.accessor.counted and len(info.shape) != rank:
        what = f"have {rank} dimension{'s' if rank > 1 else ''}, as its accessor"
        raise ValueError(expected(kernel, p.name, what, f"shape {tuple(info.shape)}"))
    if p.accessor.bits == 32 and not info.fake:
        shape, strides = _of_elements(p.accessor, info)
        reach = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n > 1)
        largest = max([reach, *map(abs, (*shape, *strides))])
        if largest > _LARGEST_32:
            wanted = f"be within reach of 32-bit indices, or its accessor a PackedTensorAccessor64 ({_LARGEST_32})"
            raise ValueError(expected(kernel, p.name, wanted, largest))


def conditions(p: Any, x: str, constants: Mapping[str, int]) -> list[str]:
    """Returns the conditions under which a generated launch refuses an array for an accessor.

    A size or stride that needs more than 32 bits needs no condition: :mod:`struct` raises an error.
    """
    rank = p.accessor.dimensions(constants) + p.accessor.paired
    found = [f"{x}.dim() {'>' if p.accessor.counted else '!='} {rank}"]
    if p.accessor.bits == 32 and p.accessor.counted:
        found.append(f"sum((n - 1) * s for n, s in zip({x}.shape, {x}.stride())) > {_LARGEST_32}")
    elif p.accessor.bits == 32:
        reach = " + ".join(f"({x}.size({i}) - 1) * {x}.stride({i})" for i in range(rank))
        found.append(f"{reach} > {_LARGEST_32}")
    return found
