"""What a benchmark case is: operands, results, a float64 reference, and the functions that are measured."""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "OPERATORS",
    "SIZES",
    "Case",
    "Operand",
    "WrongResult",
    "backward_alone",
    "check",
    "device_cases",
    "error_in_eps",
    "forward_backward",
    "gradient_of",
    "host_cases",
    "plain",
    "recording",
]

OPERATORS = ("add2", "gelu")

SIZES = tuple(2**k for k in (10, 16, 20, 24, 28))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Function = Callable[..., Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Operand:
    """A tensor that a case reads or writes."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def plain(function: Function, inputs: Sequence[Tensor]) -> Call:
    """The call without gradients."""
    return partial(function, *inputs)


def recording(function: Function, inputs: Sequence[Tensor]) -> Call:
    """The call on leaves that want gradients; the backward is not run."""
    return partial(function, *(x.detach().requires_grad_() for x in inputs))


def forward_backward(function: Function, inputs: Sequence[Tensor]) -> Call:
    """Forward and backward into leaves without gradients; the last input is the gradient of the result."""
    leaves, grad = [x.detach().requires_grad_() for x in inputs[:-1]], inputs[-1]

    def call() -> tuple[Tensor | None, ...]:
        for x in leaves:
            x.grad = None
        function(*leaves).backward(grad)
        return tuple(x.grad for x in leaves)

    return call


def backward_alone(function: Function, inputs: Sequence[Tensor]) -> Call:
    """Backward into leaves without gradients, after a forward that has run; the last input is the result's gradient."""
    leaves, grad = [x.detach().requires_grad_() for x in inputs[:-1]], inputs[-1]
    out = function(*leaves)

    def call() -> tuple[Tensor | None, ...]:
        for x in leaves:
            x.grad = None
        out.backward(grad, retain_graph=True)
        return tuple(x.grad for x in leaves)

    return call


@dataclass(frozen=True)
class Case:
    """One operation on operands of given shapes and dtypes, and who can do it.

    Attributes:
        op, variant, direction: what the rows are labelled with.
        operands: what the functions take, in their order.
        results: what is written.
        implementations: by name, what makes the function to measure; it may raise
            :class:`benchmarks.peers.Unavailable`.
        reference: from the operands in float64 to the results in float64.
        bind: how the function and one set of inputs become the call that is measured.
        reads: what the computation has to read, where that is not every operand. Bytes are counted as each of these
            read once and each result written once.
        capturable: whether that call can be captured in a CUDA graph; autograd's backward, which runs on the
            forward's stream, cannot.
    """

    op: str
    variant: str
    direction: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    implementations: Mapping[str, Callable[[], Function]]
    reference: Function
    bind: Callable[[Function, Sequence[Tensor]], Call] = plain
    reads: tuple[Operand, ...] | None = None
    capturable: bool = True

    @property
    def dtype(self) -> str:
        """Names of the operands' dtypes, ``"float32"`` or ``"bfloat16+float32"``."""
        return "+".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in self.operands))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.results[0].shape

    @property
    def nbytes(self) -> int:
        reads = self.operands if self.reads is None else self.reads
        return sum(x.nbytes for x in (*reads, *self.results))

    def labels(self) -> dict[str, Any]:
        """What identifies the case in a row."""
        return {
            "op": self.op,
            "variant": self.variant,
            "direction": self.direction,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Fresh operands from the standard normal distribution, on the generator's device."""
        return tuple(
            torch.randn(x.shape, dtype=x.dtype, device=generator.device, generator=generator) for x in self.operands
        )

    def expected(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results in float64."""
        return _as_tuple(self.reference(*(x.double() for x in inputs)))


class WrongResult(RuntimeError):
    """An implementation does not compute what its case says."""


# In units of the result's eps. What is computed in float32 and rounded once to 16 bits is good to half a unit, and to
# one after a double rounding. In the wider types 1 - tanh² and its like cancel, and what follows multiplies the lost
# units by up to 30 for |x| < 6; a formula that is wrong is off by thousands.
TOLERANCE_EPS = {torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 2.0, torch.float16: 2.0}


def error_in_eps(out: Tensor, expected: Tensor) -> float:
    """max |out - expected| / (|expected| + rms(expected)), in units of the eps of out's dtype. NaN counts as infinite.

    The mean stands beside each value because a difference of larger terms cannot keep its relative error.
    """
    if not out.numel():
        return 0.0
    scale = expected.square().mean().sqrt()
    worst = ((out.double() - expected).abs_() / (expected.abs() + scale)).max().item() / torch.finfo(out.dtype).eps
    return math.inf if math.isnan(worst) else worst


def check(case: Case, outputs: Any, expected: Sequence[Tensor]) -> float:
    """The largest error of a call's outputs, in eps.

    Raises:
        WrongResult: another number, shape or dtype of outputs, or an error beyond :data:`TOLERANCE_EPS`.
    """
    outputs = _as_tuple(outputs)
    found = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in outputs]
    wanted = [(x.shape, x.dtype) for x in case.results]
    if found != wanted:
        raise WrongResult(f"expected results of {wanted}, got {found}")
    worst = 0.0
    for out, right in zip(outputs, expected, strict=True):
        error = error_in_eps(out.detach(), right)
        if not error <= TOLERANCE_EPS[out.dtype]:
            raise WrongResult(f"off by {error:.3g} eps of {out.dtype}; {TOLERANCE_EPS[out.dtype]:g} are allowed")
        worst = max(worst, error)
    return worst


def gradient_of(reference: Function) -> Function:
    """From (operands..., gradient of the result), the gradients of the operands, by autograd."""

    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs[:-1]]
        with torch.enable_grad():
            out = reference(*leaves)
        return torch.autograd.grad(out, leaves, inputs[-1])

    return gradients


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def device_cases(op: str, sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """The operator's cases for time on the GPU, at these numbers of elements."""
    cases: Iterator[Case] = importlib.import_module(f"benchmarks.{op}").cases(sizes)
    return cases


def host_cases(op: str) -> Iterator[Case]:
    """The operator's cases for the host's time per call, on operands too small to keep a GPU busy."""
    cases: Iterator[Case] = importlib.import_module(f"benchmarks.{op}").host_cases()
    return cases
