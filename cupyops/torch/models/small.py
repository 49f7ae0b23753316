"""Which calls of a module stay PyTorch's: those on few elements, in eager mode.

A call costs time of the host and time of the GPU. On few elements the GPU waits for the host, and PyTorch's operators,
which are C++, take less of the host's time than a Python function that launches a kernel. On many elements the host
waits for the GPU, and the faster kernel decides.
"""

import torch
from torch import Tensor

__all__ = ["LEAST_ELEMENTS", "is_small"]

# PyTorch's layer norm takes about 60 us of the host's time for forward and backward, and its kernels take as long for
# some 2^22 elements in 16 bits on an H200. Half of that: where the host has nothing to wait for, the two are even.
LEAST_ELEMENTS = 2**21

_is_traced = torch.compiler.is_dynamo_compiling


def is_small(x: Tensor) -> bool:
    """Returns whether a call with operand x stays PyTorch's.

    A compiled model calls the operators for any size: the compiled code spends less of the host's time on a call, and a
    condition on the size would be a guard that compiles the model again.

    A call in the capture of a CUDA graph takes the road of the eager calls before the capture. The operator's first
    call loads a kernel, which CUDA forbids during a capture. Eager calls on as few elements have not loaded the kernel.
    """
    return not _is_traced() and x.numel() < LEAST_ELEMENTS and x.is_cuda
