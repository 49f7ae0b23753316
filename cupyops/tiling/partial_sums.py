"""Sums over the sums of persistent blocks, by ``kernels_cu/column_sums.cu``."""

from dataclasses import dataclass

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


def _kernels(width: int, at_once: int) -> dict[int, Kernel]:
    text = kernels_cu.source("column_sums")
    return {m: _PartialSums(m, width, at_once).kernel(text, "column_sums", dtypes=FLOATS) for m in (1, 2)}


# By the number of matrices. Many parts have few columns: 32 threads of a block add up a column. Few parts have many columns: one
# thread has a column, so that no thread of a block is idle.
_OF_MANY, _OF_FEW = _kernels(32, 32), _kernels(128, 1)


def partial_sums(matrices: int, parts: int) -> Kernel:
    """Returns the kernel that sums the columns of one or two matrices (parts, N). Its arguments are the matrices, a result (N) or
    None for each of two matrices, parts and N. The order of a sum depends on `parts` alone.
    """
    return (_OF_FEW if parts <= _FEW else _OF_MANY)[matrices]
