"""to_cupy and to_torch: the same memory on both sides, in every dtype and layout, ordered between streams."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from autograd_bridge import gelu, to_cupy, to_torch
from cupyops.compile import toolchain
from tests.support import alike

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_there_and_back_is_the_same_memory(dtype: torch.dtype) -> None:
    base = (torch.randn(6, 10, device="cuda") * 3).to(dtype)
    for x in (base, base.t(), base[1:, ::3], base[2:3, :1].expand(4, 5), base[0, 0], base[:0]):
        array = to_cupy(x)
        assert array.shape == tuple(x.shape)
        assert x.numel() == 0 or array.data.ptr == x.data_ptr()
        back = to_torch(array)
        assert back.dtype == dtype
        assert x.numel() == 0 or (back.data_ptr(), back.stride()) == (x.data_ptr(), x.stride())
        assert torch.equal(back, x)


@pytest.mark.gpu
def test_writes_are_seen_on_the_other_side() -> None:
    x = torch.zeros(4, device="cuda")
    to_cupy(x)[1] = 5
    assert x.tolist() == [0, 5, 0, 0]


@pytest.mark.gpu
def test_requires_grad_passes_detached() -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    assert to_cupy(x).data.ptr == x.data_ptr()
    assert not to_torch(to_cupy(x)).requires_grad


@pytest.mark.gpu
def test_memory_outlives_its_first_owner() -> None:
    array = to_cupy(torch.full((1 << 20,), 3.0, device="cuda"))
    torch.full((1 << 20,), 4.0, device="cuda")  # would take the freed memory
    assert float(array.min()) == 3.0


@pytest.mark.gpu
@pytest.mark.parametrize("cupy_stream", [False, True])
def test_cupy_waits_for_pytorchs_side_stream(cupy_stream: bool) -> None:
    import cupy

    side = torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(7)
        if cupy_stream:
            with cupy.cuda.Stream.from_external(side):
                total = to_cupy(x).sum()
                side.synchronize()
        else:
            total = to_cupy(x).sum()
    assert float(total) == 7.0 * (1 << 22)


@pytest.mark.gpu
def test_pytorch_waits_for_cupys_side_stream() -> None:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        torch.cuda._sleep(1)
        a = cupy.zeros(1 << 22, dtype="float32")
        for _ in range(200):
            a += 1
        x = to_torch(a)
    assert float(x.sum()) == 200.0 * (1 << 22)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_both_ways_of_a_launch_give_the_same_bits(dtype: torch.dtype) -> None:
    """Addresses taken from checked tensors, against arrays that crossed by DLPack."""
    from cupyops.ops.gelu import FORWARD

    x = torch.randn(1001, device="cuda").to(dtype)
    direct = gelu(x)
    crossed = torch.empty_like(x)
    FORWARD["none"].checked_launch(to_cupy(x), to_cupy(crossed), x.numel())
    torch.cuda.synchronize()
    assert alike(direct, crossed)


def test_what_cannot_cross_is_named() -> None:
    with pytest.raises(TypeError, match="to_cupy: `tensor` must be a Tensor, got ndarray"):
        to_cupy(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="to_cupy: `tensor` must be on a CUDA device, got cpu"):
        to_cupy(torch.zeros(3))
    with pytest.raises(TypeError, match="to_torch: `array` must export DLPack, got list"):
        to_torch([1.0])


def test_host_arrays_cross_to_pytorch() -> None:
    a = np.arange(4.0)
    assert to_torch(a).data_ptr() == a.ctypes.data


@pytest.mark.parametrize("stream", [0, 7])
def test_memory_is_kept_until_the_work_on_cupys_stream_is_done(stream: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no GPU: a tensor pretends to be on one. PyTorch would reuse its memory in the order of PyTorch's stream
    only."""
    recorded: list[object] = []

    class OnGpu(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 0

        def detach(self) -> "OnGpu":
            return self

        def record_stream(self, of: object) -> None:
            recorded.append(of)

    current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=stream), Device=lambda _: nullcontext())
    monkeypatch.setattr(toolchain, "cupy", lambda: SimpleNamespace(cuda=current, from_dlpack=lambda x: x))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer, device: pointer)
    monkeypatch.setattr(torch.utils.dlpack, "to_dlpack", lambda x: x)
    x = torch.zeros(2).as_subclass(OnGpu)
    assert to_cupy(x) is x
    assert recorded == [7] * (stream == 7)
