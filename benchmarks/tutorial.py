"""The steps of ``docs/tutorials/3_row_reduction.md``, taken from the page itself: RMSNorm on bfloat16 rows of 4096 elements."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cases import SIZES, Case, Operand
from .peers import compiled

__all__ = ["cases"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "3_row_reduction.md"
STEPS = ("naive", "coalesced", "vectorised")
N = 4096


@cache
def page() -> dict[str, Any]:
    """Returns the names that the page's samples define, without the last sample, which uses them."""
    samples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {"__name__": "tutorial", "print": lambda *_: None}
    for sample in samples[:-1]:
        exec(compile(sample, str(PAGE), "exec"), scope)
    return scope


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (N,), weight, 1e-5)


def added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return norm(s, weight), s


def cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Each step, then the last two on a sum, at the largest size."""
    x, weight = Operand((max(sizes) // N, N), torch.bfloat16), Operand((N,), torch.bfloat16)
    for step in STEPS:
        yield Case("tutorial", step, "forward", (x, weight), (x,), _made(page()[step], norm), norm)
    eps = page()["EPS"]

    def two(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        s = x + residual
        return page()["vectorised"](s, weight), s

    def fused(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = page()["fused"](x, residual, weight, eps)
        return found

    for variant, function in (("add, vectorised", two), ("fused", fused)):
        yield Case("tutorial", variant, "forward", (x, x, weight), (x, x), _made(function, added), added)


def _made(step: Callable[..., Any], theirs: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    return {"ours": lambda: step, "eager": lambda: theirs, "compile": lambda: compiled(theirs)}
