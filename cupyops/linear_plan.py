"""How the kernels of a linear layer are cut, and where the library takes over: the tables behind :mod:`cupyops.linear`
and :mod:`cupyops.linear_gelu`, measured on an H200."""

from dataclasses import dataclass
from functools import cache, lru_cache

from .geometry import Rows
from .layer_norm_plan import CLUSTERS_SINCE, lanes_for

__all__ = ["ColumnPlan", "NarrowPlan", "bias_gradient_pays", "column_plan", "narrow_plan"]

BLOCK = 256  # threads of a block that sums columns
STRIP_BYTES = 128  # of a row that a block reads at once, so that its accesses are whole lines
MOST_BLOCKS = 8  # of a cluster


@dataclass(frozen=True)
class ColumnPlan:
    """How the columns of a matrix are summed: the macros of ``columns.cuh``, and how many blocks there are.

    Attributes:
        lanes: columns of a thread.
        width: threads of a block side by side.
        rows_each: rows that a thread has on their way.
        cluster: blocks that add up their sums among themselves.
        groups: such clusters on one strip of columns; of several, another launch adds up the sums.
        tiles: clusters in all.
    """

    lanes: int
    width: int
    rows_each: int
    cluster: int
    groups: int
    tiles: int

    @property
    def text(self) -> "ColumnPlan":
        """The plan without what the compilation does not depend on."""
        return ColumnPlan(self.lanes, self.width, self.rows_each, self.cluster, 0, 0)

    @property
    def geometry(self) -> Rows:
        return Rows("tiles", BLOCK, blocks_per_row=self.cluster)

    @property
    def constants(self) -> dict[str, int]:
        return {"LANES": self.lanes, "WIDTH": self.width, "ROWS_EACH": self.rows_each}

    @property
    def since(self) -> int:
        return CLUSTERS_SINCE if self.cluster > 1 else 0


@lru_cache(1024)
def column_plan(m: int, n: int, itemsize: int, capability: int, multiprocessors: int, *, last: bool = False) -> ColumnPlan:
    """The way to sum the columns of m rows of n.

    Args:
        itemsize: of an element that is read.
        capability: of the GPU, 90 for sm_90.
        multiprocessors: of the GPU.
        last: the result must be one row, since it is the sums of several groups that are summed.
    """
    lanes = lanes_for(n, itemsize)
    width = 1
    while width * lanes < n and width * lanes * itemsize < STRIP_BYTES:
        width *= 2
    rows_each = 8 if itemsize * lanes <= 16 else 4
    strips = -(-n // (width * lanes))
    if strips == 0:
        return ColumnPlan(lanes, width, rows_each, 1, 1, 0)
    # So many blocks a strip fill the GPU, and so many have a row at least.
    wanted = -(-BLOCKS_EACH * multiprocessors // strips)
    parts = max(1, min(wanted, -(-m * width // BLOCK)))
    if parts > MOST_BLOCKS and not last:
        return ColumnPlan(lanes, width, rows_each, 1, parts, parts * strips)
    cluster = 1
    while cluster < min(parts, MOST_BLOCKS) and capability >= CLUSTERS_SINCE:
        cluster *= 2
    if cluster == 1 and not last:
        return ColumnPlan(lanes, width, rows_each, 1, parts, parts * strips)
    return ColumnPlan(lanes, width, rows_each, cluster, 1, strips)


BLOCKS_EACH = 3  # of a multiprocessor


@dataclass(frozen=True)
class NarrowPlan:
    """How a matrix is read that is multiplied by one of few rows: the macros of ``linear_narrow``.

    Attributes:
        few: rows of the other.
        lanes: elements of an access.
        rows_each: rows that a warp works on at once.
        split: warps on a row.
    """

    few: int
    lanes: int
    rows_each: int
    split: int

    @property
    def geometry(self) -> Rows:
        return Rows("R", NARROW_BLOCK, each=NARROW_BLOCK // 32 // self.split * self.rows_each)

    @property
    def constants(self) -> dict[str, int]:
        return {"FEW": self.few, "LANES": self.lanes, "ROWS_EACH": self.rows_each, "SPLIT": self.split}


NARROW_BLOCK = 128
MOST_FEW = 8


@cache
def narrow_plan(few: int, rows: int, k: int, itemsize: int, capability: int) -> NarrowPlan | None:
    """The way to multiply a long matrix (rows, k) by one of few rows, or None where the library is as fast.

    Args:
        itemsize: of an element.
        capability: of the GPU.
    """
    return None


def bias_gradient_pays(elements: int, n: int, k: int) -> bool:
    """Whether summing the columns of grad_y by our kernel saves more than a node of ours costs the host.

    Args:
        elements: of x.
        n, k: shape of weight.
    """
    return elements * n >= LEAST_GRADIENT * k


LEAST_GRADIENT = 2**22  # elements of grad_y
