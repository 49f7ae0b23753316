"""Benchmark cases: operands, results, a float64 reference, and the functions that are measured."""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .choices import DTYPE_NAMES, EXTRA, OPERATORS, SIZES, families

__all__ = [
    "DTYPES",
    "EXTRA",
    "HOST_ELEMENTS",
    "OPERATORS",
    "PRODUCTS",
    "ROWWISE",
    "SIZES",
    "Case",
    "Choice",
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
    "title",
    "tolerance",
]

HOST_ELEMENTS = 1024  # of elementwise operators, for the host's time
# Whose time depends on the length of a row as well as on the number of elements.
ROWWISE = families("rows")
# Matrix products of a library, on shapes of their own, compared with PyTorch alone.
PRODUCTS = families("products")

DTYPES = tuple(getattr(torch, name) for name in DTYPE_NAMES[:3])

Function = Callable[..., Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Operand:
    """A tensor that a case reads or writes.

    Attributes:
        terms: of how many terms a result's element is a sum; 0 where no such sum is kept in the arithmetic's own type.
        rounded_terms: these were rounded to the dtype before they were summed.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    terms: int = 0
    rounded_terms: bool = False

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
    """The call on leaves that require gradients; the backward is not run."""
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


def backward_alone(
    function: Function, inputs: Sequence[Tensor], *, wanted: Sequence[int] = (), results: int = 1
) -> Call:
    """Backward after a forward that has run; the last inputs are the gradients of the results.

    Args:
        wanted: positions of the inputs that require a gradient; by default all.
        results: how many results have a gradient.
    """
    operands, grads = inputs[:-results], inputs[-results:]
    wanted = wanted or range(len(operands))
    leaves = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(operands)]
    out = _as_tuple(function(*leaves))[:results]
    of = [leaves[i] for i in wanted]
    # Not into .grad, which copies a gradient that two inputs share.
    return lambda: torch.autograd.grad(out, of, grads, retain_graph=True)


@dataclass(frozen=True)
class Case:
    """One operation on operands of given shapes and dtypes, and who can do it.

    Attributes:
        op, variant, direction: the labels of the rows. operands: the arguments of the functions, in order. results: the
            tensors that are written. implementations: by name, a function that makes the function to measure; it may
            raise :class:`benchmarks.peers.Unavailable`.
        reference: from the operands in float64 to the results in float64.
        bind: how the function and one set of inputs become the call that is measured.
        reads: the operands that the computation reads, if not all. Bytes are counted as each of these
            read once and each result written once.
        draw: makes the operands on the generator's device, where they depend on one another; else each is from the
            standard normal distribution.
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
    draw: Callable[[torch.Generator], tuple[Tensor, ...]] | None = None

    @property
    def dtype(self) -> str:
        """Names of the dtypes that are read, ``"float32"`` or ``"bfloat16+float32"``."""
        return "+".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in self._read()))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows for an operator on rows, and of the first result for another."""
        return (self.operands if self.op in ROWWISE else self.results)[0].shape

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self._read(), *self.results))

    def _read(self) -> tuple[Operand, ...]:
        return self.operands if self.reads is None else self.reads

    @property
    def title(self) -> str:
        return title(self.labels())

    def labels(self) -> dict[str, Any]:
        """The labels that identify the case in a row."""
        return {
            "op": self.op,
            "variant": self.variant,
            "direction": self.direction,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }

    def inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Fresh operands, on the generator's device."""
        if self.draw is not None:
            return self.draw(generator)
        return tuple(
            torch.randn(x.shape, dtype=x.dtype, device=generator.device, generator=generator) for x in self.operands
        )

    def expected(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results in float64."""
        return _as_tuple(self.reference(*(x.double() for x in inputs)))


def title(labels: Mapping[str, Any]) -> str:
    """A case, or the row of one, in a line."""
    shape = " × ".join(map(str, labels["shape"]))
    return f"{labels['op']} {labels['variant']}, {labels['direction']}, {labels['dtype']}, {shape}"


class WrongResult(RuntimeError):
    """An implementation's results differ from the case's reference."""


# In units of the result's eps. What is computed in float32 and rounded once to 16 bits is good to half a unit, and to
# one after a double rounding. In the wider types 1 - tanh² and its like cancel, and what follows multiplies the lost
# units by up to 30 for |x| < 6; a formula that is wrong is off by thousands.
TOLERANCE_EPS = {torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 2.0, torch.float16: 2.0}


def tolerance(result: Operand) -> float:
    """The error allowed in a result, in eps of its dtype.

    A running sum of M terms of either sign grows like √M, and is rounded at every step: by M/√2 · eps/√12 in all, or
    √M/5 eps beside the result's own √M. Five times that leaves room for the worst of many columns, and none for a row
    that is left out, whose share of the result is 1/√M.

    Terms that have been rounded to the result's dtype themselves bring an error of its size each. Of few terms that does not
    average out, and where they are products, with heavier tails than the normal distribution's, the worst of millions of sums
    is off by up to 1.7 times what one rounding is allowed, whoever computes it. They are allowed twice as much.
    """
    arithmetic = torch.promote_types(result.dtype, torch.float32)
    unit = torch.finfo(arithmetic).eps / torch.finfo(result.dtype).eps
    allowed = TOLERANCE_EPS[result.dtype] + math.sqrt(result.terms) * unit
    return 2 * allowed if result.rounded_terms else allowed


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
        WrongResult: another number, shape or dtype of outputs, or an error beyond :func:`tolerance`.
    """
    outputs = _as_tuple(outputs)
    found = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x for x in outputs]
    wanted = [(x.shape, x.dtype) for x in case.results]
    if found != wanted:
        raise WrongResult(f"expected results of {wanted}, got {found}")
    worst = 0.0
    for out, right, result in zip(outputs, expected, case.results, strict=True):
        error, allowed = error_in_eps(out.detach(), right), tolerance(result)
        if not error <= allowed:
            raise WrongResult(f"off by {error:.3g} eps of {out.dtype}; {allowed:.3g} are allowed")
        worst = max(worst, error)
    return worst


def gradient_of(reference: Function, wanted: Sequence[int] = (), results: int = 1) -> Function:
    """From (operands..., gradients of the results), the gradients of the operands, by autograd. The arguments are those of
    :func:`backward_alone`."""

    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        operands, grads = inputs[:-results], inputs[-results:]
        leaves = [x.detach().requires_grad_() for x in operands]
        with torch.enable_grad():
            out = _as_tuple(reference(*leaves))[:results]
        return torch.autograd.grad(out, [leaves[i] for i in wanted or range(len(operands))], grads)

    return gradients


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def device_cases(
    op: str, sizes: Sequence[int] = SIZES, row_lengths: Sequence[int] = (), *, full: bool = False
) -> Iterator[Case]:
    """The operator's cases for time on the GPU.

    Args:
        sizes: numbers of elements; an operator on rows is measured near the largest.
        row_lengths: of an operator on rows; if there are none, its own.
        full: with what it leaves out to save time.
    """
    module = importlib.import_module(f"benchmarks.{op}")
    cases: Iterator[Case]
    if op in ROWWISE:
        cases = module.cases(sizes, row_lengths or module.ROW_LENGTHS, full=full)
    else:
        cases = module.cases(sizes)
    return cases


@dataclass(frozen=True)
class Choice:
    """Which cases are measured on the GPU; no names: any.

    Attributes:
        sizes, row_lengths, full: as of :func:`device_cases`.
        dtypes: a case is taken if it reads no other.
        directions: "forward", "backward", "tangent".
        of_rows: the cases are those of :mod:`.rows`.
    """

    sizes: tuple[int, ...] = SIZES
    row_lengths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    full: bool = False
    of_rows: bool = False

    def cases(self, op: str) -> Iterator[Case]:
        """The operator's cases that are chosen."""
        for case in device_cases(op, self.sizes, self.row_lengths, full=self.full):
            of_dtype = not self.dtypes or set(case.dtype.split("+")) <= set(self.dtypes)
            if of_dtype and (not self.directions or case.direction in self.directions):
                yield case


def host_cases(op: str) -> Iterator[Case]:
    """The operator's cases for the host's time per call, on operands too small to keep a GPU busy; there may be none."""
    make = getattr(importlib.import_module(f"benchmarks.{op}"), "host_cases", None)
    cases: Iterator[Case] = iter(()) if make is None else make()
    return cases
