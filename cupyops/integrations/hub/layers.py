"""Layers whose ``forward`` Hugging Face's ``kernels`` puts in the place of a module's own.

A layer has no state: it reads the parameters of the module that it is put into. Where the operator's result might have
another dtype than the module's, the module's own ``forward`` runs: for a weight of another dtype than x, for 16-bit rows
under autocast, and for subclasses of ``Tensor``. In eager mode on a GPU, PyTorch's own functions compute calls on few
elements, as in models after :func:`cupyops.torch.optimize` (:mod:`cupyops.torch.models.small`).
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import geglu, gelu, rms_norm
from cupyops.torch.models.leaves import by_operator
from cupyops.torch.models.recognise import gate_form, gelu_candidate, gelu_form
from cupyops.torch.models.rotary import drop_in
from cupyops.torch.models.small import is_small, is_traced
from cupyops.torch.ops.gated import GATES

__all__ = ["GELU", "GELUTanh", "GatedMLP", "LayerNorm", "RMSNorm", "RMSNormZeroCentered", "RotaryEmbedding"]


def _keeps_dtype(x: Tensor, weight: Tensor) -> bool:
    """Returns whether the operator and a module in elementary operations both return the dtype of x."""
    wide = x.dtype is torch.float32 or x.dtype is torch.float64
    return type(x) is Tensor and weight.dtype is x.dtype and (wide or not torch.is_autocast_enabled("cuda"))


class LayerNorm(nn.Module):
    """For ``nn.LayerNorm``."""

    has_backward = True
    can_torch_compile = True

    forward = by_operator(nn.LayerNorm.forward)


class RMSNorm(nn.Module):
    """For modules that compute x/√(mean x² + eps)·weight, such as transformers' ``LlamaRMSNorm``, and for ``nn.RMSNorm``."""

    has_backward = True
    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.weight
        if weight is None or not _keeps_dtype(x, weight):
            return type(self).forward(self, x)
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        function = F.rms_norm if is_small(x) else rms_norm
        return function(x, weight.shape, weight, eps)


class RMSNormZeroCentered(nn.Module):
    """For modules that scale by 1 + weight, such as transformers' ``Qwen3_5RMSNorm``."""

    has_backward = True
    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        if not _keeps_dtype(x, self.weight):
            return type(self).forward(self, x)
        # In float32, as in the modules: 1 + weight in 16 bits would lose bits. PyTorch has no kernel for such a scale.
        return rms_norm(x, self.weight.shape, 1 + self.weight.to(torch.float32), self.eps)


class GELU(nn.Module):
    """For transformers' ``GELUActivation``, and for ``nn.GELU``."""

    has_backward = True
    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        if type(x) is not Tensor:
            return type(self).forward(self, x)
        approximate = self.approximate if hasattr(self, "approximate") else "none"
        return F.gelu(x, approximate=approximate) if is_small(x) else gelu(x, approximate)


class GELUTanh(nn.Module):
    """For every spelling of GELU by tanh: transformers' ``GELUTanh``, ``NewGELUActivation`` and ``FastGELUActivation``."""

    has_backward = True
    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        if type(x) is not Tensor or x.dtype is torch.float64:  # FastGELU's constants have ten digits
            return type(self).forward(self, x)
        return F.gelu(x, approximate="tanh") if is_small(x) else gelu(x, "tanh")


class GatedMLP(nn.Module):
    """For modules that compute down_proj(act_fn(gate_proj(x))·up_proj(x)), such as transformers' ``LlamaMLP``: the activation and
    the product are one call, for SiLU, ReLU and GELU. A compiled model runs the module's own ``forward``, whose operations on
    single elements fuse."""

    has_backward = True
    can_torch_compile = True

    def forward(self: Any, x: Tensor) -> Tensor:
        unit = None if is_traced() or type(x) is not Tensor else _unit_of(self.act_fn)
        if unit is None:
            return type(self).forward(self, x)
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(self.act_fn(gate) * up if is_small(gate) else unit(gate, up))


class RotaryEmbedding(nn.Module):
    """For functions such as transformers' ``apply_rotary_pos_emb``, of which ``kernels`` makes modules. The layer
    compares the function with the operator on a few numbers, once. A function that differs runs itself, and so does every
    function in a compiled model."""

    has_backward = True
    can_torch_compile = True

    def forward(
        self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        if is_traced():
            return type(self).forward(self, q, k, cos, sin, unsqueeze_dim)
        function = MethodType(type(self).forward, self)
        found = drop_in("rotary_pos_emb", function)
        return (function if isinstance(found, str) else found)(q, k, cos, sin, unsqueeze_dim)


_units: WeakKeyDictionary[nn.Module, Callable[..., Tensor] | None] = WeakKeyDictionary()


def _unit_of(activation: Any) -> Callable[..., Tensor] | None:
    """Returns the gated unit of an activation, which is found by values once, or None."""
    if not isinstance(activation, nn.Module) or getattr(activation, "inplace", False):
        return None
    if activation not in _units:
        function = gate_form(activation)
        unit = None if function is None else GATES[function]
        if unit is None and gelu_candidate(activation):
            form, _ = gelu_form(lambda x: type(activation).forward(activation, x))
            unit = None if form is None else partial(geglu, approximate=form.approximate)
        _units[activation] = unit
    return _units[activation]
