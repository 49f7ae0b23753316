"""Tells Dynamo which Python functions it compiles only as a part of their callers."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .private import INLINED, has

__all__ = ["inlined_only"]

F = TypeVar("F", bound=Callable[..., Any])


def inlined_only(function: F) -> F:
    """Lets Dynamo compile a function only as a part of a compiled caller; returns the function.

    Dynamo treats the functions of ``torch.nn`` in this way. Where a model's ``forward`` cannot be compiled, Dynamo
    compiles the functions that it calls, each by itself. A compiled function that makes a single call of an operator
    takes more of the host's time than the call. The same holds for the functions that the function calls. If PyTorch
    lacks the interface, the function is returned unchanged (:mod:`.private`).
    """
    if has(INLINED):
        dynamo: Any = torch._C._dynamo.eval_frame
        action = dynamo._FrameAction
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(action.SKIP, action.SKIP))
    return function
