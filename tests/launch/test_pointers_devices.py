"""Arrays of addresses, pointers to functions and textures of the driver: the same values in the simulator and on a GPU."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import cupyops
from cupyops import Kernel, Threads
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.simulator import TextureObject
from tests.launch.devices import DEVICES, device_of  # noqa: F401 - the fixture `device`

ADDRESSES = """
__global__ void weighted(float** y, const float* const* x, const void* const more[], int count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (k + 1) * x[k][i];
    y[0][i] = sum;
    y[1][n - 1 - i] = sum + static_cast<const int*>(more[0])[i];
}"""
FUNCTIONS = """
typedef float (*Function)(float, int);
__device__ float plus(float v, int n) { return v + n; }
__device__ float minus(float v, int n) { return v - n; }
__device__ Function functions[2] = {plus, minus};
__global__ void apply(const float* x /* (n) */, float* y /* (n) */, int n, Function f, Function g) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 10 * f(x[i], 3) + g(x[i], 1);
}"""
ADDRESS_OF = """
typedef float (*Function)(float, int);
__device__ float plus(float v, int n) { return v + n; }
__device__ float minus(float v, int n) { return v - n; }
__device__ Function functions[2] = {plus, minus};
__global__ void apply(const float* x /* (n) */, float* y /* (n) */, int n, const int which) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = functions[which](x[i], 3);
}"""
TEXTURE = """
extern "C" __global__ void texels(CUtexObject image, float* y /* (n) */, int width, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = tex2D<float>(image, i % width + 0.5f, i / width + 0.5f) + 1;
}"""


def addresses(arrays: list[torch.Tensor], device: str) -> torch.Tensor:
    return torch.tensor([x.data_ptr() for x in arrays], dtype=torch.int64).view(torch.uint64).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_of_addresses(device: str) -> None:
    """Runs without checks, which would allow only the addresses of the launch's arrays."""
    n = 300
    xs = [torch.arange(n, dtype=torch.float32, device=device) * k for k in (1, 10, 100)]
    ys = [torch.zeros(n, device=device) for _ in range(2)]
    more = torch.arange(n, dtype=torch.int32, device=device)
    kernel = Kernel(ADDRESSES, "weighted", Threads("n"))
    assert [(p.pointer, p.const) for p in kernel.signature.parameters[:3]] == [
        (True, False),
        (True, True),
        (True, True),
    ]
    wanted = torch.arange(n, dtype=torch.float32, device=device) * 321
    for _ in range(3):  # on a GPU the generated launch from the second call on
        with cupyops.simulate(sanitize=False) if device == "cpu" else nullcontext():
            kernel(addresses(ys, device), addresses(xs, device), addresses([more], device), 3, n)
        assert torch.equal(ys[0], wanted)
        assert torch.equal(ys[1].flip(0), wanted + more)


def test_a_pointer_to_a_function(device: str) -> None:
    """The address of a device function is a number, which the text's own variable has."""
    x = torch.arange(100.0, device=device)
    y = torch.zeros_like(x)
    kernel = Kernel(FUNCTIONS, "apply", Threads("n"))
    plus, minus = kernel.variables["functions"].view(np.uint64).tolist()
    kernel(x, y, len(x), plus, minus)
    assert torch.equal(y, 10 * (x + 3) + x - 1)
    kernel(x, y, len(x), minus, plus)
    assert torch.equal(y, 10 * (x - 3) + x + 1)


def test_a_table_of_functions(device: str) -> None:
    x = torch.arange(100.0, device=device)
    y = torch.zeros_like(x)
    kernel = Kernel(ADDRESS_OF, "apply", Threads("n"))
    for which, wanted in ((0, x + 3), (1, x - 3)):
        kernel(x, y, len(x), which)
        assert torch.equal(y, wanted)


def image_of(array: np.ndarray, device: str) -> Any:
    """The texture of an array of two dimensions, with coordinates of texels."""
    if device == "cpu":
        return TextureObject(array)
    import cupy
    from cupy.cuda import runtime, texture

    channels = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    memory = texture.CUDAarray(channels, array.shape[1], array.shape[0])
    memory.copy_from(cupy.asarray(array))
    resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=memory)
    return texture.TextureObject(resource, texture.TextureDescriptor())


def test_a_texture_of_the_driver_by_value(device: str) -> None:
    array = np.arange(35, dtype=np.float32).reshape(5, 7)
    y = torch.zeros(35, device=device)
    Kernel(TEXTURE, "texels", Threads("n"))(image_of(array, device), y, 7, 35)
    assert y.tolist() == (array.ravel() + 1).tolist()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("text", "name"), [(ADDRESSES, "weighted"), (FUNCTIONS, "apply"), (ADDRESS_OF, "apply"), (TEXTURE, "texels")]
)
def test_the_texts_of_this_file_compile_for_a_gpu(text: str, name: str, target: str) -> None:
    pytest.importorskip("cupy")
    kernel = Kernel(text, name, Threads("n"))
    binary = compile_text(kernel.final_text({}), name, target, OPTIONS)
    assert binary.named(kernel.name) in binary.resources
