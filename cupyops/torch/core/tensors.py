"""Registers :class:`torch.Tensor` with :mod:`cupyops.arrays`, so that kernels can be launched on tensors. Most methods
are PyTorch's own functions, since a Python wrapper would add its time to each launch."""

import math
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
from cupyops.launch.recording import planning
from cupyops.launch.untraced import hide

__all__ = [
    "DTYPE_NAMES",
    "PLAIN_TENSORS",
    "NoStorageError",
    "TorchLibrary",
    "alive",
    "is_batched",
    "symbolic_call",
    "weight_and_bias",
    "wide_dtype",
]

# torch.float32 -> "float32". Dtypes that kernels do not support are listed, too, for error messages.
DTYPE_NAMES = {d: str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}
_DTYPES = {name: getattr(torch, name) for name in DTYPES}

# Whether a tensor is one of the batched tensors of torch.autograd.grad(..., is_grads_batched=True).
is_batched = torch._C._functorch.is_legacy_batchedtensor
PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


class NoStorageError(RuntimeError):
    """A kernel was launched on a tensor without memory, such as a wrapper tensor of ``torch.func`` or a batched tensor
    of ``torch.autograd.grad(..., is_grads_batched=True)``."""


def alive(x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor; for a wrapper tensor of a ``torch.func`` transform that has ended, the tensor inside."""
    while (inner := torch._C._functorch.unwrap_if_dead(x)) is not x:
        x = inner
    return x


def symbolic_call(function: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """Returns the proxy of a call if an argument is a proxy of ``torch.fx.symbolic_trace``, else None."""
    proxy = next((x for x in args if isinstance(x, torch.fx.Proxy)), None)
    return None if proxy is None else proxy.tracer.create_proxy("call_function", function, args, options)


def weight_and_bias(module: torch.nn.Module) -> tuple[Any, Any]:
    """Returns the parameters weight and bias of a module.

    ``module.weight`` takes some 0.4 µs, since Python finds the parameter only after a search of the module's class. A
    module with parametrisations has the two as attributes.
    """
    parameters = module._parameters
    try:
        return parameters["weight"], parameters["bias"]
    except KeyError:
        return module.weight, module.bias


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which kernels compute: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@lru_cache(4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class TorchLibrary:
    """Implements the protocol :class:`cupyops.arrays.ArrayLibrary` for PyTorch's tensors."""

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
    # Increments the tensors' version counters, so that autograd detects when a saved tensor has been overwritten.
    # Inference tensors have no version counter, and are skipped. The public function
    # torch.autograd.graph.increment_version takes twice as long.
    written = staticmethod(torch._C._increment_version)

    def __init__(self) -> None:
        # A CPU build of PyTorch has neither these two functions nor CUDA tensors.
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
            return like.new_empty(shape, dtype=_DTYPES[dtype])  # a fake tensor's sizes may be symbolic
        # new_empty_strided takes half the time of new_empty. The argument dtype takes a third of that time.
        wanted, strides = _DTYPES[dtype], _strides(tuple(shape))
        if like.dtype is wanted:
            return like.new_empty_strided(shape, strides)
        return like.new_empty_strided(shape, strides, dtype=wanted)

    def dtype_name(self, x: torch.Tensor) -> str:
        return DTYPE_NAMES[x.dtype]

    def result_type(self, a: torch.Tensor, b: torch.Tensor) -> str:
        return DTYPE_NAMES[torch.result_type(a, b)]

    def is_host_scalar(self, x: torch.Tensor) -> bool:
        return x.dim() == 0 and x.is_cpu

    def host_number(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        # PyTorch's conversion: integers wrap around, and numbers beyond a float's range become infinite.
        return x.to(_DTYPES[dtype])

    def is_fake(self, x: torch.Tensor) -> bool:
        return type(x) is FakeTensor or x.is_meta

    def skips(self, x: torch.Tensor) -> bool:
        return self.is_fake(x) and not planning()

    def info(self, x: torch.Tensor) -> Info:
        place, fake = x.device.type, self.is_fake(x)
        launchable = place == "cuda" or (place == "cpu" and simulator.enabled())
        try:
            pointer = x.data_ptr() if launchable and not fake else 0
        except RuntimeError as error:
            if (inner := alive(x)) is not x:
                return self.info(inner)
            raise NoStorageError(f"a kernel needs a tensor with memory, and this tensor has none: {error}") from error
        if launchable and not (fake or pointer) and x.numel():
            raise NoStorageError(
                f"a kernel needs a tensor with memory, and a {type(x).__name__} has none: call the kernel in the body of "
                "an Operator, and the Operator on the tensor"
            )
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

    def padded(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        found = x.new_empty((rows, columns))
        if self.skips(x):
            return found
        given_rows, given = x.shape
        found.narrow(0, 0, given_rows).narrow(1, 0, given).copy_(x)
        # A pass of zeros over all elements (torch.nn.functional.pad) would take as long as half of the copy.
        if given != columns:
            found.narrow(1, given, columns - given).zero_()
        if given_rows != rows:
            found.narrow(0, given_rows, rows - given_rows).zero_()
        return found

    def part(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        *batch, n = shape
        found = x.narrow(0, 0, math.prod(batch)).view(*batch, x.shape[1]).narrow(-1, 0, n)
        # A view that an operator made must not be written to while autograd records. `data` is not a view.
        return found.data if type(found) is torch.Tensor else found

    def tf32(self) -> bool:
        try:
            return torch.backends.cuda.matmul.allow_tf32
        except RuntimeError:  # raised if the program has set fp32_precision instead of allow_tf32
            return torch.backends.cuda.matmul.fp32_precision == "tf32"


_LIBRARY = TorchLibrary()
register(torch.Tensor, _LIBRARY)
hide()  # also for kernels that were created before PyTorch was imported
register(torch.nn.Parameter, _LIBRARY)  # the most frequent subclass: the lookup by base class takes longer
