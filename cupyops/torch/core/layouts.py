"""Gives the results of a reference the strides of the body's results.

A compiled graph is traced with the body, and its code relies on the strides that the body returned. On CPU tensors the
operator then runs the reference. PyTorch's functions choose other strides than a body if the arguments' strides differ
from each other.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cupyops import simulator

__all__ = ["on_fakes", "with_strides_of"]

MOST_KEPT = 256


def with_strides_of(body: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the reference with a step after it that copies a result whose strides are not those of the body.

    The body runs on fake tensors, once for all calls with the same shapes, strides and dtypes. Contiguous results of
    contiguous arguments have the body's strides, so that most calls skip the step. If the body cannot run on fake
    tensors, no graph is traced with it, and the results stay as they are.
    """
    kept: dict[Any, Sequence[tuple[int, ...] | None]] = {}

    def laid_out(*args: Any) -> Any:
        found = reference(*args)
        several = isinstance(found, (tuple, list))
        results = found if several else (found,)
        if all(x.is_contiguous() for x in (*args, *results) if isinstance(x, Tensor)):
            return found
        key = tuple((x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else repr(x) for x in args)
        wanted = kept.get(key)
        if wanted is None:
            if len(kept) == MOST_KEPT:
                kept.clear()
            wanted = kept[key] = _strides(body, args, len(results))
        laid = [y if s is None or y.stride() == s else _copied(y, s) for y, s in zip(results, wanted, strict=True)]
        return tuple(laid) if several else laid[0]

    return laid_out


def on_fakes(body: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Calls a body on fake tensors. Those on the CPU are the simulator's, as in a call of the body on tensors with memory."""
    first = next((x for x in args if isinstance(x, Tensor)), None)
    with simulator.fake_call() if first is not None and first.is_cpu else nullcontext():
        return body(*args)


def _strides(body: Callable[..., Any], args: Sequence[Any], count: int) -> Sequence[tuple[int, ...] | None]:
    """Returns the strides of the body's results; None for a result that has none."""
    mode = FakeTensorMode()
    try:
        with mode, torch.no_grad():
            found = on_fakes(body, [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in args])
    except Exception:  # any exception: the call itself is valid, since the reference has accepted it
        return [None] * count
    given = found if isinstance(found, (tuple, list)) else (found,)
    return [y.stride() if isinstance(y, Tensor) else None for y in given]


def _copied(y: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(y.shape, strides, dtype=y.dtype, device=y.device).copy_(y)
