"""Programs with quotients of whole numbers and conditions, and operators on logits with an offset."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

import autograd_bridge as bridge
from cupyops.torch import elementwise, row_reduce

from .operators import on

__all__ = ["offset", "program"]

# The text of an expression, its value in float64 by the values of the names, and whether C++ computes it in whole numbers.
Expression = tuple[str, Callable[[dict[str, Any]], Any], bool]
VALUES = [-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0]


@st.composite
def _condition(draw: st.DrawFn) -> tuple[str, Callable[[dict[str, Any]], Any]]:
    than = draw(st.sampled_from([0, 0.25, -1.5]))
    if draw(st.booleans()):
        return f"x > {than}", lambda v: v["x"] > than
    return f"x < {than}", lambda v: v["x"] < than


@st.composite
def _whole(draw: st.DrawFn, names: tuple[str, ...], depth: int = 2) -> Expression:
    kind = draw(
        st.sampled_from(["number", "number", "name", "condition", "choice", "sum", "product"] if depth else ["number"])
    )
    if kind == "name" and names:
        name = draw(st.sampled_from(names))
        return name, lambda v: v[name], True
    if kind == "condition":
        text, value = draw(_condition())
        return f"({text})", lambda v: value(v).double(), True
    if kind in ("choice", "sum", "product"):
        (a, of_a, _), (b, of_b, _) = draw(_whole(names, depth - 1)), draw(_whole(names, depth - 1))
        if kind == "choice":
            text, value = draw(_condition())
            return f"({text} ? {a} : {b})", lambda v: torch.where(value(v), of_a(v), of_b(v)).double(), True
        if kind == "product":
            return f"{a} * {b}", lambda v: of_a(v) * of_b(v), True
        sign = draw(st.sampled_from([1, -1]))
        return f"({a} {'+' if sign > 0 else '-'} {b})", lambda v: of_a(v) + sign * of_b(v), True
    n = draw(st.integers(1, 5))
    return str(n), lambda v: torch.full_like(v["x"], n), True


@st.composite
def _real(draw: st.DrawFn, names: tuple[str, ...], depth: int = 3) -> Expression:
    kind = draw(st.sampled_from(["x", "quotient", "quotient", "quotient", "product", "sum"] if depth else ["x"]))
    if kind == "quotient":
        a, of_a, whole = draw(st.one_of(_whole(names), _real(names, depth - 1)))
        n = draw(st.integers(2, 4))
        b, of_b, _ = draw(st.sampled_from([(str(n), lambda v: n, True), (f"(1 + {n})", lambda v: 1 + n, True)]))
        return f"({a}) / {b}" if draw(st.booleans()) else f"{_grouped(a)} / {b}", lambda v: of_a(v) / of_b(v), whole
    if kind in ("product", "sum"):
        (a, of_a, i), (b, of_b, j) = draw(_real(names, depth - 1)), draw(_real(names, depth - 1))
        if kind == "product":
            return f"({a}) * ({b})", lambda v: of_a(v) * of_b(v), i and j
        return f"({a} + {b})", lambda v: of_a(v) + of_b(v), i and j
    return "x", lambda v: v["x"], False


def _grouped(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def program(data: st.DataObject, backend: str) -> None:
    """Kernel, forward mode and gradients of a program compute one function, and quotients in it are real.

    A refusal of the program at its declaration holds as well.
    """
    rows = data.draw(st.booleans())
    names = ("j", "N") if rows else ()
    text, exact, _ = data.draw(_real(names))
    assume("/" in text)
    try:
        op = (row_reduce if rows else elementwise)(f"y = ({text}) * x")
    except (TypeError, ValueError, NotImplementedError):
        return
    with on(backend) as device:
        x = torch.tensor([VALUES, VALUES[::-1]], dtype=torch.float32, device=device)
        wide = x.double()
        values = {"x": wide, "j": torch.arange(len(VALUES), device=device).double().expand_as(wide)}
        values["N"] = torch.full_like(wide, len(VALUES))
        right = exact(values) * wide
        for what, y in (("the kernel", op(x)), ("forward mode", torch.func.jvp(op, (x,), (torch.ones_like(x),))[0])):
            off = (y.double() - right).abs() / (1 + right.abs())
            assert float(off.max()) < 1e-4, f"{what} of {text}: {y.tolist()}, right {right.tolist()}"


def offset(data: st.DataObject, backend: str) -> None:
    """Losses and softmax of logits that share an offset have PyTorch's accuracy, and so have their gradients."""
    name = data.draw(st.sampled_from(["cross_entropy", "softmax", "log_softmax"]))
    by = data.draw(st.sampled_from([0.0, 1e3, -1e4, 1e5, -1e6, 1e7]))
    n, classes = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 40))
    smoothing = data.draw(st.sampled_from([0.0, 0.1]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    with on(backend) as device:
        # Multiples of a half and an offset below 2^24 / 2 have an exact sum in float32.
        numbers = torch.randint(-10, 10, (n, classes), generator=generator).double() + by
        x, target = numbers.float().to(device), torch.randint(0, classes, (n,), generator=generator).to(device)
        grad = torch.randn((n, classes), generator=generator).to(device)

        def found(functions: Any, given: Tensor) -> tuple[Tensor, Tensor]:
            leaf = given.detach().requires_grad_()
            if name == "cross_entropy":
                y = functions.cross_entropy(leaf, target, label_smoothing=smoothing)
                return y.detach(), torch.autograd.grad(y, leaf)[0]
            y = getattr(functions, name)(leaf, -1)
            return y.detach(), torch.autograd.grad(y, leaf, grad.to(y.dtype))[0]

        ours, theirs, exact = found(bridge, x), found(F, x), found(F, x.double())
        for what, a, b, right in zip(("result", "gradient"), ours, theirs, exact, strict=True):
            off, their_off = (float((y.double() - right).abs().max()) for y in (a, b))
            size = float(right.abs().max()) + (
                float(grad.abs().max()) if what == "gradient" and name != "cross_entropy" else 0
            )
            allowed = 4 * their_off + 64 * torch.finfo(torch.float32).eps * max(size, 1.0 / n)
            assert off <= allowed, (
                f"{what} of {name} at {by}: off by {off:.3g}, PyTorch by {their_off:.3g}, allowed {allowed:.3g}"
            )
