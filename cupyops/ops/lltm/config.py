"""Which way a sequence goes through an LLTM, by the number of units and the GPU: the tables behind
:mod:`cupyops.lltm_sequence`.

How a row's units are shared out, and so its bits, do not depend on how many rows there are; how many of them a block
takes does. The bounds are those at which the compiler keeps everything in registers, but for two that were measured on
an H200: 128 units take 157 µs in one block and 123 in two for 128 steps back; and teams all over the GPU are quicker on
tensor cores (bfloat16, 128 steps, microseconds forward and back, on tensor cores and without), while clusters are not,
for a few rows:

=====  =====  ============  ============
rows   units  tensor cores  without
=====  =====  ============  ============
16     256    268, 279      137, 231
64     256    271, 316      371, 738
16     512    286, 334      328, 611
64     512    350, 439      1603, 2742
16     768    315, 402      782, 1568
16     1024   365, 524      1041, 3525
64     1024   637, 894
128    1024   1018, 1690
=====  =====  ============  ============
"""

from dataclasses import KW_ONLY, dataclass
from functools import cache

from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.teams import TeamPlan

__all__ = ["MatrixPlan", "Plan", "sequence_plan"]

# Units of a block: beyond, two in a cluster are quicker, and earlier GPUs' compilers out of registers.
MOST_IN_BLOCK = 64
CLUSTERS = (2, 4, 8)  # blocks of one; 16 are not on every GPU
MOST_STATE = 1024  # that a team all over the GPU has room for
TENSOR_CORES_SINCE = 80  # that sum products of 16 bits as lltm_matrix.cu has them


@dataclass(frozen=True)
class Plan(TeamPlan):
    """One way, in one direction.

    Attributes:
        state: units of a row.
        units: of a block, of each row of its team; even.
        parts: lanes that share a unit.
        backward: the direction.
    """

    launch_only = TeamPlan.launch_only | {"backward"}

    text = "lltm_sequence"
    most_turns = 4  # of a team all over the GPU at the rows, before launches of single steps are the quicker way

    state: int
    units: int
    parts: int
    backward: bool = False

    @property
    def block(self) -> int:
        return -(-self.units * self.parts // 32) * 32

    @property
    def steps(self) -> int:
        """Of a thread through a row, four elements each."""
        return -(-self.cluster * self.team * self.units // (4 * self.parts))

    @property
    def weights(self) -> int:
        """Of a thread."""
        return 3 * 4 * self.steps

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the rows of a step, of which each has a number a unit, or its gates' gradients."""
        buffers, bands = 1 if self.team > 1 else 2, 3 if self.backward else 1
        return buffers * self.tile * bands * self.steps * 4 * self.parts * 4

    @property
    def most_rows(self) -> int:
        """As many, up to 4, as the registers hold the sums of beside the weights; the lanes of a unit share them."""
        registers = min(255, 65536 // self.block)
        if not self.backward and self.block <= 256:
            return min(4, self.parts)
        rows = 4 if self.weights + 100 <= registers else 2 if self.weights + 92 <= registers else 1
        return min(rows, self.parts)


@dataclass(frozen=True)
class MatrixPlan(TeamPlan):
    """One way on tensor cores, in one direction: blocks of 16 units all over the GPU.

    Attributes:
        state: units of a row, a multiple of 32.
        backward: the direction.
    """

    launch_only = TeamPlan.launch_only | {"backward"}
    text = "lltm_matrix"
    most_groups = 4  # whose cells, gates and gradients a thread keeps in registers
    most_turns = 1  # beyond, a step's product is large enough for the library
    block = 256
    since = TENSOR_CORES_SINCE

    state: int
    backward: bool = False
    _: KW_ONLY
    rows: int = 16

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the sums of a group's rows, by warp and gate; two groups take turns."""
        return min(self.groups, 2) * self.block // 32 * (1 if self.backward else 3) * self.rows * 20 * 4


def _lanes(units: int, threads: int) -> int:
    """As many lanes a unit as a block has threads for, a power of 2."""
    return min(32, 1 << max(1, threads // units).bit_length() - 1)


@cache
def sequence_plan(state: int, forward: bool, capability: int, itemsize: int = 4) -> Plan | MatrixPlan | None:
    """The way of float32 and 16-bit rows, as few of them a team as it can have; None if every step is a launch of its own.

    Args:
        state: units.
        forward: the direction.
        capability: of the GPU, 90 for sm_90.
        itemsize: bytes of an element.
    """
    units = -(-state // 2) * 2
    if units <= MOST_IN_BLOCK:  # the weights in the registers of one block
        return Plan(state, units, _lanes(units, 512 if forward else 256), backward=not forward)
    for cluster in CLUSTERS if capability >= CLUSTERS_SINCE else ():
        units = -(-state // (2 * cluster)) * 2
        plan = Plan(state, units, _lanes(units, 256), cluster=cluster, backward=not forward)
        if plan.block <= 256 and plan.weights <= 144:
            return plan
    if state % 4 or state > MOST_STATE:
        return None
    if itemsize == 2 and state % 32 == 0 and capability >= TENSOR_CORES_SINCE:
        return MatrixPlan(state, not forward, team=state // 16)
    units = 16 if forward or state <= 768 else 8
    return Plan(state, units, 256 // units, team=-(-state // units), backward=not forward)
