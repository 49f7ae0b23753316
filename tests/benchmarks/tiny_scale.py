"""Small models, in place of :mod:`benchmarks.scale.models`."""

from dataclasses import replace
from typing import Any

from torch import nn

from benchmarks.scale.models import characters

__all__ = ["MODELS", "TINY"]

TINY = characters(1, 2, 16, 8, 4, name="tiny")


def _broken(variant: str) -> Any:
    raise ValueError("this model\ncannot be built")


MODELS = (TINY, replace(TINY, name="broken", build=_broken, split=lambda model, mesh: nn.Identity()))
