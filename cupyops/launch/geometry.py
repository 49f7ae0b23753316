"""How many threads a launch has. A policy names the size parameters it counts by; nobody writes a ceil-division.

A policy gives the block once, and per compiled kernel a grid_for: a function from the values of its sizes to the grid. A
grid of zero blocks means that there is nothing to do, and nothing is launched.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from cupyops.codegen import write
from cupyops.errors import expected

__all__ = ["Elementwise", "Geometry", "GridStride", "Rows", "Threads"]

Grid = tuple[int, int, int]
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
MAX_BLOCK = 1024
MAX_BLOCK_Z = 64
PORTABLE_CLUSTER = 8  # blocks of a cluster that every GPU with clusters runs; some run 16


def at_least(where: str, argument: str, value: Any, least: int | None = 1) -> int:
    """The integer, NumPy's as Python's.

    Raises:
        TypeError: it is none, or a bool.
        ValueError: it is less.
    """
    try:
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        number = operator.index(value)
    except Exception:  # whatever a stranger's __index__ raises
        raise TypeError(expected(where, argument, "be an integer", repr(value))) from None
    if least is not None and number < least:
        raise ValueError(expected(where, argument, f"be at least {least}", number))
    return number


@dataclass(frozen=True)
class Target:
    """What a grid_for may depend on: bytes of the widest array element, and the GPU's number of multiprocessors."""

    itemsize: int
    multiprocessors: int


class Geometry:
    """What a policy offers the launcher: a block, and the grid as an expression in its size parameters.

    The function of :meth:`grid_for` and the generated launch hold the expression as it stands, so that the two cannot
    differ. It may use ``unit``, a number that :meth:`unit` gives per compiled kernel.
    """

    # True where the kernel visits elements in memory order, so that arrays of one dense layout (transposed, channels
    # last) need no copy.
    any_layout: ClassVar[bool] = False

    @property
    def per_call(self) -> bool:
        """Whether each call says how many threads it wants, ``kernel[n](...)``; the grid_for takes three numbers then."""
        return False

    @property
    def cluster(self) -> int:
        """Blocks of a cluster, CLUSTER in the text."""
        return 1

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the size parameters that the grid depends on."""
        raise NotImplementedError

    @property
    def threads(self) -> Grid:
        """Threads of a block in x, y, z."""
        raise NotImplementedError

    @property
    def constants(self) -> dict[str, int]:
        """Macros the text may rely on."""
        return {}

    @property
    def blocks(self) -> tuple[str, str, str]:
        """Blocks in x, y, z, as Python expressions in the sizes and ``unit``."""
        raise NotImplementedError

    def unit(self, target: Target) -> int:
        """What the expressions call ``unit``."""
        return 1

    def grid_for(self, target: Target) -> Callable[..., Grid]:
        """The function from the sizes to the grid."""
        sizes = ("x", "y", "z") if self.per_call else self.sizes
        lines = [f"def grid({', '.join(sizes)}):", f"    return {', '.join(self.blocks)}"]
        scope = {"unit": self.unit(target), "min": min}
        return write(f"grid of {self}", "grid", lines, scope)


class InX(Geometry):
    """Policies in x alone, with one block size: BLOCK_THREADS in the text."""

    block: int
    counts: ClassVar[tuple[str, ...]] = ("block",)  # fields that are integers of at least 1

    def __post_init__(self) -> None:
        for name in self.counts:
            # Frozen, so that policies can be compared and hashed.
            object.__setattr__(self, name, at_least(type(self).__name__, name, getattr(self, name)))

    @property
    def threads(self) -> Grid:
        return (self.block, 1, 1)

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK_THREADS": self.block}


@dataclass(frozen=True)
class Elementwise(InX):
    """One thread for ``vectors`` groups of 16 bytes of the widest array: the partner of ``map`` in ``elementwise.cuh``.

    Args:
        n: the size parameter that counts elements.
        block: threads of a block, BLOCK_THREADS in the text.
        vectors: groups a thread, VECTORS in the text.

    Raises:
        TypeError, ValueError: block or vectors is no integer of at least 1.
    """

    n: str = "n"
    block: int = 128
    vectors: int = 1
    any_layout: ClassVar[bool] = True
    counts = ("block", "vectors")

    @property
    def sizes(self) -> tuple[str, ...]:
        return (self.n,)

    @property
    def constants(self) -> dict[str, int]:
        return {**super().constants, "VECTORS": self.vectors}

    @property
    def blocks(self) -> tuple[str, str, str]:
        return (f"-(-{self.n} // unit)", "1", "1")

    def unit(self, target: Target) -> int:
        return self.block * self.vectors * (16 // target.itemsize)


@dataclass(frozen=True)
class Rows(InX):
    """One block a row, ``blockIdx.x`` the row; or several rows a block; or one row in the blocks of a cluster, which
    needs a GPU of sm_90 or later.

    Args:
        rows: the size parameter that counts rows.
        block: threads of a block, BLOCK_THREADS in the text.
        each: rows of a block.
        blocks_per_row: CLUSTER in the text, which gives it to ``__cluster_dims__``.

    Raises:
        TypeError: one of the numbers is no integer.
        ValueError: one is less than 1; several rows a block and several blocks a row.
    """

    rows: str = "M"
    block: int = 256
    each: int = 1
    blocks_per_row: int = 1
    counts = ("block", "each", "blocks_per_row")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.each > 1 and self.blocks_per_row > 1:
            raise ValueError(
                f"Rows: several rows a block, or several blocks a row; got each={self.each}, "
                f"blocks_per_row={self.blocks_per_row}"
            )

    @property
    def cluster(self) -> int:
        return self.blocks_per_row

    @property
    def sizes(self) -> tuple[str, ...]:
        return (self.rows,)

    @property
    def constants(self) -> dict[str, int]:
        clusters = {"CLUSTER": self.blocks_per_row} if self.blocks_per_row > 1 else {}
        return {**super().constants, **clusters}

    @property
    def blocks(self) -> tuple[str, str, str]:
        if self.each > 1:
            return (f"-(-{self.rows} // {self.each})", "1", "1")
        return (self.rows if self.blocks_per_row == 1 else f"{self.rows} * {self.blocks_per_row}", "1", "1")


@dataclass(frozen=True)
class GridStride(InX):
    """As many blocks as run at once, each striding over the work: ``for (long long i = ...; i < n; i += gridDim.x *
    blockDim.x)``.

    Args:
        n: the size parameter that counts elements.
        block: threads of a block, BLOCK_THREADS in the text.
        blocks_per_multiprocessor: 2048 threads a multiprocessor by default.

    Raises:
        TypeError, ValueError: one of the numbers is no integer of at least 1.
    """

    n: str = "n"
    block: int = 256
    blocks_per_multiprocessor: int = 8
    counts = ("block", "blocks_per_multiprocessor")

    @property
    def sizes(self) -> tuple[str, ...]:
        return (self.n,)

    @property
    def blocks(self) -> tuple[str, str, str]:
        return (f"min(-(-{self.n} // {self.block}), unit)", "1", "1")

    def unit(self, target: Target) -> int:
        return target.multiprocessors * self.blocks_per_multiprocessor


@dataclass(frozen=True)
class Threads(Geometry):
    """Threads by count in up to three dimensions, ``Threads("N", "M")``: at least one thread for each index below the
    sizes. ``Threads()`` leaves the counts to each call: ``kernel[n](...)``, ``kernel[N, M](...)``.

    The text guards its own ends: ``if (x < N && y < M)``. Beyond 65535 blocks in y or z the launch is refused, since
    the hardware has no more.

    Args:
        x, y, z: size parameters; y and z may be absent, or all three.
        block: threads of a block in x, y, z; 1 in those that are left out, so that 128 is (128, 1, 1).

    Raises:
        TypeError: block is no integer and no tuple of them.
        ValueError: z without y, y without x, or a block of other than one to three positive numbers.
    """

    x: str | None = None
    y: str | None = None
    z: str | None = None
    block: int | tuple[int, ...] = (256, 1, 1)

    def __post_init__(self) -> None:
        if self.z is not None and self.y is None:
            raise ValueError(f"Threads: z={self.z!r} needs a y before it")
        if self.y is not None and self.x is None:
            raise ValueError(f"Threads: y={self.y!r} needs an x before it")
        block = tuple(self.block) if isinstance(self.block, tuple | list) else (self.block,)
        numbers = tuple(at_least("Threads", "block", n) for n in block)
        if not 1 <= len(numbers) <= 3:
            raise ValueError(expected("Threads", "block", "be threads in x, y, z, such as (32, 8, 1)", self.block))
        # Frozen, so that policies can be compared and hashed.
        object.__setattr__(self, "block", (*numbers, 1, 1)[:3])

    @property
    def per_call(self) -> bool:
        return self.x is None

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for s in (self.x, self.y, self.z) if s is not None))

    @property
    def threads(self) -> Grid:
        x, y, z = self.block  # type: ignore[misc]  # three, whatever was given
        return x, y, z

    @property
    def constants(self) -> dict[str, int]:
        return {}

    @property
    def blocks(self) -> tuple[str, str, str]:
        sizes = ("x", "y", "z") if self.per_call else (self.x, self.y, self.z)
        x, y, z = (
            "1" if size is None else f"-(-{size} // {threads})"
            for size, threads in zip(sizes, self.threads, strict=True)
        )
        return x, y, z

    def grid_for(self, target: Target) -> Callable[..., Grid]:
        config = super().grid_for(target)

        def grid(*sizes: int) -> Grid:
            x, y, z = config(*sizes)
            if max(y, z) > MAX_GRID_YZ and x and y and z:
                raise ValueError(
                    f"a grid of {x} x {y} x {z} blocks: CUDA has at most {MAX_GRID_YZ} blocks in y and z. "
                    f"Put the longest dimension in x, or use larger blocks than {self.block}"
                )
            return (x, y, z)

        return grid
