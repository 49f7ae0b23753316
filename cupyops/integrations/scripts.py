"""Optimizes every model of a program that does not know of this package: :func:`optimizing`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from cupyops.torch.models.report import OptimizeReport
from cupyops.torch.models.swap import optimize

__all__ = ["optimizing"]


def _python_module(module: nn.Module) -> nn.Module | None:
    """Returns the model that ``torch.compile`` got, or the module itself, or None for a scripted module."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    while dynamo is not None and isinstance(module, dynamo.OptimizedModule):
        module = module._orig_mod
    return None if isinstance(module, torch.jit.ScriptModule) else module


@contextmanager
def optimizing(found: Callable[[OptimizeReport], object] = lambda report: None) -> Iterator[None]:
    """Runs :func:`cupyops.torch.optimize` on each model that is called inside a ``with`` block, before its first call.

    A model is a module that no other module calls. Parameters stay the same objects, so an optimizer that was made earlier
    updates the model. A model that ``torch.compile`` got is optimized before Dynamo traces its first call. The models stay
    optimized after the block.

    ``nn.Module.__call__`` is replaced outside of calls of models, and is PyTorch's own inside of one. A global hook, the
    other way to see each call, would stay during the calls of the inner modules: each of them would take the path with
    hooks, on which modules are not fused.

    Args:
        found: called with the report of each model.

    >>> model = nn.Sequential(nn.Linear(8, 32), nn.GELU())
    >>> with optimizing(print):
    ...     y = model(torch.randn(2, 8))
    optimize(Sequential): 2 places call cupyops, 0 are left alone
      gelu: 1 x GELU: 1
      linear_gelu: 1 x 0, 1: (the model)
    """
    seen: WeakSet[nn.Module] = WeakSet()
    theirs: Any = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a compiled function: Dynamo inlines the model's modules as they are
            return theirs(self, *args, **kwargs)
        nn.Module.__call__ = theirs  # type: ignore[method-assign]
        try:
            if self not in seen:
                seen.add(self)
                model = _python_module(self)
                if model is not None:
                    found(optimize(model))
            return theirs(self, *args, **kwargs)
        finally:
            nn.Module.__call__ = ours[-1]  # type: ignore[method-assign]

    ours = [theirs, call]
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        ours.pop()  # a model may be calling, in another thread
        nn.Module.__call__ = theirs  # type: ignore[method-assign]
