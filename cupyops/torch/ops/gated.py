"""The PyTorch operators swiglu, geglu and reglu: gated linear units, act(gate)·up, made by
:func:`cupyops.torch.elementwise`. Each has a form for one tensor whose halves are gate and up."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.errors import expected
from cupyops.ops.checks import check_floating
from cupyops.torch.compiled.rules import in_16_bits
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary, symbolic_call, wide_dtype
from cupyops.torch.programs.elementwise import Written, elementwise
from cupyops.torch.programs.views import into_views

from .gelu import gelu_onnx
from .onnx_values import cast, in_float32

__all__ = ["GATES", "geglu", "reglu", "swiglu"]

_library = TorchLibrary()


class _Unit(NamedTuple):
    """A gated unit: the operator of two tensors, and that of the halves of one tensor."""

    two: Written
    halves: Operator


def _unit(
    name: str,
    program: str,
    backward: str,
    activation: Callable[[Tensor], Tensor],
    onnx: Callable[[Any, Any], Any],
    **options: Any,
) -> _Unit:
    """Declares the operators of a gated unit.

    Args:
        name: the name of the operator of two tensors.
        program, backward: the formulas, of ``gate`` and ``up``.
        activation: the activation in PyTorch, and ``onnx`` in ONNX.
        options: other arguments of :func:`elementwise`.
    """

    def reference(gate: Tensor, up: Tensor) -> Tensor:
        for argument, x in (("gate", gate), ("up", up)):
            check_floating(name, argument, DTYPE_NAMES[x.dtype])
        # Dynamo of PyTorch 2.11 breaks the graph at result_type under autocast.
        dtype = gate.dtype if gate.dtype is up.dtype else torch.result_type(gate, up)
        wide = wide_dtype(dtype)
        return (activation(gate.to(dtype).to(wide)) * up.to(dtype).to(wide)).to(dtype)

    def of_two(op: Any, gate: Any, up: Any) -> Any:
        from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype

        empty = (torch.empty((1,) * len(x.shape), dtype=to_torch_dtype(x.dtype), device="meta") for x in (gate, up))
        dtype = from_torch_dtype(torch.result_type(*empty))
        gate, up = in_float32(op, cast(op, gate, dtype), cast(op, up, dtype))
        return cast(op, op.Mul(onnx(op, gate), up), dtype)

    two = elementwise(
        program,
        backward,
        name=f"cupyops::{name}",
        reference=reference,
        onnx=of_two,
        compiled="auto",
        **options,
    )
    compute = into_views(two.programs[1])

    def of_halves(gate_up: Tensor) -> Tensor:
        y: Tensor = two.body(*_halves(name, gate_up))
        return y

    def gradient(grad_y: Tensor, gate_up: Tensor) -> Tensor:
        grad_gate_up = gate_up.new_empty(gate_up.shape)
        if not _library.is_fake(gate_up):
            compute((grad_y, *_halves(name, gate_up)), _halves(name, grad_gate_up))
        return grad_gate_up

    def of_halves_onnx(op: Any, gate_up: Any) -> Any:
        n = gate_up.shape[-1] // 2
        gate, up = (op.Slice(gate_up, [start], [start + n], [-1]) for start in (0, n))
        return of_two(op, gate, up)

    halves = Operator(
        f"cupyops::{name}_of_halves(Tensor gate_up) -> Tensor y",
        of_halves,
        backward=gradient,
        reference=lambda gate_up: reference(*_halves(name, gate_up)),
        onnx=of_halves_onnx,
        compiled=in_16_bits,
        sharding="rows",
        repeats=True,
    )
    return _Unit(two, halves)


def _halves(where: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns views of the halves of the last dimension.

    Raises:
        ValueError: there is no last dimension, or it is odd.
        TypeError: x is not floating.
    """
    check_floating(where, "gate_up", DTYPE_NAMES[x.dtype])
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(expected(where, "gate_up", "have an even last dimension, two halves", tuple(x.shape)))
    n = x.shape[-1] // 2
    return x.narrow(-1, 0, n), x.narrow(-1, n, n)


_swiglu = _unit(
    "swiglu",
    "y = gate / (1 + exp(-gate)) * up",
    """
        s = 1 / (1 + exp(-gate))
        grad_gate = grad_y * up * s * (1 + gate * (1 - s))
        grad_up = grad_y * gate * s
    """,
    F.silu,
    lambda op, gate: op.Mul(gate, op.Sigmoid(gate)),
)
# A gate that is NaN stays NaN, as in PyTorch's relu.
_reglu = _unit(
    "reglu",
    "y = (gate < 0 ? 0 : gate) * up",
    "grad_gate = gate <= 0 ? 0 : grad_y * up; grad_up = grad_y * (gate < 0 ? 0 : gate)",
    F.relu,
    lambda op, gate: op.Relu(gate),
)
_geglu = {
    approximate: _unit(
        name,
        f"y = gate * ::{cdf}(gate) * up",
        f"grad_gate = grad_y * up * ::{derivative}(gate); grad_up = grad_y * (gate * ::{cdf}(gate))",
        partial(F.gelu, approximate=approximate),
        partial(gelu_onnx, approximate=approximate),
        headers=["gelu.cuh"],
    )
    for approximate, name, cdf, derivative in (
        ("none", "geglu", "normal_cdf", "erf_derivative"),
        ("tanh", "geglu_tanh", "tanh_cdf", "tanh_derivative"),
    )
}


def _call(unit: _Unit, function: Callable[..., Tensor], gate: Any, up: Any, **options: Any) -> Tensor:
    if not isinstance(gate, Tensor) or not (up is None or isinstance(up, Tensor)):
        if (proxy := symbolic_call(function, (gate, up), **options)) is not None:
            return proxy
        name, other = ("up", up) if isinstance(gate, Tensor) else ("gate", gate)
        raise TypeError(expected(function.__name__, name, "be a Tensor", type(other).__name__))
    y: Tensor = unit.halves.call(gate) if up is None else unit.two.call(gate, up)
    return y


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Returns silu(gate)·up = gate/(1 + e^(-gate))·up, the gated unit of Llama, Qwen, Mistral and Phi.

    The result is rounded once. The gradients take one pass over memory.

    Args:
        gate: float16, bfloat16, float32 or float64, any shape and strides; without ``up``, the halves of the last
            dimension are the gate and up, and their gradient is one tensor.
        up: a tensor whose shape broadcasts with that of ``gate``.

    Returns:
        A new tensor of the broadcast shape and the promoted dtype; without ``up``, of half the last dimension.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: ``up`` is left out, and the last dimension of ``gate`` is odd; or the tensors are on different devices.
        RuntimeError: the shapes do not broadcast.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    >>> swiglu(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
    tensor([0.0000, 1.4621])
    >>> swiglu(torch.tensor([0.0, 1.0, 3.0, 2.0]))
    tensor([0.0000, 1.4621])
    """
    return _call(_swiglu, swiglu, gate, up)


def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """Returns gelu(gate)·up, the gated unit of Gemma (``approximate="tanh"``), T5 1.1 and ModernBERT.

    GELU is that of :func:`.gelu.gelu`: it keeps its relative accuracy for negative gates.

    Args:
        gate, up: as for :func:`swiglu`.
        approximate: ``"none"`` or ``"tanh"``, the form of GELU.

    Returns:
        A new tensor, as :func:`swiglu`.

    Raises:
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``; or the shapes do not broadcast.
        TypeError, ValueError, MissingDependencyError: as for :func:`swiglu`.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    >>> geglu(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
    tensor([0.0000, 1.6827])
    """
    try:
        unit = _geglu[approximate]
    except (KeyError, TypeError):
        words = f"geglu: approximate argument must be either none or tanh, got {approximate!r}"
        raise RuntimeError(words) from None
    return _call(unit, geglu, gate, up, approximate=approximate)


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Returns max(gate, 0)·up.

    Args:
        gate, up: as for :func:`swiglu`.

    Returns:
        A new tensor, as :func:`swiglu`.

    Raises:
        TypeError, ValueError, RuntimeError, MissingDependencyError: as for :func:`swiglu`.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.

    >>> reglu(torch.tensor([-1.0, 1.0]), torch.tensor([3.0, 2.0]))
    tensor([0., 2.])
    """
    return _call(_reglu, reglu, gate, up)


# The gated unit of each activation, by PyTorch's function. GELU has two forms, which :func:`geglu` takes as an argument.
GATES: dict[Any, Callable[..., Tensor]] = {F.silu: swiglu, F.relu: reglu, torch.relu: reglu, F.gelu: geglu}
