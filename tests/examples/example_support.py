"""What the tests of every training example share: silence, and checkpoints to compare."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def quiet(_: str) -> None:
    """Take the place of print."""


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def numbers(value: Any) -> Any:
    """A checkpoint without its times: everything that a resumed run must reproduce."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items() if not str(k).endswith("seconds") and k != "gpu"}
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.flatten().tolist()
    return [numbers(v) for v in value] if isinstance(value, (list, tuple)) else value
