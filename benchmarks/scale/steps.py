"""A training step on one rank of several: forward, backward and AdamW, by one way of sharding and in one mode."""

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from cupyops.torch import optimize

from .models import VARIANTS, Model

__all__ = ["MODES", "WAYS", "Case", "Steps", "cases", "measure"]

WAYS = ("ddp", "fsdp", "tp")
MODES = ("eager", "compiled", "checkpointing", "graphs")
# Modes and ways, the most important first: a run that is to end early leaves out the others.
_STAGES = (
    ("eager", ("ddp", "fsdp")),
    ("eager", ("tp",)),
    ("compiled", ("ddp", "fsdp")),
    ("compiled", ("tp",)),
    ("checkpointing", ("ddp", "fsdp")),
    ("graphs", ("ddp", "fsdp")),
    ("checkpointing", ("tp",)),
    ("graphs", ("tp",)),
)


@dataclass(frozen=True)
class Case:
    """A case: a model, a way of sharding, a mode, and the number of ranks."""

    model: Model
    way: str
    mode: str
    ranks: int


def cases(
    models: Sequence[Model], ways: Sequence[str], modes: Sequence[str], world: int, weak_scaling: bool = True
) -> list[Case]:
    """All cases on all ranks; for weak scaling, DDP and FSDP2 on one rank, eager and compiled. The first count most."""
    found = []
    for mode, of_stage in _STAGES:
        for model in models:
            for way in of_stage:
                if mode not in modes or way not in ways:
                    continue
                if weak_scaling and world > 1 and way != "tp" and mode in ("eager", "compiled"):
                    found.append(Case(model, way, mode, 1))
                found.append(Case(model, way, mode, world))
    return found


def saved_operations() -> set[Any]:
    """The operations whose results selective checkpointing keeps: matrix products and attention."""
    aten = torch.ops.aten
    names = ("flash", "efficient", "cudnn", "fused_attention_overrideable", "flash_attention_for_cpu")
    attention = {f"_scaled_dot_product_{name}" + "_attention" * ("attention" not in name) for name in names}
    found = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.linear.default}
    found.add(torch.ops.cupyops.linear.default)  # what DTensors take
    return found | {getattr(aten, name).default for name in attention if hasattr(aten, name)}


def _policy(saved: set[Any], ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


class Steps:
    """A variant of a model that takes training steps on this rank.

    Every rank of `ddp` and `fsdp` takes a batch of its own, and all ranks of `tp` take these batches together. A GPU
    computes in bfloat16: by autocast, and with `fsdp` in bfloat16 copies of the parameters.
    """

    def __init__(self, case: Case, variant: str, mesh: DeviceMesh, device: torch.device) -> None:
        self.case, self.device = case, device
        torch.manual_seed(0)
        with device:  # a GPU draws random weights faster
            model: Any = case.model.build(variant).train()
        if case.way == "tp":
            case.model.split(model, mesh)
            if variant == "cupyops":
                optimize(model)  # linear layers and norms of DTensors
        for block in case.model.blocks(model):
            forward = block.forward
            if case.mode == "checkpointing":
                contexts = partial(create_selective_checkpoint_contexts, partial(_policy, saved_operations()))
                forward = partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)
            elif case.mode != "eager":
                forward = torch.compile(forward, mode="reduce-overhead" if case.mode == "graphs" else None)
            block.forward = forward
        if case.mode in ("compiled", "graphs") and case.way != "tp":  # loss_parallel is not traced
            case.model.compile_rest(model)
        lower = device.type == "cuda"
        if case.way == "fsdp":
            _shard(model, case.model.blocks(model), mesh, lower)
        self.autocast = lower and case.way != "fsdp"
        sharded = [p for p in model.parameters() if hasattr(p, "to_local")]
        others = [p for p in model.parameters() if not hasattr(p, "to_local")]
        groups = [{"params": group} for group in (sharded, others) if group]  # a fused call takes one kind of tensors
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=lower)
        self.model: Any = model
        if case.way == "ddp":
            ids = [device.index] if lower else None
            group = mesh.get_group()
            self.model = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=ids, process_group=group, gradient_as_bucket_view=True
            )
        parts = range(case.ranks) if case.way == "tp" else [0 if case.ranks == 1 else dist.get_rank()]
        drawn = [case.model.draw(case.model.rows, torch.Generator().manual_seed(1 + part)) for part in parts]
        self.batch = tuple(torch.cat(tensors).to(device) for tensors in zip(*drawn, strict=True))

    def step(self) -> Tensor:
        """Takes a step, and returns the loss of this rank without waiting for it."""
        if self.case.mode == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        lower: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()
        )
        with loss_parallel() if self.case.way == "tp" else nullcontext():
            with lower:
                loss = self.case.model.loss(self.model, self.batch)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().clone()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _shard(model: Any, blocks: Sequence[Any], mesh: DeviceMesh, lower: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if lower else MixedPrecisionPolicy()
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def mesh_of(case: Case, device: torch.device) -> DeviceMesh:
    """A mesh of all ranks, or one of this rank alone."""
    world = dist.get_world_size()
    if case.ranks == world:
        return init_device_mesh(device.type, (world,))
    return init_device_mesh(device.type, (world, 1), mesh_dim_names=("others", "own"))["own"]


def measure(
    case: Case, device: torch.device, rounds: int, warm_up: int, variants: Sequence[str] = VARIANTS
) -> list[dict[str, Any]]:
    """Times the steps of a case's variants in turns, one step at a turn, on all ranks at once.

    The variants begin with the same weights and take the same batch in every step, so that their first losses are equal
    within roundings. A step's time is that of the slowest rank. A case of one rank is measured on each rank at the same time.

    Returns:
        a row for each variant.
    """
    torch.compiler.reset()
    mesh = mesh_of(case, device)
    built = {variant: Steps(case, variant, mesh, device) for variant in variants}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    hosts: dict[str, list[float]] = {variant: [] for variant in variants}
    losses: dict[str, list[Tensor]] = {variant: [] for variant in variants}
    peaks: dict[str, float] = {}
    order = list(built)
    try:
        for number in range(-warm_up, rounds):
            if number == 0:
                gc.collect()
                gc.freeze()  # collections during the turns look at little
            for variant in order:
                steps = built[variant]
                dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
                last = number == rounds - 1
                if last and device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
                steps.wait()
                began = time.perf_counter()
                losses[variant].append(steps.step())
                queued = time.perf_counter()
                steps.wait()
                if number >= 0:
                    times[variant].append(time.perf_counter() - began)
                    hosts[variant].append(queued - began)
                if last and device.type == "cuda" and case.mode != "graphs":  # graphs keep their memory
                    peaks[variant] = (torch.cuda.max_memory_allocated(device) - before) / 2**20
            order.reverse()
    finally:
        gc.unfreeze()
    rows = case.model.rows * case.ranks
    found = []
    for variant in variants:
        slowest = torch.tensor([times[variant], hosts[variant]], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        loss = torch.stack([losses[variant][0], losses[variant][-1]]).double()
        dist.all_reduce(loss)
        first, final = (loss / dist.get_world_size()).tolist()
        seconds, queueing = (sorted(row) for row in slowest.tolist())
        median = statistics.median(seconds)
        found.append(
            {
                "model": case.model.name,
                "way": case.way,
                "mode": case.mode,
                "ranks": case.ranks,
                "variant": variant,
                "milliseconds": round(median * 1e3, 4),
                "least": round(seconds[0] * 1e3, 4),
                "host": round(statistics.median(queueing) * 1e3, 4),
                "samples": len(seconds),
                "unit": case.model.unit,
                "per_second": round(rows * case.model.units / median, 1),
                "first_loss": first,
                "loss": final,
                "peak_mib": round(peaks[variant], 1) if variant in peaks else None,
            }
        )
    return found
