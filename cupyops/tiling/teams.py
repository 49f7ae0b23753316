"""Teams of blocks that go through the steps of a sequence together: the macros of ``team.cuh``, and the sizes of a launch.

A team is one block, a cluster of blocks, or blocks anywhere on the GPU that wait for one another at a counter in global
memory. A team works on a tile of rows: some rows at once, and groups of as many rows one after the other. Teams of blocks
anywhere on the GPU must all run at once; where there are fewer teams than tiles, the teams take turns. The text goes through
the tiles by ``for (tile = blockIdx.x / BLOCKS; tile < tiles; tile += teams)``. The kernel's parameters ``tiles``, ``teams`` and
``blocks`` are :attr:`TeamLaunch.counts`.
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
    """The macros of ``team.cuh`` and of the texts that include it.

    Attributes:
        cluster: blocks of a team that is a cluster; else 1.
        team: blocks of a team whose blocks are anywhere on the GPU; else 1.
        rows: rows that a team has at once, a power of 2.
        groups: groups of ``rows`` rows, one after the other.
        most_groups: the most groups of a team.
        most_turns: the most tiles of a team whose blocks are anywhere on the GPU; beyond, another way is quicker.
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
        """The most rows that a team has at once."""
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
        # The texts have no defaults for ROWS and GROUPS.
        return {**super().constants, "ROWS": self.rows, "GROUPS": self.groups}

    def kernel(self, *args: Any, **options: Any) -> Kernel:
        """The kernel of the config, as :meth:`Config.kernel`. Blocks that wait for one another anywhere on the GPU are launched
        cooperatively: all run at once, or the driver refuses the launch."""
        return super().kernel(*args, **{"cooperative": self.team > 1, **options})

    def teams(self, at_once: int) -> int:
        """Teams of ``at_once`` blocks; at least 1, even where a team has more blocks."""
        return max(1, at_once // (self.cluster * self.team))

    def for_rows(self: Self, count: int, at_once: int) -> Self:
        """The config with more rows a team, and then more groups, until all teams run at once or a team can have no more.

        Args:
            count: rows in all.
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
        """Tiles of a team, where ``at_once`` blocks run at once and there are ``count`` rows in all."""
        return -(-count // (self.tile * self.teams(at_once)))

    def launch(self, kernel: Kernel, count: int, at_once: int) -> "TeamLaunch":
        """The launch for ``count`` rows, on a GPU on which ``at_once`` blocks of the config's kernel run at once."""
        tiles = -(-count // self.tile)
        teams = tiles if self.team == 1 else min(tiles, at_once // self.team)
        return TeamLaunch(kernel, (tiles, teams, teams * self.cluster * self.team), tiles * self.rows)

    def fitted(
        self: Self, kernel_of: Callable[[Self], Kernel], dtype: str, count: int, device: Device
    ) -> "TeamLaunch | None":
        """The launch for ``count`` rows on a GPU, by :meth:`for_rows`.

        Args:
            kernel_of: gives the kernel of a config.
            dtype: the type ``scalar_t``.
            count: rows in all.
            device: the GPU's index.

        Returns:
            None where the GPU has no room for a team, or a team would take more than ``most_turns`` tiles.
        """
        types = {"scalar_t": dtype}
        try:
            config = self.for_rows(count, kernel_of(self).resident_blocks(types, device))
            kernel = kernel_of(config)
            blocks = kernel.resident_blocks(types, device)
        except LaunchError:  # not one block or cluster fits
            return None
        if blocks < config.cluster * config.team or (
            config.team > 1 and config.turns(count, blocks) > config.most_turns
        ):
            return None
        return config.launch(kernel, count, blocks)


@dataclass(frozen=True, slots=True)
class TeamLaunch:
    """One launch.

    Attributes:
        counts: the tiles of rows, the teams that take turns at the tiles, and the blocks of all teams.
        parts: parts of a sum over all rows, if each tile leaves a part for each row that it has at once.
    """

    kernel: Kernel
    counts: tuple[int, int, int]
    parts: int

    def counters(self, library: ArrayLibrary, like: Any) -> Any:
        """A counter for each tile, zeros, at which the blocks of a team wait for one another; None for blocks that need none.

        Args:
            library: the arrays'.
            like: an array on the same GPU.
        """
        if not self.kernel.hardware.cooperative:
            return None
        counters = library.empty((self.counts[0],), "int32", like)
        counters[...] = 0
        return counters
