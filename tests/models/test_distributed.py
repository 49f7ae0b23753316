"""optimize() beside DistributedDataParallel, fully_shard and tensor parallelism, on one rank."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from cupyops.torch import optimize
from cupyops.torch.models.classes import is_optimised

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
    assert len(report.replaced) == 10
    torch.testing.assert_close(step(module), wanted)
    report.undo()
    assert [type(m) for m in module.modules()] == classes
    assert not any(is_optimised(c) for c in classes)
