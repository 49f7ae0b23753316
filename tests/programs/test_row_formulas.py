"""Row programs as their users write them, each held by check_op to a reference in PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.torch import check_op, elementwise, row_reduce
from cupyops.torch.programs.elementwise import Written

pytestmark = pytest.mark.simulator
CHECKS = ("values", "gradients", "gradcheck", "sizes", "strides", "subsets", "sanitizer", "opcheck")
GENERATOR = torch.Generator().manual_seed(2)
X, Z, U = (torch.randn(5, 37, generator=GENERATOR) for _ in range(3))
WEIGHT = torch.rand(37, generator=GENERATOR) + 0.5
ROW, OTHER_ROW = (torch.randn(5, generator=GENERATOR) for _ in range(2))


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def group_norm() -> tuple[Written, tuple[Any, ...]]:
    """A row is a group, with a scale and a shift of its own."""

    def reference(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        y = F.layer_norm(wide(x), x.shape[-1:], eps=eps)
        return (y * wide(scale).unsqueeze(-1) + wide(shift).unsqueeze(-1)).to(x.dtype)

    op = row_reduce(
        "m = sum(x) / N; d = x - m; r = rsqrt(sum(d * d) / N + eps); y = d * r * scale + shift",
        """
            m = sum(x) / N
            d = x - m
            r = rsqrt(sum(d * d) / N + eps)
            g = grad_y * scale
            a = sum(g) / N
            c = sum(g * d) / N * r * r
            grad_x = r * (g - a - d * c)
            grad_scale = sum(grad_y * d * r)
            grad_shift = sum(grad_y)
        """,
        rows=["scale", "shift"],
        scalars=["eps"],
        name="row_formulas::group_norm",
        reference=reference,
    )
    return op, (X, ROW, OTHER_ROW, 1e-5)


def l2_normalisation() -> tuple[Written, tuple[Any, ...]]:
    def reference(x: Tensor, eps: float) -> Tensor:
        return (wide(x) * torch.rsqrt(wide(x).square().sum(-1, keepdim=True).clamp_min(eps))).to(x.dtype)

    op = row_reduce(
        "q = sum(x * x); r = rsqrt(q < eps ? eps : q); y = x * r",
        """
            q = sum(x * x)
            r = rsqrt(q < eps ? eps : q)
            d = sum(grad_y * x) * r * r
            grad_x = r * (grad_y - (q < eps ? 0 : x * d))
        """,
        scalars=["eps"],
        name="row_formulas::l2",
        reference=reference,
    )
    return op, (X, 1e-12)


def gated_norm() -> tuple[Written, tuple[Any, ...]]:
    """Mamba 2's norm of x·silu(z)."""

    def reference(z: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        h = wide(x) * F.silu(wide(z))
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * wide(weight)).to(z.dtype)

    op = row_reduce(
        "s = 1 / (1 + exp(-z)); h = x * z * s; r = rsqrt(sum(h * h) / N + eps); y = h * r * weight",
        """
            s = 1 / (1 + exp(-z))
            h = x * z * s
            r = rsqrt(sum(h * h) / N + eps)
            g = grad_y * weight
            grad_h = r * (g - h * (sum(g * h) / N * r * r))
            grad_x = grad_h * z * s
            grad_z = grad_h * x * s * (1 + z * (1 - s))
            grad_weight = column_sum(grad_y * h * r)
        """,
        columns=["weight"],
        scalars=["eps"],
        name="row_formulas::gated_norm",
        reference=reference,
    )
    return op, (Z, X, WEIGHT, 1e-5)


def log_sum_exp() -> tuple[Written, tuple[Any, ...]]:
    """Has a temperature, and PyTorch's result for an infinite maximum."""
    op = row_reduce(
        "a = x * t; m = max(a); s = sum(exp(a - m)); y = isinf(m) ? m / t : (m + log(s)) / t",
        "grad_x = grad_y * exp((x - y) * t)",
        scalars=["t"],
        name="row_formulas::log_sum_exp",
        reference=lambda x, t: (torch.logsumexp(wide(x) * t, -1) / t).to(x.dtype),
    )
    return op, (X, 2.0)


def top_1() -> tuple[Written, tuple[Any, ...]]:
    """The greatest element, and the first column that has it."""
    op = row_reduce(
        "m = max(x); i = min(x == m ? j : N)",
        results=["m", "i"],
        wide=["i"],
        name="row_formulas::top_1",
        reference=lambda x: (x.amax(-1), _indices(x)),
    )
    return op, (X,)


def _indices(x: Tensor) -> Tensor:
    return x.argmax(-1).to(torch.promote_types(x.dtype, torch.float32))


def entropy() -> tuple[Written, tuple[Any, ...]]:
    """The entropy of softmax of a row."""

    def reference(x: Tensor) -> Tensor:
        logs = torch.log_softmax(wide(x), -1)
        return -(logs.exp() * logs).sum(-1).to(x.dtype)

    op = row_reduce(
        "m = max(x); e = exp(x - m); s = sum(e); y = log(s) - sum(e * (x - m)) / s",
        "m = max(x); e = exp(x - m); s = sum(e); grad_x = -grad_y * (e / s) * (x - m - log(s) + y)",
        name="row_formulas::entropy",
        reference=reference,
    )
    return op, (X,)


def kullback_leibler() -> tuple[Written, tuple[Any, ...]]:
    """The divergence of the softmax of two rows: two sums of exponentials, each in one pass with its maximum."""

    def reference(x: Tensor, z: Tensor) -> Tensor:
        p, q = torch.log_softmax(wide(x), -1), torch.log_softmax(wide(z), -1)
        return (p.exp() * (p - q)).sum(-1).to(x.dtype)

    op = row_reduce(
        """
            a = max(x); b = max(z)
            s = sum(exp(x - a)); t = sum(exp(z - b))
            p = x - a - log(s); q = z - b - log(t)
            y = sum(exp(p) * (p - q))
        """,
        """
            a = max(x); b = max(z)
            s = sum(exp(x - a)); t = sum(exp(z - b))
            p = x - a - log(s); q = z - b - log(t)
            grad_x = grad_y * exp(p) * (p - q - y)
            grad_z = grad_y * (exp(q) - exp(p))
        """,
        name="row_formulas::kullback_leibler",
        reference=reference,
    )
    return op, (X, Z)


def norm_of_two_residuals() -> tuple[Written, tuple[Any, ...]]:
    """The three terms have the same gradient."""

    def reference(x: Tensor, u: Tensor, v: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        s = (wide(x) + wide(u) + wide(v)).to(x.dtype)
        return (F.rms_norm(wide(s), s.shape[-1:], eps=eps) * wide(weight)).to(x.dtype), s

    op = row_reduce(
        "s = rounded(x + u + v); r = rsqrt(sum(s * s) / N + eps); y = s * r * weight",
        """
            r = rsqrt(sum(s * s) / N + eps)
            d = sum(grad_y * weight * s) / N * r * r
            grad_x = grad_s + r * (grad_y * weight - s * d)
            grad_u = grad_x
            grad_v = grad_x
            grad_weight = column_sum(grad_y * s * r)
        """,
        columns=["weight"],
        scalars=["eps"],
        results=["y", "s"],
        name="row_formulas::norm_of_two_residuals",
        reference=reference,
    )
    assert op.backward is not None
    assert [y.name for y in op.backward.op._schema.returns] == ["grad_x", "grad_weight"]
    return op, (X, Z, U, WEIGHT, 1e-5)


FORMULAS: list[Callable[[], tuple[Written, tuple[Any, ...]]]] = [
    *(group_norm, l2_normalisation, gated_norm, log_sum_exp, top_1, entropy, kullback_leibler, norm_of_two_residuals)
]


@pytest.mark.thorough
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.__name__)
def test_a_formula_passes_the_checks(formula: Callable[[], tuple[Written, tuple[Any, ...]]]) -> None:
    """Each formula is checked in float32 and one other dtype in turn, since each dtype's kernels have to be
    compiled."""
    op, sample = formula()
    check_op(op, sample, checks=CHECKS, dtypes=("float32", ("float16", "float64")[FORMULAS.index(formula) % 2]))


@pytest.mark.thorough
def test_special_values_are_pytorchs() -> None:
    for formula in (l2_normalisation, log_sum_exp):
        op, sample = formula()
        check_op(op, sample, checks=("special_values",))


def test_an_operator_without_a_gradient_passes_opcheck() -> None:
    op = row_reduce("m = max(x); i = min(x == m ? j : N)", results=["m", "i"], name="row_formulas::without_gradient")
    check_op(op, (X,), checks=("opcheck",))


def test_a_reference_with_the_inputs_in_another_order_is_refused() -> None:
    """Arguments are passed by position, so a CPU would compute something else than a GPU."""
    words = (
        r"masked: the inputs are in the order in which the program reads them, \(keep, x\), and the reference takes "
        r"\(x, keep\): give its parameters the order of the inputs"
    )
    program = "a = keep > 0 ? x : -INFINITY; m = max(a); e = exp(a - m); y = e / sum(e)"
    with pytest.raises(ValueError, match=words):
        row_reduce(program, name="row_formulas::masked", reference=lambda x, keep: x)
    with pytest.raises(
        ValueError, match="scaled: the inputs are in the order .* \\(b, a, s\\), .* takes \\(a, b, s\\)"
    ):
        elementwise("y = b - a * s", scalars=["s"], name="row_formulas::scaled", reference=lambda a, b, s: b - a * s)
    for reference in (lambda keep, x: x, lambda p, q: p, lambda *given: given[1], torch.add):
        row_reduce(program, name="row_formulas::masked", reference=reference)
