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


def _captures() -> bool:
    return torch.cuda.is_current_stream_capturing()


def is_small(x: Tensor) -> bool:
    """Returns whether a call with operand x stays PyTorch's.

    A compiled model calls the operators for any size, and so does a call that a CUDA graph captures: the host's time is
    spent once there.
    """
    return not _is_traced() and x.numel() < LEAST_ELEMENTS and x.is_cuda and not _captures()
