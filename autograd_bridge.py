"""The public names: the shipped operators' functions and modules, and zero-copy conversion between PyTorch and CuPy.

Each operator stands in one file of ``cupyops/torch/ops``.
"""

from typing import Any

import torch
from torch import Tensor

from cupyops.compile import toolchain
from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm, gated_add
from cupyops.torch.ops.add2 import add2
from cupyops.torch.ops.add_layer_norm import AddLayerNorm, add_layer_norm
from cupyops.torch.ops.add_rms_norm import AddRMSNorm, add_rms_norm
from cupyops.torch.ops.cross_entropy import CrossEntropyLoss, cross_entropy
from cupyops.torch.ops.gated import geglu, reglu, swiglu
from cupyops.torch.ops.gelu import GELU, gelu, gelu_backward
from cupyops.torch.ops.layer_norm import LayerNorm, layer_norm, layer_norm_backward
from cupyops.torch.ops.linear import Linear, linear, linear_backward
from cupyops.torch.ops.linear_cross_entropy import LinearCrossEntropyLoss, linear_cross_entropy
from cupyops.torch.ops.linear_gelu import LinearGELU, linear_gelu, linear_gelu_backward
from cupyops.torch.ops.lltm import LLTM, LLTMLayers, lltm
from cupyops.torch.ops.lltm_cell import LLTMCell, lltm_cell
from cupyops.torch.ops.log_softmax import log_softmax
from cupyops.torch.ops.rms_norm import RMSNorm, rms_norm
from cupyops.torch.ops.rotary_embedding import rotary_embedding
from cupyops.torch.ops.softmax import softmax

__all__ = [
    "GELU",
    "LLTM",
    "AddLayerNorm",
    "AddRMSNorm",
    "CrossEntropyLoss",
    "LLTMCell",
    "LLTMLayers",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LinearGELU",
    "RMSNorm",
    "adaptive_layer_norm",
    "add2",
    "add_adaptive_layer_norm",
    "add_layer_norm",
    "add_rms_norm",
    "cross_entropy",
    "gated_add",
    "geglu",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "linear_cross_entropy",
    "linear_gelu",
    "linear_gelu_backward",
    "lltm",
    "lltm_cell",
    "log_softmax",
    "reglu",
    "rms_norm",
    "rotary_embedding",
    "softmax",
    "swiglu",
    "to_cupy",
    "to_torch",
]


# Conversion by DLPack


def to_cupy(tensor: Tensor) -> Any:
    """Returns the tensor as a CuPy array that shares its memory, through DLPack, without a copy.

    The array keeps the memory alive. CuPy's current stream waits for all work queued on PyTorch's current stream before
    the call. Use the array on CuPy's current stream. To run CuPy on PyTorch's stream instead, make that stream current
    first: ``with cupy.cuda.Stream.from_external(torch.cuda.current_stream()): ...``. Autograd does not record
    operations on the array.

    Args:
        tensor: on a GPU, of any dtype that CuPy has (bfloat16 needs the package ml_dtypes), any strides.

    Returns:
        A ``cupy.ndarray`` of the same shape, strides, dtype, device and address.

    Raises:
        TypeError: ``tensor`` is not a tensor.
        ValueError: ``tensor`` is not on a CUDA device.
        MissingDependencyError: CuPy is missing.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"to_cupy: `tensor` must be a Tensor, got {type(tensor).__name__}")
    if not tensor.is_cuda:
        raise ValueError(f"to_cupy: `tensor` must be on a CUDA device, got {tensor.device}")
    cupy = toolchain.cupy()
    detached = tensor.detach()
    with cupy.cuda.Device(tensor.get_device()):
        stream = cupy.cuda.get_current_stream().ptr
        if stream == torch.cuda.current_stream(tensor.device).cuda_stream:
            # Both libraries use one stream, so no wait is needed. to_dlpack takes a fraction of the time of
            # from_dlpack's stream exchange.
            return cupy.from_dlpack(torch.utils.dlpack.to_dlpack(detached))
        # PyTorch's allocator must not reuse this memory before the work queued on CuPy's stream has finished.
        detached.record_stream(torch.cuda.ExternalStream(stream, device=tensor.device))
        return cupy.from_dlpack(detached)


def to_torch(array: Any) -> Tensor:
    """Returns a tensor that shares the memory of a CuPy array, or of any array that exports DLPack, without a copy.

    The tensor keeps the memory alive. PyTorch's current stream waits for all work queued on CuPy's current stream
    before the call.

    Args:
        array: exports DLPack; on a GPU or in host memory.

    Returns:
        A tensor of the same shape, strides, dtype, device and address. The tensor's ``requires_grad`` is False.

    Raises:
        TypeError: ``array`` does not export DLPack.
    """
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"to_torch: `array` must export DLPack, got {type(array).__name__}")
    return torch.from_dlpack(array)
