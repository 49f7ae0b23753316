"""Sums over the sums of persistent blocks, by ``kernels_cu/column_sums.cu``."""

from dataclasses import dataclass
from functools import cache

import kernels_cu
from cupyops.dtypes import FLOATS
from cupyops.launch.geometry import Threads
from cupyops.launch.kernel import Kernel

from .config import Config

__all__ = ["partial_sums"]

_FEW = 32  # parts that one thread adds up for a column


@dataclass(frozen=True)
class _PartialSums(Config):
    """The macros of ``column_sums.cu``."""

    matrices: int
    width: int
    at_once: int

    @property
    def geometry(self) -> Threads:
        return Threads("N", block=(self.width, self.at_once, 1))


@cache
def partial_sums(matrices: int, parts: int) -> Kernel:
    """Returns the kernel that sums the columns of one or two matrices (parts, N), a function of the matrices, a result (N) or
    None for each of two matrices, parts and N.

    Many parts have few columns: 32 threads of a block add up a column. Few parts have many columns: one thread has a column, so
    that no thread of a block is idle. Both orders of a sum depend on `parts` alone.
    """
    config = _PartialSums(matrices, 128, 1) if parts <= _FEW else _PartialSums(matrices, 32, 32)
    return _kernel(config)


@cache
def _kernel(config: _PartialSums) -> Kernel:
    return config.kernel(kernels_cu.source("column_sums"), "column_sums", *({"scalar_t": dtype} for dtype in FLOATS))
