"""Test data of adaptive_layer_norm, gated_add and add_adaptive_layer_norm."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import adaptive_layer_norm, add_adaptive_layer_norm, gated_add
from tests.support import FLOATS, with_floats

from .data import Arguments, Case, FamilyData, LaunchCase, dtype_name, launch_case, model_of, random


def of_sample(t: Tensor, x: Tensor) -> Tensor:
    """Returns an operand (B, N) beside rows (B, ..., N)."""
    return t if t.dim() != 2 or x.dim() == 2 else t.view(t.shape[0], *(1,) * (x.dim() - 2), t.shape[1])


def norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    # Autocast leaves the dtype of the operator's result, and converts PyTorch's layer_norm to float32 on a GPU.
    y = F.layer_norm(x, x.shape[-1:], None, None, eps) * (1 + of_sample(scale, x)) + of_sample(shift, x)
    return y.to(torch.promote_types(x.dtype, scale.dtype))


def added(residual: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    return residual + of_sample(gate, x) * x


def both(
    residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    s = added(residual, x, gate)
    return norm(s, scale, shift, eps), s


def _columns(x: Any, by: int) -> Any:
    """An operand for the last dimension of x; None if it is not a tensor."""
    if not isinstance(x, Tensor):
        return None
    return torch.arange(x.shape[-1], device=x.device).remainder(by).to(x.dtype) / 8


def _operands(x: Any) -> tuple[Any, Any, Any]:
    return _columns(x, 3), _columns(x, 5), _columns(x, 7)


def _of_rows(x: Any) -> list[Any]:
    return [t if t is None else t.expand(x.shape[0], -1) for t in _operands(x)]


CASES = [
    Case(
        "adaptive_layer_norm",
        lambda x: adaptive_layer_norm(x, *_operands(x)[1:]),
        lambda x: norm(x, *_operands(x)[1:]),
        torch.ops.cupyops.adaptive_layer_norm.default,
        lambda x: (x, *_of_rows(x)[1:], 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "gated_add",
        lambda residual, x: gated_add(residual, x, _operands(x)[0]),
        lambda residual, x: added(residual, x, _operands(x)[0]),
        torch.ops.cupyops.gated_add.default,
        lambda residual, x: (residual, x, _of_rows(x)[0]),
        2,
        elementwise=False,
    ),
    Case(
        "add_adaptive_layer_norm",
        lambda residual, x: add_adaptive_layer_norm(residual, x, *_operands(x))[0],
        lambda residual, x: both(residual, x, *_operands(x))[0],
        torch.ops.cupyops.add_adaptive_layer_norm.default,
        lambda residual, x: (residual, x, *_of_rows(x), 1e-5),
        2,
        elementwise=False,
        atol=1e-3,
    ),
]

B, S, N = 3, 5, 19
X, Z = random(B, S, N), random(B, S, N, seed=6)
GATE, SCALE, SHIFT = (random(B, N, seed=seed) for seed in (7, 8, 9))
SAMPLES: dict[str, Callable[[], list[Arguments]]] = {
    "adaptive_layer_norm": lambda: [(X, SCALE, SHIFT, 1e-5), (X[:1], SCALE[:1], SHIFT[:1], 0.1)],
    "gated_add": lambda: [(Z, X, GATE)],
    "gated_product": lambda: [(X, GATE)],
    "gated_sum": lambda: [(Z, X, GATE)],
    "add_adaptive_layer_norm": lambda: [(Z, X, GATE, SCALE, SHIFT, 1e-5)],
}


def _launches() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1152, 8192):
            x, t, about = ((4, 16, n), dtype), ((4, n), dtype), f"{dtype_name(dtype)} {n}"
            yield launch_case("adaptive_layer_norm", about, adaptive_layer_norm, x, t, t)
            yield launch_case("gated_add", about, gated_add, x, x, t)
            yield launch_case("add_adaptive_layer_norm", about, add_adaptive_layer_norm, x, x, t, t, t)


MODELS = {
    "adaptive_layer_norm": model_of(adaptive_layer_norm, (4, 3, 8), (4, 8), (4, 8)),
    "gated_add": model_of(gated_add, (4, 3, 8), (4, 3, 8), (4, 8)),
    "add_adaptive_layer_norm": model_of(add_adaptive_layer_norm, (4, 3, 8), (4, 3, 8), (4, 8), (4, 8), (4, 8)),
}
DATA = FamilyData(CASES, SAMPLES, _launches, MODELS)


# What is special

OPERANDS = [(B, N), (B, 1, N), (1, 1, N), (N,), (B, S, N), (1, S, N)]


@pytest.mark.parametrize(("shape", "dtype"), with_floats(OPERANDS))
def test_values_and_gradients_against_float64(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = [random(B, S, N, seed=seed).to(device, dtype) for seed in (1, 2)]
    each = [random(*shape, seed=seed).to(device, dtype) for seed in (3, 4, 5)]
    given = [t.requires_grad_() for t in (*rows, *each)]
    found = [adaptive_layer_norm(given[0], *given[3:]), gated_add(*given[:3])]
    found += add_adaptive_layer_norm(*given)
    grads = [random(*y.shape, seed=9).to(y) for y in found]
    got = torch.autograd.grad(found, given, grads)
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = [norm(exact[0], *exact[3:]), added(*exact[:3]), *both(*exact)]
    eps = torch.finfo(dtype).eps
    for y, near in zip(found, wanted, strict=True):
        torch.testing.assert_close(y.double(), near, rtol=4 * eps, atol=8 * eps)
    for y, near in zip(got, torch.autograd.grad(wanted, exact, [g.double() for g in grads]), strict=True):
        torch.testing.assert_close(y.double(), near, rtol=4 * eps, atol=4 * eps * float(near.abs().max()))


def test_the_fused_operator_has_the_bits_of_the_two(device: str) -> None:
    """The sum is rounded before it is normalised."""
    x, z, each = X.to(device).bfloat16(), Z.to(device).bfloat16(), [t.to(device) for t in (GATE, SCALE, SHIFT)]
    y, s = add_adaptive_layer_norm(z, x, *each)
    assert torch.equal(s, gated_add(z, x, each[0]))
    assert torch.equal(y, adaptive_layer_norm(s, *each[1:]))


def test_a_row_does_not_depend_on_the_others(device: str) -> None:
    alone = adaptive_layer_norm(X[1:2, 2:3].to(device), SCALE[1:2].to(device), SHIFT[1:2].to(device))
    assert torch.equal(adaptive_layer_norm(*(t.to(device) for t in (X, SCALE, SHIFT)))[1, 2], alone[0, 0])


def test_the_gradient_of_the_residual_is_that_of_the_result() -> None:
    residual = Z.clone().requires_grad_()
    grad = torch.ones_like(X)
    (found,) = torch.autograd.grad(gated_add(residual, X, GATE), residual, grad)
    torch.testing.assert_close(found, grad)


def test_a_wider_residual_widens_the_result() -> None:
    for wide, narrow in ((Z, X.bfloat16()), (Z.bfloat16(), X)):
        assert gated_add(wide, narrow, GATE).dtype is torch.float32
        assert add_adaptive_layer_norm(wide, narrow, GATE, SCALE, SHIFT)[1].dtype is torch.float32


def test_derivatives_of_every_order() -> None:
    rows = [t[:2, :2, :4].double().requires_grad_() for t in (X, Z)]
    each = [t[:2, :4].double().requires_grad_() for t in (GATE, SCALE, SHIFT)]
    assert torch.autograd.gradcheck(gated_add, (*rows, each[0]), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *a: gated_add(*a) ** 2, (*rows, each[0]))
    assert torch.autograd.gradcheck(adaptive_layer_norm, (rows[0], *each[1:]), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *a: adaptive_layer_norm(*a) ** 2, (rows[0], *each[1:]))
    assert torch.autograd.gradgradcheck(add_adaptive_layer_norm, (*rows, *each))


def test_rows_of_no_elements_and_no_rows(device: str) -> None:
    for shape in ((0, 5, 8), (3, 0, 8)):
        x = torch.ones(shape, device=device).requires_grad_()
        each = torch.ones(shape[0], 8, device=device).requires_grad_()
        y = adaptive_layer_norm(x, each, each)
        of_x, of_each = torch.autograd.grad(y.sum(), (x, each))
        assert y.shape == of_x.shape == x.shape
        assert not of_each.any()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: adaptive_layer_norm(X, SCALE[:2], SHIFT),
            ValueError,
            r"adaptive_layer_norm: `scale` must have a row of 19 for each sample of `x` \(3, 5, 19\), got \(2, 1, 19\)",
        ),
        (lambda: adaptive_layer_norm(X, SCALE, SHIFT[:, :4]), ValueError, "`shift` must have a row of 19"),
        (lambda: gated_add(X, Z[:1], GATE), ValueError, r"`residual` must have the shape of `x`, \(1, 5, 19\)"),
        (lambda: gated_add(X, Z, 2.0), TypeError, "gated_add: `gate` must be a Tensor, got float"),
        (lambda: adaptive_layer_norm(X, SCALE, SHIFT, "eps"), (TypeError, RuntimeError), "eps"),
        (lambda: adaptive_layer_norm(X.long(), SCALE, SHIFT), TypeError, "`x` must have dtype float16 or"),
        (lambda: add_adaptive_layer_norm(X, Z, GATE, SCALE, None), TypeError, "`shift` must be a Tensor, got None"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
