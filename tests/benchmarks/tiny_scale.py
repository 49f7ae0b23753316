"""Small models, in place of :mod:`benchmarks.scale.models`.

``python -m tests.benchmarks.tiny_scale FILE`` trains them on two CPU processes, in every way, eager and with selective
checkpointing, and saves the document. ``python -m tests.benchmarks.tiny_scale FILE "broken ranks"`` trains a model on which a
process hangs, one on which it dies, and one that is right.
"""

import gc
import os
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.scale.models import characters, images

__all__ = ["MODELS", "TINY"]

TINY = characters(1, 2, 16, 8, 4, name="tiny")
WIDTH, HEADS, PATCH, SIZE = 16, 2, 4, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.attn_dim = HEADS, WIDTH
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, positions, _ = x.shape
        qkv = self.qkv(x).reshape(rows, positions, 3, self.num_heads, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        y = self.proj(y.transpose(1, 2).reshape(rows, positions, self.attn_dim))
        return y  # noqa: RET504 - as it is written in timm


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        return self.fc2(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x  # noqa: RET504 - as it is written in timm


class VisionTransformer(nn.Module):
    """timm's, with its names."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.pos_embed = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2, WIDTH) / 50)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x.mean(1))


def _broken(variant: str) -> Any:
    raise ValueError("this model\ncannot be built")


def _hangs(variant: str) -> Any:
    time.sleep(1000 if dist.get_rank() == 1 else 0)
    return TINY.build(variant)


def _dies(variant: str) -> Any:
    if dist.get_rank() == 1:
        os._exit(3)
    return TINY.build(variant)


TIMEOUT = 45  # seconds; to start the processes takes more than ten on a busy machine
TINY_VIT = images(4, "tiny vit", VisionTransformer, SIZE)
BROKEN = replace(TINY, name="broken", build=_broken, split=lambda model, mesh: nn.Identity())
BROKEN_RANKS = [replace(TINY, name="hangs", build=_hangs), replace(TINY, name="dies", build=_dies), TINY]
MODELS = (TINY, TINY_VIT, BROKEN, *BROKEN_RANKS[:2])


def main(path: Path, ranks_break: bool) -> None:
    # What each rank would import for itself.

    import benchmarks.scale.steps  # noqa: F401
    from benchmarks.scale import report
    from benchmarks.scale.__main__ import WAYS, Chosen, run

    start = mp.start_processes

    def forked(function: Any, arguments: tuple[Any, ...], **options: Any) -> Any:
        """Starts processes by fork, which have this process's imports; a new interpreter only takes what can be
        pickled."""
        pickle.dumps((function, arguments))
        return start(function, arguments, **{**options, "start_method": "fork"})

    mp.start_processes = forked  # type: ignore[assignment]
    gc.collect = lambda *_: 0  # it takes half of the time, and serves measurements of memory
    document = report.new({"gpu": "no GPU", "timm": "1"}, 2)
    zoo = "tests.benchmarks.tiny_scale"
    if ranks_break:
        names = [model.name for model in BROKEN_RANKS]
        run(document, path, "cpu", Chosen(names, ("ddp",), ("eager",), 1, False, zoo), timeout=TIMEOUT)
    else:
        names = [model.name for model in (TINY, TINY_VIT, BROKEN)]
        run(document, path, "cpu", Chosen(names, WAYS, ("eager", "checkpointing"), 2, zoo=zoo))
    assert not document["rows"], "the processes have a copy"


if __name__ == "__main__":
    main(Path(sys.argv[1]), "broken ranks" in sys.argv)
