"""linear_cross_entropy beside the product and PyTorch's loss: values, gradients, chunks, every argument, errors, the module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import LinearCrossEntropyLoss, linear_cross_entropy
from cupyops.torch.ops.projected_loss import rows_of_chunk
from tests.support import EACH_FLOAT

ROUNDING = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-10}
# Rows of logits that are padded and that are not, in chunks of which the last is smaller.
ROWS, K, LENGTHS = 10, 6, (24, 21)
ALL: dict[str, Any] = {"label_smoothing": 0.1, "softcap": 5.0, "z_loss": 0.01}
FORMS: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"softcap": 5.0}, {"z_loss": 0.01}, ALL]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cupyops.torch.ops.projected_loss.LEAST", 4)


def operands(
    device: str, n: int, dtype: torch.dtype, bias: bool, rows: int = ROWS, k: int = K
) -> tuple[list[Tensor], Tensor]:
    target = torch.arange(rows).mul(7919).remainder(n)
    target[3] = -100
    shapes = [(rows, k), (n, k), (n,)][: 3 if bias else 2]
    return [torch.randn(s).to(device, dtype).requires_grad_() for s in shapes], target.to(device)


def exact(
    tensors: list[Tensor],
    target: Tensor,
    class_weight: Tensor | None,
    reduction: str,
    ignore: int = -100,
    **form: float,
) -> Tensor:
    logits = F.linear(*(t.double() for t in tensors))  # type: ignore[arg-type]
    if cap := form.get("softcap"):
        logits = cap * torch.tanh(logits / cap)
    weight = None if class_weight is None else class_weight.double()
    options: Any = {"ignore_index": ignore, "label_smoothing": form.get("label_smoothing", 0.0)}
    loss = F.cross_entropy(logits, target, weight, reduction="none", **options)
    kept = target != ignore
    loss = loss + form.get("z_loss", 0.0) * kept.double() * logits.logsumexp(-1) ** 2
    if reduction == "none":
        return loss
    share = kept.double() if weight is None else weight[torch.where(kept, target, 0)] * kept
    return loss.sum() / share.sum() if reduction == "mean" else loss.sum()


@pytest.mark.sample(12)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "+".join(form))
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", EACH_FLOAT)
@pytest.mark.parametrize("further", [False, True])
def test_values_and_gradients_against_float64(
    device: str, dtype: torch.dtype, reduction: str, form: dict[str, Any], n: int, further: bool
) -> None:
    tensors, target = operands(device, n, dtype, bias=further)
    class_weight = torch.rand(n, device=device) + 0.5 if further else None
    loss = linear_cross_entropy(
        *tensors[:2], target, *tensors[2:], class_weight=class_weight, reduction=reduction, **form
    )
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    wanted, near = exact(tensors, target, class_weight, reduction, **form), ROUNDING[dtype]
    torch.testing.assert_close(loss.double(), wanted, rtol=near, atol=near)
    grad = torch.rand_like(loss) + 0.5
    first, again = torch.autograd.grad(loss, tensors, grad, retain_graph=True), torch.autograd.grad(loss, tensors, grad)
    for got, second, of in zip(first, again, torch.autograd.grad(wanted, tensors, grad.double()), strict=True):
        assert got.dtype == dtype
        for found in (got, second):
            atol = near * (1 + of.abs().max().item())
            torch.testing.assert_close(found.double(), of.double(), rtol=near, atol=atol)


def test_a_subset_of_the_gradients(device: str) -> None:
    for wanted in ((True, False, False), (False, True, False), (False, False, True), (True, False, True)):
        tensors, target = operands(device, 21, torch.float64, bias=True)
        for t, want in zip(tensors, wanted, strict=True):
            t.requires_grad_(want)
        asked = [t for t in tensors if t.requires_grad]
        found = torch.autograd.grad(linear_cross_entropy(*tensors[:2], target, tensors[2]), asked)
        torch.testing.assert_close(found, torch.autograd.grad(exact(tensors, target, None, "mean"), asked))


@pytest.mark.parametrize(
    "form",
    [form if form == ALL else pytest.param(form, marks=pytest.mark.thorough) for form in FORMS],
    ids=lambda form: "+".join(form),
)
def test_derivatives_of_every_order(device: str, form: dict[str, Any]) -> None:
    # A few elements in two chunks: the checks call the operator for each element.
    tensors, target = operands(device, 5, torch.float64, bias=True, rows=5, k=2)

    def of(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return linear_cross_entropy(x, w, target, b, **form)

    assert torch.autograd.gradcheck(of, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(of, tensors)


def test_transforms(device: str) -> None:
    tensors, target = operands(device, 11, torch.float64, bias=True)
    x, weight, _ = (t.detach() for t in tensors)
    each = torch.func.vmap(lambda x, t: linear_cross_entropy(x, weight, t))(x, target.clamp(0))
    torch.testing.assert_close(each, F.cross_entropy(x @ weight.T, target.clamp(0), reduction="none"))
    grad = torch.func.grad(lambda w: linear_cross_entropy(x, w, target))(weight)
    torch.testing.assert_close(grad, torch.func.grad(lambda w: F.cross_entropy(x @ w.T, target))(weight))


def test_compiled_and_under_autocast(device: str) -> None:
    torch.compiler.reset()
    module = LinearCrossEntropyLoss(K, 21, bias=True, label_smoothing=0.1, device=device)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 10):
        x, target = torch.randn(rows, K, device=device, requires_grad=True), torch.arange(rows, device=device)
        parameters = [x, module.linear.weight, module.linear.bias]
        wanted = exact(parameters, target, None, "mean", label_smoothing=0.1).float()
        got = compiled(x, target)
        torch.testing.assert_close(got, wanted)
        for a, b in zip(torch.autograd.grad(got, parameters), torch.autograd.grad(wanted, parameters), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with torch.autocast(device, torch.bfloat16):
        lower = module(x, target)
    assert lower.dtype == torch.float32
    torch.testing.assert_close(lower, wanted, rtol=2e-2, atol=2e-2)
    assert torch.autograd.grad(lower, module.linear.weight)[0].dtype == torch.float32


def test_jagged_rows_with_their_gradients(device: str) -> None:
    (x, weight), target = operands(device, 21, torch.float64, bias=False)
    x, weight, offsets = (
        x.detach().requires_grad_(),
        weight.detach().requires_grad_(),
        torch.tensor([0, 4, ROWS], device=device),
    )
    whole = linear_cross_entropy(x, weight, target)
    rows, targets = (torch.nested.nested_tensor_from_jagged(t, offsets) for t in (x, target))
    jagged = linear_cross_entropy(rows, weight, targets)
    torch.testing.assert_close(jagged, whole)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight)) for y in (jagged, whole)), strict=True):
        torch.testing.assert_close(a, b)


def test_leading_dimensions_and_class_probabilities(device: str) -> None:
    (x, weight), target = operands(device, 21, torch.float64, bias=False)
    by_rows = linear_cross_entropy(x, weight, target, reduction="none")
    torch.testing.assert_close(
        linear_cross_entropy(x.view(2, 5, K), weight, target.view(2, 5), reduction="none"), by_rows.view(2, 5)
    )
    torch.testing.assert_close(linear_cross_entropy(x[0], weight, target[0]), by_rows[0])
    assert linear_cross_entropy(x[:0], weight, target[:0], reduction="sum") == 0
    shares = torch.rand(ROWS, 21, device=device, dtype=torch.float64)
    torch.testing.assert_close(
        linear_cross_entropy(x.view(2, 5, K), weight, shares.view(2, 5, 21)), F.cross_entropy(x @ weight.T, shares)
    )


@pytest.mark.simulator
def test_a_target_that_is_no_class_gives_nan_in_a_kernel() -> None:
    import cupyops

    x, weight, target = torch.randn(3, K), torch.randn(8, K), torch.tensor([0, 8, -1])
    with cupyops.simulate():
        loss = linear_cross_entropy(x, weight, target, class_weight=torch.rand(8), reduction="none")
    assert loss.isnan().tolist() == [False, True, True]


def test_a_chunk_has_a_tenth_of_the_rows_in_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [rows_of_chunk(m) for m in (16384, 8192, 65536, 100)] == [1536, 768, 6400, 512]


@pytest.mark.parametrize(
    ("of", "kind", "words"),
    [
        (lambda x, w, t: linear_cross_entropy(x, w, 3), TypeError, "`target` must be a Tensor, got int"),  # type: ignore[arg-type]
        (lambda x, w, t: linear_cross_entropy(x, w, t.int()), TypeError, "`target` must be class indices in int64, or"),
        (lambda x, w, t: linear_cross_entropy(x, w, t[:2]), ValueError, r"a class for each row of x, \(10,\), got \(2,\)"),
        (lambda x, w, t: linear_cross_entropy(x, w[:, :2], t), RuntimeError, "linear_cross_entropy: mat1 and mat2 shapes"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, w[0]), RuntimeError, r"`bias` must have shape \(21,\)"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, class_weight=w[0]), ValueError, "`class_weight` must have a value for"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, 1.0), TypeError, "`bias` must be a Tensor or None, got float"),  # type: ignore[arg-type]
        (lambda x, w, t: linear_cross_entropy(x, w, t, class_weight=[1.0]), TypeError, "`class_weight` must be a Tensor or None, got list"),  # type: ignore[arg-type]
        (lambda x, w, t: linear_cross_entropy(x, w, t, class_weight=w[:, 0].long()), TypeError, "`class_weight` must be floating"),
        (lambda x, w, t: linear_cross_entropy(x, w[:0], t), ValueError, r"`weight` must have a row for each class, got \(0, "),
        (lambda x, w, t: linear_cross_entropy(x, w, t, softcap="3"), TypeError, "`softcap` must be a number, got str"),  # type: ignore[arg-type]
        (lambda x, w, t: linear_cross_entropy(x, w, t, z_loss="3"), TypeError, "`z_loss` must be a number, got str"),  # type: ignore[arg-type]
        (lambda x, w, t: linear_cross_entropy(x, w, t.to("meta")), ValueError, "`target` must be on the device of `x`"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, class_weight=w[:, 0].to("meta")), ValueError, "`class_weight` must be on the"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, softcap=-1.0), ValueError, "`softcap` must be a positive number or None"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, reduction="average"), ValueError, "average is not a valid value"),
        (lambda x, w, t: linear_cross_entropy(x, w, t, label_smoothing=1.5), RuntimeError, "between 0.0 and 1.0. Got: 1.5"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(
    device: str, of: Callable[..., Any], kind: type[Exception], words: str
) -> None:
    (x, weight), target = operands(device, 21, torch.float32, bias=False)
    with pytest.raises(kind, match=words):
        of(x, weight, target)
