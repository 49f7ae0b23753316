"""Configs of the kernels that compute all steps of an LLTM's sequence, by the number of units, the dtype and the GPU.

The number of rows only decides how many rows a team takes. Each unit belongs to the same thread for any number of rows,
so the number of rows does not change the bits of a row. The constants of this module are the largest sizes for which
the compiler keeps all weights in registers. Two constants are measurements on an H200 instead:

- The backward of 128 steps of 128 units takes 157 µs in one block and 123 µs in two.
- Teams of blocks anywhere on the GPU are faster with tensor cores. Clusters are faster without tensor cores. The table
  holds the microseconds of 128 steps in bfloat16, forward and backward:

=====  =====  ============  ===============
rows   units  tensor cores  no tensor cores
=====  =====  ============  ===============
16     256    268, 279      137, 231
64     256    271, 316      371, 738
16     512    286, 334      328, 611
64     512    350, 439      1603, 2742
16     768    315, 402      782, 1568
16     1024   365, 524      1041, 3525
64     1024   637, 894
128    1024   1018, 1690
=====  =====  ============  ===============
"""

from dataclasses import KW_ONLY, dataclass
from functools import cache

from cupyops.tiling.config import CLUSTERS_SINCE
from cupyops.tiling.teams import TeamConfig

__all__ = ["SequenceConfig", "TensorCoresConfig", "sequence_config"]

# The most units of a block. With more units, a cluster of two blocks is faster. On GPUs without clusters, the weights
# of more units do not fit the registers of a block.
MOST_IN_BLOCK = 64
CLUSTERS = (2, 4, 8)  # numbers of blocks of a cluster; only some GPUs run clusters of 16 blocks
MOST_STATE = 1024  # the most units whose weights fit the registers of blocks anywhere on the GPU
TENSOR_CORES_SINCE = 80  # the least compute capability with the instructions of tensor_cores.cuh


@dataclass(frozen=True)
class SequenceConfig(TeamConfig):
    """The macros of ``lltm_sequence.cu`` or ``lltm_sequence_backward.cu``.

    Attributes:
        state: units of a row.
        units: units of each row that a block computes; an even number.
        parts: lanes of a warp that share a unit.
        backward: the kernel is the backward.
    """

    launch_only = TeamConfig.launch_only | {"backward"}

    text = "lltm_sequence"
    most_turns = 4  # with more tiles a team, launches of single steps are faster

    state: int
    units: int
    parts: int
    backward: bool = False

    @property
    def block(self) -> int:
        return -(-self.units * self.parts // 32) * 32

    @property
    def steps(self) -> int:
        """Iterations in which a thread reads its part of a row, four elements each."""
        return -(-self.cluster * self.team * self.units // (4 * self.parts))

    @property
    def weights(self) -> int:
        """The number of weights that a thread keeps in registers."""
        return 3 * 4 * self.steps

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the rows of a step: one number a unit in the forward, three in the backward."""
        buffers, bands = 1 if self.team > 1 else 2, 3 if self.backward else 1
        return buffers * self.tile * bands * self.steps * 4 * self.parts * 4

    @property
    def most_rows(self) -> int:
        """The most rows of a group: up to 4, if the registers hold the sums of the rows beside the weights.

        The lanes of a unit share the rows, so a group has at most ``parts`` rows.
        """
        registers = min(255, 65536 // self.block)
        if not self.backward and self.block <= 256:
            return min(4, self.parts)
        rows = 4 if self.weights + 100 <= registers else 2 if self.weights + 92 <= registers else 1
        return min(rows, self.parts)


@dataclass(frozen=True)
class TensorCoresConfig(TeamConfig):
    """The macros of ``lltm_tensor_cores.cu`` or ``lltm_tensor_cores_backward.cu``: blocks of 16 units anywhere on the
    GPU.

    Attributes:
        state: units of a row, a multiple of 32.
        backward: the kernel is the backward.
    """

    launch_only = TeamConfig.launch_only | {"backward"}
    text = "lltm_tensor_cores"
    most_groups = 4  # a thread keeps the cells, gates and gradients of all groups in registers
    most_turns = 1  # with more rows, the library's product of a single step is faster
    block = 256
    since = TENSOR_CORES_SINCE

    state: int
    backward: bool = False
    _: KW_ONLY
    rows: int = 16

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the sums of a group's rows, by warp and gate: one table, or two for alternating
        groups."""
        return min(self.groups, 2) * self.block // 32 * (1 if self.backward else 3) * self.rows * 20 * 4


def _lanes(units: int, threads: int) -> int:
    """Returns the lanes that share a unit: the largest power of 2 up to 32 for which a block has enough threads."""
    return min(32, 1 << max(1, threads // units).bit_length() - 1)


@cache
def sequence_config(
    state: int, forward: bool, capability: int, itemsize: int = 4
) -> SequenceConfig | TensorCoresConfig | None:
    """Returns the config for float32 or 16-bit elements, with the fewest rows a team.

    Args:
        state: units of a row.
        forward: whether the config is for the forward; else the config is for the backward.
        capability: compute capability of the GPU, 90 for sm_90.
        itemsize: bytes of an element.

    Returns:
        The config, or None if each step is a separate launch.
    """
    units = -(-state // 2) * 2
    if units <= MOST_IN_BLOCK:  # the registers of one block hold the weights
        return SequenceConfig(state, units, _lanes(units, 512 if forward else 256), backward=not forward)
    for cluster in CLUSTERS if capability >= CLUSTERS_SINCE else ():
        units = -(-state // (2 * cluster)) * 2
        config = SequenceConfig(state, units, _lanes(units, 256), cluster=cluster, backward=not forward)
        if config.block <= 256 and config.weights <= 144:
            return config
    if state % 4 or state > MOST_STATE:
        return None
    if itemsize == 2 and state % 32 == 0 and capability >= TENSOR_CORES_SINCE:
        return TensorCoresConfig(state, not forward, team=state // 16)
    units = 16 if forward or state <= 768 else 8
    return SequenceConfig(state, units, 256 // units, team=-(-state // units), backward=not forward)
