"""The vmap rules of operators that declare none: one call on the batched tensors for an elementwise operator, vmap of
the reference, or a loop over the batch.

No rule holds a reference to its operator. The ``torch.library.Library`` holds the rule, and would keep the operator
alive.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["vmap_by_loop", "vmap_of_elementwise", "vmap_of_reference"]


def vmap_of_elementwise(find: Callable[[], Any]) -> Callable[..., Any]:
    """Returns the vmap rule of an elementwise operator. The rule moves the batch dimension to the front, gives all
    tensors the same rank, and calls the operator once.

    Args:
        find: returns the operator. The rule itself must not hold a reference to the operator.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        positions = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        rank = max(args[i].dim() - (in_dims[i] is not None) for i in positions)
        batched = list(args)
        for i in positions:
            x, dim = args[i], in_dims[i]
            x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            batched[i] = x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
        for i, x in zip(positions, torch.broadcast_tensors(*(batched[i] for i in positions)), strict=True):
            batched[i] = x
        found = find()(*batched)
        if isinstance(found, Tensor):
            return found, 0
        # A gradient that was not requested is an empty tensor without a batch dimension. vmap needs a batch dimension.
        size = info.batch_size
        return tuple(y if y.numel() else y.new_empty(size, *y.shape[1:]) for y in found), (0,) * len(found)

    return rule


def vmap_of_reference(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a vmap rule that applies ``torch.func.vmap`` to the reference.

    Args:
        reference: the operator in plain PyTorch.
    """

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        batched = [i for i, x in enumerate(args) if isinstance(x, Tensor) and in_dims[i] is not None]

        def run(*tensors: Tensor) -> Any:
            full = list(args)
            for i, x in zip(batched, tensors, strict=True):
                full[i] = x
            return reference(*full)

        dims = tuple(in_dims[i] for i in batched)
        outputs = torch.func.vmap(run, in_dims=dims, randomness=info.randomness)(*(args[i] for i in batched))
        return outputs, (0 if isinstance(outputs, Tensor) else (0,) * len(outputs))

    return rule


def vmap_by_loop(find: Callable[[], Any]) -> Callable[..., Any]:
    """Returns a vmap rule that calls the operator once for each index of the batch and stacks the results.

    For a batch without elements, the shapes of the results come from a call with an element of zeros.

    Args:
        find: returns the operator. The rule itself must not hold a reference to the operator.
    """

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        call = find().call
        if not info.batch_size:
            args = tuple(map(_with_zeros, args, in_dims))
        calls = [
            call(*(x.select(dim, i) if dim is not None else x for x, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size or 1)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls)[: info.batch_size], 0
        results = (torch.stack(column)[: info.batch_size] for column in zip(*calls, strict=True))
        return tuple(results), (0,) * len(calls[0])

    return rule


def _with_zeros(x: Any, dim: int | None) -> Any:
    """Returns a batch without elements with an element of zeros added, so that autograd finds the batch."""
    if dim is None:
        return x
    shape = [1 if k == dim % x.dim() else n for k, n in enumerate(x.shape)]
    return torch.cat((x, x.new_zeros(shape)), dim)
