"""PTX in the shared headers and its twins for the simulator give the same values."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autograd_bridge  # noqa: F401  (makes torch.ops.cupyops)
import cupyops
import kernels_cu
from cupyops import Kernel, Rows, Threads
from cupyops.compile.cuda_text import scan
from cupyops.launch import driver
from cupyops.launch import recording as launches
from cupyops.launch.tensor_map import tensor_map
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.config import LONG, SHORT, Sm90Config
from cupyops.ops.linear.sm90 import DTYPES
from cupyops.simulator.simulated import twins

FOLDER = Path(kernels_cu.__file__).parent
TWINS = ("fast_exp2", "fast_reciprocal")
PAIRS = {"larger": np.maximum, "smaller": np.minimum}
# These compute no value: they move data and wait for it. What is made of the data is compared by the operators that use
# them, whose results are held to the same float64 on every backend.
MOVERS = {
    *("arrival_init", "arrival_wait", "arrive", "arrive_expecting"),
    *("bulk_load", "reads_before_copies", "send", "shared_address_in"),
    *("bulk_store", "stores_commit", "stores_have_read", "stores_are_done", "show_to_copies"),
    *("count_at", "wait_at"),
    "opaque",  # it only hides the origin of a value from the compiler
}
# What sm_90's matrix kernels are made of, compared by two of them: one as small as it can be, and the one that is shipped. The
# product's own instruction stands in a macro.
MATRIX_PIECES = {
    *("load_box", "load_box_for_both", "store_box", "store_matrices"),
    *("meet", "meet_cluster", "arrive_in", "multiply_begin", "multiply_commit", "multiply_wait"),
    *("keep_registers", "take_registers", "settle"),  # they have no effect in the simulator
}
TEXT = """
#include "fast_math.cuh"
extern "C" __global__ void twin(
    const float* x,  // (n)
    float* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = FUNCTION == 0 ? fast_exp2(x[i]) : fast_reciprocal(x[i]);
}
"""


def kernel(function: str) -> Kernel:
    return Kernel(TEXT, "twin", Threads("n"), dtypes=("float32",), constants={"FUNCTION": TWINS.index(function)})


def numbers() -> np.ndarray:
    """Every exponent with both signs and several significands, the arguments of exp2, and special values."""
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-152, 130, 40_001, dtype=np.float32)
    tiny = np.float32(
        [0, -0.0, 1e-45, -1e-45, 1.17549421e-38, 1.17549435e-38, -1.17549435e-38, 8.5e37, 8.51e37, 1.7e38, 3.4e38]
    )
    special = np.float32([np.inf, -np.inf, np.nan, -126, -126.00001, -127, 127.99999, 128])
    return np.concatenate([bits, near, tiny, special])


def simulated(function: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    with cupyops.simulate(sanitize=True):
        kernel(function)(x, y, x.size)
    return y


def assert_twins(x: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Within 2^-22 of each other, and of one kind: NaN, infinite with a sign, zero with a sign, or normal."""
    for kind in (np.isnan, np.isposinf, np.isneginf, lambda v: v == 0):
        differ = kind(ours) != kind(theirs)
        # Where one of them falls just below the smallest normal number it is flushed, and the other one may not be.
        edge = np.maximum(np.abs(ours), np.abs(theirs)) <= 1.1754945e-38
        assert not (differ & ~edge).any(), x[differ & ~edge][:5]
    assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(ours)].all()
    finite = np.isfinite(ours) & (ours != 0) & (theirs != 0)
    error = np.abs(ours[finite].astype(np.float64) / theirs[finite] - 1)
    assert error.max() <= 2.0**-22, (x[finite][error.argmax()], error.max())


def test_every_instruction_of_the_headers_is_compared() -> None:
    functions = []
    for header in kernels_cu.headers().values():
        code = re.sub(r"//.*", "", header)
        for match in re.finditer(r"\basm\b", code):
            functions += re.findall(r"__device__[^;{}]*?(\w+)\([^;{}]*\) \{", code[: match.start()])[-1:]
    assert set(functions) == {*TWINS, *PAIRS, *MOVERS, *MATRIX_PIECES}


def test_every_header_of_ptx_has_a_twin_that_declares_the_same_functions() -> None:
    hardware = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "hardware").glob("*.cuh")}
    assert set(twins()) == set(hardware)
    for name, text in hardware.items():
        assert functions_in(twins()[name]) >= functions_in(text) - {"shared_address_in"}, (
            name
        )  # which bulk.cuh alone calls
        assert "asm" not in scan(twins()[name]).bare, name


def functions_in(text: str) -> set[str]:
    """Names of the functions that a header defines."""
    return set(re.findall(r"^(?!#)[^;{}=]*?\b(\w+)\([^;{}]*\) \{", scan(text).bare, re.MULTILINE))


@pytest.mark.simulator
@pytest.mark.parametrize("function", TWINS)
def test_twins_are_the_function_that_flushes(function: str) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        exact = np.exp2(x.astype(np.float64)) if function == "fast_exp2" else 1 / x.astype(np.float64)
        flushed = np.where((np.abs(exact) < 1.17549435e-38) & (exact != 0), np.copysign(0, exact), exact)
        if function == "fast_reciprocal":
            flushed = np.where((np.abs(x) < 1.17549435e-38), np.copysign(np.inf, x), flushed)
        assert_twins(x, simulated(function, x), flushed.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.simulator
@pytest.mark.parametrize("function", TWINS)
def test_twins_have_the_values_of_the_gpu(function: str) -> None:
    x = numbers()
    on_gpu = torch.from_numpy(x).cuda()
    y = torch.empty_like(on_gpu)
    kernel(function)(on_gpu, y, on_gpu.numel())
    assert_twins(x, simulated(function, x), y.cpu().numpy())


def paired(function: str, a: Any, b: Any, y: Any) -> None:
    text = f"""
    #define ROW_THREADS 32
    #define VECTORS 1
    #define FULL 1
    #define VECTOR_WIDTH 1
    #define BLOCK_THREADS 32
    #include "row_passes.cuh"
    extern "C" __global__ void pair(
        const scalar_t* a, const scalar_t* b,  // (n)
        scalar_t* y,                           // (n)
        long long n) {{
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] = {function}(a[i], b[i]);
    }}"""
    Kernel(text, "pair", Threads("n", block=(32, 1, 1)), dtypes=("float32",))(a, b, y, len(a))


@pytest.mark.simulator
@pytest.mark.parametrize("where", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("function", PAIRS)
def test_the_larger_and_the_smaller_of_two_where_nan_wins(function: str, where: str) -> None:
    some = np.float32([0, -0.0, 1, -1, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 7.25])
    a, b = (np.ascontiguousarray(x).ravel() for x in np.meshgrid(some, some))
    if where == "cuda":
        on_gpu = [torch.from_numpy(x).cuda() for x in (a, b, np.empty_like(a))]
        paired(function, *on_gpu)
        y = on_gpu[2].cpu().numpy()
    else:
        y = np.empty_like(a)
        with cupyops.simulate(sanitize=True):
            paired(function, a, b, y)
    np.testing.assert_array_equal(y, PAIRS[function](a, b))  # -0 is 0 here


# The tensor cores, by numbers small enough that every sum is exact: the simulator and a GPU give the same bits.

PRODUCT = """
#include "scalar.cuh"
#include "wgmma.cuh"
extern "C" __global__ void product(
    const scalar_t* x,       // (64, 64)
    const scalar_t* weight,  // (256, 64)
    float* sums,             // (64, 256)
    scalar_t* y,             // (64, 64)
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap y_map, long long n) {
    extern __shared__ unsigned char memory[];
    __shared__ Arrivals full[1];
    const unsigned at = (shared_address(memory) + 1023) & ~1023u, piece = at + (64 + 256) * 128;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (thread == 0) arrival_init(full, 1);
    __syncthreads();
    if (thread == 0) {
        arrive_expecting(full, (64 + 256) * 128);
        load_box(at, &x_map, 0, 0, full);
        load_box(at + 64 * 128, &weight_map, 0, 0, full);
    }
    arrival_wait(full, 0);
    float d[128] = {};
    multiply_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<scalar_t>(d, rows_at(at) + 2 * i, rows_at(at + 64 * 128) + 2 * i, i > 0);
    multiply_commit();
    multiply_wait<0>();
    settle(d);
#pragma unroll
    for (int i = 0; i < 128; ++i)
        sums[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * 256 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        unsigned two[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) two[q] = Scalar<scalar_t>::narrow_two(d[j * 4 + q * 2], d[j * 4 + q * 2 + 1]);
        const unsigned row = (warp * 16 + lane % 16) * 128 + (lane / 16 ^ lane % 8) * 16;
        store_matrices(piece + (row ^ j * 16), two[0], two[1], two[2], two[3]);
    }
    show_to_copies();
    meet(1, 128);
    if (thread == 0) {
        store_box(&y_map, 0, 0, piece);
        stores_commit();
        stores_are_done();
    }
}
"""


def integers(dtype: torch.dtype, m: int = 64, n: int = 256, k: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """x (m, k) and weight (n, k) of sixteenths and whole numbers, whose products' sums float32 holds."""
    generator = torch.Generator().manual_seed(m + n + k)
    x, weight = (torch.randint(-8, 9, s, generator=generator) for s in ((m, k), (n, k)))
    return x.div(16).to(dtype), weight.to(dtype)


def product(text: str, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x·Wᵀ in float32, and its first 64 columns in x's dtype."""
    kernel = Kernel(text, "product", Rows("n", 128), dtypes=DTYPES, shared=1024 + 384 * 128, since=90, exactly=True)
    sums, y = torch.full((64, 256), torch.nan, device=x.device), torch.full_like(x, torch.nan)
    simulated = not x.is_cuda
    maps = [
        tensor_map(a.data_ptr(), *a.shape, str(x.dtype)[6:], rows, simulated=simulated)
        for a, rows in ((x, 64), (weight, 256), (y, 64))
    ]
    kernel(x, weight, sums, y, *maps, 1)
    return sums, y


# The tensor cores that a warp has to itself: one product of theirs.
SMALL_PRODUCT = """
#include "tensor_cores.cuh"
__device__ Eight eight(const scalar_t* p) {
    Eight found;
    for (int i = 0; i < 4; ++i)
        found.word[i] = Scalar<scalar_t>::narrow_two(convert<float>(p[2 * i]), convert<float>(p[2 * i + 1]));
    return found;
}
extern "C" __global__ void product(
    const scalar_t* a,  // (16, 32)
    const scalar_t* b,  // (8, 32)
    float* sums,        // (16, 8)
    long long n) {
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    float c[4] = {1, 1, 1, 1};
    multiply_add<scalar_t>(c, eight(a + row * 32 + part * 8), eight(a + (row + 8) * 32 + part * 8), eight(b + row * 32 + part * 8));
    for (int i = 0; i < 4; ++i) sums[(row + i / 2 * 8) * 8 + 2 * part + i % 2] = c[i];
}
"""


def small_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·bᵀ + 1 in float32."""
    sums = torch.full((16, 8), torch.nan, device=a.device)
    Kernel(SMALL_PRODUCT, "product", Rows("n", 32), dtypes=DTYPES, since=80)(a, b, sums, 1)
    return sums


BOTH_HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.mark.simulator
@BOTH_HALVES
def test_the_twins_of_the_tensor_cores_multiply(dtype: torch.dtype) -> None:
    x, weight = integers(dtype)
    with cupyops.simulate(sanitize=True):
        sums, y = product(PRODUCT, x, weight)
    exact = x.double() @ weight.double().T
    assert torch.equal(sums.double(), exact)
    assert torch.equal(y, exact[:, :64].to(dtype))


@pytest.mark.simulator
@pytest.mark.parametrize("where", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@BOTH_HALVES
def test_a_warp_on_tensor_cores_multiplies(dtype: torch.dtype, where: str) -> None:
    a, b = integers(dtype, 16, 8, 32)
    if where == "cuda":
        sums = small_product(a.cuda(), b.cuda()).cpu()
    else:
        with cupyops.simulate(sanitize=True):
            sums = small_product(a, b)
    assert torch.equal(sums.double(), a.double() @ b.double().T + 1)


@pytest.fixture
def sm_90() -> None:
    if (capability := driver.capability(0)) != 90:
        pytest.skip(f"tensor cores of sm_90 are asked for, and this GPU is sm_{capability}")


@pytest.mark.gpu
@pytest.mark.simulator
@pytest.mark.usefixtures("sm_90")
@BOTH_HALVES
def test_the_twins_of_the_tensor_cores_give_the_bits_of_the_gpu(dtype: torch.dtype) -> None:
    x, weight = integers(dtype)
    with cupyops.simulate():
        simulated = product(PRODUCT, x, weight)
    on_gpu = product(PRODUCT, x.cuda(), weight.cuda())
    assert all(torch.equal(a, b.cpu()) for a, b in zip(simulated, on_gpu, strict=True))


@pytest.mark.gpu
@pytest.mark.simulator
@pytest.mark.usefixtures("sm_90")
@pytest.mark.parametrize("config", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@BOTH_HALVES
def test_the_shipped_matrix_kernel_gives_the_bits_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, approximate: str, config: Sm90Config
) -> None:
    """z to the bit; y to the last one, where the powers of its polynomial are the instruction's or the twin's."""
    monkeypatch.setattr(linear_config, "LEAST_LARGE", 0)
    monkeypatch.setattr(linear_config, "sm90_config", lambda *a: config)
    x, weight = integers(dtype, 300, 264, 136)
    bias = weight[:, 0].clone()
    with cupyops.simulate(), launches.recorded() as noted:
        y, z = torch.ops.cupyops.linear_gelu(x, weight, bias, approximate)
    with launches.recorded() as noted_on_gpu:
        on_gpu = torch.ops.cupyops.linear_gelu(x.cuda(), weight.cuda(), bias.cuda(), approximate)
    assert [launch.kernel.name for launch in (*noted, *noted_on_gpu)] == ["linear_gelu_sm90"] * 2
    assert torch.equal(z, on_gpu[1].cpu())
    torch.testing.assert_close(y, on_gpu[0].cpu(), rtol=torch.finfo(dtype).eps, atol=1e-6)
