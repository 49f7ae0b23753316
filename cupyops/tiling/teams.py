"""Teams of blocks that compute the steps of a sequence together: the macros of ``team.cuh``, and the sizes of a launch.

A team is one block, a cluster of blocks, or blocks anywhere on the GPU that wait for one another at a counter in global
memory. A team computes a tile of rows. A tile is one or more groups of rows: the rows of a group are computed at once,
the groups one after the other. Teams whose blocks are anywhere on the GPU must all run at once. If there are fewer
teams than tiles, each team computes several tiles, by ``for (tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams)``
in the CUDA source. The kernel's parameters ``tiles``, ``teams`` and ``blocks`` are :attr:`TeamLaunch.counts`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from cupyops.arrays import ArrayLibrary, Device
from cupyops.errors import LaunchError
from cupyops.launch.geometry import Rows
from cupyops.launch.kernel import Kernel

from .config import Config

__all__ = ["TeamConfig", "TeamLaunch"]

Self = TypeVar("Self", bound="TeamConfig")


@dataclass(frozen=True, kw_only=True)
class TeamConfig(Config):
    """The macros of ``team.cuh`` and of the CUDA sources that include ``team.cuh``.

    Attributes:
        cluster: blocks of a team that is a cluster; else 1.
        team: blocks of a team whose blocks are anywhere on the GPU; else 1.
        rows: rows of a group, which a team computes at once; a power of 2.
        groups: groups of a tile, which a team computes one after the other.
        most_groups: the most groups of a tile.
        most_turns: the most tiles of a team whose blocks are anywhere on the GPU; with more tiles, other kernels are
            faster.
    """

    launch_only = frozenset({"cluster"})
    most_groups: ClassVar[int] = 1
    most_turns: ClassVar[int] = 1

    cluster: int = 1
    team: int = 1
    rows: int = 1
    groups: int = 1

    @property
    def block(self) -> int:
        """Threads of a block. A subclass defines it."""
        raise NotImplementedError

    @property
    def most_rows(self) -> int:
        """The most rows of a group."""
        return self.rows

    @property
    def tile(self) -> int:
        """Rows of a tile."""
        return self.rows * self.groups

    @property
    def geometry(self) -> Rows:
        return Rows("teams" if self.team == 1 else "blocks", self.block, blocks_per_row=self.cluster)

    @property
    def constants(self) -> dict[str, int]:
        # The CUDA sources have no defaults for ROWS and GROUPS.
        return {**super().constants, "ROWS": self.rows, "GROUPS": self.groups}

    def kernel(self, *args: Any, **options: Any) -> Kernel:
        """Returns the kernel of the config, by :meth:`Config.kernel`.

        Teams whose blocks are anywhere on the GPU have a cooperative launch: all blocks run at once, or the driver
        refuses the launch.
        """
        return super().kernel(*args, **{"cooperative": self.team > 1, **options})

    def teams(self, at_once: int) -> int:
        """Returns the number of teams that ``at_once`` blocks form, and at least 1."""
        return max(1, at_once // (self.cluster * self.team))

    def for_rows(self: Self, count: int, at_once: int) -> Self:
        """Returns the config with the smallest tiles for which all teams run at once, else with the largest tiles.

        The rows of a group are doubled first, then the groups of a tile.

        Args:
            count: rows of all tiles.
            at_once: blocks of the config's kernel that run at once.
        """
        config = self
        while -(-count // config.tile) > config.teams(at_once):
            if config.rows < config.most_rows:
                config = replace(config, rows=config.rows * 2)
            elif config.groups < config.most_groups:
                config = replace(config, groups=config.groups * 2)
            else:
                break
        return config

    def turns(self, count: int, at_once: int) -> int:
        """Returns the most tiles that a team computes.

        Args:
            count: rows of all tiles.
            at_once: blocks that run at once.
        """
        return -(-count // (self.tile * self.teams(at_once)))

    def launch(self, kernel: Kernel, count: int, at_once: int) -> "TeamLaunch":
        """Returns the launch of the config's kernel.

        Args:
            kernel: the config's kernel.
            count: rows of all tiles.
            at_once: blocks of the kernel that run at once on the GPU.
        """
        tiles = -(-count // self.tile)
        teams = tiles if self.team == 1 else min(tiles, at_once // self.team)
        return TeamLaunch(kernel, (tiles, teams, teams * self.cluster * self.team), tiles * self.rows)

    def fitted(
        self: Self, kernel_of: Callable[[Self], Kernel], dtype: str, count: int, device: Device
    ) -> "TeamLaunch | None":
        """Returns the launch for ``count`` rows on a GPU, with the config that :meth:`for_rows` returns.

        Args:
            kernel_of: returns the kernel of a config.
            dtype: the dtype of ``scalar_t``.
            count: rows of all tiles.
            device: the GPU's index.

        Returns:
            The launch. None if the blocks of one team cannot run at once, or a team would compute more than
            ``most_turns`` tiles.
        """
        types = {"scalar_t": dtype}
        try:
            config = self.for_rows(count, kernel_of(self).resident_blocks(types, device))
            kernel = kernel_of(config)
            blocks = kernel.resident_blocks(types, device)
        except LaunchError:  # not one block or cluster fits the GPU
            return None
        if blocks < config.cluster * config.team or (
            config.team > 1 and config.turns(count, blocks) > config.most_turns
        ):
            return None
        return config.launch(kernel, count, blocks)


@dataclass(frozen=True, slots=True)
class TeamLaunch:
    """A launch of a kernel of teams.

    Attributes:
        kernel: the kernel.
        counts: the numbers of tiles, of teams, and of the blocks of all teams.
        parts: partial sums of a sum over all rows, if each tile leaves one partial sum for each row of a group.
    """

    kernel: Kernel
    counts: tuple[int, int, int]
    parts: int

    def counters(self, library: ArrayLibrary, like: Any) -> Any:
        """Returns a zeroed counter for each tile, at which the blocks of a team wait for one another.

        Args:
            library: the array library that allocates the counters.
            like: an array on the same GPU.

        Returns:
            The counters (tiles,), or None for teams that are one block or one cluster.
        """
        if not self.kernel.hardware.cooperative:
            return None
        counters = library.empty((self.counts[0],), "int32", like)
        counters[...] = 0
        return counters
