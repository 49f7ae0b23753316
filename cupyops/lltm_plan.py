"""Which way a sequence goes through an LLTM, by the number of units and the GPU: the tables behind
:mod:`cupyops.lltm_sequence`.

How a row's units are shared out, and so its bits, do not depend on how many rows there are; how many of them a block
takes does. The bounds are those at which the compiler keeps everything in registers; that of a block has been measured on
an H200, where 128 units take 157 µs in one and 123 in two for 128 steps back.
"""

from dataclasses import dataclass, replace
from functools import cache

__all__ = ["CLUSTERS_SINCE", "MOST_TURNS", "Plan", "most_rows", "rows_of_team", "sequence_plan", "turns"]

CLUSTERS_SINCE = 90  # compute capability that has clusters of blocks
MOST_IN_BLOCK = (
    64  # units of a block: beyond, two in a cluster are quicker, and earlier GPUs' compilers out of registers
)
LARGEST_CLUSTER = 8  # blocks of one; 16 are not on every GPU
MOST_TURNS = 4  # that a team all over the GPU takes at the rows, before launches of single steps are the quicker way


@dataclass(frozen=True)
class Plan:
    """One way.

    Attributes:
        state: units of a row.
        units: of a block, of each row of its team; even.
        parts: lanes that share a unit.
        cluster: blocks of a team that are a cluster; 1 else.
        team: blocks of a team that are anywhere on the GPU; 1 else.
        rows: that the lanes of a unit share among them, at most ``parts``.
        groups: of so many rows, one after the other.
    """

    state: int
    units: int
    parts: int
    cluster: int = 1
    team: int = 1
    rows: int = 1
    groups: int = 1

    @property
    def block(self) -> int:
        """Threads."""
        return -(-self.units * self.parts // 32) * 32

    @property
    def tile(self) -> int:
        """Rows of a team."""
        return self.rows * self.groups

    @property
    def steps(self) -> int:
        """Of a thread through a row, four elements each."""
        return -(-self.cluster * self.team * self.units // (4 * self.parts))

    @property
    def weights(self) -> int:
        """Of a thread."""
        return 3 * 4 * self.steps

    def shared(self, bands: int) -> int:
        """Bytes of shared memory for the rows of a step, of which each has so many numbers a unit."""
        buffers = 1 if self.team > 1 else 2
        return buffers * self.tile * bands * self.steps * 4 * self.parts * 4

    @property
    def constants(self) -> dict[str, int]:
        """Macros of the text."""
        named = {"STATE": self.state, "UNITS": self.units, "PARTS": self.parts, "ROWS": self.rows}
        return {**named, "GROUPS": self.groups, **({"TEAM": self.team} if self.team > 1 else {})}

    @property
    def since(self) -> int:
        """The compute capability that it needs."""
        return CLUSTERS_SINCE if self.cluster > 1 else 0


def _lanes(units: int, threads: int) -> int:
    """As many lanes a unit as a block has threads for."""
    lanes = 1
    while lanes < 32 and 2 * lanes * units <= threads:
        lanes *= 2
    return lanes


def _even(n: int) -> int:
    return n + n % 2


def _in_a_block(state: int, forward: bool) -> Plan | None:
    """The weights in the registers of one block."""
    units = _even(state)
    return Plan(state, units, _lanes(units, 512 if forward else 256)) if units <= MOST_IN_BLOCK else None


def _in_a_cluster(state: int) -> Plan | None:
    for cluster in (2, 4, LARGEST_CLUSTER):
        units = _even(-(-state // cluster))
        plan = Plan(state, units, _lanes(units, 256), cluster)
        if plan.block <= 256 and plan.weights <= 144:
            return plan
    return None


def _in_a_grid(state: int, forward: bool) -> Plan | None:
    if state % 4 or state > 1024:
        return None
    units = 16 if forward or state <= 768 else 8
    return Plan(state, units, 256 // units, team=-(-state // units))


@cache
def sequence_plan(state: int, forward: bool, capability: int) -> Plan | None:
    """The way of float32 and 16-bit rows, one row a team; None if every step is a launch of its own.

    Args:
        state: units.
        forward: the direction.
        capability: of the GPU, 90 for sm_90.
    """
    cluster = _in_a_cluster(state) if capability >= CLUSTERS_SINCE else None
    return _in_a_block(state, forward) or cluster or _in_a_grid(state, forward)


def most_rows(plan: Plan, forward: bool) -> int:
    """As many rows, up to 4, as the registers hold the sums of beside the weights."""
    registers = min(255, 65536 // plan.block)
    if forward and plan.block <= 256:
        return min(4, plan.parts)
    rows = 4 if plan.weights + 100 <= registers else 2 if plan.weights + 92 <= registers else 1
    return min(rows, plan.parts)


@cache
def rows_of_team(plan: Plan, forward: bool, batch: int, at_once: int) -> Plan:
    """The plan with as many rows a team as it takes for all teams to run at once, or as many as there is room for.

    Args:
        batch: rows in all.
        at_once: blocks of it that run at once.
    """
    teams = max(1, at_once // (plan.cluster * plan.team))
    rows, most = 1, most_rows(plan, forward)
    while rows < most and -(-batch // rows) > teams:
        rows *= 2
    return replace(plan, rows=rows)


def turns(plan: Plan, batch: int, at_once: int) -> int:
    """How often a team all over the GPU has to go through all steps."""
    return -(-batch // (plan.tile * max(1, at_once // plan.team)))
