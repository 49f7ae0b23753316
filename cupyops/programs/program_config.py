"""The config of a row program's kernel: for many rows, and for few rows with the same bits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cupyops.tiling.config import CLUSTERS_SINCE, THREADS_AT_ONCE
from cupyops.tiling.rows import SHARED_MEMORY, SHARED_MEMORY_OF, RowsConfig

__all__ = ["MOST_COLUMNS", "REGISTERS", "ROW_BLOCK", "ProgramConfig", "Work", "bytes_of_tile", "unit_of", "words"]

MOST_COLUMNS = 2**31 - 2**16  # of a row: the range of a column index in rows.cuh, less one slice

ROW_BLOCK = 512  # threads of a block that has a row alone
FEW_REGISTERS = 64  # of a thread for its part of a row and of the arrays (N), if few rows hold them
# Few rows: registers of a thread beside its loaded and its widened elements, and the most resident blocks.
FEW_OTHERS, FEW_BLOCKS = 12, 16
REGISTERS = 65536  # of a multiprocessor
# Few rows: the most threads of a row of one warp and of a row of several warps, the fewest bytes of a row of several warps
# that a thread has, and the most bytes of shared memory by which threads join their values.
SPREAD_WARP, SPREAD_BLOCK, SPREAD_BYTES, SPREAD_MEMORY = 128, 512, 32, 32 * 1024
# Threads of a row whose units one maximum decides. More of them took longer to join their sums, on an H200: 12 µs in place of 4.3 for 4096
# rows of 197 elements, by 96 threads in place of 8.
SPREAD_UNITS = 64


@dataclass(frozen=True)
class ProgramConfig(RowsConfig):
    """The config of a row program's kernel.

    Attributes:
        stream: a row does not fit registers, so each pass reads the row from memory.
        prefetch: persistent blocks load the next row while they compute a row.
        columns_held: a thread keeps its columns of the arrays (N) in registers.
        sums_shared: elements of each sum over the rows that a block has in shared memory, if rows are streamed.
        row_shared: elements of each array's row that a block has in shared memory, if rows are streamed. Bulk copies
            bring the row, and every pass reads it there.
        spread: threads that share the accesses of one thread of the config for many rows.
        unit: accesses of a thread that are reduced together: those of a turn in a program with one pass, or some of those that
            registers hold. The units are joined in their order. 0: no units of several accesses.
        few: for few rows. No block takes a second row.
        inside: accesses of a thread that lie within a row that registers hold, whatever the thread.
        late: 1: the exponentials of a unit follow the maximum of the whole unit, for 16-bit elements, too. 2: they follow the maximum
            of all units of a thread.
    """

    # Without defaults, so that each compilation defines the three macros.
    min_blocks: int = field(kw_only=True)
    full: bool = field(kw_only=True)
    stream: bool = field(kw_only=True)
    prefetch: bool = False
    columns_held: bool = False
    sums_shared: int = 0
    row_shared: int = 0
    spread: int = 1
    unit: int = 0
    few: bool = False
    inside: int = 0
    late: int = 0

    @property
    def since(self) -> int:
        """The least compute capability that the kernel needs: bulk copies fill shared memory."""
        return CLUSTERS_SINCE if self.row_shared else super().since

    @property
    def assumed(self) -> tuple[str, ...]:
        """Conditions on the sizes of the kernel's source, which every launch of a row of this config meets.

        :func:`cupyops.testing.prove_bounds` proves that the kernel stays inside its arrays under these conditions.
        """
        held = self.slice * self.cluster
        found = ["M__ >= 1", f"1 <= N <= {MOST_COLUMNS}", "blocks__ >= 1"]
        if self.full:
            found += [f"N % {held} == 0" if self.stream else f"N == {held}"]
        else:
            found += [f"N % {self.vector_width} == 0", *([] if self.stream else [f"N <= {held}"])]
        if self.inside:
            found += [f"N >= {self.inside * self.row_threads * self.vector_width}"]
        found += [f"N <= {at_once * self.cluster}" for at_once in (self.sums_shared, self.row_shared) if at_once]
        return (*found, *(["blocks__ == M__"] if self.few and self.groups == 1 else []))

    @property
    def teams(self) -> int:
        """Teams of a block that have tiles of their own: a team has a warp, or the threads of a row."""
        return self.block // max(32, self.row_threads)

    def tile_sizes(self, n: int, slots: Sequence[int]) -> "Sequence[ProgramConfig]":
        """Returns this config, and one whose tiles have only as many rows as a team computes at once. The bits of a row stay the same.

        Args:
            n: elements of a row.
            slots: bytes of an element of each place in a tile.
        """
        at_once = max(1, 32 // self.row_threads)
        return (self, replace(self, rows_each=at_once).with_tiles(n, slots)) if self.rows_each > at_once else (self,)

    def least_rows(self, teams: int) -> int:
        """Returns the number of rows from which the kernel with tiles is faster than the one without: the teams of all blocks have two
        tiles each, so that loading ahead pays, or a bulk copy brings a row for several passes."""
        return 0 if self.stream else 2 * self.rows_each * teams

    def with_tiles(self, n: int, slots: Sequence[int]) -> "ProgramConfig":
        """Returns the config with the shared memory of its tiles for the places that a program has in a tile.

        If the places need more than the config has, a tile has fewer rows, or a team fewer tiles; if none fits, there are no tiles. The
        bits of a row stay the same.

        Args:
            n: elements of a row.
            slots: bytes of an element of each place in a tile.
        """
        fitting = (
            replace(self, stages=stages, rows_each=rows, shared=shared)
            for stages in range(self.stages, 0, -1)
            for rows in range(self.rows_each, 0, -1)
            if (shared := self.teams * stages * bytes_of_tile(rows * n, slots)) <= self.shared
        )
        return next(fitting, self.untiled())

    def untiled(self) -> "ProgramConfig":
        """Returns the config of the kernel without tiles. The bits of a row stay the same."""
        return replace(self, rows_each=1, stages=0, shared=0)

    def with_shared_row(self, n: int, work: "Work") -> "ProgramConfig":
        """Returns the config with a block's slices of the row in shared memory.

        Args:
            n: elements of a row.
            work: what a thread holds of a row.
        """
        held = -(-n // (self.slice * self.cluster)) * self.slice
        return replace(self, row_shared=held, shared=held * sum(work.elements))

    def few_rows(self, n: int, work: "Work", acc: int, capability: int) -> "ProgramConfig":
        """Returns the config for few rows, from the config for many rows. The bits of a row stay the same.

        A block has one row, and the arrays (N) are loaded along with it. Several threads share the accesses of one
        thread, up to a block of ``SPREAD_WARP`` threads for a row of one warp. A row of several warps has up to
        ``SPREAD_BLOCK`` threads of at least ``SPREAD_BYTES`` of the row.

        A program with one pass reads a long row in several turns, one after the other. With these configs there are more threads,
        and each has one turn.

        Args:
            n: elements of a row.
            work: what a thread holds of a row.
            acc: bytes of an element in the arithmetic.
            capability: compute capability of the GPU.
        """
        if (self.stream or work.reductions == 0) and work.passes == 1 and self.cluster == 1:
            return self._few_turns(n, work, acc)
        if self.cluster > 1 or self.stream or self.prefetch:
            return self.one_a_block() if self.groups > 1 else self
        row = self.vectors * self.vector_width * sum(work.elements)
        if self.row_threads <= 32:
            most = SPREAD_WARP // self.row_threads
        else:
            most = max(1, min(SPREAD_BLOCK // self.row_threads, row // SPREAD_BYTES))
        if 2 * work.reductions * self.row_threads * self.vectors * acc > SPREAD_MEMORY:
            most = 1
        units = -(-self.vectors // max(1, self.unit))
        # Threads may have different numbers of units if one maximum decides the exponentials of all units.
        uneven = self.late == 2
        ways = (
            s for s in range(1, min(units, most) + 1) if (uneven or units % s == 0) and self.row_threads * s % 32 == 0
        )
        spread = max(ways, default=0)
        if spread == 0:
            return self.one_a_block(few=True, full=self.slice == n)
        threads = self.row_threads * spread
        vectors = -(-units // spread) * max(1, self.unit) if spread > 1 else self.vectors
        row, columns = work.row(self.vector_width, acc), work.persistent(self.vector_width, acc)
        # Unbounded, the compiler uses up to 40 registers where 32 are enough, and the last of 512 rows wait for a second set of
        # blocks: `add_rms_norm` of rows of 4096 took 4.4 µs on an H200 in blocks of 512 threads, and 4.0 with four of them resident.
        registers = -(-(vectors * (2 * row + columns) + FEW_OTHERS) // 8) * 8
        most = min(REGISTERS // registers, THREADS_AT_ONCE.get(capability, 2048)) // threads
        return replace(
            self.one_a_block(few=True),
            block=threads,
            row_threads=threads,
            vectors=vectors,
            spread=spread,
            full=threads * vectors * self.vector_width == n,
            inside=self.inside if spread == 1 else 0,
            columns_held=vectors * (row + columns) <= FEW_REGISTERS and threads <= ROW_BLOCK,
            min_blocks=max(1, min(most, FEW_BLOCKS)) if vectors <= 2 else 1,
        )

    def _few_turns(self, n: int, work: "Work", acc: int) -> "ProgramConfig":
        """Returns the config for few rows of a program with one pass: several threads take the turns of one. Rows without reductions,
        which have no order to keep, have a thread for each access."""
        few = self.one_a_block(few=True)
        if work.reductions == 0:  # no order to keep
            accesses = -(-n // self.vector_width)
            threads = min(SPREAD_BLOCK, -(-accesses // 32) * 32)
            vectors = min(self.vectors, -(-accesses // threads))
            full = n % (threads * vectors * self.vector_width) == 0
            apart = replace(few, stream=True, prefetch=False, columns_held=False, unit=0, inside=0)
            return replace(apart, block=threads, row_threads=threads, vectors=vectors, full=full)
        turns = -(-n // self.slice)
        whole = max(1, 32 // self.row_threads)  # a block has whole warps, of which some threads may have no turn
        spread = min(-(-turns // whole), max(1, SPREAD_BLOCK // (self.row_threads * whole))) * whole
        joined = 2 * work.reductions * self.row_threads * -(-turns // spread) * spread * acc
        if turns == 1 or spread == 1 or self.unit == 0 or joined > SPREAD_MEMORY:
            return few
        threads = self.row_threads * spread
        own = -(-turns // spread)  # turns of a thread, all of them held
        return replace(
            few,
            block=threads,
            row_threads=threads,
            vectors=self.vectors * own,
            stream=False,
            spread=spread,
            full=self.full and turns % spread == 0,
        )

    def with_shared_sums(self, n: int, sums: int, acc: int, capability: int) -> "ProgramConfig":
        """Returns the config with the sums over the rows in shared memory, or the config itself if they do not fit.

        Args:
            n: elements of a row.
            sums: sums over the rows.
            acc: bytes of an element of a sum.
            capability: compute capability of the GPU.
        """
        held = -(-n // (self.slice * self.cluster)) * self.slice
        room = SHARED_MEMORY_OF.get(capability, SHARED_MEMORY) if capability >= CLUSTERS_SINCE else 0
        if sums == 0 or held * sums * acc > room:
            return self
        return replace(self, sums_shared=held, shared=held * sums * acc, min_blocks=1)


@dataclass(frozen=True)
class Work:
    """The numbers of a row program that decide the registers of a thread.

    Attributes:
        elements: bytes of an element of each array (M, N) that the program reads.
        columns: bytes of an element of each array (N) that the program reads.
        kept: values of an element that several passes read, in the dtype of the arithmetic.
        sums: sums over the rows.
        passes: passes over a row. A program with one pass does not hold the row.
        reductions: reductions of a row.
        exponentials: a reduction is Σ exp(a - max a).
        counted: the program reads the index of the column.
        apart: bytes of an element of each result that has a place of its own in a tile of rows.
        stored: results (M, N).
        written: their bytes for each element.
        operations: the operations on an element.
    """

    elements: tuple[int, ...]
    columns: tuple[int, ...] = ()
    kept: int = 0
    sums: int = 0
    passes: int = 2
    reductions: int = 1
    exponentials: bool = False
    counted: bool = False
    apart: tuple[int, ...] = ()
    stored: int = 0
    written: int = 0
    operations: int = 0

    @property
    def slots(self) -> tuple[int, ...]:
        """Bytes of an element of each place in a tile of rows."""
        return self.elements + self.apart

    def row(self, width: int, acc: int) -> int:
        """Returns the registers of an access of ``width`` elements to a row, with ``acc`` bytes a kept value."""
        return words(self.elements, width) + self.kept * width * acc // 4

    def persistent(self, width: int, acc: int) -> int:
        """Returns the registers for the columns of an access: the arrays (N) and the sums over the rows."""
        return words(self.columns, width) + self.sums * width * acc // 4


def unit_of(threads: int, vectors: int) -> int:
    """Returns the accesses of a unit of a thread that holds ``vectors`` accesses: few rows have other threads for the further units, up to
    ``SPREAD_UNITS`` threads for a row."""
    return -(-vectors // max(1, SPREAD_UNITS // threads))


def bytes_of_tile(elements: int, slots: Sequence[int]) -> int:
    """Returns the bytes of a tile of some elements: each place has room for the pieces of 16 bytes around the elements."""
    return sum((elements * size + 30) // 16 * 16 for size in slots)


def words(sizes: tuple[int, ...], width: int) -> int:
    return sum(max(1, size * width // 4) for size in sizes)
