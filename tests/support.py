"""Small things that several test files use."""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from cupyops.simulator import build

# Seconds after which a test takes what it waits for to hang. A loaded machine makes everything slow, and does not come near.
HANG = 1800
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits (NaN equals NaN, -0 does not equal 0)."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    kind = _BITS[a.element_size()]
    return torch.equal(a.detach().contiguous().view(kind), b.detach().contiguous().view(kind))


def give_runtime(root: Path) -> None:
    """Copies the simulator's runtime into an empty cache of the simulator, which takes seconds to compile it."""
    entry = build.runtime_path().parent
    shutil.copytree(entry, root / entry.name)
