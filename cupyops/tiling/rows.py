"""Configs of kernels that include ``kernels_cu/shared/rows.cuh``, which hold rows of a matrix in registers.

A group of threads holds a row. The threads belong to one block, or to the blocks of a cluster. A thread loads its part
of the row by accesses of up to 16 bytes. A config sets the accesses of a thread, the threads of a row and the rows of a
block. The CUDA source reads these numbers as macros::

    @cache
    def config_of(n, itemsize):
        vector_width = vector_width_for(n, itemsize)
        return RowsConfig.of(n, vector_width, vectors=2, block=256)

    @cache
    def kernel_of(config):
        return config.kernel(TEXT, "softmax", geometry=config.rows("M"))
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from cupyops.launch.geometry import Rows

from .config import CLUSTERS_SINCE, Config, threads_for

__all__ = ["RowsConfig"]

SHARED_MEMORY = 200 * 1024  # bytes of shared memory that blocks may fill on a multiprocessor; sm_90 has 227 KiB
SHARED_MEMORY_OF = {120: 84 * 1024, 121: 84 * 1024}  # the same, by compute capability, where the GPU has less

Some = TypeVar("Some", bound="RowsConfig")


@dataclass(frozen=True)
class RowsConfig(Config):
    """The macros of ``rows.cuh``: how rows are distributed among threads and blocks.

    Attributes:
        block: threads of a block, BLOCK_THREADS in the CUDA source.
        row_threads: threads of a block on one row.
        vector_width: elements of an access.
        vectors: accesses of a thread to a row.
        rows_each: rows that a group of threads takes at once.
        cluster: blocks on one row.
        min_blocks: blocks resident on a multiprocessor; caps the registers of a thread.
        stages: tiles of rows of a team in shared memory (``row_tiles.cuh``).
        full: a row fills every access of its threads, so no access needs a bounds check.
        shared: bytes of dynamic shared memory of a block.

    >>> config = RowsConfig.of(4096, vector_width=8, vectors=2)
    >>> config.row_threads, config.groups, config.full
    (256, 1, True)
    """

    # The geometry defines the macros BLOCK_THREADS and CLUSTER.
    launch_only: ClassVar[frozenset[str]] = frozenset({"block", "cluster", "shared"})

    block: int
    row_threads: int
    vector_width: int
    vectors: int
    rows_each: int = 1
    cluster: int = 1
    min_blocks: int = 1
    stages: int = 0
    full: bool = False
    shared: int = 0

    @classmethod
    def of(
        cls: type[Some], n: int, vector_width: int, vectors: int, *, block: int = 1, cluster: int = 1, **others: Any
    ) -> Some:
        """Returns the config for rows of n elements.

        A row has as many threads as its accesses need. A block has as many rows as fit ``block`` threads, and at least
        one.

        Args:
            n: elements of a row.
            vector_width: elements of an access.
            vectors: accesses of a thread to a row.
            block: threads of a block, rounded down to whole rows.
            cluster: blocks on one row.
            others: further fields.
        """
        threads = threads_for(n // vector_width, vectors * cluster)
        block = max(block, threads) // threads * threads
        full = threads * vectors * cluster * vector_width == n
        return cls(block, threads, vector_width, vectors, cluster=cluster, full=full, **others)

    def one_a_block(self: Some, **others: Any) -> Some:
        """Returns the config with one row a block, so that few rows occupy more multiprocessors. The bits of a row stay
        the same.

        Args:
            others: further fields.
        """
        return replace(self, block=max(32, self.row_threads), rows_each=1, min_blocks=1, **others)

    @property
    def slice(self) -> int:
        """Elements of a row that a block holds at once."""
        return self.row_threads * self.vectors * self.vector_width

    @property
    def groups(self) -> int:
        """Groups of threads of a block. Each group takes ``rows_each`` rows at once."""
        return self.block // self.row_threads

    def rows(self, size: str) -> Rows:
        """Returns the geometry of a launch that has a group of threads for each row.

        Args:
            size: the kernel parameter that is the number of rows.
        """
        return Rows(size, self.block, each=self.groups * self.rows_each, blocks_per_row=self.cluster)

    def persistent(self, size: str) -> Rows:
        """Returns the geometry of a launch of persistent blocks.

        Args:
            size: the kernel parameter that is the number of blocks, or of clusters.
        """
        return Rows(size, self.block, blocks_per_row=self.cluster)

    @property
    def since(self) -> int:
        """The least compute capability that the kernel needs: bulk copies fill the stages."""
        return CLUSTERS_SINCE if self.stages else super().since
