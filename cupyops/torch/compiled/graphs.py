"""Lets functions rewrite the graphs that Dynamo traces for Inductor, before PyTorch differentiates the graphs.

Inductor's only public setting for such functions may be in use by the program itself. This module calls
the functions before Inductor's passes. If PyTorch lacks the place, the graphs stay as they are (:mod:`.private`).
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from torch._guards import TracingContext
from torch.fx import GraphModule

from .private import REWRITTEN, has

__all__ = ["before_gradients", "prepare"]

_MODULE, _PASSES = "torch._inductor.compile_fx", "_recursive_pre_grad_passes"
_FUNCTIONS: list[Callable[[GraphModule], Any]] = []


def before_gradients(function: Callable[[GraphModule], Any]) -> None:
    """Registers a function that rewrites each graph with an operator of this package, in place."""
    _FUNCTIONS.append(function)


def prepare() -> None:
    """Makes Inductor call the functions.

    Inductor compiles a graph that Dynamo has traced. PyTorch may import Inductor only then, which would be too late for the
    first graph of a process, so it is imported here.
    """
    inductor: Any = sys.modules.get(_MODULE)
    if inductor is None and TracingContext.try_get() is not None:
        inductor = importlib.import_module(_MODULE)
    passes = getattr(inductor, _PASSES, None)
    if passes is not None and not hasattr(passes, "cupyops") and has(REWRITTEN):
        setattr(inductor, _PASSES, _before(passes))


def _before(passes: Any) -> Any:
    @functools.wraps(passes)
    def rewritten(graph: GraphModule, *args: Any, **kwargs: Any) -> Any:
        for function in _FUNCTIONS:
            function(graph)
        return passes(graph, *args, **kwargs)

    rewritten.cupyops = True  # type: ignore[attr-defined]
    return rewritten
