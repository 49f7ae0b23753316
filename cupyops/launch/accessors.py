"""Parameters that are packed accessors of PyTorch, such as ``torch::PackedTensorAccessor32<scalar_t, 2>``, and
``at::cuda::detail::TensorInfo<scalar_t, int>``.

A call passes the array. The launch fills the accessor, which the header ``pytorch.cuh`` defines: the address of the first
element, then the sizes, then the strides, in elements, as 32-bit or 64-bit integers. A ``TensorInfo`` has room for 25
dimensions, and their number behind the strides. An accessor that is declared ``const`` is an input. Any other accessor is an
output.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import Info
from cupyops.compile.definitions import split
from cupyops.errors import expected

__all__ = ["Accessor", "AccessorDeclaration", "check_accessor", "conditions", "declared", "moved", "numbers", "written"]

_ACCESSOR = re.compile(
    r"(?:(?P<before>const) )?(?:::\s*)?(?:(?:torch|at)\s*::\s*(?:headeronly\s*::\s*)?)?"
    r"(?P<kind>(?:(?:HeaderOnly)?Generic)?PackedTensorAccessor(?:32|64)?)\s*<(?P<arguments>.*)>\s*(?:(?P<behind>const)\s)?\s*(?P<name>[A-Za-z_]\w*)"
)
_INFO = re.compile(
    r"(?:(?P<before>const) )?(?:::\s*)?(?:at\s*::\s*)?(?:cuda\s*::\s*)?(?:detail\s*::\s*)?(?P<kind>TensorInfo)\s*"
    r"<(?P<arguments>.*)>\s*(?:(?P<behind>const)\s)?\s*(?P<name>[A-Za-z_]\w*)"
)
_LARGEST_32 = 2**31 - 1
_MOST = 25  # dimensions of a TensorInfo


@dataclass(frozen=True)
class Accessor:
    """The layout of a packed accessor.

    Attributes:
        rank: the number of dimensions: a number, or the name of a constant.
        bits: the bits of a size or stride, 32 or 64; 0 for a type that is not known.
        counted: the accessor has room for ``rank`` dimensions, and the number of the array's dimensions: a TensorInfo.
        paired: the elements are complex numbers, which are the last dimension of the array: 2. The sizes and strides are those of
            the other dimensions.
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


@dataclass(frozen=True)
class AccessorDeclaration:
    """The name, the types and the layout that the declaration of an accessor gives.

    Attributes:
        name: the parameter.
        type: the C type of an element.
        const: the kernel does not write the elements.
        accessor: the layout.
    """

    name: str
    type: str
    const: bool
    accessor: Accessor


def declared(kernel: str, declaration: str, bits_of: Callable[[str], int]) -> AccessorDeclaration | None:
    """Returns the parsed declaration of an accessor, or None for another parameter.

    Args:
        kernel: the kernel's name, for messages.
        declaration: the declaration without attributes, with its macros and typedefs expanded.
        bits_of: returns the bits of an integer type, or 0 for another type.

    Raises:
        TypeError: the number of dimensions or the type of the indices cannot be read.
    """
    found = _ACCESSOR.fullmatch(declaration) or _INFO.fullmatch(declaration)
    if found is None:
        return None
    given = [" ".join(part.split()) for _, part in split(found["arguments"])]
    base = " ".join(word for word in given[0].split() if word != "const")
    const = found["before"] is not None or found["behind"] is not None or base != given[0]
    if counted := found["kind"] == "TensorInfo":
        if len(given) != 2:
            return None
        given = [given[0], str(_MOST), "", given[1]]
    rank = given[1] if len(given) > 1 else ""
    bits = {"32": 32, "64": 64}.get(found["kind"][-2:]) or (bits_of(given[3]) if len(given) > 3 else 64)
    if not re.fullmatch(r"[1-9]\d*|[A-Za-z_]\w*", rank) or bits not in (0, 32, 64):
        wanted = "have a number of dimensions, and indices of 32 or 64 bits"
        raise TypeError(expected(kernel, found["name"], wanted, f"{found['kind']}<{', '.join(given)}>"))
    return AccessorDeclaration(found["name"], base, const, Accessor(rank, bits, counted))


def numbers(accessor: Accessor, info: Info) -> tuple[int, ...]:
    """Returns the sizes and the strides, which the launch writes into an accessor behind the address."""
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
