"""Registers an operator's declarations for DTensor, jagged tensors and FLOP counters."""

from collections.abc import Callable
from typing import Any

import torch

from cupyops.errors import expected

from . import distributed
from .jagged import NestedTensor, dispatch_rule
from .sharding import Rule

__all__ = ["Scale"]


class Scale:
    """The declarations of an operator for distributed and nested tensors.

    Args:
        schema: the operator's schema (:class:`cupyops.torch.core.gradients.Schema`).
        rule: the operator's sharding rule, or None.
        flops: computes the floating point operations of a call from the arguments, with shapes in place of tensors.
        elementwise: whether each element of a result depends only on the inputs' elements at the same index.

    Raises:
        TypeError: ``flops`` is not a function.

    Attributes:
        rule: the operator's sharding rule, or None.
        tags: the tags of the ``torch.library`` operator that follow.
    """

    def __init__(self, schema: Any, rule: Rule | None, flops: Callable[..., int] | None, elementwise: bool) -> None:
        if flops is not None and not callable(flops):
            raise TypeError(expected("Operator", "flops", "be a function of the operator's arguments", repr(flops)))
        self.name = f"{schema.namespace}::{schema.name}"
        self.tags = (torch.Tag.pointwise,) if elementwise and len(schema.results) == 1 and rule is not None else ()
        self.rule, self.flops = rule, flops
        self._tensors = len(schema.tensors)
        self._defaults = [schema.defaults.get(name) for name in schema.types]

    def register(self, library: torch.library.Library) -> None:
        """Registers the rule for jagged tensors, and the FLOPs.

        Args:
            library: the library in which the operator is defined.
        """
        namespace, _, short = self.name.partition("::")
        distributed.forget(self.name)
        if self.rule is not None:
            nested = dispatch_rule(short, self.rule, self._defaults, self._tensors)
            torch.library.register_torch_dispatch(self.name, NestedTensor, nested, lib=library)
        if self.flops is not None:
            from torch.utils.flop_counter import flop_registry, register_flop_formula

            packet = getattr(getattr(torch.ops, namespace), short)
            flop_registry.pop(packet, None)  # a name may be declared again
            register_flop_formula(packet)(_formula(self.flops, self._defaults))

    def prepare(self) -> None:
        """Registers the sharding strategy, if DTensor is imported. The operator's fake kernel calls this method."""
        if self.rule is not None:
            distributed.prepare(self.name, self.rule)


def _formula(flops: Callable[..., int], defaults: list[Any]) -> Callable[..., int]:
    def formula(*args: Any, out_shape: Any = None) -> int:
        return flops(*args, *defaults[len(args) :])

    return formula
