"""The config of a kernel of layer normalisation, and functions for its choice: the even cut of a row, and the number of
blocks that fit a multiprocessor."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cupyops.dtypes import DTYPES
from cupyops.tiling.columns import strip_width
from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE
from cupyops.tiling.rows import RowsConfig

__all__ = ["APART", "LayerNormConfig", "even_cut", "fitting", "resident", "uneven_cut"]

APART = {"aligned_apart": True}  # of a line of a table
_STRIP_THREADS = 256  # the fewest threads of a block that sums strips of columns
# The rows of uneven_cut, by their accesses: with a residual, without one, and beside wider weights.
_ADDED, _UNEVEN, _WIDER = (range(97, 1025),), (range(81, 97), range(129, 1025)), (range(161, 225), range(257, 1025))
# The most accesses of a thread to a row without a residual, beside weights of the row's own dtype and beside wider ones. With 8
# accesses beside their own dtype, one row of 2000 or 3600 elements took a fifth longer.
_MOST_VECTORS = (7, 8)
_THREADS_ADDED = 1344  # resident threads of a multiprocessor, with a residual


@dataclass(frozen=True)
class LayerNormConfig(RowsConfig):
    """The config of a kernel of layer normalisation.

    Attributes:
        kind: the strategy. ``"registers"``: a row is held in registers. ``"wide"``: persistent blocks prefetch their
            next rows. ``"ring"``, backward only: persistent blocks prefetch the next accesses to rows. ``"streaming"``: a
            row is read twice. ``"apart"``, backward only: separate blocks for the gradient of x and for the gradients
            of weight and bias. The names of the CUDA source and of the kernel end in the strategy, except for
            ``"registers"``.
        width: threads side by side on a strip of columns, for ``"apart"``.
        weighted: the kernel has a weight or a bias.
        affine_held: weight and bias are loaded along with the row, for few rows.
        affine_given: the kernel has a weight and a bias, neither of them null.
        residual: a forward adds a residual to x.
        want_x: a backward computes the gradient of x.
        want_affine: a backward computes the gradients of weight and bias.
        grad_sum: a backward adds another gradient to the gradient of x.
        affine_registers: of weight and bias, how many a forward of the strategy ``"wide"`` keeps in registers; shared
            memory keeps the rest.
        weight_shared: a backward with persistent blocks keeps the weight in shared memory instead of registers.
        weight_registers: a thread's first accesses to the weight that registers keep beside ``weight_shared``.
        sum_ahead: persistent blocks of a forward or a tangent of the strategy ``"wide"``, and of the strategy ``"ring"``, sum
            their next row before they store this row.
        pieces_apart: the order in shared memory of weights wider than a row, without bank conflicts.
        ring: accesses to rows that a block of the strategy ``"ring"`` has in shared memory.
    """

    launch_only = RowsConfig.launch_only | {"kind"}

    kind: str = "registers"
    width: int = 1
    weighted: bool = True
    affine_held: bool = False
    affine_given: bool = False
    residual: bool = False
    want_x: bool = True
    want_affine: bool = True
    grad_sum: bool = False
    affine_registers: int = 0
    weight_shared: bool = False
    weight_registers: int = 0
    sum_ahead: bool = False
    pieces_apart: bool = False
    ring: int = 0

    @property
    def since(self) -> int:
        """The least compute capability that the kernel needs: bulk copies fill stages and rings."""
        return CLUSTERS_SINCE if self.ring else super().since

    def few_rows_forward(self, n: int, weight_bytes: int, *, given: bool = False) -> "LayerNormConfig":
        """Returns the config of the forward for few rows, from the config for many rows. The bits of a row stay the
        same.

        A block has one row. Weight and bias are loaded along with the row, if the registers hold them. Persistent blocks
        would copy rows and weights into shared memory for one row or two. Blocks that are not persistent load the row
        into registers. On an H200, 64 rows of 32768 elements take 7.5 µs with persistent blocks, and 5.6 µs without.

        Args:
            n: elements of a row.
            weight_bytes: bytes of an element of weight or bias.
            given: the call has both weight and bias. If they are loaded along with the row, the kernel takes no null.
        """
        if self.kind == "wide":
            return replace(
                self.one_a_block(aligned_apart=True),
                kind="registers",
                stages=0,
                shared=0,
                affine_registers=0,
                sum_ahead=False,
                pieces_apart=False,
            )
        if self.kind != "registers":
            return self
        if n * weight_bytes > 2**15:
            return self if self.rows_each == 1 else self.one_a_block()
        return self.one_a_block(affine_held=True, affine_given=given, aligned_apart=True)

    def few_rows_backward(self, n: int, dtype: str) -> "LayerNormConfig":
        """Returns the config of the backward for few rows, from the config for many rows.

        The order of a row's sums stays the same, so the gradient of x has the same bits. One launch also computes the
        gradients of weight and bias. For the strategy ``"streaming"``, the launch computes only the gradients of weight
        and bias.
        """
        if self.kind == "streaming":
            config = LayerNormConfig(_STRIP_THREADS, _STRIP_THREADS, self.vector_width, 1)
        elif self.cluster > 1:
            config = self.fold(n * DTYPES[dtype].itemsize)
        else:
            config = replace(self, block=max(self.block, _STRIP_THREADS // self.row_threads * self.row_threads))
        width = strip_width(n, config.vector_width, config.block)
        return replace(
            config,
            kind="apart",
            width=width,
            min_blocks=1,
            stages=0,
            shared=0,
            aligned_apart=False,
            weight_shared=False,
            weight_registers=0,
            sum_ahead=False,
            pieces_apart=False,
            ring=0,
        )


def even_cut(
    n: int,
    cuts: Iterable[tuple[int, int]],
    now: LayerNormConfig,
    block: int,
    *,
    used: float,
    enough: float,
    most_threads: int,
) -> LayerNormConfig | None:
    """Returns the cut of a row whose threads have the fewest accesses beyond the row's end, or None if ``now`` should stay.

    A row of n elements has T threads with v accesses of w elements each, and T·v·w >= n. T is 4, 8, 16, or a multiple of
    32. The cut with the least T·v·w is returned, and the first of equal ones. Measured on an H200 in bfloat16, the forward of
    rows of 1152 elements reaches 84 percent of a copy's bandwidth if 90 percent of the accesses are used, and 97 percent if
    all are used.

    Args:
        n: elements of a row.
        cuts: pairs of w and v, in the order of preference.
        now: the config that a table gives.
        block: threads of a block, rounded down to whole rows.
        used: the least share of its accesses that a cut uses.
        enough: ``now`` stays if it uses more than this share.
        most_threads: the most threads of a row.
    """
    if n > enough * now.slice * now.cluster:
        return None
    found = [LayerNormConfig.of(n, width, vectors, block=block) for width, vectors in cuts if n % width == 0]
    even = [c for c in found if c.row_threads <= most_threads and n >= used * c.slice]
    return min(even, key=lambda config: config.slice, default=None)


def uneven_cut(
    n: int, vector_width: int, capability: int, *, wider: bool, wide_result: bool, residual: bool
) -> LayerNormConfig | None:
    """Returns the config of a forward of 16-bit rows that leave threads or accesses idle in every cut, or None for rows
    that keep the config of a table.

    A row without a residual has the fewest warps whose registers hold it, so that few warps exchange sums. A row of up to
    1792 elements has one warp, which exchanges none. With a residual a thread has two accesses, so that the loads of both
    arrays are in flight at once. Measured on an H200 in bfloat16, in shares of a copy's bandwidth, by the tables and by this
    function: 1400 elements 75, 90; 5400 77, 90; with a residual 1640 77, 89; 5400 75, 93.

    Args:
        n: elements of a row.
        vector_width: elements of an access.
        capability: compute capability of the GPU.
        wider: weight and bias have wider elements than the row.
        wide_result: the result has wider elements than the row.
        residual: the forward adds a residual to x.
    """
    accesses = n // vector_width
    if not any(accesses in part for part in (_ADDED if residual else _WIDER if wider else _UNEVEN)):
        return None
    if residual:
        config = LayerNormConfig.of(n, vector_width, 2, aligned_apart=True)
        blocks = int(_THREADS_ADDED / config.block + 0.5)
        return replace(config, min_blocks=fitting(blocks, config.block, capability))
    threads = -(-accesses // (32 * _MOST_VECTORS[wider])) * 32
    vectors = -(-accesses // threads)
    config = LayerNormConfig.of(n, vector_width, vectors, block=64 if vectors > 5 else 128, aligned_apart=wider)
    # The compiler needs more registers for five accesses where warps exchange sums, and for GPUs before sm_90.
    least = 56 if vectors > 4 and (threads > 32 or capability < CLUSTERS_SINCE) else 48
    registers = 72 if wider else max(least, 28 + vectors * vector_width // 2) + 8 * wide_result
    return replace(config, min_blocks=fitting(resident(registers, config.block), config.block, capability))


def resident(registers: int, block: int) -> int:
    """Returns how many blocks of ``block`` threads fit a multiprocessor's 65536 registers, with at least ``registers`` a
    thread. The GPU allocates the registers of a thread in multiples of eight."""
    return max(1, 65536 // (-(-registers // 8) * 8 * block))


def fitting(min_blocks: int, block: int, capability: int) -> int:
    """Returns ``min_blocks``, or the most blocks of ``block`` threads that a multiprocessor has room for."""
    return max(1, min(min_blocks, THREADS_AT_ONCE.get(capability, 2048) // block))
