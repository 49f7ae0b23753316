"""Which way a sequence goes through an LLTM, by the number of units and the GPU: the tables behind
:mod:`cupyops.lltm_sequence`.

How a row's units are shared out, and so its bits, do not depend on how many rows there are; how many of them a block
takes does. The bounds are those at which the compiler keeps everything in registers; that of a block has been measured on
an H200, where 128 units take 157 µs in one and 123 in two for 128 steps back.
"""

from dataclasses import dataclass
from functools import cache

from .plans import CLUSTERS_SINCE
from .teams import TeamPlan

__all__ = ["MOST_TURNS", "Plan", "sequence_plan"]

# Units of a block: beyond, two in a cluster are quicker, and earlier GPUs' compilers out of registers.
MOST_IN_BLOCK = 64
CLUSTERS = (2, 4, 8)  # blocks of one; 16 are not on every GPU
MOST_TURNS = 4  # that a team all over the GPU takes at the rows, before launches of single steps are the quicker way


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


def _lanes(units: int, threads: int) -> int:
    """As many lanes a unit as a block has threads for."""
    lanes = 1
    while lanes < 32 and 2 * lanes * units <= threads:
        lanes *= 2
    return lanes


@cache
def sequence_plan(state: int, forward: bool, capability: int) -> Plan | None:
    """The way of float32 and 16-bit rows, one row a team; None if every step is a launch of its own.

    Args:
        state: units.
        forward: the direction.
        capability: of the GPU, 90 for sm_90.
    """
    units = -(-state // 2) * 2
    if units <= MOST_IN_BLOCK:  # the weights in the registers of one block
        return Plan(state, units, _lanes(units, 512 if forward else 256), backward=not forward)
    for cluster in CLUSTERS if capability >= CLUSTERS_SINCE else ():
        units = -(-state // (2 * cluster)) * 2
        plan = Plan(state, units, _lanes(units, 256), cluster=cluster, backward=not forward)
        if plan.block <= 256 and plan.weights <= 144:
            return plan
    if state % 4 or state > 1024:
        return None
    units = 16 if forward or state <= 768 else 8
    return Plan(state, units, 256 // units, team=-(-state // units), backward=not forward)
