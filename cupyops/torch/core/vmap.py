"""The vmap rules of operators that declare none: vmap of the reference, or a loop over the batch.

No rule holds a reference to its operator. The ``torch.library.Library`` holds the rule, and would keep the operator
alive.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["vmap_by_loop", "vmap_of_reference"]


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

    Args:
        find: returns the operator. The rule itself must not hold a reference to the operator.
    """

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        call = find().call
        calls = [
            call(*(x.select(dim, i) if dim is not None else x for x, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])

    return rule
