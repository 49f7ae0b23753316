"""rotary_embedding: the kernels of ``kernels_cu/rotary_embedding.cu``."""

import functools

import kernels_cu
from cupyops.dtypes import FLOATS
from cupyops.launch.geometry import Threads
from cupyops.launch.kernel import Kernel

__all__ = ["MOST_HEADS", "TEXT", "kernel_of"]

TEXT = kernels_cu.source("rotary_embedding")
MOST_HEADS = 4  # rows of a thread: eight loads of 16 bytes are in flight


@functools.cache
def kernel_of(ndim: int, each: int, heads: int, interleaved: bool, backward: bool, wide: bool) -> Kernel:
    """Returns the kernel for loops of ``ndim`` dimensions; the other arguments are the macros of the text."""
    constants = {"NDIM": ndim, "EACH": each, "HEADS": heads}
    constants |= {"INTERLEAVED": int(interleaved), "BACKWARD": int(backward), "WIDE": int(wide)}
    return Kernel(TEXT, "rotary_embedding", Threads("groups", block=(128, 1, 1)), dtypes=FLOATS, constants=constants)


# Declares kernels for warmup() and the compile command: heads of a batch of sequences, with tables for each position.
for _of in (False, True):
    for _back in (False, True):
        kernel_of(4, 8, MOST_HEADS, _of, _back, False)
