"""How the rows of a program are distributed among threads, blocks and clusters, and that the kernels are right."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import cupyops
from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError
from cupyops.launch import driver
from cupyops.launch.kernel import Kernel
from cupyops.ops.layer_norm.programs import forward_program, tangent_program
from cupyops.programs.program_config import ProgramConfig, Work
from cupyops.programs.row_config import RowKernels, config_of, work_of
from cupyops.programs.rows import RowProgram
from cupyops.programs.tilings import cost, tilings
from cupyops.tiling.config import THREADS_AT_ONCE, vector_width_for
from cupyops.torch import row_reduce
from cupyops.torch.ops.rms_norm import _rms_norm

KL = "m = max(x); n = max(t); z = sum(exp(x - m)); w = sum(exp(t - n)); k = sum(exp(t - n) / w * (t - n - log(w) - x + m + log(z)))"
ENTROPY = "m = max(x); e = exp(x - m); z = sum(e); h = log(z) - sum(e * (x - m)) / z; y = e / z * (x - m - log(z) + h)"
NORM = "m = sum(x) / N; d = x - m; v = sum(d * d) / N; y = d * rsqrt(v + 1e-5) * w + b"
SWIGLU = "h = x * g / (1 + exp(-g)); r = rsqrt(sum(h * h) / N + 1e-6); y = h * r"
SOFTMAX = "m = max(x); e = exp(x - m); y = e * (1 / sum(e))"
FIRST = "m = max(x); i = min(x == m ? j : N)"
LOG_SUM_EXP = "m = max(x); z = m + log(sum(exp(x - m)))"
PROGRAMS = KL, ENTROPY, NORM, SWIGLU, SOFTMAX, FIRST, LOG_SUM_EXP


def program_of(text: str) -> RowProgram:
    return row_reduce(text, name="tests::tiled", columns=["w", "b"] if text == NORM else []).programs[0]


def work(text: str, size: int = 2) -> Work:
    program = program_of(text)
    return work_of(program, dict.fromkeys(program.inputs, size))


def kind_of(config: ProgramConfig) -> str:
    if config.row_shared:
        return "shared"
    return "streamed" if config.stream else "ahead" if config.prefetch else "held"


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


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_blocks_that_are_resident_fit_shared_memory(text: str, dtype: str) -> None:
    for n in (256, 1000, 4096, 8192, 20480, 49152, 131072, 262144):
        for capability, shared in ((90, 227), (100, 227), (120, 99)):
            config = config_of(n, dtype, work(text, DTYPES[dtype].itemsize), capability)
            assert config.min_blocks * (config.shared + 1024) <= shared * 1024
            assert config.since <= capability


def test_each_kind_of_tiling_is_the_cheapest_of_some_rows() -> None:
    found = {
        (text, n): (kind_of(config), config.cluster)
        for text, n in itertools.product((NORM, SOFTMAX, ENTROPY, LOG_SUM_EXP), (4096, 65536, 262144))
        for config in [config_of(n, "bfloat16", work(text), 90)]
    }
    assert found[SOFTMAX, 4096] == ("held", 1)
    assert found[SOFTMAX, 65536] == ("ahead", 8)
    assert found[SOFTMAX, 262144] == ("ahead", 16)
    assert found[ENTROPY, 65536] == ("shared", 4)
    assert found[LOG_SUM_EXP, 4096] == ("streamed", 1), "a program with one pass holds nothing"
    assert kind_of(config_of(2**20, "float32", work(NORM, 4), 90)) == "streamed", "nothing holds this row"
    assert kind_of(config_of(131072, "bfloat16", work(NORM), 80)) == "streamed", "nor this one without clusters"


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("text", PROGRAMS)
def test_the_cheapest_tiling_is_chosen_and_its_dtype_has_no_say(text: str, capability: int) -> None:
    for n in (96, 1600, 8192, 65536, 262144):
        of_two = work(text)
        chosen = config_of(n, "bfloat16", of_two, capability)
        every = list(tilings(n, vector_width_for(n, 2), of_two, 4, capability))
        assert chosen in every
        assert cost(chosen, n, of_two) == min(cost(config, n, of_two) for config in every)
        assert chosen == config_of(n, "float16", of_two, capability)


def test_what_a_cost_consists_of() -> None:
    n, one = 8192, work(SOFTMAX)
    config = config_of(n, "bfloat16", one, 90)
    least = n * 4 / 15.3  # cycles that the transfer takes: 2 bytes come and 2 go, at 15.3 bytes a cycle
    assert least < cost(config, n, one) < 2 * least
    more = {
        "operations": replace(one, operations=200),
        "exponentials": replace(one, operations=200, exponentials=False),
        "bytes": replace(one, written=8),
        "reductions": replace(one, reductions=9),
    }
    costs = {name: cost(config, n, other) for name, other in more.items()}
    assert min(costs["operations"], costs["bytes"], costs["reductions"]) > cost(config, n, one)
    assert costs["exponentials"] < costs["operations"]
    assert cost(config, n, one, 1) > cost(config, n, one, 4), "rows that are resident hide each other's latency"
    apart = replace(config, cluster=4, vectors=config.vectors // 4)
    assert cost(apart, n, one, 16) > cost(config, n, one, 4), "blocks of a cluster wait for each other"
    narrow = replace(config, row_threads=4, block=128, vectors=256)
    assert cost(narrow, n, one) > cost(config, n, one)


def test_blocks_of_a_cluster_stay_and_have_a_warp_for_each_scheduler() -> None:
    for text, n in itertools.product(PROGRAMS, (24576, 65536, 98304, 262144)):
        for config in tilings(n, 8, work(text), 4, 90):
            if config.cluster > 1 and not config.stream:
                assert config.prefetch
                assert config.block % 128 == 0


def test_rows_in_shared_memory_are_whole_bulk_copies() -> None:
    for n in (65536, 65538):
        kinds = {kind_of(config) for config in tilings(n, vector_width_for(n, 2), work(ENTROPY), 4, 90)}
        assert ("shared" in kinds) == (n % 8 == 0)
    for other in (
        tilings(65536, 8, work(ENTROPY), 4, 80),
        tilings(65536, 8, replace(work(ENTROPY), sums=1), 4, 90),
        tilings(65536, 8, work(LOG_SUM_EXP), 4, 90),
    ):
        assert "shared" not in {kind_of(config) for config in other}


def test_sums_keep_enough_loads_in_flight() -> None:
    """The threads of a multiprocessor load 20 to 60 KiB ahead, for rows of any length that a few blocks hold."""
    for sums, n in itertools.product((1, 2), (128, 256, 768, 1024, 1600, 3072, 4096, 4544, 8192, 16384)):
        config = config_of(n, "bfloat16", Work((2, 2), (2,), sums=sums, stored=1, written=2, operations=14), 90)
        rows = config.min_blocks * config.groups / config.cluster
        assert (config.prefetch, config.columns_held, config.stream) == (True, True, False)
        assert 20 <= rows * n * 4 / 1024 <= 60, (n, sums)


SUMS = Work((2, 2), (2,), sums=2, stored=1, written=2, operations=17)


@pytest.mark.parametrize("own", [SUMS, work(NORM), work(LOG_SUM_EXP)], ids=["sums", "held", "read once"])
def test_the_compiler_is_asked_only_about_tilings_that_could_be_the_cheapest(own: Work) -> None:
    cheapest = config_of(5120, "bfloat16", own, 90)
    asked: list[ProgramConfig] = []

    def answer(blocks: Callable[[ProgramConfig], float]) -> ProgramConfig:
        asked.clear()

        def resident(config: ProgramConfig) -> float:
            asked.append(config)
            return blocks(config)

        return config_of(5120, "bfloat16", own, 90, resident)

    # As many blocks as were guessed: no other can be cheaper.
    assert answer(lambda config: config.min_blocks) == cheapest
    assert asked == [cheapest]
    # The compiler gives the cheapest so many registers that one block is resident.
    second = answer(lambda config: 1 if config == cheapest else config.min_blocks)
    assert [cheapest, second] == asked
    assert cost(second, 5120, own) < cost(cheapest, 5120, own, 1)
    # Of several that have fewer blocks than guessed, the one that is then the cheapest.
    third = answer(lambda config: config.min_blocks / 2)
    assert len(asked) == 3
    assert cost(third, 5120, own, third.min_blocks / 2) == min(cost(c, 5120, own, c.min_blocks / 2) for c in asked)
    # Where nothing runs, the launch says why.
    assert answer(lambda config: 0) == cheapest


@pytest.mark.parametrize(("local", "blocks"), [(0, 264), (8, 264), (0, None)])
def test_a_tiling_that_spills_or_has_no_room_is_not_taken(
    local: int, blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_fewer_results_and_results_of_other_dtypes_have_the_tiling_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bits are then those of the result that is rounded, or of the training's forward."""
    monkeypatch.setattr(driver, "capability", lambda device: 90)
    asked: list[tuple[RowKernels, ProgramConfig]] = []

    def resident(kernels: RowKernels, types: dict[str, str], device: int, config: ProgramConfig) -> float:
        asked.append((kernels, config))
        assert "float64" not in types.values()
        return 1 if kernels is whole and config == asked[0][1] else config.min_blocks

    monkeypatch.setattr(RowKernels, "_resident", resident)
    whole, of_one, typed = (
        forward_program(False, False, True, True, stats, other)
        for stats, other in ((True, False), (False, False), (True, True))
    )
    tangents = tangent_program(True, True, True, True)
    for n in (8192, 20480, 65536):
        asked.clear()
        types = dict.fromkeys(("x", "weight", "bias"), "float32")
        config = whole.config(n, types, 0)
        assert [kernels for kernels, _ in asked] == [whole] * len(asked)
        assert of_one.config(n, types, 0) == config
        for other in ("float64", "float16"):
            assert typed.config(n, types | {"y": other}, 0) == config
        assert {kernels for kernels, _ in asked} == {whole}
        types = dict.fromkeys(tangents.program.inputs, "float32")
        same, other = (tangents.config(n, types | {"y": y}, 0) for y in ("float32", "float64"))
        assert same == other


@pytest.mark.gpu
@pytest.mark.parametrize("n", [640, 5120, 10240])
def test_the_compiler_spills_no_registers_of_sums(n: int) -> None:
    kernels = RowKernels(_rms_norm.programs[1])
    types = dict.fromkeys(kernels.program.inputs, "bfloat16")
    config = kernels.config(n, types, 0)
    kernel = kernels.kernel(config, "bfloat16")
    variant = kernel.variant(dict.fromkeys(kernel.signature.bindings, "bfloat16"), 0)
    assert driver.local_bytes(variant.function) == 0


def test_a_gpu_without_room_for_a_cluster_has_smaller_ones() -> None:
    for n, dtype, own in ((262144, "bfloat16", work(SOFTMAX)), (262144, "float32", work(NORM, 4))):
        assert config_of(n, dtype, own, 90).cluster == 16
        found = config_of(n, dtype, own, 90, lambda config: (config.cluster <= 8) * config.min_blocks)
        assert found.cluster <= 8


def test_sums_over_rows_prefetch_the_next_row() -> None:
    config = config_of(4096, "bfloat16", Work((2, 2), (2,), sums=1), 90)
    assert config.prefetch
    assert config.columns_held
    assert not config_of(4096, "bfloat16", Work((2, 2), (2,)), 90).prefetch


def test_rows_in_clusters_prefetch_the_next_row() -> None:
    config = config_of(65536, "bfloat16", Work((2, 2), (2,)), 90)
    assert config.cluster > 1
    assert config.prefetch


def test_sums_of_rows_that_no_cluster_holds_are_in_shared_memory() -> None:
    one, many = (config_of(262144, "float32", Work((4, 4), (4,), sums=sums), 90) for sums in (1, 3))
    assert one.stream
    assert one.shared == one.sums_shared * 4
    assert one.sums_shared * one.cluster >= 262144
    assert many.sums_shared == 0


def test_wide_columns_take_registers_where_they_are_held() -> None:
    narrow, wide = (config_of(4096, "bfloat16", Work((2, 2), (size,), sums=3), 90) for size in (2, 4))
    assert wide.vectors * wide.min_blocks <= narrow.vectors * narrow.min_blocks


def test_few_rows_are_resident_at_once_as_far_as_the_registers_of_a_thread_allow() -> None:
    added = Work((2, 2), (2,))
    for n, capability in itertools.product((1024, 2048, 4096, 8192), (75, 90)):
        few = config_of(n, "bfloat16", added, capability).few_rows(n, added, 4, capability)
        assert few.min_blocks * few.block <= THREADS_AT_ONCE.get(capability, 2048)
        assert few.min_blocks * few.block >= 1024 or few.vectors > 2


@pytest.mark.parametrize("text", [SOFTMAX, NORM, ENTROPY])
def test_few_long_rows_have_more_threads_than_many(text: str) -> None:
    for n in (2048, 4096, 8192):
        many = config_of(n, "bfloat16", work(text), 90)
        few = many.few_rows(n, work(text), 4, 90)
        assert (few.groups, few.few) == (1, True)
        assert few.row_threads * few.vectors == many.row_threads * many.vectors
        assert few.row_threads >= min(256, n // 16)


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


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ("y = x * w", 2),  # the value that is written, and a product
        ("s = sum(x); y = x * s", 3),
        ("s = sum(x * x); y = x * rsqrt(s / N + 1e-6)", 4),  # a function of the row is computed once
        ("s = sum(x); y = x / s", 10),
        ("s = sum(x); y = x * s + 1e-3", 4),
        ("s = sum(x); y = exp(x) * (s * s + 1)", 11),
        ("e = exp(x); s = sum(e); y = e * s", 11),  # kept, so that it is computed once
        ("e = x * x + x; s = sum(e); y = e * s", 7),  # computed again by each pass
        ("m = max(x); s = sum(exp(x - m))", 10),
    ],
)
def test_operations_on_an_element(text: str, operations: int) -> None:
    columns = ["w"] if "w" in text else []
    assert row_reduce(text, name="tests::operations", columns=columns).programs[0].operations == operations


def test_programs_that_read_the_index_of_the_column() -> None:
    assert (program_of(FIRST).counted, program_of(KL).counted) == (True, False)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "dtype", "n"),
    [
        (ENTROPY, torch.bfloat16, 320),
        (KL, torch.float16, 4096),
        (NORM, torch.float32, 24576),
        (ENTROPY, torch.bfloat16, 16384),
        (SOFTMAX, torch.float32, 24576),
        (KL, torch.bfloat16, 65536),
        (FIRST, torch.bfloat16, 131072),
        (SWIGLU, torch.bfloat16, 49160),
        (LOG_SUM_EXP, torch.bfloat16, 131072),
    ],
)
def test_kernels_have_the_values_of_the_reference(device: str, text: str, dtype: torch.dtype, n: int) -> None:
    """In registers of few and of many threads, a row ahead in a block and in clusters, in shared memory, and read once."""
    columns = ["w", "b"] if text == NORM else []
    operator = row_reduce(text, name="tests::tiled", columns=columns)
    program = operator.programs[0]
    inputs = [torch.randn(n if x in columns else (3, n)).to(device, dtype) for x in program.inputs]
    with torch.no_grad():
        found = operator(*inputs)
        with cupyops.simulate(False):
            expected = operator(*(x.cpu() for x in inputs))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.cpu(), expected)
