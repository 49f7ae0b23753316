"""How an operator that has no rule of its own is batched: by its reference, or by a call for each.

No rule knows its operator, which would then live as long as the library that holds the rule.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["vmap_by_loop", "vmap_of_reference"]


def vmap_of_reference(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an operator whose reference, in plain PyTorch, knows how to be batched."""

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
    """The rule of an operator of which nothing is known: a call for each.

    Args:
        find: gives the operator, which its rule must not keep.
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
