"""What a rewritten method calls in place of single functions: GELU of a model's own, and PyTorch's functions."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch.compiled.frames import inlined_only
from cupyops.torch.core.conditions import in_graph
from cupyops.torch.ops.gelu import gelu, gelu_node
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.rms_norm import rms_norm

from .leaves import by_operator
from .parallel import is_changed
from .recognise import RMS_NORM_KEEPS_DTYPE, Form
from .small import PLAIN, is_small

__all__ = ["FUNCTIONS", "GeluCall", "as_operator", "is_hooked", "is_observed", "known_function"]


class GeluCall:
    """Calls the operator GELU. Takes the place of a function that computes GELU, or of a module that computes GELU and
    is not part of the model.

    Attributes:
        form: the form that the function computes.
        function: the function, called for tensor subclasses.
    """

    __slots__ = ("form", "function")

    def __init__(self, form: Form, function: Callable[..., Any]) -> None:
        self.form = form
        self.function = function

    @inlined_only
    def __call__(self, x: Any) -> Any:
        if type(x) in PLAIN and (approximate := self._cupyops_gelu(x)) is not None and not is_observed(self):
            if in_graph():
                return gelu_node(x, approximate)
            return F.gelu(x, approximate=approximate) if is_small(x) else gelu(x, approximate)
        return self.function(x)

    def _cupyops_gelu(self, x: Tensor) -> str | None:
        return self.form.approximate if self.form.exact or x.dtype is not torch.float64 else None


def _functional(operator: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a drop-in for a function of ``torch.nn.functional``."""

    @inlined_only
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if type(input) in PLAIN and not is_small(input):
            return operator(input, *args, **kwargs)
        return function(input, *args, **kwargs)

    return call


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    if weight is None or weight.dtype is input.dtype or RMS_NORM_KEEPS_DTYPE:
        return rms_norm(input, normalized_shape, weight, eps)
    return F.rms_norm(input, normalized_shape, weight, eps)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    return layer_norm(input, normalized_shape, weight, bias, eps)


# The functions of PyTorch that a rewritten method calls operators for: the operator's name and the drop-in.
FUNCTIONS: dict[Any, tuple[str, Callable[..., Any]]] = {
    F.gelu: ("gelu", _functional(gelu, F.gelu)),
    F.layer_norm: ("layer_norm", _functional(_layer_norm, F.layer_norm)),
    F.rms_norm: ("rms_norm", _functional(_rms_norm, F.rms_norm)),
    nn.LayerNorm.forward: ("layer_norm", by_operator(nn.LayerNorm.forward)),
    nn.RMSNorm.forward: ("rms_norm", by_operator(nn.RMSNorm.forward)),
}


_CALLS: dict[Any, GeluCall] = {F.gelu: GeluCall(Form("none", True), F.gelu)}


def known_function(function: Callable[..., Any], form: Form) -> GeluCall:
    """Returns the call of GELU for a function that computes GELU, which :func:`as_operator` finds from then on."""
    return _CALLS.setdefault(function, GeluCall(form, function))


def as_operator(function: Any) -> Any:
    """Returns the call of GELU for a function that is known to compute GELU, and every other object as it is."""
    try:
        return _CALLS.get(function, function)
    except TypeError:  # an object that has no hash
        return function


def is_observed(module: Any, traced: bool = False) -> bool:
    """Returns whether a call of a module does more than its class's ``forward``.

    Args:
        module: the module, a function, or a :class:`GeluCall`.
        traced: whether Dynamo traces, which traces through a compiled module.
    """
    if isinstance(module, GeluCall):
        module = module.function
    return isinstance(module, nn.Module) and is_hooked(module, traced)


def is_hooked(module: Any, traced: bool) -> bool:
    """Returns whether a module has hooks, or a changed ``forward``, as :func:`is_observed` does for modules."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or is_changed(module, traced)
