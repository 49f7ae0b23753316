"""How the transformer is spread over the devices of a mesh: sharded parameters, or sharded matrices and sequences."""

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ..command import UserError
from .model import loss_of_logits

__all__ = ["PLANS", "AddNormParallel", "shard_parameters", "split_matrices", "sum_gradients"]


class AddNormParallel(ParallelStyle):
    """`SequenceParallel` for a module with two inputs and two results. PyTorch's own style passes on only one of each.

    Inputs and results are this rank's part of the sequences, (B, T / ranks, width). Weight and bias are whole on every
    rank, and DTensor sums their gradients over the ranks.
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        def placed(_: nn.Module, inputs: tuple[Tensor, ...], mesh: Any) -> Any:
            return tuple(DTensor.from_local(x, mesh, [Shard(1)], run_check=False) for x in inputs)

        def local(_: nn.Module, results: tuple[Any, ...], mesh: Any) -> Any:
            return tuple(y.to_local() for y in results)

        return distribute_module(module, device_mesh, None, placed, local)


def shard_parameters(model: Any, mesh: Any) -> nn.Module:
    """FSDP2: every rank holds a part of each parameter, and gathers a block's parameters when it computes the block."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split_matrices(model: Any, mesh: Any) -> nn.Module:
    """Tensor parallelism with sequence parallelism: heads and hidden features are split over the ranks, and between
    them the positions of the sequences.

    Raises:
        UserError: the ranks do not divide the heads or the positions.
    """
    ranks, heads = mesh.size(), model.blocks[0].attention.qkv.in_features // model.blocks[0].attention.head_width
    for name, value in (("heads", heads), ("context", model.context)):
        if value % ranks:
            raise UserError(f"--parallel tp needs a --{name} that its {ranks} processes divide, got {value}")
    columns, rows = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    plan = {
        "token": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "position": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": SequenceParallel(use_local_output=True),
        **{f"blocks.*.{name}": columns for name in ("attention.qkv", "mlp.0")},
        **{f"blocks.*.{name}": rows for name in ("attention.out", "mlp.1")},
        **{f"blocks.*.{name}": AddNormParallel() for name in ("norm1", "norm2")},
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    model.loss = loss_of_logits  # a rank has some rows of the head, and gathers the logits
    return parallelize_module(model, mesh, plan)


def sum_gradients(model: nn.Module) -> list[nn.Parameter]:
    """Add up over the ranks the gradients of parameters that are whole on every rank; return the parameters.

    A rank has the norms' gradients from its part of the sequences, and DTensor would sum them later. In PyTorch 2.11,
    `clip_grad_norm_` includes such gradients in the norm, and does not scale them.
    """
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(isinstance(place, Partial) for place in gradient.placements):
            whole = [Replicate() if isinstance(place, Partial) else place for place in gradient.placements]
            parameter.grad = gradient.redistribute(placements=whole)
    return list(model.parameters())


PLANS = {"fsdp": shard_parameters, "tp": split_matrices}
