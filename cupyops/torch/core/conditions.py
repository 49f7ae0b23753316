"""Asks PyTorch what observes a call: a trace, a transform, a mode, autocast, forward-mode differentiation."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, compiler
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cupyops import simulator

__all__ = [
    "alone",
    "any_autocast",
    "dispatch_modes",
    "forward_mode",
    "grad_enabled",
    "has_nested",
    "has_tangent",
    "in_graph",
    "in_plain_backward",
    "is_compiling",
    "is_scripted",
    "is_traced",
    "no_autocast",
    "rows_of",
    "rows_of_traced",
    "selective",
    "transforms_active",
]

transforms_active = torch._C._are_functorch_transforms_active
dispatch_modes = torch._C._len_torch_dispatch_stack
grad_enabled = torch.is_grad_enabled
# Dynamo replaces calls of this function by True. A call takes a third of the time of torch.compiler.is_compiling, which
# also returns True during an export; an exported tensor is not a plain tensor.
is_traced = torch.compiler.is_dynamo_compiling
# The state of torch.jit.trace, or None. It records PyTorch's operations, and would not record a launch.
is_scripted = torch._C._get_tracing_state
# Whether autocast is on for any type of device, and the context in which it is off for all of them. Every call of a body
# or a backward asks. torch.is_autocast_enabled takes twice as long for one type of device.
any_autocast = torch._C._is_any_autocast_enabled
no_autocast = torch._C._DisableAutocast

# The modes of selective checkpoints. A version of PyTorch without these private classes calls the registered operator.
_SELECTIVE = tuple(
    getattr(torch.utils.checkpoint, name)
    for name in ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode")
    if hasattr(torch.utils.checkpoint, name)
)
# Whether the key of AOTAutograd's cache on disk has the dtype of autocast. Older versions have whether autocast is on.
_AUTOCAST_IN_KEY = torch.__version__ >= (2, 13)  # type: ignore[operator]
# What torch.compile traces in place of plain tensors.
_TRACED = (FakeTensor, FunctionalTensor)
_mode_at = torch._C._get_dispatch_stack_at


def is_compiling() -> bool:
    """Returns whether Dynamo, AOTAutograd or an export traces a graph.

    In PyTorch 2.11, ``torch.compiler.is_compiling`` returns False while AOTAutograd traces the backward.
    """
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


def in_graph() -> bool:
    """Returns whether Dynamo traces a call for ``torch.compile`` that may become one node of its graph (:mod:`.composite`).

    The implementation of the node does not find forward mode, of whose level Dynamo keeps its own record. A graph of an
    export keeps the operator itself. A program may compile a graph and simulate later, so that Dynamo guards the choice.
    """
    return (
        is_traced()
        and forward_ad._current_level < 0
        and not (compiler._is_exporting_flag or simulator._setting.now.on)
        and (_AUTOCAST_IN_KEY or not (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")))
    )


def rows_of_traced(x: Any) -> Tensor | None:
    """Returns :func:`rows_of` while torch.compile traces a model; None for other tensors and calls."""
    return rows_of(x) if type(x) in _TRACED and is_compiling() and not compiler._is_exporting_flag else None


def rows_of(x: Tensor) -> Tensor | None:
    """Returns a tensor (A, B, C, K) as rows (A·B·C, K), and None for tensors of other dimensions.

    In a graph with convolutions, Inductor gives each tensor of four dimensions that a backward reads the order of
    channels-last memory. Operands and results of an operator on rows would be transposed twice. Rows stay as they are.
    """
    return x.flatten(0, 2) if x.dim() == 4 else None


def forward_mode() -> bool:
    """Returns whether ``torch.func.jvp`` or ``torch.autograd.forward_ad`` is active (forward-mode differentiation)."""
    return forward_ad._current_level >= 0


def has_tangent(args: Sequence[Any]) -> bool:
    """Returns whether one of the tensors carries a tangent of forward-mode differentiation.

    Returns True if PyTorch raises an error instead of returning the tangent, as it does while a graph is traced.
    """
    try:
        return any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args)
    except RuntimeError:
        return True


def has_nested(args: Sequence[Any]) -> bool:
    """Returns whether one of the arguments is a nested tensor of the layout ``torch.strided``. It is a plain tensor by its
    type, and has no shape."""
    return any(isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided for x in args)


def in_plain_backward(grad: Tensor) -> bool:
    """Returns whether the backward of a Function may call a body, in place of the operator around the body.

    The backward may call the body if the gradient is a plain tensor and nothing observes or records the call: no
    gradient of the gradient, no tracing, no transform, no dispatch mode, no forward mode. The saved tensors are plain,
    since the generated dispatch has checked them. Under autocast the operator is called, which disables it, and on a CPU
    the operator, which decides whether kernels are simulated.

    Args:
        grad: the gradient of a result.
    """
    return (
        type(grad) is Tensor
        and not (
            grad_enabled() or is_traced() or is_scripted() or transforms_active() or dispatch_modes() or any_autocast()
        )
        and forward_ad._current_level < 0
        and grad.is_cuda
        and not grad.is_neg()
    )


def selective() -> bool:
    """Returns whether the function of a selective checkpoint runs, in the forward or again in the backward."""
    return any(isinstance(mode, _SELECTIVE) for mode in _get_current_dispatch_mode_stack())


def alone() -> bool:
    """Returns whether the mode of a selective checkpoint is the only mode.

    A call may then hide operations on plain tensors from the policy, by ``torch._C._DisableTorchDispatch``: views, and
    autocast's copies of parameters. They cost little to compute again, and the policy takes more host time than a view.
    """
    return dispatch_modes() == 1 and isinstance(_mode_at(0), _SELECTIVE)
