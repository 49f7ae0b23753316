"""The tables that choose how a row is normalised: every length has a way that its kernel can go."""

import itertools
from collections.abc import Sequence

import pytest

from cupyops.dtypes import DTYPES, FLOATS
from cupyops.launch.geometry import Rows
from cupyops.ops.layer_norm.body import forward_kernel
from cupyops.ops.layer_norm.config import (
    FEW_BACKWARD,
    FEW_FORWARD,
    LayerNormConfig,
    backward_columns,
    backward_config,
    backward_rows,
    forward_config,
)
from cupyops.tiling.rows import is_few

# Each third beyond 300 has every remainder of a vector's width.
LENGTHS = [*range(1, 300), *range(300, 700, 3), 768, 5120, 3 * 2**15]
LENGTHS += [2**k + d for k in range(10, 22) for d in (-8, -1, 0, 1, 4, 24)]
CAPABILITIES = (70, 80, 90, 120)


def configs(dtype: str, capability: int, lengths: Sequence[int] = LENGTHS) -> list[tuple[int, LayerNormConfig]]:
    size = DTYPES[dtype].itemsize
    found = []
    for n in lengths:
        for weight_bytes in {size, 4} if size == 2 else {size}:
            found += [(n, forward_config(n, dtype, inputs * size, weight_bytes, capability, size)) for inputs in (1, 2)]
            found.append((n, forward_config(n, dtype, size, weight_bytes, capability, size, portable=True)))
            found.append((n, backward_config(n, dtype, weight_bytes, capability, grad_sum=True)))
            for result_bytes in (2, 4, 8):
                found.append((n, forward_config(n, dtype, size, weight_bytes, capability, result_bytes)))
                found.append((n, found[-1][1].few_rows_forward(n, weight_bytes)))
                for more in (False, True):
                    row = n, dtype, weight_bytes, capability, result_bytes
                    config = backward_config(*row, grad_sum=more)
                    found += [(n, config), (n, config.few_rows_backward(n, dtype))]
                    found.append((n, backward_rows(*row, grad_sum=more)))
                    found.append((n, backward_rows(n, dtype, 0, capability, result_bytes, grad_sum=more)))
        found.append((n, backward_columns(n, dtype)))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != "bfloat16"])
def test_every_plan_can_be_launched(dtype: str, capability: int) -> None:
    for n, config in dict.fromkeys(configs(dtype, capability)):  # many callers of one length get one config
        assert n % config.vector_width == 0
        assert config.vector_width * DTYPES[dtype].itemsize <= 16
        assert config.block <= 1024
        assert config.block % config.row_threads == 0
        assert config.row_threads in (4, 8, 16, 32) or config.row_threads % 32 == 0
        assert config.block % 32 == 0
        assert config.since <= capability
        assert config.shared * config.min_blocks <= 227 * 1024
        assert config.full == (config.slice * config.cluster == n) or config.kind == "streaming" or not config.full
        assert min(config.row_threads, 32) * config.vectors * config.vector_width <= 4096, (
            "more than a sum is scaled for"
        )
        if config.kind == "wide":
            assert config.vector_width * DTYPES[dtype].itemsize == 16, "bulk copies go by 16 bytes"
            assert config.block == config.row_threads
            assert config.stages >= 1
        if config.kind == "ring":
            assert config.vector_width * DTYPES[dtype].itemsize == 16, "bulk copies go by 16 bytes"
            assert config.block == config.row_threads
            assert config.since == 90
            assert config.ring >= (1 + config.sum_ahead) * config.vectors
        if config.cluster > 1:
            assert config.block == config.row_threads
            assert config.rows_each == 1
        if config.kind == "apart":
            assert config.block % config.width == 0
            assert config.width in (1, 2, 4, 8, 16, 32)
            assert config.row_threads // config.folded % 32 == 0 or config.folded == 1


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_two_dtypes_of_16_bits_have_the_same_plans(capability: int) -> None:
    """So that the plans of one of them stand for both."""
    assert configs("bfloat16", capability, LENGTHS[::16]) == configs("float16", capability, LENGTHS[::16])


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_fits_unless_it_streams(dtype: str, capability: int) -> None:
    size = DTYPES[dtype].itemsize
    for n in LENGTHS:
        for config in (
            forward_config(n, dtype, size, size, capability, size),
            backward_config(n, dtype, size, capability),
        ):
            assert config.kind == "streaming" or config.slice * config.cluster >= n
            if capability < 90:
                assert config.cluster == 1
                assert config.kind not in ("wide", "ring")


@pytest.mark.parametrize("dtype", FLOATS)
def test_few_rows_are_summed_in_the_order_of_many(dtype: str) -> None:
    """A row's bits follow from who has which of its elements, and from the warps' order."""
    size = DTYPES[dtype].itemsize
    for n in LENGTHS:
        for capability in (80, 90):
            many = backward_config(n, dtype, size, capability)
            few = many.few_rows_backward(n, dtype)
            if many.kind == "streaming":
                continue
            assert (few.vector_width, few.vectors, few.full) == (many.vector_width, many.vectors, many.full)
            assert few.row_threads * few.cluster == many.row_threads * many.cluster
            assert few.cluster * few.folded == many.cluster
            forward = forward_config(n, dtype, size, size, capability, size)
            few = forward.few_rows_forward(n, size)
            assert (few.vector_width, few.vectors, few.full) == (forward.vector_width, forward.vectors, forward.full)
            assert (few.row_threads, few.cluster) == (forward.row_threads, forward.cluster)
            assert few.kind == ("registers" if forward.kind == "wide" else forward.kind)


def test_few_long_rows_have_blocks_that_are_not_persistent() -> None:
    """Persistent blocks would copy the weights to shared memory for a row or two."""
    for n, dtype, weight_bytes in ((32768, "bfloat16", 4), (262144, "bfloat16", 4), (65536, "float32", 4)):
        size = DTYPES[dtype].itemsize
        many = forward_config(n, dtype, size, weight_bytes, 90, size)
        few = many.few_rows_forward(n, weight_bytes)
        assert many.kind == "wide"
        assert (few.stages, few.shared, few.sum_ahead, few.pieces_apart, few.affine_registers) == (
            0,
            0,
            False,
            False,
            0,
        )
        assert few.aligned_apart
        assert few.min_blocks == 1


@pytest.mark.parametrize(
    ("n", "dtype", "weight_bytes", "cluster", "ring", "sum_ahead"),
    [
        (262144, "float32", 4, 16, 10, False),
        (131072, "float32", 4, 8, 10, False),
        (65544, "float32", 4, 8, 16, True),
        (262144, "bfloat16", 2, 16, 12, True),
        (262144, "bfloat16", 4, 16, 8, True),
        (131072, "bfloat16", 2, 8, 12, True),
        (98304, "bfloat16", 4, 8, 12, True),
    ],
)
def test_a_ring_has_the_shared_memory_that_the_weight_leaves(
    n: int, dtype: str, weight_bytes: int, cluster: int, ring: int, sum_ahead: bool
) -> None:
    config, size = backward_config(n, dtype, weight_bytes, 90), DTYPES[dtype].itemsize
    assert (config.kind, config.cluster, config.ring, config.sum_ahead) == ("ring", cluster, ring, sum_ahead)
    assert config.vectors * config.vector_width == 32
    assert config.row_threads <= 512
    assert config.weight_shared
    assert config.weight_registers == (weight_bytes == size), "a wider weight takes the registers of two"
    access = config.row_threads * config.vector_width
    kept = (config.vectors - config.weight_registers) * weight_bytes
    assert config.shared == access * (2 * size * ring + kept)
    # Four tables of two sums of each warp of a cluster, with a counter each, and a counter of each warp for each piece.
    warps = config.row_threads // 32
    static = 4 * (8 * warps * cluster + 8) + 8 * warps * ring
    assert config.shared + static <= 227 * 1024
    assert config.full == (size == 4 and n % (cluster * access * config.vectors) == 0)
    assert backward_config(n, dtype, 0, 90).shared == backward_config(n, dtype, size, 90).shared, "it keeps ones"


def test_a_gpu_without_room_for_a_ring_reads_long_float32_rows_twice() -> None:
    assert backward_config(262144, "float32", 4, 90, portable=True).kind == "streaming"
    assert backward_config(131072, "float32", 4, 90, portable=True).kind == "ring"
    for n in (131072, 262144):
        assert backward_config(n, "float32", 4, 120).kind == "streaming"


@pytest.mark.parametrize(
    ("n", "dtype", "weight_bytes"),
    [
        (262144, "float32", 0),
        (131080, "bfloat16", 4),
        (262144, "float16", 2),
    ],
)
def test_a_backward_that_adds_another_gradient_has_the_ring_of_others(n: int, dtype: str, weight_bytes: int) -> None:
    """The blocks add its elements where they store a row: no register and no piece of the ring holds them."""
    config = backward_config(n, dtype, weight_bytes, 90, grad_sum=True)
    assert config.kind == "ring"
    assert config == backward_config(n, dtype, weight_bytes, 90)


def test_a_backward_that_adds_another_gradient_has_a_ring_of_three_rows_where_a_cluster_can() -> None:
    for n in (65544, 131072):
        plain, more = (backward_config(n, "float32", 4, 90, grad_sum=grad_sum) for grad_sum in (False, True))
        assert (plain.cluster, more.cluster) == (8, 16)
        assert plain.ring < 3 * plain.vectors <= more.ring


def test_a_ring_that_holds_two_rows_holds_whole_rows() -> None:
    for dtype, n in ((dtype, n) for dtype in ("bfloat16", "float32") for n in range(65544, 262145, 8 * 1031)):
        for weight_bytes, grad_sum in ((2, False), (4, False), (4, True)):
            config = backward_config(n, dtype, weight_bytes, 90, grad_sum=grad_sum)
            assert config.sum_ahead == (config.ring >= 2 * config.vectors) or config.kind == "registers"
            assert not config.sum_ahead or config.ring % config.vectors == 0


def test_few_rows_are_few_elements_and_few_of_them() -> None:
    for most in (FEW_BACKWARD, FEW_FORWARD):
        rows, elements = most
        assert is_few(1, elements, most)
        assert not is_few(1, elements + 1, most)
        assert is_few(rows, 8, most)
        assert not is_few(rows + 1, 8, most)


def test_strips_are_powers_of_2_and_wide_in_large_blocks() -> None:
    for dtype, capability in itertools.product(("float16", "float32", "float64"), (75, 90)):
        for n in LENGTHS:
            few = backward_config(n, dtype, DTYPES[dtype].itemsize, capability).few_rows_backward(n, dtype)
            assert few.width & (few.width - 1) == 0
            assert 4 <= few.width <= 32
            assert few.block % few.width == 0
            assert few.block // few.width <= 64


def test_a_backward_of_x_alone_leaves_no_parts_and_needs_no_narrow_accesses() -> None:
    for n in (64, 768, 1000, 1024, 8192, 65_536, 262_144):
        config = backward_rows(n, "bfloat16", 2, 90)
        assert (config.kind, config.vector_width) == ("apart", 8)
    assert backward_rows(2**20, "bfloat16", 2, 90).kind == "streaming"
    assert backward_rows(65_536, "float32", 4, 80).kind == "streaming"


def test_a_backward_has_a_stage_for_the_row_that_it_begins() -> None:
    """It reads a row twice, and the next before the second time."""
    backwards = [backward_config(n, "float32", 4, 90, grad) for n in LENGTHS for grad in (2, 4)]
    assert {config.stages >= 2 for config in backwards if config.kind == "wide"} == {True}


def test_streaming_is_for_what_fits_nowhere() -> None:
    assert forward_config(262_144, "float32", 4, 4, 90, 4).kind == "wide"
    assert forward_config(262_144, "float32", 4, 4, 90, 4, portable=True).kind == "registers"
    assert forward_config(262_144, "float32", 8, 4, 90, 4).kind == "wide"
    assert forward_config(262_144, "float32", 8, 4, 90, 4, portable=True).kind == "registers"
    assert forward_config(262_144, "float32", 4, 4, 120, 4).kind == "registers", (
        "a multiprocessor of less shared memory"
    )
    assert forward_config(65_536, "float32", 4, 4, 90, 4).kind == "wide"
    assert forward_config(65_536, "float32", 4, 4, 80, 4).kind == "streaming"
    assert forward_config(2**20, "float32", 4, 4, 90, 4).kind == "streaming"
    assert forward_config(100_003, "bfloat16", 2, 2, 90, 2).kind == "streaming", "an odd row takes no bulk copies"
    assert backward_config(65_536, "float32", 4, 90).kind == "wide"
    assert backward_config(2**18, "float32", 4, 90).kind == "ring"
    assert backward_config(2**19, "float32", 4, 90).kind == "streaming"


def test_stages_are_as_wide_as_the_gradient_of_the_result() -> None:
    plain, narrow, wide = (backward_config(20_480, "float32", 4, 90, grad_bytes) for grad_bytes in (4, 2, 8))
    assert plain == backward_config(20_480, "float32", 4, 90)
    assert plain.shared == plain.stages * plain.slice * (4 + 4)
    assert (narrow.kind, narrow.shared) == ("wide", narrow.stages * narrow.slice * (4 + 2))
    assert wide.kind == "registers", "stages of float64 would not fit"
    assert backward_config(2**16, "float32", 4, 90, 8).kind == "streaming"
    assert forward_config(4096, "bfloat16", 2, 2, 90, 2) == forward_config(4096, "bfloat16", 2, 2, 90, 4)


@pytest.mark.parametrize(
    ("n", "cluster", "vectors", "stages", "ahead", "registers"),
    [
        (16392, 4, 4, 1, True, 0),
        (20480, 4, 4, 1, True, 0),
        (28672, 2, 4, 2, True, 0),
        (32768, 2, 4, 1, True, 0),
        (32776, 4, 4, 4, False, 1),
        (65536, 4, 4, 4, False, 1),
        (131072, 8, 4, 2, True, 0),
        (212992, 16, 4, 3, True, 0),
        (262144, 16, 8, 2, True, 1),
    ],
)
def test_long_rows_keep_float32_weights_on_the_multiprocessor(
    n: int, cluster: int, vectors: int, stages: int, ahead: bool, registers: int
) -> None:
    config = forward_config(n, "bfloat16", 2, 4, 90, 2)
    assert (config.kind, config.cluster, config.vectors) == ("wide", cluster, vectors)
    assert (config.stages, config.sum_ahead, config.affine_registers) == (stages, ahead, registers)
    assert config.shared == config.slice * (config.stages * 2 + 4 * (2 - registers))
    assert config.pieces_apart, "weights in shared memory lie without bank conflicts"


def test_long_rows_with_float32_weights_need_clusters() -> None:
    assert forward_config(262144, "bfloat16", 2, 4, 90, 2, portable=True).kind == "registers"
    assert forward_config(65536, "bfloat16", 2, 4, 80, 2).cluster == 1


@pytest.mark.parametrize(
    ("n", "dtype", "inputs", "weight_bytes", "cluster", "vectors", "stages", "ahead"),
    [
        (65540, "float32", 4, 4, 8, 8, 1, True),
        (131072, "float32", 4, 4, 8, 8, 1, True),
        (262144, "float32", 4, 4, 16, 8, 1, True),
        (98304, "float32", 8, 4, 8, 8, 1, True),
        (131072, "float32", 8, 4, 8, 8, 1, False),
        (262144, "float32", 8, 4, 16, 8, 1, False),
        (262144, "float32", 6, 4, 16, 8, 1, False),
        (65544, "bfloat16", 4, 2, 8, 4, 4, True),
        (131072, "bfloat16", 4, 2, 8, 4, 2, True),
        (131072, "bfloat16", 4, 4, 8, 4, 1, True),
        (262144, "float16", 4, 2, 16, 4, 2, True),
        (262144, "float16", 4, 4, 16, 4, 1, True),
    ],
)
def test_the_longest_rows_are_summed_ahead_where_shared_memory_keeps_weight_and_bias(
    n: int, dtype: str, inputs: int, weight_bytes: int, cluster: int, vectors: int, stages: int, ahead: bool
) -> None:
    config = forward_config(n, dtype, inputs, weight_bytes, 90, 4)
    assert (config.kind, config.cluster, config.vectors, config.min_blocks) == ("wide", cluster, vectors, 1)
    assert (config.stages, config.sum_ahead, config.affine_registers) == (stages, ahead, 1 - ahead)
    assert config.shared == config.slice * (stages * inputs + (1 + ahead) * weight_bytes)
    assert config.pieces_apart == (weight_bytes > DTYPES[dtype].itemsize)


@pytest.mark.parametrize("n", [32776, 40960, 57344, 65528])
def test_16_bit_rows_between_two_powers_of_two_are_summed_ahead_in_clusters_of_four_blocks(n: int) -> None:
    config = forward_config(n, "bfloat16", 2, 2, 90, 2)
    assert (config.kind, config.cluster, config.vectors, config.min_blocks) == ("wide", 4, 8, 1)
    assert (config.stages, config.sum_ahead, config.affine_registers) == (1, True, 0)
    assert config.shared == config.slice * (2 + 2 * 2)
    for inputs, weight_bytes in ((4, 2), (2, 4)):
        assert not forward_config(n, "bfloat16", inputs, weight_bytes, 90, 2).sum_ahead, "measured without both"
    assert forward_config(n, "bfloat16", 2, 2, 80, 2).kind == "streaming"


def test_other_rows_of_up_to_65536_elements_and_longer_16_bit_rows_without_a_residual_are_not_summed_ahead() -> None:
    for n, dtype, inputs in (
        (65536, "float32", 4),
        (65536, "float32", 8),
        (65536, "bfloat16", 2),
        (65536, "bfloat16", 4),
        (131072, "bfloat16", 2),
        (262144, "bfloat16", 2),
    ):
        config = forward_config(n, dtype, inputs, DTYPES[dtype].itemsize, 90, 4)
        assert (config.kind, config.cluster, config.sum_ahead, config.affine_registers) == ("wide", 8, False, 0)
    assert forward_config(262144, "bfloat16", 4, 2, 90, 2, portable=True).kind == "registers"
    assert forward_config(262144, "bfloat16", 4, 2, 80, 2).kind == "streaming"
    assert forward_config(131076, "bfloat16", 4, 2, 90, 2).kind == "streaming", "no whole number of 16 bytes"


def test_a_backward_moves_weights_to_shared_memory_where_registers_are_few() -> None:
    for n, shared in ((768, False), (4096, False), (5120, False), (8192, False), (16384, True), (32768, False)):
        own, wider = (backward_config(n, "bfloat16", weight_bytes, 90) for weight_bytes in (2, 4))
        assert wider.weight_shared == shared
        assert wider.min_blocks == own.min_blocks
        assert not own.weight_shared
    # The rows of grad_y and grad_sum take the registers themselves.
    assert backward_config(5120, "bfloat16", 4, 90, 4).min_blocks < backward_config(5120, "bfloat16", 4, 90).min_blocks


@pytest.mark.parametrize("grad_sum", [False, True])
@pytest.mark.parametrize("weight_bytes", [2, 4])
def test_a_backward_of_the_longest_16_bit_rows_has_clusters_of_persistent_blocks(
    weight_bytes: int, grad_sum: bool
) -> None:
    for n, cluster, portable in ((131072, 8, True), (131080, 16, False), (262144, 16, False)):
        config = backward_config(n, "float16", weight_bytes, 90, grad_sum=grad_sum, portable=portable)
        assert (config.kind, config.cluster, config.weight_shared) == ("ring", cluster, True)
        assert config.pieces_apart == (weight_bytes == 4)
    for other in (
        backward_config(131076, "float16", weight_bytes, 90),  # no whole number of 16 bytes
        backward_config(131072, "float16", weight_bytes, 90, 4),  # no room for a grad_y of 32 bits
        backward_config(262144, "float16", weight_bytes, 120),  # a multiprocessor of less shared memory
        backward_config(131072, "float16", weight_bytes, 80),
        backward_config(262144, "float16", weight_bytes, 90, portable=True),
        backward_config(262152, "float16", weight_bytes, 90),
    ):
        assert other.kind == "streaming"


@pytest.mark.parametrize("grad_sum", [False, True])
def test_a_backward_of_131072_elements_has_16_blocks_that_hold_the_row(grad_sum: bool) -> None:
    for n in (81928, 131072)[not grad_sum :]:  # with grad_sum, also a row of which a ring would hold three
        config = backward_config(n, "bfloat16", 4, 90, grad_sum=grad_sum)
        assert (config.kind, config.cluster, config.min_blocks) == ("registers", 16, 1)
        assert config.vectors * config.vector_width == 16
    assert backward_config(65536, "bfloat16", 2, 90, grad_sum=grad_sum).cluster == 8
    assert backward_config(131072, "bfloat16", 2, 90, grad_sum=grad_sum, portable=True).cluster != 16


def test_three_blocks_of_512_threads_hold_rows_without_a_second_array() -> None:
    assert forward_config(8192, "float32", 4, 4, 90, 4).min_blocks == 3
    assert forward_config(8192, "float32", 8, 4, 90, 4).min_blocks == 2, "a second array"
    assert forward_config(8192, "float32", 4, 4, 90, 8).min_blocks == 2, "a wider result"
    assert forward_config(8000, "float32", 4, 4, 90, 4).min_blocks == 3, "accesses beyond the end"
    assert forward_config(8000, "float32", 4, 4, 80, 4).min_blocks == 2, "on a GPU where they take registers"


def test_a_plan_does_not_depend_on_the_number_of_rows() -> None:
    config = forward_config(1024, "float32", 4, 4, 90, 4)
    kernel = forward_kernel(config, "float32", False)
    assert isinstance(kernel.geometry, Rows)
    assert kernel.geometry.each == config.groups * config.rows_each
    assert kernel.geometry.sizes == ("M",)
