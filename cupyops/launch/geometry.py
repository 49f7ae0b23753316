"""Launch policies: the block of a kernel, and its grid as a function of size parameters.

A policy names the size parameters that the grid is computed from. :meth:`Geometry.grid_for`
returns the function from the values of the size parameters to the grid, for each compiled kernel. A grid of zero blocks
is not launched.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from cupyops.codegen import write
from cupyops.errors import expected
from cupyops.sizes import is_symbol

__all__ = ["Elementwise", "Geometry", "GridStride", "Rows", "Threads"]

Grid = tuple[int, int, int]
MIN: Mapping[str, Any] = MappingProxyType({"min": min})
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
MAX_BLOCK = 1024
MAX_BLOCK_Z = 64
PORTABLE_CLUSTER = 8  # greatest cluster size on every GPU with clusters; some GPUs run clusters of 16 blocks


def at_least(where: str, argument: str, value: Any, least: int | None = 1) -> int:
    """Returns the value as a Python int. NumPy integers are accepted.

    Raises:
        TypeError: `value` is not an integer, or is a bool.
        ValueError: `value` is less than `least`.
    """
    try:
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        if is_symbol(value):
            return value  # no comparison, which would bind a traced program to the sizes on one side of it
        number = operator.index(value)
    except Exception:  # a user's __index__ may raise any exception
        raise TypeError(expected(where, argument, "be an integer", repr(value))) from None
    if least is not None and number < least:
        raise ValueError(expected(where, argument, f"be at least {least}", number))
    return number


def is_integer(value: Any) -> bool:
    """Returns whether ``operator.index`` accepts the value."""
    try:
        return is_symbol(value) or operator.index(value) is not None
    except Exception:  # a user's __index__ may raise any exception
        return False


@dataclass(frozen=True)
class Target:
    """The values that :meth:`Geometry.unit` uses: bytes of the widest array element, and multiprocessors of the GPU."""

    itemsize: int
    multiprocessors: int


class Geometry:
    """The base class of launch policies: a block, and the grid as expressions in the size parameters.

    The function of :meth:`grid_for` and the generated launch contain the same expressions, so their grids are equal. An
    expression may use the name ``unit``, the number that :meth:`unit` returns for each compiled kernel.
    """

    # True if the kernel visits elements in memory order. Arrays of one dense layout (transposed, channels last) then
    # need no copy.
    any_layout: ClassVar[bool] = False

    @property
    def per_call(self) -> bool:
        """Whether each call configures its launch, ``kernel[n](...)`` or ``kernel[grid, block](...)``.

        The function of :meth:`grid_for` then takes three numbers.
        """
        return False

    @property
    def cluster(self) -> int:
        """Blocks of a cluster, the macro CLUSTER in the text."""
        return 1

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the size parameters in the grid's expressions."""
        raise NotImplementedError

    @property
    def threads(self) -> Grid:
        """Threads of a block in x, y, z."""
        raise NotImplementedError

    @property
    def constants(self) -> dict[str, int]:
        """Macros that the policy defines for the text."""
        return {}

    @property
    def blocks(self) -> tuple[str, str, str]:
        """Blocks in x, y, z, as Python expressions in the sizes and ``unit``."""
        raise NotImplementedError

    def unit(self, target: Target) -> int:
        """Returns the value of the name ``unit`` in the expressions, for example the elements that a block takes."""
        return 1

    def grid_for(self, target: Target, functions: Mapping[str, Any] = MIN) -> Callable[..., Grid]:
        """Returns the function from the values of the size parameters to the grid.

        Args:
            target: the kernel and the GPU.
            functions: what the expressions call ``min`` and ``max``.
        """
        sizes = ("x", "y", "z") if self.per_call else self.sizes
        lines = [f"def grid({', '.join(sizes)}):", f"    return {', '.join(self.blocks)}"]
        scope = {"unit": self.unit(target), **functions}
        return write(f"grid of {self}", "grid", lines, scope)


class InX(Geometry):
    """The base class of policies in x only, with one block size, the macro BLOCK_THREADS in the text."""

    block: int
    counts: ClassVar[tuple[str, ...]] = ("block",)  # fields that must be integers of at least 1

    def __post_init__(self) -> None:
        for name in self.counts:
            # The class is frozen, so that policies can be compared and hashed.
            object.__setattr__(self, name, at_least(type(self).__name__, name, getattr(self, name)))

    @property
    def threads(self) -> Grid:
        return (self.block, 1, 1)

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK_THREADS": self.block}


@dataclass(frozen=True)
class Elementwise(InX):
    """Launches one thread for ``vectors`` groups of 16 bytes of the widest array.

    The device function ``map`` in ``shared/elementwise.cuh`` expects this policy.

    Args:
        n: the size parameter that counts elements.
        block: threads of a block, the macro BLOCK_THREADS in the text.
        vectors: groups per thread, the macro VECTORS in the text.

    Raises:
        TypeError, ValueError: block or vectors is not an integer of at least 1.
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
    """Launches one block per row, with ``blockIdx.x`` as the row.

    With ``each``, a block takes several rows. With ``blocks_per_row``, a cluster of blocks takes a row, which needs
    sm_90 or later.

    Args:
        rows: the size parameter that counts rows.
        block: threads of a block, the macro BLOCK_THREADS in the text.
        each: rows per block.
        blocks_per_row: blocks of a cluster, the macro CLUSTER in the text. The text passes CLUSTER to
            ``__cluster_dims__``.

    Raises:
        TypeError: block, each or blocks_per_row is not an integer.
        ValueError: block, each or blocks_per_row is less than 1, or both each and blocks_per_row are greater than 1.
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
                f"Rows: each or blocks_per_row must be 1, got each={self.each}, blocks_per_row={self.blocks_per_row}"
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
    """Launches a fixed number of blocks per multiprocessor, for a grid-stride loop in the text: ``for (long long i =
    ...; i < n; i += gridDim.x * blockDim.x)``. With few elements the grid is smaller.

    Args:
        n: the size parameter that counts elements.
        block: threads of a block, the macro BLOCK_THREADS in the text.
        blocks_per_multiprocessor: blocks per multiprocessor; the default of 8 blocks of 256 threads gives 2048 threads.

    Raises:
        TypeError, ValueError: block or blocks_per_multiprocessor is not an integer of at least 1.
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


class InThree(Geometry):
    """The base class of policies in x, y and z, with a block of up to three numbers."""

    block: int | tuple[int, ...]

    def __post_init__(self) -> None:
        where, given = type(self).__name__, self.block if isinstance(self.block, tuple | list) else (self.block,)
        numbers = tuple(at_least(where, "block", n) for n in given)
        if not 1 <= len(numbers) <= 3:
            raise ValueError(expected(where, "block", "be threads in x, y, z, such as (32, 8, 1)", self.block))
        # The class is frozen, so that policies can be compared and hashed.
        object.__setattr__(self, "block", (*numbers, 1, 1)[:3])

    @property
    def threads(self) -> Grid:
        x, y, z = self.block  # type: ignore[misc]  # __post_init__ makes it a tuple of three
        return x, y, z

    def grid_for(self, target: Target, functions: Mapping[str, Any] = MIN) -> Callable[..., Grid]:
        config = super().grid_for(target, functions)

        def grid(*sizes: int) -> Grid:
            x, y, z = config(*sizes)
            if max(y, z) > MAX_GRID_YZ and x and y and z:
                raise ValueError(
                    f"a grid of {x} x {y} x {z} blocks: CUDA has at most {MAX_GRID_YZ} blocks in y and z. "
                    f"Put the longest dimension in x, or use larger blocks than {self.threads}"
                )
            return (x, y, z)

        return grid


@dataclass(frozen=True)
class Threads(InThree):
    """Launches one thread per index in up to three dimensions: ``Threads("N", "M")``.

    With ``Threads()`` each call configures its launch: ``kernel[n](...)``, ``kernel.forall(N, M)(...)``,
    ``kernel[grid, block](...)``.

    The grid is rounded up to whole blocks, so the text checks its bounds: ``if (x < N && y < M)``. The launch raises
    for more than 65535 blocks in y or z, CUDA's limit.

    Args:
        x, y, z: size parameters. z may be omitted, or y and z, or all three.
        block: threads of a block in x, y, z. An omitted number is 1, so 128 means (128, 1, 1).

    Raises:
        TypeError: block is neither an integer nor a tuple of integers.
        ValueError: z is given without y, or y without x; or block is not one to three numbers of at least 1.
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
        super().__post_init__()

    @property
    def per_call(self) -> bool:
        return self.x is None

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for s in (self.x, self.y, self.z) if s is not None))

    @property
    def blocks(self) -> tuple[str, str, str]:
        sizes = ("x", "y", "z") if self.per_call else (self.x, self.y, self.z)
        x, y, z = (
            "1" if size is None else f"-(-{size} // {threads})"
            for size, threads in zip(sizes, self.threads, strict=True)
        )
        return x, y, z


def policy(kernel: str, geometry: Any) -> Geometry:
    """Returns the launch policy of a kernel: `geometry`, or :class:`Threads` for an integer or None.

    Raises:
        TypeError: `geometry` is neither a launch policy, an integer nor None.
        ValueError: the policy's block is larger than CUDA allows.
    """
    if geometry is None:
        return Threads()
    if not isinstance(geometry, Geometry):
        if not is_integer(geometry):
            wanted = "be a launch policy such as Threads('n'), or threads of a block"
            raise TypeError(expected(kernel, "geometry", wanted, repr(geometry)))
        geometry = Threads(block=at_least(kernel, "geometry", geometry))
    x, y, z = geometry.threads
    if x * y * z > MAX_BLOCK or z > MAX_BLOCK_Z:
        raise ValueError(
            f"{kernel}: a block of {x} x {y} x {z} threads: CUDA has at most {MAX_BLOCK}, and {MAX_BLOCK_Z} in z"
        )
    return geometry
