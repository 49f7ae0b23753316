"""linear_cross_entropy of a vocabulary that two processes divide, beside that of the whole weight in float64."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

import cupyops
from autograd_bridge import LinearCrossEntropyLoss, linear_cross_entropy
from benchmarks import results_file
from cupyops.torch.ops import projected_loss
from cupyops.torch.ops.sharded_vocabulary import _gradient, _gradient_over
from tests import preloaded
from tests.support import fork_ranks

RANKS, ROWS, K = 2, (2, 6), 8
# Pieces that are equal and unequal, padded and not; of one class, a rank has none.
CLASSES = (24, 21, 1)
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def whole(x: Any) -> Tensor:
    found: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return found


def operands(n: int, dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    target = torch.randint(n, ROWS)
    target[0, 3] = -100
    return [torch.randn(*size).to(device, dtype) for size in ((*ROWS, K), (n, K), (n,))], target.to(device)


def compared(mesh: Any, n: int, dtype: torch.dtype, place: Any, bias: bool, **options: Any) -> dict[str, int]:
    """Compares loss and gradients with those of whole tensors in float64; returns how often the ranks communicated."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    tensors, target = operands(n, dtype, mesh.device_type)
    exact = [t.double().requires_grad_() for t in tensors[: 2 + bias]]
    wanted = linear_cross_entropy(*exact[:2], target, *exact[2:], **options)
    given = [distribute_tensor(t, mesh, [Shard(0)]).requires_grad_() for t in tensors]
    given[0] = tensors[0].clone().requires_grad_()
    if place is not None:
        given[0] = distribute_tensor(tensors[0], mesh, [place]).requires_grad_()
    given = given[: 2 + bias]
    with CommDebugMode() as mode:
        loss = linear_cross_entropy(*given[:2], target, *given[2:], **options)
        grads = torch.autograd.grad((loss * 1.5).sum(), given)
    assert isinstance(loss, DTensor) == (place is not None)
    near = ROUNDING[dtype]
    torch.testing.assert_close(whole(loss).double(), wanted, rtol=near, atol=near)
    for got, of in zip(grads, torch.autograd.grad((wanted * 1.5).sum(), exact), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(whole(got).double(), of, rtol=near, atol=near * (1 + of.abs().max().item()))
    assert all(g.placements == (Shard(0),) for g in grads[1:])
    return {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}


def _ranks(rank: int, folder: str, kind: str) -> None:
    from torch.distributed.tensor import Replicate, Shard

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), RANKS)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group({"cpu": "gloo", "cuda": "nccl"}[kind], store=store, rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh(kind, (RANKS,))
    projected_loss.LEAST = 5  # three chunks of rows
    places = (None, Replicate(), Shard(0), Shard(1))
    for j, n in enumerate(CLASSES):
        for i, dtype in enumerate(ROUNDING):
            for k, reduction in enumerate(("mean", "sum", "none")):
                if kind == "cuda" or (i + j + k) % 3 == 0:  # on a CPU, each pair of the three
                    compared(mesh, n, dtype, places[i], bool(i % 2), reduction=reduction, z_loss=0.1 * (i // 2))
    # The gathers of three chunks, and the sum of the gradient of x. No rank has the weight of another.
    for place in places[:2]:
        assert compared(mesh, 24, torch.float32, place, True) == {"_allgather_base_": 3, "all_reduce": 1}
    assert compared(mesh, 24, torch.float32, Shard(1), True)["reduce_scatter_tensor"] == 1
    # Cases that the pieces do not compute use the gathered weight.
    for options in ({"label_smoothing": 0.1}, {"softcap": 3.0}, {"class_weight": torch.ones(21, device=kind)}):
        for place in places[::3]:
            _loosely(mesh, place, options)
    if kind == "cpu":
        with cupyops.simulate():
            for reduction in ("mean", "none"):
                compared(mesh, 21, torch.float32, Shard(1), True, reduction=reduction, z_loss=0.1)
    _a_second_backward_a_missing_class_and_a_module(mesh)
    dist.destroy_process_group()


def _loosely(mesh: Any, place: Any, options: dict[str, Any]) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    (x, weight, _), target = operands(21, torch.float64, mesh.device_type)
    given = x if place is None else distribute_tensor(x, mesh, [place])
    divided = distribute_tensor(weight, mesh, [Shard(0)]).requires_grad_()
    found = linear_cross_entropy(given, divided, target, **options)
    weight.requires_grad_()
    wanted = linear_cross_entropy(x, weight, target, **options)
    torch.testing.assert_close(whole(found), wanted)
    (got,), of = torch.autograd.grad(found, divided), torch.autograd.grad(wanted, weight)
    torch.testing.assert_close(whole(got), *of)


def _a_second_backward_a_missing_class_and_a_module(mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    module = LinearCrossEntropyLoss(K, 21, device=mesh.device_type)
    (x, weight, _), target = operands(21, torch.float32, mesh.device_type)
    module.linear.weight.data.copy_(weight)
    parallelize_module(module, mesh, {"linear": ColwiseParallel()})
    loss = module(x, target)
    first, again = (torch.autograd.grad(loss, module.linear.weight, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(whole(first), whole(again), rtol=0, atol=0)
    compiled = torch.compile(module, backend="aot_eager")
    (of_graph,) = torch.autograd.grad(compiled(x, target), module.linear.weight)
    torch.testing.assert_close(whole(first), whole(of_graph), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(module(x, target), module.linear.weight, create_graph=True)
    target[1, 1] = 21
    losses = linear_cross_entropy(x, module.linear.weight, target, reduction="none")
    assert losses.isnan().nonzero().tolist() == [[1, 1]]
    with torch.no_grad():
        assert not module(x, target.clamp(max=20)).requires_grad
    target[1, 1] = -100
    torch.testing.assert_close(
        linear_cross_entropy(x[:0], module.linear.weight, target[:0], reduction="sum").item(), 0.0
    )


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
def test_ranks_with_some_classes_each_compute_the_loss_of_all(kind: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(results_file.ROOT), "OMP_NUM_THREADS": "1", "NCCL_NVLS_ENABLE": "0"}
    start = preloaded.run if kind == "cpu" else _started
    done = start(["-m", __name__, kind], cwd=results_file.ROOT, env=environment)
    assert done.returncode == 0, done.stderr


def _started(arguments: list[str], **options: Any) -> Any:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_over_the_logits_is_the_gradient_beside_them(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 24, device=device).to(dtype)
    m, r, grad = (torch.rand(5, device=device) + 0.5 for _ in range(3))
    target = torch.tensor([3, -1, 5, 10, -1], device=device)
    beside = _gradient(x, m, r, grad, target)
    wanted = ((x.float() - m[:, None]).exp() * r[:, None] - F.one_hot(target + 1, 25)[:, 1:]) * grad[:, None]
    torch.testing.assert_close(beside.float(), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)
    _gradient_over(x, m, r, grad, target)
    torch.testing.assert_close(x, beside, rtol=0, atol=0)


if __name__ == "__main__":
    # A process that has asked for a GPU cannot be forked, and a new one imports this file.
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "cpu":
            fork_ranks(_ranks, (folder, "cpu"), RANKS)
        else:
            mp.start_processes(_ranks, (folder, "cuda"), nprocs=RANKS, start_method="spawn")
