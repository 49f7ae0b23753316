"""A table of small models, in place of :mod:`benchmarks.models.zoo`."""

import torch
from torch import nn

from benchmarks.models.zoo import Model, Tensors

__all__ = ["MODELS", "TINY"]


def _loss(model: nn.Module, given: Tensors) -> torch.Tensor:
    loss: torch.Tensor = model(given["x"]).square().mean()
    return loss


def _draw(batch: int, generator: torch.Generator) -> Tensors:
    return {"x": torch.randn(batch, 8, generator=generator)}


def _broken() -> nn.Module:
    raise ValueError("this model\ncannot be built")


TINY = Model(
    "tiny",
    lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    _draw,
    _loss,
    full=4,
)
MODELS = (TINY, Model("broken", _broken, _draw, _loss, full=4))
