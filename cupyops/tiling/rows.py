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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from cupyops.arrays import Device
from cupyops.launch.geometry import MAX_BLOCK, Rows
from cupyops.launch.kernel import Kernel
from cupyops.sizes import surely

from .config import CLUSTERS_SINCE, Config, threads_for

__all__ = ["RowsChoice", "RowsConfig", "at_once", "choice_of", "is_few"]

SHARED_MEMORY = 200 * 1024  # bytes of shared memory that stages may fill on a multiprocessor; sm_90 has 227 KiB
SHARED_MEMORY_OF = {120: 84 * 1024, 121: 84 * 1024}  # the same, by compute capability, where the GPU has less
MOST_FOLDED = 2**15  # bytes of the longest row that RowsConfig.fold puts into the registers of one block

Some = TypeVar("Some", bound="RowsConfig")


class RowsChoice(NamedTuple):
    """One line of a table of configs: the config for rows up to a length.

    Attributes:
        most: accesses of the longest row that the line covers.
        vectors: accesses of a thread.
        block: the fewest threads of a block.
        min_blocks, cluster, rows_each, stages, aligned_apart: the fields of :class:`RowsConfig` with these names.
    """

    most: int
    vectors: int
    block: int = 1
    min_blocks: int = 1
    cluster: int = 1
    rows_each: int = 1
    stages: int = 0
    aligned_apart: bool = False


def choice_of(table: Iterable[RowsChoice], accesses: int) -> RowsChoice | None:
    """Returns the first line of a table that covers rows of ``accesses`` accesses, or None."""
    return next((cut for cut in table if accesses <= cut.most), None)


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
        stages: rows that a persistent block prefetches into shared memory (``stages.cuh``).
        folded: blocks of a cluster that one block replaces. The block sums a row in the cluster's order, so the bits of
            the result are those of the cluster.
        aligned_apart: aligned rows take a separate path without an alignment check for each access, if the source has
            such a path.
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
    folded: int = 1
    aligned_apart: bool = False
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

    @classmethod
    def cut(cls: type[Some], n: int, vector_width: int, cut: RowsChoice, **others: Any) -> Some:
        """Returns the config that a line of a table gives for rows of n elements."""
        fields = cut._asdict()
        del fields["most"]
        return cls.of(n, vector_width, **{**fields, **others})

    def staged(self: Some, row_bytes: int, kept_bytes: int, capability: int) -> Some | None:
        """Returns the config with as many of its stages as shared memory has room for, or None if one stage does not
        fit.

        ``min_blocks`` is lowered until shared memory holds one stage of each resident block. The number of stages is
        then the largest that fits.

        Args:
            row_bytes: bytes that a stage holds for each element of a row.
            kept_bytes: bytes that a block keeps in shared memory beside its stages, for each element of its slice.
            capability: compute capability of the GPU, 90 for sm_90.
        """
        room = SHARED_MEMORY_OF.get(capability, SHARED_MEMORY)
        stage, kept = self.slice * row_bytes, self.slice * kept_bytes
        min_blocks = min(self.min_blocks, max(1, room // (kept + stage)))
        stages = min(self.stages, (room // min_blocks - kept) // stage)
        if stages < 1:
            return None
        return replace(self, min_blocks=min_blocks, stages=stages, shared=stages * stage + kept)

    def one_a_block(self: Some, **others: Any) -> Some:
        """Returns the config with one row a block, so that few rows occupy more multiprocessors. The bits of a row stay
        the same.

        Args:
            others: further fields.
        """
        return replace(self, block=max(32, self.row_threads), rows_each=1, min_blocks=1, **others)

    def fold(self: Some, row_bytes: int) -> Some:
        """Returns the config with one block in place of a cluster, or the config itself if a row does not fit one
        block.

        The block sums a row in the cluster's order, so the bits stay the same. One block needs no cluster barriers.

        Args:
            row_bytes: bytes of a row in registers.
        """
        threads = self.row_threads * self.cluster
        if threads > MAX_BLOCK or row_bytes > MOST_FOLDED or self.row_threads % 32:
            return self
        return replace(self, block=threads, row_threads=threads, cluster=1, folded=self.cluster)

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


def at_once(kernel: Kernel, types: Mapping[str, str], otherwise: str, device: Device) -> int:
    """Returns how many blocks of a kernel, or clusters of blocks, run at once on a GPU: the grid of persistent blocks.

    Args:
        kernel: the kernel with persistent blocks.
        types: dtypes by the names of the kernel's types, such as ``scalar_t``.
        otherwise: the dtype of the types that ``types`` does not name.
        device: the GPU.
    """
    types = {name: types.get(name, otherwise) for name in kernel.signature.bindings}
    return kernel.resident_blocks(types, device) // kernel.geometry.cluster


def is_few(rows: int, n: int, most: tuple[int, int]) -> bool:
    """Returns whether there are few rows: a launch then needs a config with a low latency, not one with a high
    bandwidth.

    Args:
        rows: the number of rows.
        n: elements of a row.
        most: the most rows, and the most elements of all rows, that are few.
    """
    return surely(rows <= most[0]) and surely(rows * n <= most[1])
