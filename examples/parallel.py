"""Training in several processes: torchrun starts them, and PyTorch, through Fabric, divides the work."""

import atexit
import os
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .command import UserError, processes

__all__ = ["Plan", "devices_of", "join", "strategy_of"]

Plan = Callable[[nn.Module, Any], nn.Module]


def strategy_of(parallel: str, plans: Mapping[str, Plan]) -> Any:
    """Fabric's strategy: DistributedDataParallel, or a plan, which shards a model over a mesh of devices in place.

    Args:
        plans: by the name of the option `--parallel`, functions of a model and of a mesh with one dimension.
    """
    if parallel == "ddp":
        return "ddp"
    from lightning_fabric.strategies import ModelParallelStrategy

    ranks, over_data = processes().world, parallel == "fsdp"
    sizes: dict[str, Any] = {
        "data_parallel_size": ranks if over_data else 1,
        "tensor_parallel_size": 1 if over_data else ranks,
    }
    dimension = "data_parallel" if over_data else "tensor_parallel"
    return ModelParallelStrategy(lambda model, mesh: plans[parallel](model, mesh[dimension]), **sizes)


def devices_of(device: torch.device, options: Namespace) -> dict[str, int]:
    """Fabric's number of devices and nodes.

    Raises:
        UserError: the machine has fewer GPUs than torchrun started processes, or `--device` names one GPU.
    """
    local = processes().local
    if device.type == "cuda":
        if ":" in options.device:
            raise UserError(f"--parallel gives each process a GPU of its own; use --device cuda, not {options.device}")
        if local > (found := torch.cuda.device_count()):
            raise UserError(f"torchrun started {local} processes on a machine with {found} GPUs; each needs its own")
    return {"devices": local, "num_nodes": processes().world // local}


def join(device: torch.device) -> None:
    """Make the process group of torchrun's processes: NCCL on GPUs, gloo on CPUs. Fabric uses an existing group.

    After a restart the group uses new keys in the store. PyTorch 2.13 reuses the store of the failed processes, which
    has their addresses.
    """
    if dist.is_initialized():
        return
    store, rank, world = next(dist.rendezvous("env://"))
    keys, backend, own = dist.PrefixStore(f"start {processes().restarts}", store), "gloo", None
    if device.type == "cuda":
        backend, own = "nccl", torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group(backend, store=keys, rank=rank, world_size=world, device_id=own)
    atexit.register(_leave)


def _leave() -> None:
    """Destroy the process group, and let gloo's threads drop the tensors of their last work.

    A thread that asks for the GIL while the interpreter ends aborts the process. The threads of a group outlive
    `destroy_process_group` as long as a device mesh in a cache of PyTorch has the group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.1)  # without the GIL
