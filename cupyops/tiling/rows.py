"""Kernels on ``kernels_cu/shared/rows.cuh``: rows of a matrix, held in registers by groups of threads of a block, or of a cluster.

A row is cut into accesses of 16 bytes or less; how many a thread makes, how many threads are on a row and how many rows are in
a block are macros of the text, and fields of a config::

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
from cupyops.deprecated import renamed
from cupyops.launch.geometry import MAX_BLOCK, Rows
from cupyops.launch.kernel import Kernel

from .config import CLUSTERS_SINCE, Config, threads_for

__all__ = ["RowsChoice", "RowsConfig", "at_once", "choice_of", "is_few"]

SHARED_MEMORY = 200 * 1024  # bytes of a multiprocessor's shared memory that stages may fill, of 227 KiB on sm_90
SHARED_MEMORY_OF = {120: 84 * 1024, 121: 84 * 1024}  # of generations that have less
MOST_FOLDED = 2**15  # bytes of a row that a block's registers hold in place of a cluster's

Some = TypeVar("Some", bound="RowsConfig")


class RowsChoice(NamedTuple):
    """A line of a table, by which rows up to a length are cut.

    Attributes:
        most: accesses of the longest row.
        vectors: accesses of a thread.
        block: threads of a block, at least.
        min_blocks, cluster, rows_each, stages, aligned_apart: as of :class:`RowsConfig`.
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
    """The first line for rows of so many accesses, if there is one."""
    return next((cut for cut in table if accesses <= cut.most), None)


@dataclass(frozen=True)
class RowsConfig(Config):
    """How rows are cut.

    Attributes:
        block: threads of a block, BLOCK_THREADS in the text.
        row_threads: threads of a block on one row.
        vector_width: elements of an access.
        vectors: accesses of a thread to a row.
        rows_each: rows that a group of threads takes at once.
        cluster: blocks on one row.
        min_blocks: blocks that are to fit a multiprocessor, which bounds the registers.
        stages: rows in flight in shared memory (``stages.cuh``), of persistent blocks.
        folded: blocks of a cluster that are one here: it takes a row in their order, and gives it the same bits.
        aligned_apart: aligned rows have code of their own, in a text that has it.
        full: a row fills every access of its threads.
        shared: bytes of dynamic shared memory.

    >>> config = RowsConfig.of(4096, vector_width=8, vectors=2)
    >>> config.row_threads, config.groups, config.full
    (256, 1, True)
    """

    # The geometry gives BLOCK_THREADS and CLUSTER.
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
        """The config of rows of n elements: as many threads as make the row's accesses, and as many rows as a block has room for.

        Args:
            block: threads of a block, at least.
            others: further fields.
        """
        threads = threads_for(n // vector_width, vectors * cluster)
        block = max(block, threads) // threads * threads
        full = threads * vectors * cluster * vector_width == n
        return cls(block, threads, vector_width, vectors, cluster=cluster, full=full, **others)

    @classmethod
    def cut(cls: type[Some], n: int, vector_width: int, cut: RowsChoice, **others: Any) -> Some:
        """The config of rows of n elements by a line of a table."""
        fields = cut._asdict()
        del fields["most"]
        return cls.of(n, vector_width, **{**fields, **others})

    def staged(self: Some, row_bytes: int, kept_bytes: int, capability: int) -> Some | None:
        """The config with as many of its stages as a multiprocessor has room for, or None if it has none for one: where arrays are
        wide, stages go first, and then blocks.

        Args:
            row_bytes: in flight, for an element of a row.
            kept_bytes: that a block keeps in shared memory beside its stages, for an element of its slice.
            capability: of the GPU, 90 for sm_90.
        """
        room = SHARED_MEMORY_OF.get(capability, SHARED_MEMORY)
        stage, kept = self.slice * row_bytes, self.slice * kept_bytes
        min_blocks = min(self.min_blocks, max(1, room // (kept + stage)))
        stages = min(self.stages, (room // min_blocks - kept) // stage)
        if stages < 1:
            return None
        return replace(self, min_blocks=min_blocks, stages=stages, shared=stages * stage + kept)

    def one_a_block(self: Some, **others: Any) -> Some:
        """The config with no more than a row a block, and the same bits of it: few rows keep more multiprocessors busy so.

        Args:
            others: further fields.
        """
        return replace(self, block=max(32, self.row_threads), rows_each=1, min_blocks=1, **others)

    def fold(self: Some, row_bytes: int) -> Some:
        """The config with a cluster's blocks as one, which take a row in the same order and need not wait for each other; the config
        itself where a block has no room for them.

        Args:
            row_bytes: of a row, in registers.
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
        """Rows that a block works on at once, apart from ``rows_each``."""
        return self.block // self.row_threads

    def rows(self, size: str) -> Rows:
        """The geometry of one group a row, ``size`` counting the rows."""
        return Rows(size, self.block, each=self.groups * self.rows_each, blocks_per_row=self.cluster)

    def persistent(self, size: str) -> Rows:
        """The geometry of persistent blocks, ``size`` counting blocks or clusters of them."""
        return Rows(size, self.block, blocks_per_row=self.cluster)

    @property
    def since(self) -> int:
        """The compute capability that it needs: stages are filled by bulk copies."""
        return CLUSTERS_SINCE if self.stages else super().since


def at_once(kernel: Kernel, types: Mapping[str, str], otherwise: str, device: Device) -> int:
    """How many blocks, or clusters of them, run at once of a kernel whose blocks stay for many rows.

    Args:
        types: dtypes of the undeclared types, by name.
        otherwise: the dtype of those that are not named.
    """
    types = {name: types.get(name, otherwise) for name in kernel.signature.bindings}
    return kernel.resident_blocks(types, device) // kernel.geometry.cluster


def is_few(rows: int, n: int, most: tuple[int, int]) -> bool:
    """Whether rows of n elements are few, to be cut so that a launch takes little time, not so that elements do.

    Args:
        most: rows, and elements of all of them.
    """
    return rows <= most[0] and rows * n <= most[1]


__getattr__ = renamed(__name__, {"RowsPlan": "RowsConfig"})
