"""Decides where a compiled graph writes the result of an operator over an argument.

Inductor's own kernels write a result over an operand that nothing else reads later. A body allocates its results, so that
operand and result are in memory at once. An operator with ``inplace=`` has a second form, which writes its first result over
its first argument. A graph calls that form if the argument is a tensor of the graph's own, of the shape, strides and dtype
of the result, and if no other value that is still needed lies in its memory.
"""

from collections.abc import Sequence
from typing import Any

from torch.fx import Node
from torch.utils import _pytree

__all__ = ["may_overwrite"]


def may_overwrite(graph: Any, node: Node, arguments: Sequence[Any], result: Any) -> bool:
    """Returns whether a call may write its first result over its first argument.

    Args:
        graph: Inductor's graph, which is about to compute ``node``.
        node: the call of the operator.
        arguments: the operands of the call, Inductor's.
        result: the first result, a fake tensor.
    """
    from torch._inductor import ir

    operand, x = node.args[0], arguments[0]
    if not isinstance(operand, Node) or list(operand.users) != [node] or node.args.count(operand) > 1:
        return False
    if not isinstance(x, ir.TensorBox) or not ir.is_storage_and_layout(x):
        return False
    name, layout = x.get_name(), x.get_layout()
    buffer = graph.name_to_buffer.get(name)
    known = graph.sizevars.statically_known_list_equals
    if (
        buffer is None
        or name in graph.graph_inputs
        or name in graph.constants
        or name in graph.never_reuse_buffers
        or not isinstance(buffer.get_output_spec(), ir.Layout)
        or isinstance(buffer.get_output_spec(), (ir.NonOwningLayout, ir.MutationLayoutSHOULDREMOVE))
        or buffer.get_inputs_that_alias_output()
        or buffer.get_mutation_names()
        or layout.dtype != result.dtype
        or not layout.is_contiguous()  # as a body in place requires
        or not known(layout.size, list(result.shape))
        or not known(layout.stride, list(result.stride()))
    ):
        return False
    # FX drops a value after the last node that reads it. The values that it still has are read by later nodes.
    later = (value for other, value in graph.env.items() if other is not operand)
    return not any(isinstance(v, ir.IRNode) and _lies_in(v, name) for v in _pytree.tree_leaves(list(later)))


def _lies_in(value: Any, name: str) -> bool:
    """Returns whether a value of Inductor's lies in the memory of a buffer."""
    found = getattr(value, "maybe_get_name", None)
    return found is not None and found() == name
