"""Packed accessors of PyTorch as parameters: a launch fills them from the array, in the simulator and on a GPU alike."""

import re
import struct
from typing import Any

import pytest
import torch

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.arrays import Info
from cupyops.compile.compiler import binary_for
from cupyops.launch.accessors import check_accessor
from cupyops.launch.arguments import check
from cupyops.launch.generated import launch_source
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.signature import Signature
from tests.launch.devices import device_of  # noqa: F401 - the fixture `device`
from tests.launch.test_generated import Array, Gpu, Written

TEXT = """
#include "pytorch.cuh"
#define RESTRICT torch::RestrictPtrTraits
using Weights = at::PackedTensorAccessor64<double, 1, at::DefaultPtrTraits>;
template <typename scalar_t>
__device__ scalar_t dot(const torch::TensorAccessor<scalar_t, 1, RESTRICT, int32_t> row, const Weights& w) {
    scalar_t sum = 0;
    for (int j = 0; j < row.size(0); ++j) sum += row[j] * scalar_t(w[j]);
    return sum;
}
template <typename scalar_t>
__global__ void weigh(
    const torch::PackedTensorAccessor32<scalar_t, 3, RESTRICT> x, const Weights w, int turn,
    torch::PackedTensorAccessor<scalar_t, 2, RESTRICT, size_t> y, at::PackedTensorAccessor32<int64_t, 1> seen) {
    const int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= y.size(0)) return;
    for (int k = 0; k < x.size(1); ++k) y[m][(k + turn) % y.size(1)] = dot<scalar_t>(x[m][k], w);
    seen[m] = y.stride(0) * 1000 + x[m].stride(0) * 100 + x[m][0].stride(0) * 10 + x.stride(0) + w.size(0) + x[m].size(0);
}
"""
SIZES = (4, 3, 5)  # of x: M, K, N


def kernel(**options: Any) -> Kernel:
    return Kernel(TEXT, "weigh", Threads(block=(64,)), dtypes=("float32", "float64"), **options)


def arrays(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    M, K, N = SIZES
    x = torch.arange(float(M * K * N), dtype=dtype).view(N, K, M).permute(2, 1, 0)
    w, y = torch.arange(1.0, 2 * N + 1, dtype=torch.float64)[::2], torch.full((K, 2 * M), -1.0, dtype=dtype)
    return [x.to(device), w.to(device), y.to(device)[:, ::2].t(), torch.zeros(M, dtype=torch.int64, device=device)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_accessor_has_the_sizes_and_strides_of_any_array(device: str, dtype: torch.dtype) -> None:
    x, w, y, seen = arrays(device, dtype)
    if device == "cuda":  # an accessor of a copy on the GPU has other strides
        x = x.cpu().to("cuda")
    for _ in range(2):  # a second call may take another way to the driver
        kernel()[SIZES[0]](x, w, 1, y, seen)
    wanted = (x.double() * w).sum(-1).roll(1, 1)
    assert torch.equal(y.double(), wanted)
    strides = y.stride(0) * 1000 + x.stride(1) * 100 + x.stride(2) * 10 + x.stride(0)
    assert seen.tolist() == [strides + w.size(0) + x.size(1)] * SIZES[0]
    assert (y.t().contiguous() == y.t()).all()
    assert y.stride() == (2, 2 * SIZES[0])


@pytest.mark.simulator
def test_elements_between_those_of_a_view_stay_as_they_are() -> None:
    x, w, _, seen = arrays("cpu")
    whole = torch.full((SIZES[1], 2 * SIZES[0]), -1.0)
    with cupyops.simulate(sanitize=True):
        kernel()[SIZES[0]](x, w, 1, whole[:, ::2].t(), seen)
    assert (whole[:, 1::2] == -1).all()
    assert (whole[:, ::2] != -1).all()


def test_the_parameters_of_a_kernel_with_accessors() -> None:
    found = {p.name: p for p in kernel().signature.parameters}
    layouts = {n: (p.accessor.rank, p.accessor.bits) for n, p in found.items() if p.accessor is not None}
    assert layouts == {"x": ("3", 32), "w": ("1", 64), "y": ("2", 64), "seen": ("1", 32)}
    assert {n: (p.type, p.const) for n, p in found.items() if p.pointer} == {
        "x": ("scalar_t", True),
        "w": ("float64", True),
        "y": ("scalar_t", False),
        "seen": ("int64", False),
    }
    packing, fields = kernel().signature.packing({"scalar_t": "float32"}, {})
    assert fields == [(0, 32), (32, 24), (56, 4), (64, 40), (104, 16)]
    assert packing.size == 120


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_compiles_accessors(arch: str, dtype: str) -> None:
    binary_for(kernel().final_text({"scalar_t": dtype}), "weigh", arch)


@pytest.mark.parametrize(
    ("position", "change", "error", "words"),
    [
        (0, lambda x: x[0], ValueError, r"weigh: `x` must have 3 dimensions, as its accessor, got shape \(3, 5\)"),
        (1, lambda w: w[None], ValueError, r"weigh: `w` must have 1 dimension, as its accessor, got shape \(1, 5\)"),
        (1, lambda w: w.float(), TypeError, "weigh: `w` must have dtype float64, got float32"),
        (2, lambda _: 1.5, TypeError, "weigh: `turn` must be an integer"),
        (3, lambda y: y.double(), TypeError, r"weigh: `y` must have dtype float32 \(scalar_t, as the arrays before it"),
        (4, lambda _: None, TypeError, "weigh: `seen` must be a CuPy array or a PyTorch tensor, got NoneType"),
    ],
)
@pytest.mark.simulator
def test_a_wrong_argument_launches_nothing(position: int, change: Any, error: type[Exception], words: str) -> None:
    x, w, y, seen = arrays("cpu")
    given = [x, w, 1, y, seen]
    given[position] = change(given[position])
    with cupyops.simulate(), pytest.raises(error, match=words):
        kernel()[SIZES[0]](*given)
    assert (y == -1).all()


def test_32_bits_reach_the_last_element_or_the_call_is_refused() -> None:
    x = next(p for p in kernel().signature.parameters if p.name == "x")

    def info(shape: tuple[int, ...], strides: tuple[int, ...], fake: bool = False) -> Info:
        return Info("float32", shape, strides, 1, "cuda", 0, 4096, fake=fake)

    check_accessor("weigh", x, info((2, 1, 1), (2**31 - 1, 1, 1)), {})
    check_accessor("weigh", x, info((2, 1, 1), (2**31, 1, 1), fake=True), {})
    for shape, strides in [((2, 2, 1), (2**31 - 1, 1, 1)), ((3, 1, 1), (2**30, 1, 1)), ((1, 1, 1), (1, 2**31, 1))]:
        with pytest.raises(ValueError, match="weigh: `x` must be within reach of 32-bit indices, or its accessor a"):
            check_accessor("weigh", x, info(shape, strides), {})


SMALL = """
#include "pytorch.cuh"
extern "C" __global__ void small(
    const torch::PackedTensorAccessor32<float, 2> x, torch::PackedTensorAccessor64<scalar_t, N> y,
    const torch::PackedTensorAccessor64<scalar_t, 2> z, long long n) {}
"""


class Strided(Array):
    """A tensor as far as a generated launch looks at one for an accessor."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], **options: Any) -> None:
        super().__init__(*shape, **options)
        self.strides = strides

    def dim(self) -> int:
        return len(self.shape)

    def size(self, i: int) -> int:
        return self.shape[i]

    def stride(self, i: int | None = None) -> Any:
        return self.strides if i is None else self.strides[i]


@pytest.mark.parametrize("vouched", [False, True])
def test_the_generated_launch_packs_sizes_and_strides(monkeypatch: pytest.MonkeyPatch, vouched: bool) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr("tests.launch.test_generated.Array", Strided)
    written = Written(
        gpu,
        Kernel(SMALL, "small", Threads("n"), constants={"N": 1}).signature,
        Threads("n"),
        {"scalar_t": "float32"},
        {"N": 1},
    )
    launch = written.vouched if vouched else written.launch
    x, y = Strided((3, 4), (1, 7)), Strided((5,), (2,), pointer=8192)
    z = Strided((6, 8), (8, 1), pointer=12288)
    launch(x, y, z, 9)
    assert not written.returned
    values = (4096, 3, 4, 1, 7, 8192, 5, 2, 12288, 6, 8, 8, 1, 9)
    assert struct.unpack("=Q4iQ2qQ4qq", gpu.values[0]) == values
    refused = [
        (Strided((3,), (1,)), Strided((5, 2, 1), (2, 1, 1), pointer=8192), z, 9),
        (Strided((3, 4), (1, 2**30)), y, z, 9),
        (Strided((1, 4), (2**31, 1)), y, z, 9),
        (x, Strided((5, 1), (1, 1)), Strided((6,), (1,)), 9),  # as many numbers in all
    ]
    for call in refused:
        launch(*call)
    assert written.returned == refused
    assert len(gpu.launches) == 1


COMPLEX = """
#include "pytorch.cuh"
template <typename T, size_t N> using Accessor = at::GenericPackedTensorAccessor<T, N, at::RestrictPtrTraits, int64_t>;
template <typename T> __global__ void rows(const Accessor<T, 2> x, Accessor<c10::complex<float>, 1> y) {
    const int m = threadIdx.x;
    if (m < x.size(0)) y[m] = x[m][1] + T(x.stride(0), x.stride(1));
}
"""


def test_an_accessor_of_complex_numbers_has_their_sizes_and_strides(device: str) -> None:
    x, y = torch.randn(3, 4, dtype=torch.complex64)[:, ::2], torch.zeros(6, dtype=torch.complex64)[::2]
    rows = Kernel(COMPLEX, "rows<c10::complex<float>>", Threads(block=(32,)))
    on_device = [torch.view_as_real(x.to(device)), torch.view_as_real(y.to(device))]
    strides = on_device[0].stride()
    rows[32](*on_device)
    torch.testing.assert_close(
        torch.view_as_complex(on_device[1].cpu()), x[:, 1] + complex(strides[0] // 2, strides[1] // 2)
    )


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 4), "`x` must have 2 as its last dimension, the float32s of a at::complex<float>, got shape"),
        (torch.zeros(4, 2), "`x` must have 3 dimensions, as its accessor, got shape"),
        (
            torch.zeros(3, 5)[:, :4].view(3, 2, 2),
            "`x` must have every at::complex<float> in one piece, a whole number",
        ),
        (torch.zeros(25)[1:].view(3, 4, 2), "`x` must begin at a multiple of 8 bytes, as at::complex<float> does"),
    ],
)
def test_an_array_that_is_not_of_complex_numbers_is_refused(x: torch.Tensor, words: str) -> None:
    rows = Kernel(COMPLEX, "rows<c10::complex<float>>", Threads(block=(32,)))
    with cupyops.simulate(), pytest.raises(ValueError, match=re.escape(words)):
        rows[32](x, torch.zeros(3, 2))


def test_the_generated_launch_packs_sizes_and_strides_of_complex_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr("tests.launch.test_generated.Array", Strided)
    text = (
        '#include "pytorch.cuh"\nextern "C" __global__ void k(at::PackedTensorAccessor32<c10::complex<float>, 2> x, '
        "at::cuda::detail::TensorInfo<c10::complex<float>, int> y, long long n) {}"
    )
    written = Written(gpu, signature_of(text, "k"), Threads("n"), {}, {})
    x, y = Strided((3, 4, 2), (2, 14, 1)), Strided((5, 2), (4, 1), pointer=8192)
    written.launch(x, y, 9)
    assert not written.returned
    values = struct.unpack("=Q4iQ50ii4xq", gpu.values[0])
    assert values == (4096, 3, 4, 1, 7, 8192, 5, *(0,) * 24, 2, *(0,) * 24, 1, 9)
    refused = [
        (Strided((3, 4, 2), (3, 14, 1)), y, 9),
        (Strided((3, 4), (2, 1)), y, 9),
        (Strided((3, 4, 2), (2, 14, 2)), y, 9),
    ]
    for call in refused:
        written.launch(*call)
    assert written.returned == refused


def test_debug_mode_and_graphs_get_the_sizes_with_the_address() -> None:
    M, K, N = SIZES
    x = torch.empty(M, K, N)
    given = [x, torch.empty(N, dtype=torch.float64), 1, torch.empty(M, K), torch.zeros(M, dtype=torch.int64)]
    with cupyops.simulate():
        found = check(kernel(), dict(zip(kernel().signature.names, given, strict=True)))
    assert found.addresses[0] == (x.data_ptr(), M, K, N, K * N, N, 1)
    assert found.addresses[1:3] == [(given[1].data_ptr(), N, 1), 1]
    assert found.accessors["y"] == (M, K, K, 1)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("torch::PackedTensorAccessor<float, 2, torch::RestrictPtrTraits, short> x", "indices of 32 or 64 bits"),
        ("torch::PackedTensorAccessor32<float4, 2> x", "parameter `x` has elements of 'float4', which is no dtype"),
        (
            "torch::PackedTensorAccessor32<float, 1> x /* (n) or null */",
            "has the sizes of an array: leave out `or null`",
        ),
    ],
)
def test_a_declaration_that_no_launch_can_fill(declared: str, words: str) -> None:
    text = f'#include "pytorch.cuh"\nextern "C" __global__ void f(const float* other, {declared}, int n) {{}}'
    with pytest.raises(TypeError, match=words):
        Kernel(text, "f", Threads("n")).signature  # noqa: B018


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("torch::PackedTensorAccessor32<float> x", "too few arguments for alias template"),
        ("torch::PackedTensorAccessor32<float, RANK> x", 'identifier "RANK" is undefined'),
    ],
)
def test_an_accessor_that_is_no_type_is_shown_with_the_compilers_words(declared: str, words: str) -> None:
    text = f'#include "pytorch.cuh"\nextern "C" __global__ void f(const float* other, {declared}, int n) {{}}'
    with pytest.raises(CompileError, match=rf"f.cu:2: error: {words}.*\n  extern") as caught:
        Kernel(text, "f", Threads("n")).signature  # noqa: B018
    assert "Cupyops" not in str(caught.value)


def test_no_other_launch_changes() -> None:
    text = 'extern "C" __global__ void k(const float* x, // (n)\n long long n) {}'
    assert "shape" not in launch_source(Signature.parse(text, "k"), Threads("n"), {})


BIASED = """
#include "pytorch.cuh"
#include <cuda_bf16.h>
extern "C" __global__ void biased(
    const at::PackedTensorAccessor32<float, 2> x, nv_bfloat16 bias, at::PackedTensorAccessor64<float, 1> y, int add) {
    const int m = threadIdx.x;
    if (m < x.size(0)) y[m] = x[m][1] + __bfloat162float(bias) + add;
}
"""


def test_a_bfloat16_number_behind_an_accessor_comes_as_it_was_given(device: str) -> None:
    x, y = torch.arange(6.0, device=device).view(3, 2), torch.zeros(3, device=device)
    Kernel(BIASED, "biased", Threads(block=(32,)))[32](x, 2.5, y, 10)
    assert y.tolist() == [13.5, 15.5, 17.5]


HALF = """
#include "pytorch.cuh"
#include <cuda_fp16.h>
template <typename T, int RANK>
__global__ void widen(const at::PackedTensorAccessor64<T, RANK> x, const c10::Half* h, float* y, int n) {
    CUDA_KERNEL_LOOP(i, n) {
        const at::opmath_type<T> v = static_cast<at::opmath_type<T>>(x[i]) * float(h[0]);
        gpuAtomicAdd(&y[0], WARP_SHFL_DOWN(v, 0));
    }
}
"""


def test_names_of_pytorch_in_device_code(device: str) -> None:
    """Types of the arithmetic, loops, atomic additions and shuffles."""
    half = Kernel(HALF, "widen", Threads("n", block=32), constants={"RANK": 1}, dtypes=("float16",))
    x = torch.arange(128.0).half().to(device)
    y = torch.zeros(1, device=device)
    half(x, torch.tensor([2.0]).half().to(device), y, 128)
    assert y.item() == 2 * sum(range(128))


LIMITS = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "pytorch.cuh"
extern "C" __global__ void limits(scalar_t* y, int n) {
    using Limits = at::numeric_limits<c10::BFloat16>;
    y[0] = Limits::lowest(), y[1] = Limits::max(), y[2] = Limits::lower_bound(), y[3] = Limits::upper_bound();
}
"""


def test_the_largest_bfloat16_in_device_code_is_finite(device: str) -> None:
    y = torch.zeros(4, dtype=torch.bfloat16, device=device)
    Kernel(LIMITS, "limits", Threads(block=(1,)), dtypes=("bfloat16",))[1](y, 4)
    info = torch.finfo(torch.bfloat16)
    assert y.tolist() == [info.min, info.max, float("-inf"), float("inf")]
