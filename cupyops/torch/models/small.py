"""Decides which calls of a module PyTorch computes: calls on few elements in eager mode.

A call costs time of the host and time of the GPU. On few elements the GPU waits for the host, and PyTorch's operators,
which are C++, take less of the host's time than a Python function that launches a kernel. On many elements the host
waits for the GPU, and the faster kernel decides.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cupyops.ops.linear import config as linear_config

__all__ = ["LEAST_ELEMENTS", "LEAST_PADDED", "PLAIN", "is_small", "is_small_padded", "is_small_product", "is_traced"]

# Forward and backward of PyTorch's layer norm on an H200 take 61 us of the host's time, and the kernels take as long for
# 10 million elements in 16 bits (1.6 ms for 2^28). The operator takes 79 us of the host's time. With a batch of one, the
# models that were measured have at most 2^23 elements in a call. Whisper-small has 4.6 million elements in a GELU: the
# kernels saved none of the GPU's time there.
LEAST_ELEMENTS = 2**23 + 1

# Without padding, a product (M, K)·(N, K)ᵀ and its two gradients take up to 4e-14·M·N·K s longer on an H200, or 0.7 ms for this
# many (cupyops.ops.linear.odd). Forward and backward of the operator, with the copies of the operands, take 0.5 to 1 ms of the
# host's time. The last layer of BERT with 512 rows has 1.2e10, and the operator saved 0.1 ms of the GPU's time.
LEAST_PADDED = 2**34

# The types of plain tensors. An export without Dynamo runs the model on fake tensors.
PLAIN = frozenset({Tensor, FakeTensor})


def is_traced() -> bool:
    """Returns whether Dynamo or an export traces the model."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler._is_exporting_flag


def is_small(x: Tensor) -> bool:
    """Returns whether PyTorch computes a call with operand x.

    A compiled model calls the operators for any size: the compiled code spends less of the host's time on a call, and a
    condition on the size would be a guard that compiles the model again.

    A call in the capture of a CUDA graph is computed as the eager calls before the capture were. PyTorch computed those, so
    the kernel is not loaded, and CUDA forbids loading it during a capture.
    """
    return not is_traced() and x.numel() < LEAST_ELEMENTS and x.is_cuda


def is_small_product(x: Tensor) -> bool:
    """Returns whether a linear layer with operand x (..., K), and the GELU after the layer, stay two calls.

    They do for a result of fewer than :data:`LEAST_ELEMENTS` elements, if the layer has the N = 4·K of most models: the
    operator would record PyTorch's two nodes, after conditions that take more of the host's time. A product of few rows
    is a call of the operator, which has kernels of its own for few rows. Compiled models call the operator for any
    size, as :func:`is_small` says.
    """
    if is_traced() or not x.dim() or not x.is_cuda:
        return False
    return linear_config.MOST_FEW * x.size(-1) < x.numel() and 4 * x.numel() < LEAST_ELEMENTS


def is_small_padded(x: Tensor, n: int) -> bool:
    """Returns whether a product that the operator would pad (:mod:`cupyops.ops.linear.odd`) is so small that PyTorch computes it.

    Args:
        x: the operand (..., K) of the linear layer.
        n: the columns N of the result.
    """
    return not is_traced() and x.is_cuda and x.numel() * n < LEAST_PADDED
