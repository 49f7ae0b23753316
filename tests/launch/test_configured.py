"""Launches by grid and block, blocks and shared memory by expressions, and the messages for other tools' forms."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cupyops import Blocks, Kernel, LaunchError, Threads, Tuned, simulate

# y[i] = x[i] + the last of m floats of shared memory + 1000 times the threads of the block
TEXT = r"""__global__ void k(const float* x /* (n) */, float* y /* (n) */, int n, int m) {
    extern __shared__ float s[];
    for (int j = threadIdx.x; j < m; j += blockDim.x) s[j] = j;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y;
    if (i < n && !j) y[i] = x[i] + (m ? s[m - 1] : 0) + 1000 * blockDim.x;
}"""
N = 100


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulate(sanitize=True):
        yield


def result(launch: Callable[..., None], m: int) -> tuple[float, int]:
    """The last value of a launch, less x, and the number of elements that it wrote."""
    x, y = torch.arange(float(N)), torch.full((N,), -1.0)
    launch(x, y, N, m)
    written = int((y != -1).sum())
    return float(y[written - 1] - x[written - 1]) if written else 0.0, written


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("configuration", "m", "wanted"),
    [
        ((4, 32), 0, (32000, 100)),
        (((4,), (32,)), 0, (32000, 100)),
        (((4, 2, 1), (32, 1, 1)), 0, (32000, 100)),
        ([3, 32, 20], 5, (32004, 96)),
        ((1, (8, 1), 20), 5, (8004, 8)),
        ((0, 32), 0, (0, 0)),
    ],
)
def test_a_launch_has_the_grid_the_block_and_the_shared_memory_that_it_names(
    configuration: Any, m: int, wanted: tuple[float, int]
) -> None:
    assert result(Kernel(TEXT)[tuple(configuration)], m) == wanted


@pytest.mark.simulator
def test_each_launch_has_its_own_shared_memory() -> None:
    kernel = Kernel(TEXT)
    assert result(kernel[4, 32, 64], 16) == (32015, 100)
    with pytest.raises(LaunchError, match="byte 20 of dynamic shared memory"):
        result(kernel[4, 32, 20], 16)
    assert result(kernel[4, 32, 64], 16) == (32015, 100)


@pytest.mark.simulator
def test_numbers_of_threads_round_up_to_blocks() -> None:
    assert result(Kernel(TEXT)[N], 0) == (256000, 100)
    assert result(Kernel(TEXT, "k", 32).forall(65, 2), 0) == (32000, 96)


@pytest.mark.parametrize(
    ("configuration", "kind", "words"),
    [
        ((100, 2048), ValueError, r"a block of 2048 x 1 x 1 threads: .* k\.forall\(N, M\) has N x M threads"),
        (
            (4, 32, 0, 0),
            TypeError,
            r"\[grid, block, shared\].* got \(4, 32, 0, 0\); .*\. Launches are on PyTorch's current",
        ),
        ((4, 32, None), TypeError, r"`shared` must be a number of bytes.*torch\.cuda\.stream"),
        ((4, 32, -1), ValueError, "`shared` must be at least 0"),
        ((1.5, 32), TypeError, r"`grid` must be one to three numbers, got 1\.5"),
        (((1, 1, 1, 1), 32), TypeError, "`grid` must be one to three numbers"),
        ((-1, 32), ValueError, "`grid` must be at least 0, got -1"),
        ((1, 0), ValueError, "`block` must be at least 1, got 0"),
        ((1, (1, 1, 65)), ValueError, "and 64 in z"),
        ("a", TypeError, r"must be \[n\] for n threads"),
    ],
)
def test_another_configuration_is_refused(configuration: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        result(Kernel(TEXT)[configuration], 0)


def test_the_form_of_rawkernel_names_ours() -> None:
    x, y = torch.zeros(2, N)
    with pytest.raises(TypeError, match=r"is the form of RawKernel; write k\[grid, block\]\(\*args\)"):
        Kernel(TEXT)((4,), (32,), (x, y, N, 0))
    with pytest.raises(TypeError, match=r"is the form of RawKernel; write k\(\*args\)"):
        Kernel(TEXT, "k", Threads("n"))((4,), (32,), (x, y, N, 0))
    with pytest.raises(TypeError, match=r"counts its blocks by Threads.* without a policy for k\[grid, block\]"):
        Kernel(TEXT, "k", Threads("n"))[4, 32]


@pytest.mark.simulator
@pytest.mark.parametrize("shared", ["4 * m", "max(4 * m, FEW)", lambda m: 4 * m])
def test_shared_memory_follows_the_sizes(shared: Any) -> None:
    kernel = Kernel(TEXT, "k", Blocks("ceil(n / 32)", block=32), shared=shared, constants={"FEW": 8})
    assert [result(kernel, m) for m in (5, 9, 5)] == [(32004, 100), (32008, 100), (32004, 100)]
    free = Kernel(TEXT, "k", shared=shared, constants={"FEW": 8})
    assert result(free[4, 32], 7) == (32006, 100)
    with pytest.raises(LaunchError, match="dynamic shared memory"):
        result(free[4, 32, 8], 7)  # the bytes of the call count


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("blocks", "written"),
    [("ceil(n / 32)", 100), ("n // 32", 96), ("min(n, 2)", 64), ("max(n - 98, 1) + 1 - n % 3", 64), (1, 32), ("0", 0)],
)
def test_blocks_are_counted_by_an_expression(blocks: Any, written: int) -> None:
    kernel = Kernel(TEXT, "k", Blocks(blocks, "2 - 1", block=(32, 1)))
    assert result(kernel, 0) == (32000 * bool(written), written)


@pytest.mark.parametrize("text", ["n / 32", "ceil(n)", "f(n)", "n +", "n.x", "2.5", "n if n else 1", "True", "n ** 2"])
def test_an_expression_has_operations_of_sizes_alone(text: str) -> None:
    with pytest.raises(ValueError, match=r"Blocks: `x` must have size parameters, integers, .* and ceil\(a / b\), got"):
        Blocks(text)
    with pytest.raises(ValueError, match="k: `shared` must have size parameters"):
        Kernel(TEXT, "k", shared=text)


def test_expressions_name_parameters_of_the_kernel() -> None:
    with pytest.raises(ValueError, match="`q` counts threads or elements"):
        Kernel(TEXT, "k", Blocks("q"))
    with pytest.raises(ValueError, match="`x` counts threads or elements"):
        Kernel(TEXT, "k", Blocks("n"), shared="x")
    for given in (3.5, [4]):
        with pytest.raises(
            TypeError, match="`shared` must be a number of bytes, an expression such as '4 \\* n', or a function"
        ):
            Kernel(TEXT, "k", Blocks("n"), shared=given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`shared` must be an integer, got 0\.5"):
        result(Kernel(TEXT, "k", Blocks("n"), shared=lambda m: m / 2), 1)
    with pytest.raises(ValueError, match="a grid of -100 x 1 x 1 blocks"):
        result(Kernel(TEXT, "k", Blocks("n - 200")), 0)
    with pytest.raises(ValueError, match="65535 blocks in y and z"):
        result(Kernel(TEXT, "k", Blocks(1, "1000 * n")), 0)
    with pytest.raises(ValueError, match=r"has shared='4 \* m'; declare a number of bytes"):
        Tuned([Kernel(TEXT, "k", Threads("n"), shared="4 * m")])


@pytest.mark.simulator
def test_launches_of_different_blocks_share_the_variables_of_the_text() -> None:
    kernel = Kernel("__device__ int total; __global__ void add(int* y /* (1) */, int by) { y[0] = total += by; }")
    y = torch.zeros(1, dtype=torch.int32)
    for configuration, total in (((1, 1), 5), ((1, 1, 64), 10), (((1,), (1,)), 15)):
        kernel[configuration](y, 5)
        assert int(y) == total


def test_a_launch_on_fake_tensors_reads_no_number() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(N)
        Kernel(TEXT)[4, 32](x, torch.empty_like(x), N, 0)
