"""Cuts of the rows of layer normalisation: even ones, uneven ones, and what the dtypes of weights and results and the GPU change
in them."""

import pytest

from cupyops.ops.layer_norm.config import LayerNormConfig, backward_config, forward_config
from cupyops.ops.layer_norm.cut import even_cut
from cupyops.ops.layer_norm.tangent import config_of


def cut_of(config: LayerNormConfig) -> tuple[int, int, int]:
    return config.vector_width, config.vectors, config.row_threads


@pytest.mark.parametrize("n", [96, 192, 384, 768, 1152, 1600, 2560, 4544, 5120, 7000])
def test_float32_weights_leave_the_cuts_of_16_bit_rows_as_they_are(n: int) -> None:
    own, wider = (forward_config(n, "bfloat16", 2, weight_bytes, 90, 2) for weight_bytes in (2, 4))
    assert cut_of(wider) == cut_of(own)
    assert wider.min_blocks <= own.min_blocks
    assert backward_config(n, "bfloat16", 4, 90) == backward_config(n, "bfloat16", 2, 90)


@pytest.mark.parametrize(
    ("n", "cut", "min_blocks"),
    [
        (96, (8, 3, 4), 21),
        (192, (8, 3, 8), 21),
        (1152, (4, 9, 32), 21),
        (1664, (4, 13, 32), 18),
        (2560, (8, 5, 64), 18),
        (4608, (8, 6, 96), 12),
    ],
)
def test_rows_that_would_leave_accesses_idle_are_cut_evenly(n: int, cut: tuple[int, int, int], min_blocks: int) -> None:
    config = forward_config(n, "bfloat16", 2, 2, 90, 2)
    assert (cut_of(config), config.min_blocks, config.full) == (cut, min_blocks, True)
    few = config.few_rows_forward(n, 2)
    assert (cut_of(few), few.full) == (cut, config.full)
    # A multiprocessor of sm_89 has room for 1536 threads, and a float64 result takes registers.
    assert forward_config(n, "bfloat16", 2, 2, 89, 2).min_blocks <= 1536 // config.block
    assert forward_config(n, "bfloat16", 2, 2, 90, 8).min_blocks == min_blocks * 3 // 4


@pytest.mark.parametrize(
    ("n", "cut", "min_blocks"),
    [
        (712, (8, 3, 32), 10),
        (1080, (8, 5, 32), 10),
        (1600, (8, 7, 32), 18),
        (2000, (8, 4, 64), 10),
        (3360, (8, 7, 64), 18),
        (3600, (8, 5, 96), 12),
        (5400, (8, 6, 128), 9),
        (7000, (8, 7, 128), 9),
    ],
)
def test_rows_without_an_even_cut_have_the_fewest_threads(n: int, cut: tuple[int, int, int], min_blocks: int) -> None:
    config = forward_config(n, "bfloat16", 2, 2, 90, 2)
    assert (cut_of(config), config.min_blocks, config.aligned_apart) == (cut, min_blocks, False)
    assert forward_config(n, "bfloat16", 2, 2, 89, 2).min_blocks <= 1536 // config.block
    assert cut_of(config.few_rows_forward(n, 2)) == cut
    assert forward_config(1080, "bfloat16", 2, 2, 80, 2).min_blocks == 9, "48 registers are spilled there"
    rounded = forward_config(n, "bfloat16", 2, 2, 90, 4)
    assert (cut_of(rounded), rounded.block) == (cut, config.block)
    assert rounded.min_blocks < config.min_blocks, "a float32 result takes registers"
    wider = forward_config(n, "bfloat16", 2, 4, 90, 2)
    assert wider.vectors <= 8
    assert wider.min_blocks * wider.block * 72 <= 65536 or n in (712, 1080, 2000), "float32 weights take registers"


@pytest.mark.parametrize("n", [776, 1080, 1600, 2200, 3360, 5400, 7000])
def test_rows_with_a_residual_and_no_even_cut_have_two_accesses_of_a_thread(n: int) -> None:
    for weight_bytes in (2, 4):
        config = forward_config(n, "float16", 4, weight_bytes, 90, 2)
        assert (config.vector_width, config.vectors, config.kind) == (8, 2, "registers")
        assert 1152 < config.min_blocks * config.block <= 1536
    assert forward_config(512, "float16", 4, 2, 90, 2).full, "an even cut stays"
    assert forward_config(520, "float16", 4, 2, 90, 2).vectors != 2, "a short row keeps the table's cut"


def test_a_row_and_a_sum_of_two_have_the_same_cut_where_an_even_one_exists() -> None:
    """The norm of a sum then has the bits of the norm of the rounded sum."""
    lengths = (96, 768, 1024, 1152, 3000, 4096, 8192, 65_536, 131_072)
    for dtype, size, other in (("bfloat16", 2, [3000, 131_072]), ("float32", 4, [])):
        pairs = {n: [forward_config(n, dtype, arrays * size, size, 90, size) for arrays in (1, 2)] for n in lengths}
        assert [
            n for n, (one, two) in pairs.items() if (*cut_of(one), one.cluster) != (*cut_of(two), two.cluster)
        ] == other


def test_float32_rows_with_accesses_beyond_the_end_have_no_path_for_aligned_rows() -> None:
    assert not forward_config(6400, "float32", 4, 4, 90, 4).aligned_apart
    assert forward_config(8192, "float32", 4, 4, 90, 4).aligned_apart
    assert forward_config(6400, "float32", 8, 4, 90, 4).aligned_apart, "measured without a residual"


@pytest.mark.parametrize(("n", "kind"), [(2048, "registers"), (2304, "registers"), (2560, "wide"), (3072, "wide")])
def test_two_blocks_of_float32_backwards_fit_where_one_had_an_access_of_each_thread(n: int, kind: str) -> None:
    config = backward_config(n, "float32", 4, 90)
    assert (config.kind, config.vectors) == (kind, 1 if n == 2048 else 3)
    summed = backward_config(n, "float32", 4, 90, grad_sum=True)
    assert (summed.kind, summed.vectors, summed.stages) == ("registers", config.vectors, 0)
    assert backward_config(n, "float32", 4, 80).vectors == 1, "not measured without clusters"
    assert backward_config(3328, "float32", 4, 90).vectors == 1


# The blocks without and with a gradient of the sum, whose elements take registers.
@pytest.mark.parametrize(
    ("n", "cut", "block", "blocks", "with_sum", "full"),
    [
        (96, (4, 3, 8), 128, 5, 5, True),
        (192, (4, 3, 16), 128, 5, 5, True),
        (384, (4, 3, 32), 128, 5, 5, True),
        (576, (4, 5, 32), 128, 4, 3, False),
        (640, (4, 5, 32), 128, 4, 3, True),
        (1088, (4, 3, 96), 96, 6, 6, False),
        (1152, (4, 3, 96), 96, 7, 6, True),
        (1280, (4, 5, 64), 128, 4, 3, True),
        (2176, (4, 3, 192), 192, 3, 3, False),
        (2304, (4, 3, 192), 192, 3, 3, True),
    ],
)
def test_backwards_are_cut_evenly(
    n: int, cut: tuple[int, int, int], block: int, blocks: int, with_sum: int, full: bool
) -> None:
    for weight_bytes in (2, 4):
        config = backward_config(n, "float16", weight_bytes, 90)
        assert (cut_of(config), config.block, config.min_blocks, config.cluster) == (cut, block, blocks, 1)
        assert config.full == full
        assert cut_of(config.few_rows_backward(n, "float16")) == cut
        summed = backward_config(n, "float16", weight_bytes, 90, grad_sum=True)
        assert (cut_of(summed), summed.block, summed.min_blocks) == (cut, block, with_sum)
        assert not summed.weight_shared
    rounded = backward_config(n, "float16", 4, 90, 4, grad_sum=True)
    assert rounded.min_blocks * rounded.block <= 512, "a float32 grad_y takes registers"
    assert rounded.vectors <= 4


def test_a_backward_with_a_gradient_of_the_sum_has_five_accesses_of_a_thread_only_where_four_leave_more_idle() -> None:
    assert cut_of(backward_config(2560, "bfloat16", 2, 90)) == (4, 5, 128)
    assert cut_of(backward_config(2560, "bfloat16", 2, 90, grad_sum=True)) == (4, 4, 160)
    assert cut_of(backward_config(1280, "bfloat16", 2, 90, 4, grad_sum=True)) == (4, 4, 96)


@pytest.mark.parametrize(("n", "cut"), [(896, (8, 2, 64)), (1400, (8, 2, 96)), (4544, (8, 2, 160))])
def test_uneven_rows_with_a_gradient_of_the_sum_have_accesses_of_16_bytes(n: int, cut: tuple[int, int, int]) -> None:
    config = backward_config(n, "bfloat16", 2, 90, grad_sum=True)
    assert (cut_of(config), config.full) == (cut, False)
    assert backward_config(n + 4, "bfloat16", 2, 90, grad_sum=True).vector_width == 4, "no whole number of 16 bytes"
    assert backward_config(n, "bfloat16", 2, 90, 4, grad_sum=True).vector_width == 4


@pytest.mark.parametrize(
    ("n", "cut", "cluster", "with_sum", "with_sum_cluster"),
    [
        (5632, (4, 5, 160), 2, (8, 2, 96), 4),
        (6144, (4, 5, 160), 2, (4, 4, 96), 4),
        (8192, (4, 4, 256), 2, (4, 4, 256), 2),
        (9216, (4, 5, 256), 2, (8, 2, 160), 4),
        (13312, (4, 5, 96), 8, (4, 4, 416), 2),
        (16384, (4, 4, 128), 8, (4, 4, 128), 8),
        (28672, (4, 4, 224), 8, (4, 4, 224), 8),
        (40960, (4, 5, 512), 4, (4, 4, 160), 16),
    ],
)
def test_a_multiprocessor_holds_as_many_long_rows_as_its_registers_have_room_for(
    n: int, cut: tuple[int, int, int], cluster: int, with_sum: tuple[int, int, int], with_sum_cluster: int
) -> None:
    for weight_bytes in (2, 4):
        config = backward_config(n, "bfloat16", weight_bytes, 90)
        assert (cut_of(config), config.cluster) == (cut, cluster)
        assert config.block * config.min_blocks <= 640
        summed = backward_config(n, "bfloat16", weight_bytes, 90, grad_sum=True)
        assert (cut_of(summed), summed.cluster) == (with_sum, with_sum_cluster)
        assert summed.block * summed.min_blocks <= 512
    assert backward_config(n, "bfloat16", 2, 90, grad_sum=True, portable=True).cluster <= 8
    assert backward_config(n, "bfloat16", 2, 80).cluster == 1


def test_backwards_of_rows_that_few_threads_would_not_share_evenly_have_two_accesses_of_a_thread() -> None:
    for grad_sum in (False, True):
        config = backward_config(1600, "bfloat16", 2, 90, grad_sum=grad_sum)
        assert (cut_of(config), config.min_blocks) == ((4, 2, 224), 4)
    assert cut_of(backward_config(1536, "bfloat16", 2, 90)) == (4, 4, 96)
    assert cut_of(backward_config(2048, "bfloat16", 2, 90)) == (4, 4, 128)


def test_the_cut_of_a_table_stays_where_an_even_cut_wins_nothing() -> None:
    now = LayerNormConfig.of(1152, 8, 5, block=64)  # 160 accesses for 144
    cuts = ((8, 5), (4, 9))
    limits = {"used": 0.95, "enough": 0.9, "most_threads": 128}
    even = even_cut(1152, cuts, now, 64, **limits)
    assert even is not None
    assert cut_of(even) == (4, 9, 32)
    assert even_cut(480, ((8, 15),), LayerNormConfig.of(480, 8, 2), 64, **limits) is None, "94 percent are used"
    assert even_cut(1152, cuts[:1], now, 64, **limits) is None, "no cut uses 95 percent"
    assert even_cut(4608, ((8, 3),), LayerNormConfig.of(4608, 8, 4), 64, **limits) is None, "192 threads are too many"
    assert even_cut(2560, ((4, 10), (8, 5)), LayerNormConfig.of(2560, 8, 4), 64, **limits) == LayerNormConfig.of(
        2560, 4, 10, block=64
    ), "the first of equal cuts"
    # Rows whose accesses are all in use, and rows too long for 128 threads.
    for n, cut in ((768, (4, 3, 64)), (512, (4, 4, 32)), (4544, (4, 5, 256))):
        assert cut_of(backward_config(n, "bfloat16", 2, 90)) == cut
    for n, cut in ((384, (8, 3, 16)), (1280, (8, 5, 32)), (4096, (8, 4, 128))):
        assert cut_of(forward_config(n, "bfloat16", 2, 2, 90, 2)) == cut


@pytest.mark.parametrize(("n", "min_blocks"), [(4096, 8), (8192, 4), (16384, 2)])
def test_float32_weights_are_loaded_by_halves_for_two_rows_where_registers_are_few(n: int, min_blocks: int) -> None:
    config = forward_config(n, "float16", 2, 4, 90, 2)
    assert cut_of(config) == (4, 8, n // 32)
    assert (config.kind, config.block, config.full) == ("registers", n // 32, True)
    assert (config.rows_each, config.min_blocks) == (2, min_blocks)
    few = config.few_rows_forward(n, 4)
    assert (few.rows_each, cut_of(few)) == (1, cut_of(config))
    assert few.affine_held == (n * 4 <= 2**15)


@pytest.mark.parametrize(
    ("n", "dtype", "weight_bytes", "threads"),
    [
        (1024, "bfloat16", 2, 1024),
        (4096, "bfloat16", 4, 1024),
        (8192, "float32", 4, 1024),
        (12288, "bfloat16", 2, 1152),
        (256, "bfloat16", 2, 1280),
        (1024, "float16", 2, 768),
        (8192, "float16", 2, 768),
        (12288, "float16", 2, 768),
        (16384, "float16", 2, 1024),
    ],
)
def test_a_tangent_has_as_many_resident_threads_as_two_rows_and_no_parameters_leave_registers(
    n: int, dtype: str, weight_bytes: int, threads: int
) -> None:
    size = 4 if dtype == "float32" else 2
    config = config_of(n, dtype, weight_bytes, 90, size)
    assert config.min_blocks * config.block == threads
    assert config.weighted
    assert config_of(n, dtype, weight_bytes, 75, size).min_blocks * config.block <= 1024
    wide = config_of(n, dtype, weight_bytes, 90, 8)
    assert wide.min_blocks * wide.block < threads, "a wider result takes registers"
