"""cross_entropy compared with PyTorch's: values, gradients, every argument, shapes, extremes, dtypes, errors, the module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import CrossEntropyLoss, cross_entropy
from tests.support import with_floats

# Rows of a few threads; of a block with a tail; of a cluster.
LENGTHS = (5, 64, 1030, 40_000)


def operands(device: str, rows: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    target = torch.arange(rows).mul(7919).remainder(n)
    return torch.randn(rows, n).to(device, dtype).requires_grad_(), target.to(device)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("n", "dtype"), with_floats(LENGTHS, each=1))
def test_values_and_gradients_against_float64(device: str, dtype: torch.dtype, n: int) -> None:
    x, target = operands(device, 3, n, dtype)
    double = x.detach().double().requires_grad_()
    loss, exact = (cross_entropy(x, target, reduction="none"), F.cross_entropy(double, target, reduction="none"))
    eps = torch.finfo(dtype).eps
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), exact, rtol=8 * eps, atol=8 * eps)
    grad = torch.rand_like(loss) + 0.5
    (got,), (wanted,) = torch.autograd.grad(loss, x, grad), torch.autograd.grad(exact, double, grad.double())
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=64 * eps, atol=eps * wanted.abs().max().item())


@pytest.mark.sample(20)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [-100, 3, 2**40])
def test_every_argument(device: str, reduction: str, smoothing: float, weighted: bool, ignore: int) -> None:
    x, target = operands(device, 9, 11, torch.float64)
    target = target.index_fill(0, torch.tensor([1, 4], device=device), ignore)
    weight = torch.rand(11, device=device, dtype=torch.float64) if weighted else None
    arguments: dict[str, Any] = {"ignore_index": ignore, "reduction": reduction, "label_smoothing": smoothing}
    loss, wanted = (f(x, target, weight, **arguments) for f in (cross_entropy, F.cross_entropy))
    torch.testing.assert_close(loss, wanted)
    grad = torch.randn_like(loss)
    torch.testing.assert_close(torch.autograd.grad(loss, x, grad), torch.autograd.grad(wanted, x, grad))


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 6, 3), (2, 6, 3, 2), (0, 6)])
def test_classes_are_the_second_dimension(device: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
    of_target = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(6, of_target, device=device)
    for reduction in ("none", "sum", "mean"):
        loss, wanted = (f(x, target, reduction=reduction) for f in (cross_entropy, F.cross_entropy))
        torch.testing.assert_close(loss, wanted, equal_nan=True)
        if loss.numel():
            (got,), (exact,) = (torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (loss, wanted))
            torch.testing.assert_close(got, exact, equal_nan=True)


@pytest.mark.sample(6)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 6, 3), (0, 6)])
def test_class_probabilities(
    device: str, reduction: str, smoothing: float, weighted: bool, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
    target = torch.rand(shape, device=device, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(6, device=device, dtype=torch.float64) if weighted else None
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    loss, wanted = (f(x, target, weight, **options) for f in (cross_entropy, F.cross_entropy))
    torch.testing.assert_close(loss, wanted, equal_nan=True)
    if x.numel():
        grad = torch.randn_like(loss)
        found, exact = (torch.autograd.grad(y, (x, target), grad) for y in (loss, wanted))
        torch.testing.assert_close(found, exact)


def test_softcap(device: str) -> None:
    x, target = operands(device, 9, 11, torch.float64)
    for options in ({}, {"label_smoothing": 0.1}):
        loss = cross_entropy(x, target, softcap=0.7, **options)
        wanted = F.cross_entropy(0.7 * torch.tanh(x / 0.7), target, **options)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(wanted, x))


def test_masked_logits_and_a_confident_row(device: str) -> None:
    """-inf masks a class, and with weights 0·inf must not make the loss NaN. log Σ e^x - x[t] cancels for a sure class."""
    x = torch.randn(4, 40, device=device)
    x[0, 7] = x[1, :30] = float("-inf")
    x[2, 5] = 30.0
    x[3] += 1e4
    target = torch.tensor([3, 35, 5, 1], device=device)
    for weight in (None, torch.rand(40, device=device)):
        got, wanted = (f(x, target, weight, reduction="none") for f in (cross_entropy, F.cross_entropy))
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", ["plain", "smoothed", "weighted"])
@pytest.mark.parametrize(("n", "dtype"), with_floats(LENGTHS, each=1))
def test_an_offset_that_the_logits_share_costs_no_accuracy(device: str, dtype: torch.dtype, n: int, form: str) -> None:
    """log Σ e^x, and the sum of the logits, would lose the digits that distinguish the logits."""
    x, target = operands("cpu", 3, n, dtype)
    offset = 5e4 if dtype == torch.float16 else 1e7
    x = (8 * x.detach().double() + offset).to(device, dtype).requires_grad_()
    options: dict[str, Any] = {} if form == "plain" else {"label_smoothing": 0.3}
    weight = (
        torch.rand(n, device=device, dtype=torch.promote_types(dtype, torch.float32)) if form == "weighted" else None
    )
    double = x.detach().double().requires_grad_()
    loss = cross_entropy(x, target.to(device), weight, reduction="sum", **options)
    wanted = F.cross_entropy(
        double, target.to(device), None if weight is None else weight.double(), reduction="sum", **options
    )
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), wanted, rtol=8 * eps, atol=0)
    (got,), (exact,) = torch.autograd.grad(loss, x), torch.autograd.grad(wanted, double)
    rtol = max(256 * eps, 1e-12)  # PyTorch's sum of the gradient of 40000 logits has an error of 3e-13
    torch.testing.assert_close(got.double(), exact, rtol=rtol, atol=8 * eps * exact.abs().max().item())


def test_a_masked_logit_beside_large_ones_costs_no_accuracy(device: str) -> None:
    x = torch.randn(3, 1030, device=device)
    x[:, ::3] = -1e9
    x[1, 7] = torch.finfo(torch.float32).min
    x[2] += 1e6
    target = torch.tensor([0, 1, 2], device=device)
    for weight in (None, torch.rand(1030, device=device)):
        doubles = x.double(), target, None if weight is None else weight.double()
        got, wanted = (
            cross_entropy(x, target, weight, label_smoothing=0.1),
            F.cross_entropy(*doubles, label_smoothing=0.1),
        )
        torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=0)


def test_16_bit_logits_lose_nothing_in_the_sum(device: str) -> None:
    x = torch.randn(4, 5000, device=device).bfloat16()
    target = torch.arange(4, device=device)
    exact = F.cross_entropy(x.double(), target)
    assert abs(cross_entropy(x, target).double() - exact).item() <= torch.finfo(torch.bfloat16).eps * exact.item()


@pytest.mark.simulator
@pytest.mark.parametrize("weighted", [False, True])
def test_a_target_that_is_no_class_gives_nan_in_a_kernel(weighted: bool) -> None:
    import cupyops

    x, weight = torch.randn(3, 8), torch.rand(8) if weighted else None
    with cupyops.simulate():
        loss = cross_entropy(x, torch.tensor([0, 8, -1]), weight, reduction="none")
    assert loss.isnan().tolist() == [False, True, True]
    with pytest.raises((RuntimeError, IndexError), match="out of (range|bounds)"):
        cross_entropy(x, torch.tensor([0, 8, -1]), weight)


def test_second_derivatives_vmap_and_forward_mode(device: str) -> None:
    x, target = operands(device, 3, 5, torch.float64)
    weight = torch.rand(5, device=device, dtype=torch.float64)
    for given in ({}, {"label_smoothing": 0.2}, {"weight": weight, "label_smoothing": 0.2}):
        of = lambda x, given=given: cross_entropy(x, target, **given)  # noqa: E731
        assert torch.autograd.gradcheck(of, x, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(of, x)
    each = torch.func.vmap(lambda x, t: cross_entropy(x, t))(x, target)
    torch.testing.assert_close(each, F.cross_entropy(x, target, reduction="none"))


def test_compiled_and_under_autocast_as_pytorchs(device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(CrossEntropyLoss(label_smoothing=0.1), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5):
        x, target = operands(device, rows, 7, torch.float32)
        wanted = F.cross_entropy(x, target, label_smoothing=0.1)
        got = compiled(x, target)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(wanted, x))
    x, target = operands(device, 4, 7, torch.bfloat16)
    with torch.autocast(device, torch.bfloat16):
        got, wanted = (f(x, target) for f in (cross_entropy, F.cross_entropy))
    if device == "cuda":
        assert got.dtype == wanted.dtype
    torch.testing.assert_close(got.float(), wanted.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("of", "kind", "words"),
    [
        (lambda x, t: cross_entropy([1.0], t), TypeError, "cross_entropy: `x` must be a Tensor, got list"),  # type: ignore[arg-type]
        (lambda x, t: cross_entropy(x, 3), TypeError, "cross_entropy: `target` must be a Tensor, got int"),  # type: ignore[arg-type]
        (lambda x, t: cross_entropy(x.long(), t), TypeError, "`x` must have dtype float16 .*, got int64"),
        (lambda x, t: cross_entropy(x, x[:, 0]), TypeError, "`target` must be class indices in int64, or class probabilit"),
        (lambda x, t: cross_entropy(x, x.long()), TypeError, "`target` must be class probabilities in float16 or .*, got int64"),
        (lambda x, t: cross_entropy(x, x, ignore_index=1), RuntimeError, "ignore_index is not supported for floating point"),
        (lambda x, t: cross_entropy(x, t, softcap=0.0), ValueError, "`softcap` must be a positive number or None, got 0.0"),
        (lambda x, t: cross_entropy(x.sum(), t), ValueError, "`x` must have classes, at least one dimension"),
        (lambda x, t: cross_entropy(x, t[:2]), ValueError, r"`target` must have x's shape without the classes, \(3,\)"),
        (lambda x, t: cross_entropy(x, t, x[0, :4]), RuntimeError, "either for all 5 classes or no classes but got"),
        (lambda x, t: cross_entropy(x, t, reduction="average"), ValueError, "average is not a valid value for reduction"),
        (lambda x, t: cross_entropy(x, t, label_smoothing=1.5), RuntimeError, "between 0.0 and 1.0. Got: 1.5"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(
    device: str, of: Callable[..., Any], kind: type[Exception], words: str
) -> None:
    x, target = operands(device, 3, 5, torch.float32)
    with pytest.raises(kind, match=words):
        of(x.detach(), target)


def test_the_module_is_pytorchs() -> None:
    for arguments in ({}, {"weight": torch.rand(4), "ignore_index": 2}, {"reduction": "sum", "label_smoothing": 0.1}):
        ours, theirs = CrossEntropyLoss(**arguments), nn.CrossEntropyLoss(**arguments)
        assert isinstance(ours, nn.CrossEntropyLoss)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        x, target = torch.randn(3, 4), torch.tensor([0, 2, 3])
        torch.testing.assert_close(ours(x, target), theirs(x, target))
