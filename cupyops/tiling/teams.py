"""Teams of blocks that go through steps together: how a text with ``team.cuh`` is cut, and what its launch is told.

A team is one block, a cluster of blocks, or blocks anywhere on the GPU that meet at a counter in global memory. It has a tile
of rows: so many at once, and groups of so many one after the other. Teams of the last kind must all run at once, so there may
be fewer of them than tiles, and they take turns: such a text goes through its tiles by ``for (tile = blockIdx.x / BLOCKS; tile
< tiles; tile += teams)``. Its parameters ``tiles``, ``teams`` and ``blocks`` are :attr:`TeamLaunch.counts`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from cupyops.arrays import ArrayLibrary, Device
from cupyops.errors import LaunchError
from cupyops.launch.geometry import Rows
from cupyops.launch.kernel import Kernel

from .config import Plan

__all__ = ["TeamLaunch", "TeamPlan"]

Self = TypeVar("Self", bound="TeamPlan")


@dataclass(frozen=True, kw_only=True)
class TeamPlan(Plan):
    """One way to deal rows out to teams.

    Attributes:
        cluster: blocks of a team that are a cluster; 1 else.
        team: blocks of a team that are anywhere on the GPU; 1 else.
        rows: that a team has at once, a power of 2.
        groups: of so many rows, one after the other.
    """

    launch_only = frozenset({"cluster"})
    most_groups: ClassVar[int] = 1  # that a team can have
    most_turns: ClassVar[int] = 1  # of a team all over the GPU at the rows, before another way is quicker

    cluster: int = 1
    team: int = 1
    rows: int = 1
    groups: int = 1

    @property
    def block(self) -> int:
        """Threads of a block: a subclass's to say."""
        raise NotImplementedError

    @property
    def most_rows(self) -> int:
        """That a team can have at once."""
        return self.rows

    @property
    def tile(self) -> int:
        """Rows of a team."""
        return self.rows * self.groups

    @property
    def geometry(self) -> Rows:
        return Rows("teams" if self.team == 1 else "blocks", self.block, blocks_per_row=self.cluster)

    @property
    def constants(self) -> dict[str, int]:
        # A text that deals out rows has no defaults for how many.
        return {**super().constants, "ROWS": self.rows, "GROUPS": self.groups}

    def kernel(self, *args: Any, **options: Any) -> Kernel:
        """As of every plan; blocks that meet anywhere on the GPU must all run at once."""
        return super().kernel(*args, **{"cooperative": self.team > 1, **options})

    def teams(self, at_once: int) -> int:
        """How many teams so many blocks are, which run at once; where there is no room for one, it is taken to be there."""
        return max(1, at_once // (self.cluster * self.team))

    def for_rows(self: Self, count: int, at_once: int) -> Self:
        """The plan with as many rows a team as it takes for all teams to run at once, or as many as it can have; then with as
        many groups of them.

        Args:
            count: rows in all.
            at_once: blocks of it that run at once.
        """
        plan = self
        while -(-count // plan.tile) > plan.teams(at_once):
            if plan.rows < plan.most_rows:
                plan = replace(plan, rows=plan.rows * 2)
            elif plan.groups < plan.most_groups:
                plan = replace(plan, groups=plan.groups * 2)
            else:
                break
        return plan

    def turns(self, count: int, at_once: int) -> int:
        """How often a team all over the GPU has to begin anew for so many rows, of so many blocks that run at once."""
        return -(-count // (self.tile * self.teams(at_once)))

    def launch(self, kernel: Kernel, count: int, at_once: int) -> "TeamLaunch":
        """The launch for so many rows, on a GPU on which so many blocks of the plan's kernel run at once."""
        tiles = -(-count // self.tile)
        teams = tiles if self.team == 1 else min(tiles, at_once // self.team)
        return TeamLaunch(kernel, (tiles, teams, teams * self.cluster * self.team), tiles * self.rows)

    def fitted(
        self: Self, kernel_of: Callable[[Self], Kernel], dtype: str, count: int, device: Device
    ) -> "TeamLaunch | None":
        """The launch for so many rows on a GPU, with as many of them a team as :meth:`for_rows` says; None if there is no room
        for a team at once, or teams all over the GPU would have to take too many turns.

        Args:
            kernel_of: the kernel of such a plan.
            dtype: what its ``scalar_t`` is.
        """
        types = {"scalar_t": dtype}
        try:
            plan = self.for_rows(count, kernel_of(self).resident_blocks(types, device))
            kernel = kernel_of(plan)
            blocks = kernel.resident_blocks(types, device)
        except LaunchError:  # not one block or cluster fits
            return None
        if blocks < plan.cluster * plan.team or (plan.team > 1 and plan.turns(count, blocks) > plan.most_turns):
            return None
        return plan.launch(kernel, count, blocks)


@dataclass(frozen=True, slots=True)
class TeamLaunch:
    """One launch.

    Attributes:
        counts: how many tiles of rows, teams that take turns at them, and blocks of those.
        parts: of a sum over all rows, where each tile leaves one for every row that it has at once.
    """

    kernel: Kernel
    counts: tuple[int, int, int]
    parts: int

    def counters(self, library: ArrayLibrary, like: Any) -> Any:
        """Zeros, at which the teams of each tile meet; None where blocks know of one another without."""
        if not self.kernel.hardware.cooperative:
            return None
        counters = library.empty((self.counts[0],), "int32", like)
        counters[...] = 0
        return counters
