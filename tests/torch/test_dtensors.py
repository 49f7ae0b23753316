"""Calls of operators on DTensors by the local tensors: which calls are computed so, and their results."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autograd_bridge as ab
from cupyops.torch import Operator, optimize
from cupyops.torch.core import dtensors
from cupyops.torch.scale.distributed import summands

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, HIDDEN = 8, 16


def placed(x: Tensor, mesh: Any, placement: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.detach(), mesh, [placement], src_data_rank=None).requires_grad_()


def whole(x: Any) -> Tensor:
    local = x.full_tensor() if hasattr(x, "full_tensor") else x
    return local.reconcile() if hasattr(local, "reconcile") else local


def by_local_tensors(y: Any) -> bool:
    """Returns whether a call was computed by the local tensors."""
    return "_on_dtensors" in y.grad_fn.name()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y: Tensor = ab.layer_norm(x, weight.shape, weight, bias)
    return y


# The operator, PyTorch's function, and the shapes of the three tensors.
CALLS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "linear": (ab.linear, F.linear, [(4, 8, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)]),
    "linear_gelu": (ab.linear_gelu, lambda *a: F.gelu(F.linear(*a)), [(4, 8, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)]),
    "layer_norm": (layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(4, 8, WIDTH), (WIDTH,), (WIDTH,)]),
}
# The placements of x, weight and bias that need no communication: a dimension of each, or None for a whole tensor. The
# bias of the last one becomes the sum of equal parts.
ROWS: list[tuple[Any, Any, Any]] = [(0, None, None), (1, None, None), (None, None, None)]
FIT = {
    "linear": [*ROWS, (None, 0, 0), (2, 1, None)],
    "linear_gelu": [*ROWS, (None, 0, 0)],
    "layer_norm": ROWS,
}


def compared(name: str, mesh: Any, places: tuple[Any, Any, Any]) -> bool:
    """Compares results and gradients with those of whole tensors; returns whether the local tensors gave them."""
    from torch.distributed.tensor import Replicate, Shard

    ours, theirs, shapes = CALLS[name]
    count = itertools.count(1)
    tensors = [torch.linspace(-1, 1, torch.Size(s).numel()).view(s).mul(next(count)).sin() for s in shapes]
    leaves = [t.clone().requires_grad_() for t in tensors]
    right = theirs(*leaves)
    grads = torch.autograd.grad(right.square().sum(), leaves)
    given = [placed(t, mesh, Replicate() if p is None else Shard(p)) for t, p in zip(tensors, places, strict=True)]
    y = ours(*given)
    torch.testing.assert_close(whole(y.detach()), right.detach(), rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(y.square().sum(), given)
    torch.testing.assert_close([whole(g) for g in found], list(grads), rtol=1e-4, atol=1e-4)
    return by_local_tensors(y)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CALLS)
def test_the_local_tensors_compute_what_is_placed_as_a_split_and_nothing_else(name: str, mesh: Any) -> None:
    dims = [(None, *range(len(shape))) for shape in CALLS[name][2]]
    taken = {places for places in itertools.product(*dims) if compared(name, mesh, places)}
    assert taken == set(FIT[name])


def test_a_wrong_placement_that_was_taken_would_be_seen(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if every placement is taken for a split."""
    operator = softmax_of_rows("cupyops_test::rows")
    monkeypatch.setattr(dtensors, "summands", lambda *_: [])
    from torch.distributed.tensor import Shard

    x = torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(whole(operator(placed(x, mesh, Shard(1))).detach()), x.softmax(-1))
    monkeypatch.setattr(dtensors, "summands", summands)
    other = softmax_of_rows("cupyops_test::rows")  # plans belong to an operator
    y = other(placed(x, mesh, Shard(1)))
    assert not by_local_tensors(y)
    torch.testing.assert_close(whole(y.detach()), x.softmax(-1))


def test_pieces_of_pieces_are_no_split() -> None:
    """If two dimensions of a mesh divide one dimension of a tensor, the order of the pieces is unknown."""
    from torch.distributed.tensor import Replicate, Shard

    def found(*placements: Any) -> Any:
        spec = SimpleNamespace(placements=placements, mesh=SimpleNamespace(ndim=2))
        return summands(lambda *_: [([0], [0])], [SimpleNamespace(_spec=spec)], 1, [spec], [spec])

    assert found(Shard(0), Replicate()) == []
    assert found(Shard(0), Shard(0)) is None


def softmax_of_rows(name: str) -> Operator:
    """softmax along the last dimension, whose rows may be split."""

    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    return Operator(f"{name}(Tensor x) -> Tensor y", softmax, reference=softmax, sharding="rows")


def test_a_plan_is_not_taken_for_another_shape_argument_or_layout(mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    x = torch.linspace(-1, 1, 8 * 4 * 4).view(8, 4, 4).sin()
    for given in (x, x.view(8, 2, 8), x[:, :3].contiguous(), x.double(), x.transpose(1, 2)):
        for shape in ((given.shape[-1],), tuple(given.shape[1:])):
            y = ab.layer_norm(placed(given, mesh, Shard(0)), shape)
            assert by_local_tensors(y)
            assert (y.shape, y.dtype) == (given.shape, given.dtype)
            assert y.stride() == ab.layer_norm(given, shape).stride()
            torch.testing.assert_close(whole(y.detach()), F.layer_norm(given, shape))


def test_a_gradient_has_a_gradient(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    x, weight = torch.randn(4, WIDTH), torch.randn(HIDDEN, WIDTH)

    def second(x: Any, weight: Any) -> list[Tensor]:
        (grad,) = torch.autograd.grad(ab.linear_gelu(x, weight).square().sum(), x, create_graph=True)
        return [whole(g) for g in torch.autograd.grad(grad.square().sum(), (x, weight))]

    found = second(placed(x, mesh, Shard(0)), placed(weight, mesh, Replicate()))
    torch.testing.assert_close(found, second(x.requires_grad_(), weight.requires_grad_()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", ["columns", "rows"])
def test_autocast_converts_dtensors_and_gradients_have_the_dtypes_of_the_parameters(mesh: Any, style: str) -> None:
    from torch.distributed.tensor import Replicate, Shard

    places = {
        "columns": (Replicate(), Shard(0), Shard(0)),
        "rows": (Shard(1), Shard(1), Replicate()),
    }[style]
    tensors = [torch.randn(8, WIDTH), torch.randn(HIDDEN, WIDTH), torch.randn(HIDDEN)]
    given = [placed(t, mesh, p) for t, p in zip(tensors, places, strict=True)]
    with torch.autocast("cpu", torch.bfloat16):
        y = ab.linear(*given)
    assert y.dtype is torch.bfloat16
    assert by_local_tensors(y)
    grads = torch.autograd.grad(y.float().sum(), given)
    assert {g.dtype for g in grads} == {torch.float32}
    exact = torch.autograd.grad(F.linear(*(leaves := [t.requires_grad_() for t in tensors])).sum(), leaves)
    torch.testing.assert_close([whole(g) for g in grads], list(exact), rtol=0.02, atol=0.1)


def test_a_mode_sees_the_operator_on_dtensors(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if DTensor in types:
                names.append(function.name())
                return NotImplemented
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    x = placed(torch.randn(4, WIDTH), mesh, Shard(0))
    with Seen():
        y = ab.layer_norm(x, WIDTH)
    assert "cupyops::layer_norm" in names
    assert not by_local_tensors(y)
    names.clear()
    assert by_local_tensors(ab.layer_norm(x, WIDTH))
    assert not names


@pytest.fixture
def alone() -> Iterator[Any]:
    """A mesh of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_tensor_that_a_collective_still_computes_is_waited_for(alone: Any) -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_gather_tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    x, weight = torch.randn(4, WIDTH), placed(torch.randn(WIDTH), alone, Replicate())
    pending = all_gather_tensor(x, 0, alone)
    assert type(pending) is AsyncCollectiveTensor
    y = ab.layer_norm(DTensor.from_local(pending, alone, [Shard(0)], run_check=False), WIDTH, weight)
    assert by_local_tensors(y)
    assert type(y.to_local()) is Tensor
    torch.testing.assert_close(y.full_tensor(), F.layer_norm(x, (WIDTH,), weight.full_tensor()))


def test_local_tensors_that_require_grad_cause_no_warning(alone: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    # A shape that no other test has: a plan is made once.
    x, weight = torch.randn(5, WIDTH, requires_grad=True), placed(torch.randn(WIDTH), alone, Replicate())
    given = DTensor.from_local(x, alone, [Shard(0)], run_check=False)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else PyTorch warns once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = ab.layer_norm(given, WIDTH, weight)
    finally:
        torch.set_warn_always(always)
    assert by_local_tensors(y)
    y.to_local().square().sum().backward()
    assert x.grad is not None


def parallel(mesh: Any, optimised: bool) -> nn.Module:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    module = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(module, mesh, plan)
    if optimised:
        report = optimize(module)
        assert [site.operator for site in report.replaced].count("linear") == 2
    return module


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_optimize_has_the_norms_and_linear_layers_of_dtensors_call_operators(alone: Any, compiled: bool) -> None:
    found = []
    torch.compiler.reset()  # after other compilations of a module's code, shapes are dynamic, which PyTorch fails at
    for optimised in (False, True):
        module: Any = parallel(alone, optimised)
        forward = torch.compile(module, backend="aot_eager", dynamic=False) if compiled else module
        x = torch.linspace(-1, 1, 2 * 4 * WIDTH).view(2, 4, WIDTH).requires_grad_()
        y = forward(x)
        y.square().sum().backward()
        if not compiled:
            nodes = names_of_nodes(y)
            seen = [any(f"{name}_on_dtensors" in node for node in nodes) for name in ("layer_norm", "linear")]
            assert seen == [optimised] * 2
        grads = (p.grad.full_tensor() for p in module.parameters())
        found.append([y.detach(), x.grad, *grads])
    torch.testing.assert_close(found[1], found[0])


def names_of_nodes(y: Tensor) -> set[str]:
    """The names of all nodes that computed a tensor."""
    nodes, names = [y.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.add(node.name())
            nodes += [n for n, _ in node.next_functions]
    return names
