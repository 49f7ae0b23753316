"""optimize() beside DistributedDataParallel, fully_shard and tensor parallelism, on one rank."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from cupyops.torch import Operator, optimize
from cupyops.torch.models.classes import is_optimised
from cupyops.torch.ops.add_layer_norm import _add_layer_norm
from cupyops.torch.ops.layer_norm import _layer_norm
from cupyops.torch.ops.linear_gelu import _linear_gelu

from .stand_ins import WIDTH, PreNorm

pytestmark = [pytest.mark.usefixtures("one_thread", "group"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(PreNorm(), PreNorm())


def sharded(module: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for block in module:
        fully_shard(block.mlp, mesh=mesh)
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def over_columns_and_rows(module: Any) -> nn.Module:
    plan = {"mlp.fc1": ColwiseParallel(), "mlp.fc2": RowwiseParallel()}
    for block in module:
        parallelize_module(block, init_device_mesh("cpu", (1,)), plan)
    return module


def over_the_sequence(module: Any) -> nn.Module:
    plan = {"norm1": SequenceParallel(sequence_dim=1, use_local_output=True)}
    for block in module:
        parallelize_module(block, init_device_mesh("cpu", (1,)), plan)
    return module


WAYS: list[Callable[[Any], nn.Module]] = [
    nn.parallel.DistributedDataParallel,
    sharded,
    over_columns_and_rows,
    over_the_sequence,
]


def step(module: nn.Module) -> list[Tensor]:
    y = module(torch.linspace(-1, 1, 4 * 3 * WIDTH).view(4, 3, WIDTH))
    y.square().sum().backward()
    grads = (p.grad for p in module.parameters() if p.grad is not None)
    return [y.detach(), *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads)]


@pytest.mark.parametrize("first", ["optimised first", "distributed first"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_distributed_model_computes_what_it_computed(way: Callable[[Any], nn.Module], first: str) -> None:
    wanted = step(model())
    if first == "optimised first":
        plain = model()
        optimize(plain)
        module = way(plain)
        torch.testing.assert_close(step(module), wanted)
        return
    module = way(model())
    classes = [type(m) for m in module.modules()]
    report = optimize(module)
    linear = {"sharded": 6, "over_columns_and_rows": 4}.get(way.__name__, 0)  # those with DTensors as weights
    assert [site.operator for site in report.replaced].count("linear") == linear
    assert len(report.replaced) == 10 + linear
    torch.testing.assert_close(step(module), wanted)
    report.undo()
    assert [type(m) for m in module.modules()] == classes
    assert not any(is_optimised(c) for c in classes)


def test_fully_shard_gives_operators_plain_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, plain tensors take the generated dispatch."""
    module = model()
    optimize(module)
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in module:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    seen: dict[str, set[Any]] = {}

    def told(operator: Operator, args: tuple[Any, ...], *rest: Any) -> Any:
        found = [x for x in args if isinstance(x, Tensor)]
        seen.setdefault(operator.name, set()).update((type(x), x.dtype, x.is_contiguous()) for x in found)
        return dispatch(operator, args, *rest)

    dispatch = Operator._dispatch
    monkeypatch.setattr(Operator, "_dispatch", told)
    for operator in (_layer_norm, _add_layer_norm, _linear_gelu):
        monkeypatch.setitem(operator.call.__globals__, "dispatch", partial(told, operator))
    module(torch.randn(4, 3, WIDTH)).square().sum().backward()
    assert set(seen) >= {"add_layer_norm", "linear_gelu", "layer_norm"}
    assert set().union(*seen.values()) == {(kind, torch.bfloat16, True) for kind in (Tensor, nn.Parameter)}
