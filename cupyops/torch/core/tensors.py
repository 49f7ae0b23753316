"""PyTorch's tensors, made known to launches and bodies. The functions are PyTorch's own, not wrappers: they stand on
the hot path."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from cupyops import simulator
from cupyops.arrays import Info, register
from cupyops.dtypes import DTYPES
from cupyops.launch.generated import TensorAccess

__all__ = ["DTYPE_NAMES", "PLAIN_TENSORS", "NoStorageError", "TorchLibrary", "alive", "wide_dtype"]

# torch.float32 -> "float32"; dtypes that kernels do not know keep a name for messages
DTYPE_NAMES = {d: str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}
_DTYPES = {name: getattr(torch, name) for name in DTYPES}

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


class NoStorageError(RuntimeError):
    """A launch was given a tensor without memory of its own: a wrapper of a transform, a batch of autograd's."""


def alive(x: torch.Tensor) -> torch.Tensor:
    """The tensor; of a wrapper whose transforms have ended, the one within."""
    while (inner := torch._C._functorch.unwrap_if_dead(x)) is not x:
        x = inner
    return x


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a kernel's arithmetic: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@lru_cache(4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class TorchLibrary:
    """Tensors, as :class:`cupyops.arrays.ArrayLibrary` wants them."""

    name = "torch"
    empty_like = staticmethod(torch.empty_like)
    size = staticmethod(torch.Tensor.numel)
    is_contiguous = staticmethod(torch.Tensor.is_contiguous)
    contiguous = staticmethod(torch.Tensor.contiguous)
    strides = staticmethod(torch.Tensor.stride)
    linear = staticmethod(F.linear)
    matmul = staticmethod(torch.mm)
    add_product = staticmethod(torch.Tensor.addmm_)
    copy = staticmethod(torch.Tensor.clone)
    device_index = staticmethod(torch.Tensor.get_device)
    in_host_memory = staticmethod(vars(torch._C.TensorBase)["is_cpu"].__get__)
    address = staticmethod(torch.Tensor.data_ptr)
    # It counts versions up, so that autograd notices when what it has saved is gone; of inference tensors, which have none,
    # nothing. The public function is this one behind a question that costs as much again.
    written = staticmethod(torch._C._increment_version)

    def __init__(self) -> None:
        # A CPU build of PyTorch has no such functions, and no tensors that would need them.
        stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        current = getattr(torch._C, "_cuda_getDevice", None)
        self.tensor_access = (
            TensorAccess(
                PLAIN_TENSORS,
                current,
                stream,
                torch.cuda.device_count,
                torch.is_grad_enabled,
                torch._C._increment_version,
            )
            if stream and current
            else None
        )

    def empty(self, shape: Sequence[int], dtype: str, like: torch.Tensor) -> torch.Tensor:
        if type(like) not in PLAIN_TENSORS:
            return like.new_empty(shape, dtype=_DTYPES[dtype])  # sizes may be symbols
        # Given the strides, too, PyTorch takes half the time.
        return like.new_empty_strided(shape, _strides(tuple(shape)), dtype=_DTYPES[dtype])

    def dtype_name(self, x: torch.Tensor) -> str:
        return DTYPE_NAMES[x.dtype]

    def result_type(self, a: torch.Tensor, b: torch.Tensor) -> str:
        return DTYPE_NAMES[torch.result_type(a, b)]

    def is_host_scalar(self, x: torch.Tensor) -> bool:
        return x.dim() == 0 and x.is_cpu

    def host_number(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        # As PyTorch converts it: integers wrap, numbers beyond a float's range are infinite.
        return x.to(_DTYPES[dtype])

    def is_fake(self, x: torch.Tensor) -> bool:
        return type(x) is FakeTensor or x.is_meta

    def info(self, x: torch.Tensor) -> Info:
        place, fake = x.device.type, self.is_fake(x)
        launchable = place == "cuda" or (place == "cpu" and simulator.enabled())
        try:
            pointer = x.data_ptr() if launchable and not fake else 0
        except RuntimeError as error:
            if (inner := alive(x)) is not x:
                return self.info(inner)
            raise NoStorageError(f"a kernel needs a tensor with memory, and this has none: {error}") from error
        return Info(
            *(DTYPE_NAMES[x.dtype], tuple(x.shape), x.stride(), x.numel(), place, x.device.index, pointer, fake),
            negated=x.is_neg(),
            recorded=x.requires_grad and torch.is_grad_enabled(),
        )

    def stream(self, device: int) -> int:
        return int(torch._C._cuda_getCurrentRawStream(device))

    def device(self, device: int) -> AbstractContextManager[Any]:
        return torch.cuda.device(device)

    def matmul_into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.mm(a, b, out=out)

    def tf32(self) -> bool:
        try:
            return torch.backends.cuda.matmul.allow_tf32
        except RuntimeError:  # it has been said in the newer way, which the older one does not follow
            return torch.backends.cuda.matmul.fp32_precision == "tf32"


register(torch.Tensor, TorchLibrary())
