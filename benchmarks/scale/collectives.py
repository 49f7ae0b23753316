"""Counts the collectives that many ranks ask for in a training step, without the ranks.

PyTorch's fake process group has any number of ranks, of which one runs, and communicates nothing. Fake tensors have
shapes and no numbers, so that a model of any size is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .models import Model, characters

__all__ = ["KINDS", "Layout", "Traffic", "counted", "layouts", "many_ranks", "table", "transfer"]

# The operators that PyTorch dispatches for a collective, by the collective's name.
KINDS = {
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_reduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
    "_dtensor::shard_dim_alltoall": "all-to-all",
    "c10d::broadcast_": "broadcast",
    "_c10d_functional::broadcast": "broadcast",
}
MACHINE = 8  # GPUs of a machine
_QUIET = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class Traffic:
    """A collective that one rank issues: its kind, its number of ranks, and the bytes of the whole tensor.

    Attributes:
        inside: whether the ranks are of one machine of 8, which are numbered one after the other.
    """

    kind: str
    ranks: int
    size: int
    inside: bool = False


class _Collectives(TorchDispatchMode):
    """Collects the collectives that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Traffic] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if DTensor in types:  # DTensor first: what it dispatches comes here again
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        if name in KINDS:
            ranks = _ranks(args, kwargs)
            inside = max(ranks) - min(ranks) < MACHINE
            tensors = [x for x in torch.utils._pytree.tree_leaves((args, result)) if isinstance(x, Tensor)]
            # The whole tensor is the larger one: the result of a gather, or the operand of a scatter.
            self.found[Traffic(KINDS[name], len(ranks), max(x.nbytes for x in tensors), inside)] += 1
        elif name.startswith(("c10d", "_c10d_functional", "_dtensor")) and not name.endswith(_QUIET):
            raise NotImplementedError(f"collectives: {name} is counted nowhere; add it to KINDS")
        return result


def _ranks(args: Any, kwargs: Any) -> list[int]:
    """The ranks of a collective's group, which is an argument of its operator or known by name."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, torch.ScriptObject):
            try:
                return dist.get_process_group_ranks(dist.ProcessGroup.unbox(x))
            except RuntimeError:  # another object, such as the operation of a reduction
                continue
    names: list[Any] = [x for x in (*args, *kwargs.values()) if isinstance(x, str)]
    return dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(names[-1]))


@contextmanager
def many_ranks(count: int) -> Iterator[None]:
    """A process group of so many ranks, in which this process is the first one and nothing is communicated."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Layout:
    """How ranks share a step: by `data` ranks with batches of their own, each of which is `tensor` ranks.

    Attributes:
        way: "ddp" or "fsdp" for the data ranks.
    """

    way: str
    data: int
    tensor: int = 1

    def __str__(self) -> str:
        name = {"ddp": "DDP", "fsdp": "FSDP2"}[self.way]
        return name if self.tensor == 1 else f"{name}, tensor parallel in groups of {self.tensor}"


def layouts(ranks: int, tensor: int = MACHINE) -> list[Layout]:
    """The layouts of the table: DDP, FSDP2, and FSDP2 over the machines with tensor parallelism in each."""
    return [Layout("ddp", ranks), Layout("fsdp", ranks), Layout("fsdp", ranks // tensor, tensor)]


def counted(
    model: Model, variant: str, layout: Layout, change: Callable[[Any], None] | None = None
) -> Counter[Traffic]:
    """The collectives of a forward and a backward of one rank.

    Args:
        variant: "torch" or "cupyops".
        change: changes the model before it is sharded.
    """
    import torch.distributed._tools.fake_collectives
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with many_ranks(layout.data * layout.tensor):
        sizes = {"data": layout.data, "tensor": layout.tensor}
        sizes = {name: size for name, size in sizes.items() if size > 1}  # a group of one for each rank takes seconds
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        # Sharded on the device "meta", where a piece for each rank costs little, and then made of fake tensors.
        with torch.device("meta"):
            made: Any = model.build(variant)
        if change is not None:
            change(made)
        if layout.tensor > 1:
            model.split(made, mesh["tensor"])
        called: nn.Module = made
        if layout.way == "fsdp":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            for block in (*model.blocks(made), made):
                fully_shard(block, mesh=mesh["data"], mp_policy=policy)
        with FakeTensorMode(allow_non_fake_inputs=True):  # DTensor makes small tensors of numbers of ranks
            made.to_empty(device="cpu")
            batch = model.draw(model.rows, torch.Generator())
            if layout.way == "ddp":
                group = mesh.get_group("data")
                called = nn.parallel.DistributedDataParallel(made, process_group=group, init_sync=False)
                called.register_comm_hook(group, _all_reduce)
            with _Collectives() as mode:
                model.loss(called, batch).backward()
        return mode.found


def _all_reduce(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's default reduction of a bucket of gradients. The fake process group gives DDP no result to wait for."""
    dist.all_reduce(bucket.buffer(), group=group)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def transfer(found: Counter[Traffic]) -> int:
    """The bytes that a rank sends by ring algorithms: (n - 1) / n of each tensor, twice for an all-reduce."""
    return sum(
        count * (2 if t.kind == "all-reduce" else 1) * t.size * (t.ranks - 1) // t.ranks for t, count in found.items()
    )


# A transformer of 1.2 thousand million parameters, and 8 sequences of 2048 on each data rank.
LARGE = characters(24, 16, 2048, 2048, 8, name="24 blocks of width 2048")


def table(model: Model = LARGE, ranks: tuple[int, ...] = (64, 1024)) -> str:
    """Markdown: the collectives of one rank in a step, with cupyops' and with PyTorch's modules."""
    lines = [["ranks", "layout", "variant", "collectives", "sent within a machine", "sent beyond"], ["---"] * 6]
    for count in ranks:
        for layout in layouts(count):
            for variant in ("torch", "cupyops"):
                found = counted(model, variant, layout)
                kinds: Counter[str] = Counter()
                for traffic, times in found.items():
                    kinds[traffic.kind] += times
                inner = Counter({t: n for t, n in found.items() if t.inside})
                sent = (f"{transfer(part) / 1e9:.2f} GB" for part in (inner, found - inner))
                told = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
                lines.append([str(count), str(layout), variant, told, *sent])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
