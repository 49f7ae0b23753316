"""The options of one run, and the sizes that a CPU and a GPU get unless asked otherwise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.console import UserError, check_common

__all__ = ["EXAMPLE", "SIZES", "Config", "learning_rate"]

EXAMPLE = "char_gpt"

# On two CPU cores a run takes about a minute. The GPU's model has 10.8 million parameters; its batches of 65536 characters
# keep a GPU of today busy for longer than Python takes to ask for a step.
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "layers": 3,
        "heads": 4,
        "width": 128,
        "context": 64,
        "batch_size": 16,
        "steps": 800,
        "eval_every": 200,
        "eval_batches": 20,
        "lr": 4e-3,
    },
    "cuda": {
        "layers": 6,
        "heads": 6,
        "width": 384,
        "context": 256,
        "batch_size": 256,
        "steps": 2000,
        "eval_every": 200,
        "eval_batches": 12,
        "lr": 1e-3,
    },
}
LONGEST_WARMUP = 100
LAST_LR_SHARE = 0.1


@dataclass(frozen=True)
class Config:
    """The options of the command line, under the same names, without a default for what depends on the device.

    `text=None` is the standard library, `out=None` writes nothing, an empty `prompt` a line's beginning. Raises
    `UserError` for values that cannot be.
    """

    layers: int
    heads: int
    width: int
    context: int
    batch_size: int
    steps: int
    eval_every: int
    eval_batches: int
    lr: float
    amp: bool
    text: Path | None = None
    prompt: str = ""
    sample_length: int = 300
    seed: int = 0
    device: str = "auto"
    backend: str = "kernels"
    compile: bool = False
    resume: bool = False
    out: Path | None = Path("runs/char_gpt")
    progress: bool = True

    @classmethod
    def for_device(cls, device: torch.device, options: Mapping[str, Any]) -> "Config":
        """`options` as given, and for those that are absent or None what suits the device."""
        given = {name: value for name, value in options.items() if value is not None}
        # Without bfloat16 units, before compute capability 8.0, autocast would cost time instead of saving it.
        amp = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return cls(**{"amp": amp, **SIZES[device.type], **given})

    def __post_init__(self) -> None:
        check_common(self.backend, self.seed)
        whole = ("layers", "heads", "width", "context", "batch_size", "steps", "eval_every", "eval_batches")
        for name in (*whole, "sample_length"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise UserError(f"--width must be a multiple of --heads, got {self.width} and {self.heads}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a positive number, got {self.lr}")
        if self.resume and self.out is None:
            raise UserError("--resume needs the folder of the run: --out DIR")

    def settings(self, device: torch.device, fingerprint: str) -> dict[str, object]:
        """All that decides the numbers: a resumed run must repeat it.

        The number of steps is part of it, because the learning rate falls towards the last.
        """
        names = (
            *("layers", "heads", "width", "context", "batch_size", "steps", "lr"),
            *("amp", "seed", "backend", "compile"),
        )
        return {**{name: getattr(self, name) for name in names}, "device": device.type, "text": fingerprint}


def learning_rate(config: Config, step: int) -> float:
    """What step `step`, counted from 0, is taken with: a linear rise to ``--lr``, then half a cosine down to a tenth."""
    warmup = min(LONGEST_WARMUP, max(1, config.steps // 10))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - warmup)
    return config.lr * (LAST_LR_SHARE + (1 - LAST_LR_SHARE) * (1 + math.cos(math.pi * progress)) / 2)
