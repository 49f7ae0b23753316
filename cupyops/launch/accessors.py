"""Parameters that are packed accessors of PyTorch, such as ``torch::PackedTensorAccessor32<scalar_t, 2>``.

A call passes the array. The launch fills the accessor, which the header ``pytorch.cuh`` defines: the address of the first
element, then the sizes, then the strides, in elements, as 32-bit or 64-bit integers. An accessor that is declared
``const`` is an input. Any other accessor is an output.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import Info
from cupyops.compile.definitions import split
from cupyops.errors import expected

__all__ = ["Accessor", "AccessorDeclaration", "check_accessor", "conditions", "declared", "moved", "numbers"]

_ACCESSOR = re.compile(
    r"(?:(?P<before>const) )?(?:::\s*)?(?:(?:torch|at)\s*::\s*)?(?P<kind>(?:Generic)?PackedTensorAccessor(?:32|64)?)\s*"
    r"<(?P<arguments>.*)>\s*(?:(?P<behind>const)\s)?\s*(?P<name>[A-Za-z_]\w*)"
)
_LARGEST_32 = 2**31 - 1


@dataclass(frozen=True)
class Accessor:
    """The layout of a packed accessor.

    Attributes:
        rank: the number of dimensions: a number, or the name of a constant.
        bits: the bits of a size or stride, 32 or 64; 0 for a type that is not known.
    """

    rank: str
    bits: int

    def dimensions(self, constants: Mapping[str, int]) -> int:
        """Returns the number of dimensions."""
        return int(constants.get(self.rank, self.rank))

    def packing(self, constants: Mapping[str, int]) -> tuple[str, int]:
        """Returns the codes of :mod:`struct` for an accessor, and its bytes."""
        count = 2 * self.dimensions(constants)
        return f"Q{count}{'i' if self.bits == 32 else 'q'}", 8 + count * self.bits // 8


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
    found = _ACCESSOR.fullmatch(declaration)
    if found is None:
        return None
    given = [" ".join(part.split()) for _, part in split(found["arguments"])]
    base = " ".join(word for word in given[0].split() if word != "const")
    const = found["before"] is not None or found["behind"] is not None or base != given[0]
    rank = given[1] if len(given) > 1 else ""
    bits = {"32": 32, "64": 64}.get(found["kind"][-2:]) or (bits_of(given[3]) if len(given) > 3 else 64)
    if not re.fullmatch(r"[1-9]\d*|[A-Za-z_]\w*", rank) or bits not in (0, 32, 64):
        wanted = "have a number of dimensions, and indices of 32 or 64 bits"
        raise TypeError(expected(kernel, found["name"], wanted, f"{found['kind']}<{', '.join(given)}>"))
    return AccessorDeclaration(found["name"], base, const, Accessor(rank, bits))


def numbers(info: Info) -> tuple[int, ...]:
    """Returns the sizes and the strides, which the launch writes into an accessor behind the address."""
    return (*info.shape, *info.strides)


def moved(address: Any, pointer: int) -> Any:
    """Returns an array's argument for the driver with its address replaced. The argument is an address or a whole
    accessor."""
    return (pointer, *address[1:]) if isinstance(address, tuple) else pointer


def check_accessor(kernel: str, p: Any, info: Info, constants: Mapping[str, int]) -> None:
    """Raises unless an array fits an accessor.

    Raises:
        ValueError: the array has another number of dimensions, or 32-bit indices do not reach its last element.
    """
    rank = p.accessor.dimensions(constants)
    if len(info.shape) != rank:
        what = f"have {rank} dimension{'s' if rank > 1 else ''}, as its accessor"
        raise ValueError(expected(kernel, p.name, what, f"shape {tuple(info.shape)}"))
    if p.accessor.bits == 32 and not info.fake:
        reach = sum((n - 1) * abs(s) for n, s in zip(info.shape, info.strides, strict=True) if n > 1)
        largest = max([reach, *map(abs, numbers(info))])
        if largest > _LARGEST_32:
            wanted = f"be within reach of 32-bit indices, or its accessor a PackedTensorAccessor64 ({_LARGEST_32})"
            raise ValueError(expected(kernel, p.name, wanted, largest))


def conditions(p: Any, x: str, constants: Mapping[str, int]) -> list[str]:
    """Returns the conditions under which a generated launch refuses an array for an accessor.

    A size or stride that needs more than 32 bits needs no condition: :mod:`struct` raises an error.
    """
    rank = p.accessor.dimensions(constants)
    found = [f"{x}.dim() != {rank}"]
    if p.accessor.bits == 32:
        reach = " + ".join(f"({x}.size({i}) - 1) * {x}.stride({i})" for i in range(rank))
        found.append(f"{reach} > {_LARGEST_32}")
    return found
