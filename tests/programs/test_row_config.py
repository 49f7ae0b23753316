"""How the rows of a program are distributed among threads, blocks and clusters."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.programs.held_rows import cost
from cupyops.programs.row_config import ProgramConfig, RowKernels, Work, config_of
from cupyops.tiling.config import THREADS_AT_ONCE

WORKS = {
    "one array": lambda size: Work((size,)),
    "several": lambda size: Work((size, size, 4), (size,), kept=1),
    "sums": lambda size: Work((size, size), (4,), sums=2),
    "no reduction": lambda size: Work((size,), passes=1, reductions=0),
}
MANY = (
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    96,
    100,
    768,
    1000,
    1023,
    1152,
    4096,
    5000,
    8192,
    12345,
    16384,
    50257,
    65536,
    262144,
    10**6,
)


@pytest.mark.parametrize("capability", [75, 80, 89, 90, 120])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_config_covers_its_row_and_fits_the_registers(dtype: str, capability: int) -> None:
    for n in MANY:
        for work in (make(DTYPES[dtype].itemsize) for make in WORKS.values()):
            config = config_of(n, dtype, work, capability)
            held = config.row_threads * config.vector_width * config.vectors * config.cluster
            assert config.block <= 1024
            assert config.block % config.row_threads == 0
            assert config.row_threads % 32 == 0 or config.row_threads & (config.row_threads - 1) == 0
            assert config.cluster == 1 or (capability >= 90 and config.groups == 1 and config.row_threads % 32 == 0)
            assert n % config.vector_width == 0
            assert config.stream or held >= n
            assert not config.full or (n % held == 0 if config.stream else n == held)
            assert config.min_blocks >= 1
            assert config.min_blocks * config.block <= THREADS_AT_ONCE.get(capability, 2048)
            assert not config.stream or not (config.prefetch or config.columns_held)


def test_long_rows_are_in_clusters_where_a_gpu_has_them() -> None:
    one = Work((2,))
    ways = {
        n: (config_of(n, "bfloat16", one, 90).cluster, config_of(n, "bfloat16", one, 80).stream) for n in (8192, 131072)
    }
    assert ways == {8192: (1, False), 131072: (4, True)}


def test_a_row_of_a_warp_needs_no_barrier() -> None:
    """Up to the registers of 32 threads; a block has several of these rows."""
    for n in (96, 192, 256, 512, 768, 1600):
        config = config_of(n, "bfloat16", Work((2,)), 90)
        assert config.row_threads <= 32
        assert config.groups >= 4


def test_two_accesses_of_a_thread_are_enough_where_none_lies_beyond_the_row() -> None:
    """More of them hold fewer rows at once: measured were 96 percent of a copy's bandwidth with four, and 99 with two."""
    for n, threads in ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128)):
        config = config_of(n, "bfloat16", Work((2,)), 90)
        assert (config.vectors, config.row_threads, config.full) == (2, threads, True)
    assert config_of(256, "bfloat16", Work((2, 2)), 90).vectors == 2, "one access alone waits for memory"


def test_sums_keep_enough_loads_in_flight() -> None:
    """The threads of a multiprocessor load 20 to 60 KiB ahead, for rows of any length that a few blocks hold."""
    for sums, n in itertools.product((1, 2), (128, 256, 768, 1024, 1600, 3072, 4096, 4544, 8192, 16384)):
        config = config_of(n, "bfloat16", Work((2, 2), (2,), sums=sums, stored=1, written=2, operations=14), 90)
        rows = config.min_blocks * config.groups / config.cluster
        assert (config.prefetch, config.columns_held, config.stream) == (True, True, False)
        assert 20 <= rows * n * 4 / 1024 <= 60, (n, sums)


SUMS = Work((2, 2), (2,), sums=2, stored=1, written=2, operations=17)


def test_the_compiler_is_asked_only_about_tilings_that_could_be_the_cheapest() -> None:
    cheapest = config_of(5120, "bfloat16", SUMS, 90)
    asked: list[ProgramConfig] = []

    def answer(blocks: Callable[[ProgramConfig], float]) -> ProgramConfig:
        asked.clear()

        def resident(config: ProgramConfig) -> float:
            asked.append(config)
            return blocks(config)

        return config_of(5120, "bfloat16", SUMS, 90, resident)

    # As many blocks as were guessed: no other can be cheaper.
    assert answer(lambda config: config.min_blocks) == cheapest
    assert asked == [cheapest]
    # The compiler gives the cheapest so many registers that one block is resident.
    second = answer(lambda config: 1 if config == cheapest else config.min_blocks)
    assert [cheapest, second] == asked
    assert cost(second, 5120, SUMS) < cost(cheapest, 5120, SUMS, 1)
    # If several have fewer blocks than guessed, the cheapest is taken.
    third = answer(lambda config: config.min_blocks / 2)
    assert len(asked) == 3
    assert cost(third, 5120, SUMS, third.min_blocks / 2) == min(cost(c, 5120, SUMS, c.min_blocks / 2) for c in asked)
    # Where nothing runs, the launch says why.
    assert answer(lambda config: 0) == cheapest


@pytest.mark.parametrize(("local", "blocks"), [(0, 264), (8, 264), (0, None)])
def test_a_tiling_that_spills_or_has_no_room_is_not_taken(
    local: int, blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from cupyops.torch.ops.rms_norm import _rms_norm

    kernels = RowKernels(_rms_norm.programs[1])
    types = dict.fromkeys(kernels.program.inputs, "bfloat16")

    def resident_blocks(types: dict[str, str], device: int) -> int:
        if blocks is None:
            raise LaunchError("no cluster fits")
        return blocks

    monkeypatch.setattr(Kernel, "variant", lambda kernel, types, device: SimpleNamespace(function=7))
    monkeypatch.setattr(Kernel, "resident_blocks", lambda kernel, types, device: resident_blocks(types, device))
    monkeypatch.setattr(driver, "local_bytes", lambda function: local)
    monkeypatch.setattr(driver, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(driver, "capability", lambda device: 90)
    config = config_of(1024, "bfloat16", kernels.work(types), 90)
    assert kernels._resident(types, 0, config) == (2 if local == 0 and blocks else 0)
    found = kernels.config(1024, types, 0)
    assert found is kernels.config(1024, types, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [640, 5120, 10240])
def test_the_compiler_spills_no_registers_of_sums(n: int) -> None:
    pytest.importorskip("torch")
    from cupyops.torch.ops.rms_norm import _rms_norm

    kernels = RowKernels(_rms_norm.programs[1])
    types = dict.fromkeys(kernels.program.inputs, "bfloat16")
    config = kernels.config(n, types, 0)
    kernel = kernels.kernel(config, "bfloat16")
    variant = kernel.variant(dict.fromkeys(kernel.signature.bindings, "bfloat16"), 0)
    assert driver.local_bytes(variant.function) == 0


@pytest.mark.parametrize(
    ("n", "dtype", "work", "cluster", "min_blocks", "vectors"),
    [
        (32768, "bfloat16", Work((2,), (2,)), 1, 2, 4),
        (24576, "bfloat16", Work((2,), (2,)), 1, 3, 2),  # three rows fit
        (16384, "bfloat16", Work((2,), (4,)), 1, 3, 2),  # wide columns
        (16384, "bfloat16", Work((2, 2)), 1, 2, 2),
        (40960, "bfloat16", Work((2,), exponentials=True), 1, 2, 4),
        (98304, "bfloat16", Work((2,), exponentials=True), 2, 2, 2),
        (32768, "float32", Work((4,), exponentials=True), 2, 2, 4),
        (262144, "float32", Work((4,), exponentials=True), 16, 3, 2),
    ],
)
def test_long_rows_are_in_shared_memory(
    n: int, dtype: str, work: Work, cluster: int, min_blocks: int, vectors: int
) -> None:
    config = config_of(n, dtype, work, 90)
    assert (config.cluster, config.min_blocks, config.row_threads) == (cluster, min_blocks, 512)
    assert config.vectors == vectors
    assert config.shared == config.row_shared * sum(work.elements) >= n // cluster * sum(work.elements)
    assert config.since == 90
    assert config_of(n, dtype, work, 90, lambda config: config.cluster <= 8).cluster <= 8
    for other in (config_of(n, dtype, work, 80), config_of(n, dtype, replace(work, sums=1), 90)):
        assert other.row_shared == 0
    assert config_of(n + 2, dtype, work, 90).row_shared == 0, "bulk copies are of multiples of 16 bytes"


@pytest.mark.parametrize(
    ("n", "dtype", "work"),
    [
        (65536, "bfloat16", Work((2,), (2,))),
        (49152, "bfloat16", Work((2,), (4,))),
        (24576, "float32", Work((4,), (4,))),
        (24576, "bfloat16", Work((2, 2))),
        (16384, "float32", Work((4, 4), (4,))),
    ],
)
def test_one_block_of_a_multiprocessor_holds_a_row_that_its_registers_hold(n: int, dtype: str, work: Work) -> None:
    """Measured were 0.75 to 0.98 of the time of clusters and of shared memory."""
    config = config_of(n, dtype, work, 90)
    assert (config.cluster, config.row_threads, config.min_blocks) == (1, 512, 1)
    assert (config.prefetch, config.stream, config.full) == (False, False, True)
    assert config_of(n, dtype, replace(work, exponentials=True), 90) != config
    assert config_of(n, dtype, work, 80) != config


def test_long_rows_stay_in_registers_where_these_were_faster() -> None:
    """Rows that a cluster of large blocks holds, of few blocks: more multiprocessors have a cluster."""
    for n, dtype, work, cluster in (
        (65536, "float32", Work((4,), (4,)), 4),
        (98304, "bfloat16", Work((2,), (4,)), 4),
        (65536, "float32", Work((4,), exponentials=True), 4),
        (32768, "float32", Work((4, 4)), 4),
        (196608, "float32", Work((4,), exponentials=True), 8),  # more registers, so that eight blocks hold the row
        (262144, "bfloat16", Work((2,)), 8),
    ):
        config = config_of(n, dtype, work, 90)
        assert config.prefetch
        assert (config.row_shared, config.cluster, config.row_threads) == (0, cluster, 512)


@pytest.mark.parametrize(
    ("n", "dtype", "work", "threads"),
    [
        (32768, "bfloat16", Work((2, 2), (2,)), 1024),
        (32768, "bfloat16", Work((2, 2)), 512),
        (32768, "float32", Work((4,), (4,)), 1024),
    ],
)
def test_one_block_has_a_row_that_shared_memory_holds(n: int, dtype: str, work: Work, threads: int) -> None:
    """Measured were 0.96 to 0.98 of the time of a cluster."""
    config = config_of(n, dtype, work, 90)
    assert (config.cluster, config.row_threads) == (1, threads)
    assert config.row_shared == n
    assert config_of(n, dtype, work, 120).cluster > 1, "this GPU has less shared memory"
    assert config_of(2 * n, dtype, work, 90).cluster > 1


def test_more_clusters_of_16_are_resident_with_one_access_at_once() -> None:
    for dtype, elements in (("bfloat16", (2, 2)), ("float32", (4,))):
        config = config_of(262144, dtype, Work(elements, elements[:1], exponentials=True), 90)
        assert (config.cluster, config.vectors, config.min_blocks) == (16, 1, 3)


def test_some_blocks_load_while_others_compute_exponentials() -> None:
    for n in (2048, 3072, 4544, 5120):
        work = Work((4,), reductions=2, exponentials=True)
        assert config_of(n, "float32", work, 90).min_blocks >= 4
    assert config_of(3072, "float32", Work((4,)), 90).min_blocks == 3


def test_a_turn_of_float32_has_more_than_two_accesses() -> None:
    vectors = {d: config_of(896, d, Work((s,), passes=1), 90).vectors for d, s in (("float32", 4), ("bfloat16", 2))}
    assert vectors == {"float32": 4, "bfloat16": 2}


def test_a_short_row_of_one_pass_that_few_turns_divide_has_more_accesses_at_once() -> None:
    work = Work((2,), passes=1, reductions=2, exponentials=True)
    for n, threads, vectors, stream in (
        (640, 8, 5, True),
        (1600, 8, 5, True),
        (1152, 16, 9, False),  # held
        (4608, 64, 9, False),
        (1024, 8, 4, True),  # turns of four
        (576, 8, 3, True),  # too few threads would hold it
    ):
        config = config_of(n, "bfloat16", work, 90)
        assert (config.row_threads, config.vectors, config.stream) == (threads, vectors, stream)
        assert config.full
        assert config.unit == config.vectors
    assert config_of(1152, "bfloat16", work, 80).vectors < 9
    assert config_of(1152, "float16", work, 90).vectors < 9


def test_sums_over_rows_prefetch_the_next_row() -> None:
    config = config_of(4096, "bfloat16", Work((2, 2), (2,), sums=1), 90)
    assert config.prefetch
    assert config.columns_held
    assert not config_of(4096, "bfloat16", Work((2, 2), (2,)), 90).prefetch


def test_rows_in_clusters_prefetch_the_next_row() -> None:
    config = config_of(65536, "bfloat16", Work((2, 2), (2,)), 90)
    assert config.cluster > 1
    assert config.prefetch


def test_one_pass_holds_no_row_but_a_thread_has_many_accesses() -> None:
    for n in (768, 4096, 32768, 262144):
        config = config_of(n, "bfloat16", Work((2,), passes=1), 90)
        assert config.stream
        assert n / config.vector_width / config.row_threads / config.cluster >= 6


def test_sums_of_rows_that_no_cluster_holds_are_in_shared_memory() -> None:
    one, many = (config_of(262144, "float32", Work((4, 4), (4,), sums=sums), 90) for sums in (1, 3))
    assert one.stream
    assert one.shared == one.sums_shared * 4
    assert one.sums_shared * one.cluster >= 262144
    assert many.sums_shared == 0


def test_wide_columns_take_registers_where_they_are_held() -> None:
    narrow, wide = (config_of(4096, "bfloat16", Work((2, 2), (size,), sums=3), 90) for size in (2, 4))
    assert wide.vectors * wide.min_blocks <= narrow.vectors * narrow.min_blocks


EXPS = Work((2,), reductions=2, exponentials=True)


def test_rows_of_float16_in_shared_memory_have_the_blocks_of_bfloat16() -> None:
    for n in (8192, 12288, 20480, 22000):
        two = config_of(n, "float16", Work((2, 2)), 90)
        assert two.row_shared
        assert two.min_blocks == 2
    assert config_of(24576, "float16", EXPS, 90) == config_of(24576, "bfloat16", EXPS, 90)


def test_exponentials_of_few_threads_have_their_row_in_shared_memory() -> None:
    assert config_of(16384, "float16", EXPS, 90).row_shared == 16384
    for n, work in ((16384, Work((2,))), (8192, EXPS), (12288, EXPS)):  # no exponentials; four blocks; more threads
        config = config_of(n, "float16", work, 90)
        assert (config.row_shared, config.stream) == (0, False)


ONCE = Work((4,), passes=1, reductions=2, exponentials=True)
STORED = Work((4,), passes=1, reductions=0)


def test_the_accesses_of_a_turn_are_a_unit() -> None:
    for n in (96, 128, 192, 256, 4096):
        config = config_of(n, "float32", ONCE, 90)
        assert config.stream
        assert config.unit == config.vectors > 1


@pytest.mark.parametrize("n", [1280, 2560, 5120, 7168, 8192, 16384])
def test_threads_share_a_row_of_one_pass_evenly_if_some_number_of_them_does(n: int) -> None:
    config = config_of(n, "float32", ONCE, 90)
    assert config.full
    assert config.vectors >= 3


def test_accesses_beyond_the_end_of_a_row_with_exponentials_are_fewer() -> None:
    for n in (1600, 4544):
        config = config_of(n, "float32", ONCE, 90)
        assert (config.full, config.vectors) == (False, 3)


def test_threads_store_lines_together_where_a_row_has_a_power_of_two_of_accesses() -> None:
    threads = {n: config_of(n, "float32", STORED, 90).row_threads for n in (256, 1024, 4096, 8192, 16384)}
    assert threads == {256: 16, 1024: 64, 4096: 256, 8192: 512, 16384: 512}
    assert config_of(768, "float32", STORED, 90).row_threads == 16
    # The registers for the columns leave room for too few of these threads.
    assert config_of(4096, "float32", Work((4,), (4,), passes=1, reductions=0), 90).row_threads == 64


def test_rows_that_no_cluster_of_eight_holds_are_held_by_sixteen() -> None:
    rows = Work((4,), (4,))
    config = config_of(262144, "float32", rows, 90)
    assert (config.cluster, config.prefetch, config.stream) == (16, True, False)
    assert config_of(262144, "float32", rows, 90, lambda config: config.cluster <= 8).cluster == 8


def test_float32_rows_of_several_warps_have_one_unit_of_two_accesses() -> None:
    """Rows of one warp keep separate units, which other threads can take if there are few rows."""
    exps = Work((4,), reductions=2, exponentials=True)
    found = {n: config_of(n, "float32", exps, 90) for n in (256, 512, 1024)}
    assert {n: (c.vectors, c.unit) for n, c in found.items()} == {256: (2, 0), 512: (2, 2), 1024: (2, 2)}
    assert found[1024].few_rows(1024, exps, 4, 90).unit == 2


def test_few_rows_are_resident_at_once_as_far_as_the_registers_of_a_thread_allow() -> None:
    def few(n: int, work: Work, capability: int = 90) -> ProgramConfig:
        return config_of(n, "bfloat16", work, capability).few_rows(n, work, 4, capability)

    added = Work((2, 2), (2,))
    assert [few(n, added).min_blocks for n in (1024, 2048, 4096)] == [16, 8, 4], "32 registers of a thread"
    assert (few(8192, added).vectors, few(8192, added).min_blocks) == (2, 2)
    assert few(4096, added, 75).min_blocks * few(4096, added, 75).block <= 1024
    held = few(7168, Work((2,), (4,)))
    assert (held.vectors > 2, held.min_blocks) == (True, 1), "measured with up to two accesses"


def test_few_rows_are_spread_only_while_the_tables_of_their_reductions_fit_in_shared_memory() -> None:
    """Beyond 48 KiB of static shared memory, a kernel does not compile."""
    for reductions in (1, 3, 5):
        work = Work((8,), reductions=reductions)
        few = config_of(2048, "float64", work, 90).few_rows(2048, work, 8, 90)
        assert few.spread == 1 or 2 * reductions * few.row_threads * few.vectors * 8 < 48 * 1024


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("work", WORKS)
def test_a_full_row_fills_the_accesses_of_all_blocks_of_its_cluster(work: str, dtype: str) -> None:
    """A kernel for full rows checks no bounds."""
    for n, capability in itertools.product((m << k for m in (1, 3, 5, 7) for k in range(8, 20)), (80, 90)):
        config = config_of(n, dtype, WORKS[work](DTYPES[dtype].itemsize), capability)
        assert not (config.full and n % (config.slice * config.cluster)), (n, config)
