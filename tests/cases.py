"""The shipped operators, as the tests that hold for every operator see them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as bridge
from cupyops.torch.ops.layer_norm import _layer_norm_inference

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        ours, theirs: of tensors; PyTorch's own operator for comparison.
        op: what ``torch.library`` knows it as.
        arguments: from the tensors to the arguments of ``op``.
        tensors: how many it takes, all of one shape.
        elementwise: each element of the result is made of the elements at its place alone.
        library: it holds a matrix product of a library, whose bits depend on the layout and on the number of rows.
        atol: how far from PyTorch's own a float32 result may be, beside a relative 1e-4.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    op: Any
    arguments: Callable[..., tuple[Any, ...]]
    tensors: int
    elementwise: bool = True
    atol: float = 1e-6
    library: bool = False

    def through_library(self, *tensors: Tensor) -> Tensor:
        """The result of ``op``: the first, where there are several."""
        found = self.op(*self.arguments(*tensors))
        return found if isinstance(found, Tensor) else found[0]

    def inputs(
        self, device: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (37, 19)
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(self.tensors)]


# Operators without a case, which no function of tensors of one shape can stand for, and where the same is asked of them.
EXEMPT = {"lltm": "tests/operators/test_lltm_sequence.py and test_lltm_sequence_use.py"}


def _and(*extra: Any) -> Callable[..., tuple[Any, ...]]:
    return lambda *tensors: (*tensors, *extra)


def _last(x: Any) -> tuple[int, ...]:
    """The last dimension; of what is no tensor, any."""
    return tuple(getattr(x, "shape", (1,))[-1:])


def _row(x: Any) -> Any:
    """A weight for the last dimension of x; of what is no tensor, None."""
    if not isinstance(x, Tensor):
        return None
    return 1 + torch.arange(x.shape[-1], device=x.device).remainder(7).to(x.dtype) / 8


def _add_layer_norm(x: Tensor, residual: Tensor) -> Tensor:
    s = x + residual
    return F.layer_norm(s, _last(s)).to(s.dtype)


def _square(x: Any) -> Tensor:
    """A weight that keeps x's last dimension; for what is no tensor, any."""
    n = _last(x)[0]
    numbers = torch.arange(n, device=getattr(x, "device", None))
    weight = (numbers.unsqueeze(1) * 7 + numbers * 3) % 11 / 11 - 0.5
    return weight.to(x.dtype) if isinstance(x, Tensor) else weight


def _with_weight(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """A linear function of x alone; of very long rows, element by element, since the weight is a square."""

    def of_x(x: Tensor) -> Tensor:
        long = _last(x)[0] > 2048
        rows = x.unsqueeze(-1) if long else x
        weight = _square(rows)
        y = function(rows, weight, weight.sum(1))
        return y.squeeze(-1) if long else y

    return of_x


def _narrow(x: Any) -> Any:
    """Rows short enough for a square of weights; of what is no tensor, itself."""
    n = _last(x)[0] if isinstance(x, Tensor) else 1
    return x if n <= 64 else x.reshape(-1, max(d for d in range(1, 33) if n % d == 0))


def _lltm_parameters(like: Any) -> tuple[Tensor, Tensor]:
    """Weights and bias for as many features as units, the same ones every time."""
    n = _last(like)[0]
    device, dtype = getattr(like, "device", None), getattr(like, "dtype", torch.float32)
    weights = torch.arange(6 * n * n, device=device, dtype=torch.float32).reshape(3 * n, 2 * n)
    bias = torch.arange(3 * n, device=device, dtype=torch.float32)
    return (weights.sin() / max(n, 1) ** 0.5).to(dtype), bias.cos().to(dtype)


def _lltm_cell(x: Tensor, state: Tensor) -> Tensor:
    rows, states = _narrow(x), _narrow(state)
    h, c = bridge.lltm_cell(rows, *_lltm_parameters(rows), states, states)
    return (h + c).reshape(getattr(x, "shape", ()))


def _lltm_cell_theirs(x: Tensor, state: Tensor) -> Tensor:
    shape = x.shape
    x, state = _narrow(x), _narrow(state)
    weights, bias = _lltm_parameters(x)
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        lower = torch.get_autocast_dtype(x.device.type)
        x, state, weights, bias = (t.to(lower) for t in (x, state, weights, bias))
    z_i, z_o, z_g = F.linear(torch.cat((state, x), -1), weights, bias).chunk(3, -1)
    c = state + F.elu(z_g) * z_i.sigmoid()
    return (c.tanh() * z_o.sigmoid() + c).reshape(shape)


def _lltm_arguments(x: Tensor, state: Tensor) -> tuple[Any, ...]:
    return (x, *_lltm_parameters(x), state, state)


CASES = [
    Case("add2", bridge.add2, torch.add, torch.ops.cupyops.add2.default, _and(1), 2),
    Case(
        "add2_alpha",
        lambda a, b: bridge.add2(a, b, alpha=-0.3),
        lambda a, b: torch.add(a, b, alpha=-0.3),
        torch.ops.cupyops.add2.default,
        _and(-0.3),
        2,
    ),
    Case("gelu", bridge.gelu, F.gelu, torch.ops.cupyops.gelu.default, _and("none"), 1),
    Case(
        "gelu_tanh",
        lambda x: bridge.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        torch.ops.cupyops.gelu.default,
        _and("tanh"),
        1,
    ),
    Case(
        "gelu_backward",
        bridge.gelu_backward,
        torch.ops.aten.gelu_backward,
        torch.ops.cupyops.gelu_backward.default,
        _and("none"),
        2,
    ),
    Case(
        "layer_norm",
        lambda x: bridge.layer_norm(x, _last(x)),
        lambda x: F.layer_norm(x, _last(x)),
        torch.ops.cupyops.layer_norm.default,
        lambda x: (x, None, None, _last(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "layer_norm_inference",
        lambda x: _layer_norm_inference(x, None, None, _last(x), 1e-5),
        lambda x: F.layer_norm(x, _last(x)),
        torch.ops.cupyops.layer_norm_inference.default,
        lambda x: (x, None, None, _last(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "add_layer_norm",
        lambda x, residual: bridge.add_layer_norm(x, residual, _last(x))[0],
        _add_layer_norm,
        torch.ops.cupyops.add_layer_norm.default,
        lambda x, residual: (x, residual, None, None, _last(x), 1e-5),
        2,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "rms_norm",
        lambda x: bridge.rms_norm(x, _last(x), _row(x)),
        lambda x: F.rms_norm(x, _last(x), _row(x)),
        torch.ops.cupyops.rms_norm.default,
        lambda x: (x, _row(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "rms_norm_without_weight",
        lambda x: bridge.rms_norm(x, _last(x)),
        lambda x: F.rms_norm(x, _last(x)),
        torch.ops.cupyops.rms_norm_without_weight.default,
        lambda x: (x, 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "linear",
        _with_weight(bridge.linear),
        _with_weight(F.linear),
        torch.ops.cupyops.linear.default,
        lambda x: (x, w := _square(x), w.sum(1)),
        1,
        elementwise=False,
        atol=1e-4,
        library=True,
    ),
    Case(
        "linear_gelu",
        _with_weight(bridge.linear_gelu),
        _with_weight(lambda *operands: F.gelu(F.linear(*operands))),
        torch.ops.cupyops.linear_gelu.default,
        lambda x: (x, w := _square(x), w.sum(1), "none"),
        1,
        elementwise=False,
        atol=1e-4,
        library=True,
    ),
    Case(
        "lltm_cell",
        _lltm_cell,
        _lltm_cell_theirs,
        torch.ops.cupyops.lltm_cell.default,
        _lltm_arguments,
        2,
        elementwise=False,
        atol=1e-5,
    ),
]
