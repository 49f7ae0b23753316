"""Calls of operators with random shapes, strides, dtypes and arguments; wrong calls; and derivatives by random
methods."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import autograd_bridge as bridge
import cupyops
from cupyops.torch.check.methods import METHODS, Problem
from tests.torch.derivative_cases import CASES, as_tuple

__all__ = ["Call", "call", "calls", "derivative", "on", "tensor", "wrong_call"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([0, 16, 31, 32, 33, 64, 127, 129]))
ELEMENTS = {"reference": 2**18, "simulator": 2**12, "cuda": 2**22}  # the most of a tensor
# In ULPs of the largest exact value: a sum of a few hundred terms in the dtype's accumulation type.
ROUNDINGS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.float64: 64}


@contextmanager
def on(backend: str, sanitize: bool = False) -> Iterator[str]:
    """Runs operators on a backend; gives the device of their tensors."""
    with cupyops.simulate(backend == "simulator", sanitize=sanitize), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield "cuda" if backend == "cuda" else "cpu"


def tensor(data: st.DataObject, shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """A tensor of normal numbers whose memory lies in a drawn way: permuted, strided, expanded, or off its alignment."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    scale = data.draw(st.sampled_from([1.0, 1.0, 1e-3, 30.0]))
    layout = data.draw(st.sampled_from(["plain", "plain", "permuted", "strided", "offset", "expanded"]))
    numbers = scale * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    if layout == "expanded" and shape:
        dim = data.draw(st.integers(0, len(shape) - 1))
        return (
            numbers.narrow(dim, 0, min(1, shape[dim])).to(device, dtype).expand(tuple(shape))
            if shape[dim]
            else numbers.to(device, dtype)
        )
    if layout == "permuted" and len(shape) > 1:
        order = data.draw(st.permutations(range(len(shape))))
        inverse = [order.index(i) for i in range(len(shape))]
        return numbers.permute(order).contiguous().to(device, dtype).permute(inverse)
    if layout == "strided" and shape:
        dim, step = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(2, 3))
        wide = torch.zeros([n * step if i == dim else n for i, n in enumerate(shape)], dtype=dtype, device=device)
        view = wide[tuple(slice(None, None, step) if i == dim else slice(None) for i in range(len(shape)))]
        return view.copy_(numbers.to(device, dtype))
    if layout == "offset":
        storage = torch.zeros(numbers.numel() + 3, dtype=dtype, device=device)
        view = storage[data.draw(st.integers(1, 3)) :][: numbers.numel()].view(tuple(shape))
        return view.copy_(numbers.to(device, dtype))
    return numbers.to(device, dtype)


@dataclass(frozen=True)
class Call:
    """One operator's call.

    Attributes:
        name: for reports.
        ours, theirs: functions of the tensors, one result each.
        shapes: of the tensors.
        accurate: the function in float64, where PyTorch's own is not accurate there.
        terms: by the tensors and the result's gradient, the largest term of a gradient whose terms may cancel for all
            inputs, so that changed inputs do not show it: the gradient of a norm of rows of two elements is nearly 0.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    accurate: Callable[..., Tensor] | None = None
    terms: Callable[[Sequence[Tensor], Tensor], float] | None = None

    @property
    def exact(self) -> Callable[..., Tensor]:
        return self.accurate or self.theirs


def gelu_without_cancellation(x: Tensor, approximate: str) -> Tensor:
    """GELU whose relative error stays small for negative x, where PyTorch's 1 + erf and 1 + tanh cancel."""
    if approximate == "tanh":
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))


@st.composite
def calls(draw: st.DrawFn, backend: str) -> Call:
    """An operator with shapes that fit, and its other arguments. No tensor is too large for the backend."""
    found = draw(_calls())
    assume(all(math.prod(shape) <= ELEMENTS[backend] for shape in found.shapes))
    return found


@st.composite
def _calls(draw: st.DrawFn) -> Call:
    name = draw(
        st.sampled_from(
            ["add2", "gelu", "layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm", "linear", "linear_gelu"]
        )
    )
    batch = tuple(draw(st.lists(SIZES, max_size=2)))
    if name == "add2":
        shape = tuple(draw(st.lists(SIZES, max_size=3)))
        other = tuple(n if draw(st.booleans()) else 1 for n in shape)[draw(st.integers(0, len(shape))) :]
        alpha = draw(st.sampled_from([1, -0.5, 0, 2.25]))
        shapes = (shape, other) if draw(st.booleans()) else (other, shape)
        return Call(
            name, lambda a, b: bridge.add2(a, b, alpha=alpha), lambda a, b: torch.add(a, b, alpha=alpha), shapes
        )
    approximate = draw(st.sampled_from(["none", "tanh"]))
    if name == "gelu":
        shape = tuple(draw(st.lists(SIZES, max_size=3)))
        return Call(
            f"{name} {approximate}",
            lambda x: bridge.gelu(x, approximate=approximate),
            lambda x: F.gelu(x, approximate=approximate),
            (shape,),
            lambda x: gelu_without_cancellation(x, approximate),
        )
    if name.startswith("linear"):
        features, units = draw(st.integers(1, 40)), draw(st.integers(1, 40))
        bias = ((units,),) if draw(st.booleans()) else ()
        shapes = ((*batch, features), (units, features), *bias)
        if name == "linear":
            return Call(name, bridge.linear, F.linear, shapes)
        return Call(
            f"{name} {approximate}",
            lambda *given: bridge.linear_gelu(*given, approximate=approximate),
            lambda *given: F.gelu(F.linear(*given), approximate=approximate),
            shapes,
            lambda *given: gelu_without_cancellation(F.linear(*given), approximate),
        )
    row = tuple(draw(st.lists(SIZES.filter(bool), min_size=1, max_size=2)))
    sums = 2 if name.startswith("add_") else 1
    weights = draw(st.integers(0, 1 if "rms_norm" in name else 2)) * ((row),)
    parameters = tuple(row for _ in range(len(weights) // max(len(row), 1)))
    eps = draw(st.sampled_from([1e-5, 1e-12, 0.1]))

    def terms(inputs: Sequence[Tensor], grad: Tensor) -> float:
        rows = sum(x.double() for x in inputs[:sums])
        assert isinstance(rows, Tensor)
        if rows.numel() == 0:
            return 0.0
        dims = tuple(range(-len(row), 0))
        centered = rows if "rms_norm" in name else rows - rows.mean(dims, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(dims) + eps)
        weight = float(inputs[sums].abs().max()) if len(inputs) > sums else 1.0
        return float(rstd.max()) * float(grad.abs().max()) * weight

    if name == "rms_norm":
        return Call(
            name,
            lambda x, weight=None: bridge.rms_norm(x, row, weight, eps),
            lambda x, weight=None: F.rms_norm(x, row, weight, eps),
            ((*batch, *row), *parameters),
            terms=terms,
        )
    if name == "add_rms_norm":
        return Call(
            name,
            lambda x, r, weight=None: bridge.add_rms_norm(x, r, row, weight, eps)[0],
            lambda x, r, weight=None: F.rms_norm(x + r, row, weight, eps),
            ((*batch, *row), (*batch, *row), *parameters),
            terms=terms,
        )
    if name == "layer_norm":
        return Call(
            name,
            lambda x, weight=None, bias=None: bridge.layer_norm(x, row, weight, bias, eps),
            lambda x, weight=None, bias=None: F.layer_norm(x, row, weight, bias, eps),
            ((*batch, *row), *parameters),
            terms=terms,
        )
    return Call(
        name,
        lambda x, r, weight=None, bias=None: bridge.add_layer_norm(x, r, row, weight, bias, eps)[0],
        lambda x, r, weight=None, bias=None: F.layer_norm(x + r, row, weight, bias, eps),
        ((*batch, *row), (*batch, *row), *parameters),
        terms=terms,
    )


def assert_near(what: str, got: Tensor, theirs: Tensor, exact: Tensor, moved: Tensor, terms: float = 0.0) -> None:
    """The largest error is at most twice PyTorch's, some roundings of the largest value, and what some roundings of the
    inputs change: a sum that cancels magnifies them, and in float64 the exact result has them, too.

    Args:
        moved: the result for inputs that differ by a few roundings (:func:`steps`).
        terms: the largest of the terms that cancel; each is rounded in the dtype of the arithmetic.
    """
    assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype), f"{what}: {got.shape} {got.dtype}"
    finite = exact.isfinite() & theirs.isfinite() & moved.isfinite()
    if not bool(finite.any()):
        return
    off, their_off, change = (float((x.double() - exact)[finite].abs().max()) for x in (got, theirs, moved))
    unit = torch.finfo(got.dtype).eps * float(exact[finite].abs().max()) + torch.finfo(got.dtype).tiny
    allowed = 2 * their_off + ROUNDINGS[got.dtype] * (unit + change / steps(got.dtype))
    allowed += 4 * terms * torch.finfo(torch.promote_types(got.dtype, torch.float32)).eps
    assert off <= allowed, f"{what}: off by {off:.3g}, PyTorch by {their_off:.3g}, allowed {allowed:.3g}"


def steps(dtype: torch.dtype) -> int:
    """Returns by how many roundings :func:`moved` changes the elements.

    The results for changed inputs are computed in float64. A sum in float64 that cancels is itself rounded to few
    values, and a change of one rounding may give the same value again.
    """
    return 16 if dtype == torch.float64 else 1


def moved(x: Tensor) -> Tensor:
    """The tensor in float64, each element changed by a few roundings of its dtype (:func:`steps`)."""
    generator = torch.Generator().manual_seed(1)
    signs = 2 * torch.randint(0, 2, tuple(x.shape), generator=generator).to(x.device).double() - 1
    return x.double() * (1 + steps(x.dtype) * torch.finfo(x.dtype).eps * signs)


def results(function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor) -> Any:
    """The result of a function, and its gradients by the inputs that are wanted."""
    leaves = [x.detach().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
    y = function(*leaves)
    assert y.requires_grad == any(wanted)
    chosen = [x for x in leaves if x.requires_grad]
    return [y.detach(), *(torch.autograd.grad(y, chosen, grad.to(y.dtype)) if chosen else [])]


def call(data: st.DataObject, backend: str) -> None:
    """Values and gradients are as near to float64 as PyTorch's; inputs stay as they are; results share no memory."""
    drawn, dtype = data.draw(calls(backend)), data.draw(st.sampled_from(DTYPES))
    with on(backend, sanitize=data.draw(st.booleans())) as device:
        inputs = [tensor(data, shape, dtype, device) for shape in drawn.shapes]
        wanted = [data.draw(st.booleans()) for _ in inputs]
        before = [x.clone() for x in inputs]
        grad = tensor(data, tuple(drawn.theirs(*inputs).shape), dtype, device)
        ours = results(drawn.ours, inputs, wanted, grad)
        wide, near = [x.double() for x in inputs], [moved(x) for x in inputs]
        given = ((drawn.theirs, inputs), (drawn.exact, wide), (drawn.exact, near))
        others = (results(function, tensors, wanted, grad) for function, tensors in given)
        terms = 0.0 if drawn.terms is None else drawn.terms(inputs, grad)
        for i, (got, theirs, exact, changed) in enumerate(zip(ours, *others, strict=True)):
            what = f"{drawn.name}, {f'gradient {i}' if i else 'result'}"
            assert_near(what, got, theirs, exact, changed, terms if i else 0.0)
        places = {x.untyped_storage().data_ptr() for x in inputs if x.numel()}
        assert all(y.numel() == 0 or y.untyped_storage().data_ptr() not in places for y in ours)
        for x, was in zip(inputs, before, strict=True):
            assert torch.equal(x.nan_to_num(), was.nan_to_num()), f"{drawn.name} changed an input"


def wrong_call(data: st.DataObject, backend: str) -> None:
    """A call with one wrong argument raises an error of the same kind as PyTorch's; and the next call is correct."""
    drawn, dtype = data.draw(calls(backend)), data.draw(st.sampled_from(DTYPES[2:]))
    with on(backend) as device:
        inputs: list[Any] = [tensor(data, shape, dtype, device) for shape in drawn.shapes]
        i = data.draw(st.integers(0, len(inputs) - 1))
        x = inputs[i]
        kind = data.draw(st.sampled_from(["dtype", "rank", "size", "meta", "number", "text", "complex", "list"]))
        wrong = list(inputs)
        wrong[i] = {
            "dtype": lambda: x.to(data.draw(st.sampled_from([torch.int32, torch.bool, torch.float16]))),
            "rank": lambda: x.unsqueeze(0).unsqueeze(0),
            "size": lambda: x.new_zeros([n + 2 for n in x.shape] or [5]),
            "meta": lambda: x.to("meta"),
            "number": lambda: 1.5,
            "text": lambda: "x",
            "complex": lambda: x.to(torch.complex64),
            "list": lambda: x.tolist(),
        }[kind]()
        raised = _error(drawn.theirs, wrong)
        ours = _error(drawn.ours, wrong)
        if raised is not None and kind not in ("number", "list", "dtype", "complex", "meta"):
            assert ours is not None, f"{drawn.name} takes what PyTorch refuses: {kind} of argument {i}: {raised}"
        wide, near = [x.double() for x in inputs], [moved(x) for x in inputs]
        others = (drawn.theirs(*inputs), drawn.exact(*wide), drawn.exact(*near))
        assert_near(f"{drawn.name} after an error", drawn.ours(*inputs), *others)


def _error(function: Callable[..., Any], args: Sequence[Any]) -> Exception | None:
    """The error of a call; of ours, one that callers catch."""
    try:
        function(*args)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        return error
    return None


def derivative(data: st.DataObject, backend: str) -> None:
    """A derivative of any order, by a random method, equals that of PyTorch's own operators by plain autograd."""
    case = data.draw(st.sampled_from(CASES))
    method = METHODS[data.draw(st.sampled_from(sorted(METHODS)))]
    function = data.draw(st.sampled_from([f for f in (case.ours, case.through) if f is not None]))
    # torch.ops has no forward mode: the operator itself has.
    assume(not (method.forward and function is case.through))
    alone = data.draw(st.sampled_from([None, *range(len(case.shapes))]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    with on(backend) as device:

        def numbers(shape: Sequence[int]) -> Tensor:
            return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(device)

        inputs = [numbers(shape) for shape in case.shapes]
        seeds = tuple(numbers(y.shape) for y in as_tuple(case.theirs(*inputs)))
        chosen = range(len(inputs)) if alone is None else [alone]
        directions = tuple(numbers(case.shapes[i]) for i in chosen)

        def problem(of: Callable[..., Any]) -> Problem:
            def outputs(*xs: Tensor) -> tuple[Tensor, ...]:
                given = list(inputs)
                for i, x in zip(chosen, xs, strict=True):
                    given[i] = x
                return as_tuple(of(*given))

            return Problem(outputs, tuple(inputs[i] for i in chosen), seeds, directions)

        plain = {1: "torch.func.grad", 2: "autograd of autograd", 3: "autograd, three times"}
        reference, found = problem(case.theirs), method.run(problem(function))
        right = [x.detach() for x in METHODS[plain[method.order]].run(reference)]
        lower = [METHODS[plain[order]].run(reference) for order in range(1, method.order)]
        size = max(float(x.abs().max()) for x in right)
        allowed = 1e-8 * size + 1e-12 * max([1.0, *(float(x.detach().abs().max()) for xs in lower for x in xs)])
        for i, (got, wanted) in enumerate(zip(found, right, strict=True)):
            off = float((got.detach() - wanted).abs().max())
            assert off <= allowed, f"{case.name} by input {i}: off by {off:.3g}, allowed {allowed:.3g}"
