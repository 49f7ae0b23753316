"""The kernel, and its macros, for an LLTM's sequence: by the number of units, the dtype and the GPU.

The number of rows changes how many rows a team takes, and nothing else: which thread makes which unit, and so a row's bits,
do not depend on it. The bounds are those at which the compiler keeps all weights in registers, except for two that were measured
on an H200. The backward of 128 steps of 128 units takes 157 µs in one block and 123 µs in two. Teams of blocks anywhere on the GPU
are quicker on tensor cores, and clusters are quicker without (bfloat16, 128 steps, µs forward and back):

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
from cupyops.tiling.teams import TeamConfig

__all__ = ["SequenceConfig", "TensorCoresConfig", "sequence_config"]

# Units of a block. With more, a cluster of two blocks is quicker; on earlier GPUs, the weights need more registers than there are.
MOST_IN_BLOCK = 64
CLUSTERS = (2, 4, 8)  # blocks of a cluster; only some GPUs have clusters of 16
MOST_STATE = 1024  # units for which blocks anywhere on the GPU have enough registers
TENSOR_CORES_SINCE = 80  # compute capability that has the instructions of tensor_cores.cuh


@dataclass(frozen=True)
class SequenceConfig(TeamConfig):
    """The macros of ``lltm_sequence.cu`` or ``lltm_sequence_backward.cu``.

    Attributes:
        state: units of a row.
        units: units of a block, of each row of the block's team; even.
        parts: lanes that share a unit.
        backward: the direction.
    """

    launch_only = TeamConfig.launch_only | {"backward"}

    text = "lltm_sequence"
    most_turns = 4  # with more tiles a team, launches of single steps are quicker

    state: int
    units: int
    parts: int
    backward: bool = False

    @property
    def block(self) -> int:
        return -(-self.units * self.parts // 32) * 32

    @property
    def steps(self) -> int:
        """Steps of a thread along a row, four elements each."""
        return -(-self.cluster * self.team * self.units // (4 * self.parts))

    @property
    def weights(self) -> int:
        """Weights that a thread keeps in registers."""
        return 3 * 4 * self.steps

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the rows of a step: per unit one number forward, and three backward."""
        buffers, bands = 1 if self.team > 1 else 2, 3 if self.backward else 1
        return buffers * self.tile * bands * self.steps * 4 * self.parts * 4

    @property
    def most_rows(self) -> int:
        """Up to 4 rows, as far as the registers hold the rows' sums beside the weights. A unit's lanes share the rows, so there
        are no more rows than lanes."""
        registers = min(255, 65536 // self.block)
        if not self.backward and self.block <= 256:
            return min(4, self.parts)
        rows = 4 if self.weights + 100 <= registers else 2 if self.weights + 92 <= registers else 1
        return min(rows, self.parts)


@dataclass(frozen=True)
class TensorCoresConfig(TeamConfig):
    """The macros of ``lltm_tensor_cores.cu`` or ``lltm_tensor_cores_backward.cu``: blocks of 16 units anywhere on the GPU.

    Attributes:
        state: units of a row, a multiple of 32.
        backward: the direction.
    """

    launch_only = TeamConfig.launch_only | {"backward"}
    text = "lltm_tensor_cores"
    most_groups = 4  # a thread keeps the groups' cells, gates and gradients in registers
    most_turns = 1  # with more rows, a step's product is large enough for the library
    block = 256
    since = TENSOR_CORES_SINCE

    state: int
    backward: bool = False
    _: KW_ONLY
    rows: int = 16

    @property
    def shared(self) -> int:  # type: ignore[override]
        """Bytes of shared memory for the sums of a group's rows by warp and gate: one table, or two that groups take turns at."""
        return min(self.groups, 2) * self.block // 32 * (1 if self.backward else 3) * self.rows * 20 * 4


def _lanes(units: int, threads: int) -> int:
    """Lanes of a unit: a power of 2, as many as a block has threads for, up to 32."""
    return min(32, 1 << max(1, threads // units).bit_length() - 1)


@cache
def sequence_config(
    state: int, forward: bool, capability: int, itemsize: int = 4
) -> SequenceConfig | TensorCoresConfig | None:
    """The config for rows of float32 or 16 bits, with the fewest rows a team.

    Args:
        state: units of a row.
        forward: the direction.
        capability: compute capability of the GPU, 90 for sm_90.
        itemsize: bytes of an element.

    Returns:
        None where each step is a launch of its own.
    """
    units = -(-state // 2) * 2
    if units <= MOST_IN_BLOCK:  # the weights in the registers of one block
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
