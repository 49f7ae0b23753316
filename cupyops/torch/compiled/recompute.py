"""Lets AOTAutograd recompute elementwise operators in the backward of a compiled graph, as it recomputes PyTorch's.

The partitioner of AOTAutograd splits a graph into forward and backward, and chooses which tensors the forward saves. It
finds the cut with the fewest bytes. A value is recomputed instead of saved only if each operation in between is in the
partitioner's list of cheap operations, which holds PyTorch's own pointwise operations. In ``gelu(a) * b``, for instance,
the backward of the product reads ``gelu(a)``, and the backward of GELU reads ``a``. With GELU in the list, ``a`` and ``b``
are saved, and ``gelu(a)`` is not.

A reduction over rows is not in the list, as PyTorch's reductions are not: a recomputed reduction would save the few bytes
of its statistics, and cost a pass over memory.

The list has no public interface. This module extends the list in the versions of PyTorch that the tests have run. In
another version, the forward saves more.
"""

import functools
import sys
from typing import Any

import torch

from .versions import supported

__all__ = ["allow"]

_MODULE = "torch._functorch.partitioners"
_NAMES: set[str] = set()  # the qualified names of elementwise operators that have been traced


def allow(name: str, elementwise: bool) -> None:
    """Lets the partitioner recompute an operator, if the operator is elementwise and the partitioner is imported.

    Args:
        name: the qualified name of the operator, ``"mylib::scale"``.
        elementwise: whether the operator is elementwise.
    """
    partitioners: Any = sys.modules.get(_MODULE)
    if not elementwise or partitioners is None or not supported():
        return
    _NAMES.add(name)
    if not hasattr(partitioners.get_default_op_list, "__wrapped__"):
        partitioners.get_default_op_list = _extended(partitioners.get_default_op_list)


def _extended(original: Any) -> Any:
    @functools.wraps(original)
    def get_default_op_list() -> Any:
        found = original()
        for name in _NAMES:
            namespace, _, short = name.partition("::")
            packet = getattr(getattr(torch.ops, namespace), short, None)  # None: the operator has been removed
            if packet is not None:
                found.recomputable_ops.add(packet)
                found.fusible_ops.add(packet)
        return found

    return get_default_op_list
