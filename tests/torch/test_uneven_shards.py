"""Gradients of gradients of DTensors whose pieces are unequal or empty, and of results that the loss does not depend on."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autograd_bridge as ab
from cupyops.torch import Operator, check_op, row_reduce
from cupyops.torch.check.report import CheckFailed

pytestmark = pytest.mark.filterwarnings("ignore")


def placed(x: Tensor, mesh: Any, placement: Any) -> Any:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if placement.is_partial():
        return DTensor.from_local(x / mesh.size(), mesh, [placement], run_check=False)
    return distribute_tensor(x.clone(), mesh, [placement], src_data_rank=None).detach()


def whole(x: Any) -> Tensor:
    local = x.full_tensor() if hasattr(x, "full_tensor") else x
    return local.reconcile() if hasattr(local, "reconcile") else local


def derivatives(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The result, the gradients of the sum of its squares, and the gradients of the sum of their squares."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    y = function(*leaves)
    first = torch.autograd.grad((y * y).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)  # type: ignore[arg-type]
    return [y, *first, *second]


def compare(
    function: Callable[..., Tensor], like: Callable[..., Tensor], mesh: Any, **given: tuple[Tensor, Any]
) -> None:
    found = derivatives(function, *(placed(x, mesh, placement) for x, placement in given.values()))
    for got, wanted in zip(found, derivatives(like, *(x for x, _ in given.values())), strict=True):
        torch.testing.assert_close(whole(got), wanted)


def placements(*dims: int) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [*(Shard(d) for d in dims), Replicate(), Partial()]


@pytest.mark.thorough
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("rows", [(5,), (5, 3)])
def test_a_linear_layer_without_a_bias_on_uneven_pieces(mesh: Any, rows: tuple[int, ...], gelu: bool) -> None:
    """The gradient of the gradient reshaped rows, which DTensor refuses for uneven pieces of them."""
    x, weight = torch.randn(*rows, 6).double(), torch.randn(9, 6).double()
    mine: Any = ab.linear_gelu if gelu else ab.linear

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        y = F.linear(x, weight)
        return F.gelu(y) if gelu else y

    # GELU or rows of two dimensions with each pair of placements; with both, each placement once.
    both = gelu and len(rows) > 1
    each = zip if both else itertools.product
    for of_x, of_weight in each(placements(*range(x.ndim)), [*placements(0, 1), *placements(0)[: int(both)]]):
        compare(mine, plain, mesh, x=(x, of_x), weight=(weight, of_weight))


def test_a_linear_layer_with_a_bias_on_uneven_pieces(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    x, weight, bias = (torch.randn(size).double() for size in ((5, 3, 6), (9, 6), (9,)))
    for of_x, of_weight, of_bias in [(Shard(0), Replicate(), Replicate()), (Replicate(), Shard(0), Shard(0))]:
        compare(ab.linear, F.linear, mesh, x=(x, of_x), weight=(weight, of_weight), bias=(bias, of_bias))


@pytest.mark.sample(1)
@pytest.mark.parametrize("classes", [3, 5, 8])
@pytest.mark.parametrize("kind", ["plain", "smoothed", "weighted"])
def test_cross_entropy_of_classes_on_fewer_ranks(mesh: Any, kind: str, classes: int) -> None:
    """A rank without a class has no largest logit."""
    from torch.distributed.tensor import Replicate

    x, target = torch.randn(6, classes).double(), torch.randint(0, classes, (6,))
    options: dict[str, Any] = {"label_smoothing": 0.1} if kind == "smoothed" else {}
    weight = torch.rand(classes).double() if kind == "weighted" else None
    on_mesh = [None if t is None else placed(t, mesh, Replicate()) for t in (target, weight)]
    for of_x in placements(0, 1):
        compare(
            lambda x: ab.cross_entropy(x, *on_mesh, **options),
            lambda x: F.cross_entropy(x, target, weight, **options),
            mesh,
            x=(x, of_x),
        )


def test_the_extremes_of_a_row_program_on_fewer_columns_than_ranks(mesh: Any) -> None:
    centred = row_reduce(
        "c = (max(x) + min(x)) / 2; y = (x - c) * x",
        backward="""
            c = (max(x) + min(x)) / 2
            d = sum(grad_y * x) / 2
            grad_x = grad_y * (2 * x - c) - (x == max(x) ? d : 0) - (x == min(x) ? d : 0)
        """,
        name="tests::centred_uneven",
    )

    def plain(x: Tensor) -> Tensor:
        return (x - (x.amax(-1, keepdim=True) + x.amin(-1, keepdim=True)) / 2) * x

    for of_x in placements(0, 1):
        compare(centred, plain, mesh, x=(torch.randn(6, 3).double(), of_x))


@pytest.mark.sample(1)
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("operator", ["add_rms_norm", "add_layer_norm"])
def test_a_result_that_the_loss_does_not_read(mesh: Any, operator: str, used: int) -> None:
    """Autograd passes plain zeros for the gradient of this result."""
    x, residual, weight = (torch.randn(size).double() for size in ((5, 6), (5, 6), (6,)))
    norm: Any = {"add_rms_norm": F.rms_norm, "add_layer_norm": F.layer_norm}[operator]

    def mine(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = getattr(ab, operator)(x, residual, 6, weight)[used]
        return found + 0 * weight

    def plain(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        s = x + residual
        return (s if used else norm(s, (6,), weight)) + 0 * weight

    *shards, replicate, _ = placements(0, 1)
    for of_x in (*shards, replicate):
        compare(mine, plain, mesh, x=(x, of_x), residual=(residual, of_x), weight=(weight, replicate))


def test_check_op_asks_for_the_gradient_of_one_result_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd's plain zeros reached the gradient's operator, beside a DTensor."""
    from cupyops.torch.core import declared

    pytest.importorskip("torch.distributed._local_tensor")

    def two(name: str) -> Operator:
        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            return x.sin(), x.cos()

        def gradient(grad_y: Tensor, grad_z: Tensor, x: Tensor) -> Tensor:
            return grad_y * x.cos() - grad_z * x.sin()

        schema = f"tests::{name}(Tensor x) -> (Tensor y, Tensor z)"
        return Operator(schema, both, backward=gradient, reference=both, sharding="elementwise")

    samples = [(torch.randn(6, 4, dtype=torch.float64),)]
    check_op(two("two_results"), samples, checks=["sharding"])
    monkeypatch.setattr(declared, "zeros_as_dtensors", lambda *grads: grads)
    with pytest.raises(CheckFailed, match="gradient of output 0 alone"):
        check_op(two("two_results_of_plain_zeros"), samples, checks=["sharding"])
