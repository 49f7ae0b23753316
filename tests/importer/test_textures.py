"""Texture objects that host code makes: of memory, of rows with a pitch, and of arrays."""

from typing import Any

import pytest
import torch

from cupyops.cpp_extension import load_inline
from tests.launch.devices import device_of

__all__ = ["device_of"]

TEXT = """
#include <torch/extension.h>
__global__ void fetched(cudaTextureObject_t t, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = 2.f * tex1Dfetch<float>(t, i);
}
__global__ void sampled(cudaTextureObject_t t, float* y, int w, int h, float by) {
  const int i = threadIdx.x, j = blockIdx.x;
  if (i < w) y[j * w + i] = tex2D<float>(t, (i + 0.5f) * by, (j + 0.5f) * by);
}
__global__ void colours(cudaTextureObject_t t, float4* y, int w) {
  const float4 c = tex2D<float4>(t, threadIdx.x + 0.5f, blockIdx.x + 0.5f);
  if (threadIdx.x < w) y[blockIdx.x * w + threadIdx.x] = c;
}
torch::Tensor of_memory(torch::Tensor x) {
  auto y = torch::empty_like(x);
  cudaResourceDesc resource;
  memset(&resource, 0, sizeof(resource));
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = x.data_ptr<float>();
  resource.res.linear.desc = cudaCreateChannelDesc<float>();
  resource.res.linear.sizeInBytes = x.numel() * sizeof(float);
  cudaTextureDesc how;
  memset(&how, 0, sizeof(how));
  how.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  cudaCreateTextureObject(&texture, &resource, &how, NULL);
  fetched<<<1, 64>>>(texture, y.data_ptr<float>(), x.numel());
  cudaDestroyTextureObject(texture);
  return y;
}
torch::Tensor of_array(torch::Tensor x, int64_t h, int64_t w, bool border) {
  auto y = torch::empty({h, w}, x.options());
  cudaChannelFormatDesc form = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  cudaArray_t array;
  cudaMallocArray(&array, &form, x.size(1), x.size(0));
  const size_t bytes = x.size(1) * sizeof(float);
  cudaMemcpy2DToArray(array, 0, 0, x.data_ptr<float>(), bytes, bytes, x.size(0), cudaMemcpyDeviceToDevice);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc how = {};
  how.addressMode[0] = how.addressMode[1] = border ? cudaAddressModeBorder : cudaAddressModeClamp;
  how.filterMode = cudaFilterModeLinear;
  cudaTextureObject_t texture;
  TORCH_CHECK(cudaCreateTextureObject(&texture, &resource, &how, nullptr) == cudaSuccess);
  sampled<<<h, 64>>>(texture, y.data_ptr<float>(), w, h, float(x.size(1)) / w);
  cudaDestroyTextureObject(texture);
  TORCH_CHECK(cudaDestroyTextureObject(texture) != cudaSuccess && cudaGetLastError() != cudaSuccess);
  cudaFreeArray(array);
  return y;
}
torch::Tensor of_rows(torch::Tensor image) {
  const int h = image.size(0), w = image.size(1);
  auto y = torch::empty({h, w, 4}, image.options().dtype(torch::kFloat32));
  uchar4* rows;
  size_t pitch;
  cudaMallocPitch(&rows, &pitch, w * sizeof(uchar4), h);
  cudaMemcpy2D(rows, pitch, image.data_ptr<uint8_t>(), w * 4, w * 4, h, cudaMemcpyDeviceToDevice);
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D.devPtr = rows;
  resource.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
  resource.res.pitch2D.width = w;
  resource.res.pitch2D.height = h;
  resource.res.pitch2D.pitchInBytes = pitch;
  cudaTextureDesc how{};
  how.readMode = cudaReadModeNormalizedFloat;
  cudaTextureObject_t texture = 0;
  cudaCreateTextureObject(&texture, &resource, &how, nullptr);
  colours<<<h, 32>>>(texture, reinterpret_cast<float4*>(y.data_ptr<float>()), w);
  cudaDestroyTextureObject(texture);
  cudaFree(rows);
  return y;
}
"""


@pytest.fixture(scope="module")
def program() -> Any:
    return load_inline("textures", "", TEXT, functions=["of_memory", "of_array", "of_rows"])


def test_memory(device: str, program: Any) -> None:
    x = torch.randn(100, device=device)
    assert torch.equal(program.of_memory(x), 2 * x)


def test_an_array_with_a_filter(device: str, program: Any) -> None:
    x = torch.randn(8, 10, device=device)
    expected = torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear")[0, 0]
    found = program.of_array(x, 16, 20, False)
    assert torch.allclose(found, expected, atol=0.02)  # the weights of a texture are steps of 1/256
    edge = program.of_array(x, 16, 20, True)[0, 1:-1]
    assert torch.allclose(edge, 0.75 * expected[0, 1:-1], atol=0.02)


def test_rows_of_bytes_as_numbers_up_to_1(device: str, program: Any) -> None:
    image = torch.randint(0, 256, (3, 5, 4), dtype=torch.uint8, device=device)
    assert torch.allclose(program.of_rows(image), image / 255)
