"""Inductor's lowering of operators: the generated code calls a function of :mod:`cupyops.torch.compiled.calls`.

Inductor has no public interface for such a lowering. This module uses Inductor's own classes. If PyTorch lacks one of them
(:mod:`.private`), and for code in C++, Inductor's own lowering of custom operators is used. The generated code then calls
the registered operator.

:func:`prepare` registers the lowering. The registered operators call it while they are traced. Inductor is imported by
then, so that this module imports nothing that the program has not imported.
"""

import functools
import sys
from typing import Any
from weakref import WeakSet

import torch

from .calls import bodies_of, known
from .in_place import may_overwrite
from .private import DIRECT, has

__all__ = ["prepare"]

_MODULE = "torch._inductor.lowering"
# The operators with a lowering of this module. A name that is declared again is another operator.
_LOWERED: "WeakSet[Any]" = WeakSet()


def prepare(name: str) -> None:
    """Registers the lowering of an operator, if Inductor is imported and has none yet.

    Args:
        name: the qualified name of the operator, ``"mylib::scale"``.
    """
    if _MODULE not in sys.modules or not has(DIRECT):
        return
    namespace, _, short = name.partition("::")
    overload = getattr(getattr(torch.ops, namespace), short).default
    if overload not in _LOWERED:
        _register(overload)
        _LOWERED.add(overload)


def _register(overload: Any) -> None:
    from torch._inductor import ir, lowering
    from torch._inductor.utils import tensor_is_aligned
    from torch._inductor.virtualized import V
    from torch._library.utils import get_layout_constraint_tag
    from torch.utils import _pytree

    constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(overload, with_default=True))
    # Inductor's own lowering: it realizes the operands and gives them the strides that the tracing saw.
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False, override_decomp=True)
    call, arguments = _direct_call(), overload._schema.arguments

    def lowered(*args: Any, **kwargs: Any) -> Any:
        # PyTorch omits arguments that equal their defaults. The functions of the operator take all arguments.
        given = (*args, *(kwargs.get(a.name, a.default_value) for a in arguments[len(args) :]))
        graph, bodies = V.graph, bodies_of(overload.name())
        form = bodies and bodies.in_place
        node: Any = graph.current_node
        # PyTorch 2.11 gives the node of an operator that writes to an argument no value.
        known_results = node.target is overload and not overload._schema.is_mutable
        fakes = _pytree.tree_leaves(node.meta["val"]) if known_results else []
        if form is not None and fakes and not _in_other_code(graph) and may_overwrite(graph, node, given, fakes[0]):
            others = call.create(form, *given)
            found = given[0] if others is None else (given[0], *([others] if isinstance(others, ir.IRNode) else others))
        else:
            found = call.create(overload, *given)
        if not overload._schema.is_mutable:
            # A body allocates its results, and PyTorch's allocators align memory. Inductor assumes unaligned results of
            # custom operators, and generates slower code for the readers of the results.
            for buffer, fake in zip(_pytree.tree_leaves(found), fakes, strict=bool(fakes)):
                if isinstance(buffer, ir.IRNode) and buffer is not given[0] and tensor_is_aligned(fake):
                    graph.unaligned_buffers.discard(buffer.get_name())
        return _pytree.tree_map_only(ir.IRNode, lambda x: x if x is given[0] else ir.TensorBox.create(x), found)

    lowering.register_lowering(overload, type_promotion_kind=None)(lowered)


@functools.cache
def _direct_call() -> Any:
    """Returns the class of the nodes of Inductor's graph that call a function of :mod:`.calls`."""
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    class DirectCall(ir.FallbackKernel):
        direct_name: str | None = None

        def codegen(self, wrapper: Any) -> None:
            self.direct_name = None
            operator: Any = self.op_overload
            device, name = self.get_device(), operator.name()
            if device is not None and known(name, device.type) and not _in_other_code(V.graph):
                self.direct_name = variable = f"cupyops_{self.get_name()}"
                wrapper.add_import_once("from cupyops.torch.compiled.calls import direct as cupyops_direct")
                arguments = f"{name!r}, {device.type!r}, globals(), {variable!r}, {_fixed(self)}"
                wrapper.header.writeline(f"{variable} = cupyops_direct({arguments})")
            super().codegen(wrapper)

        def get_kernel_name(self) -> str:
            return self.direct_name or super().get_kernel_name()

    return DirectCall


def _in_other_code(graph: Any) -> bool:
    """Returns whether the graph becomes code that calls the registered operators, and no function of :mod:`.calls`."""
    return bool(graph.cpp_wrapper or getattr(graph, "fx_wrapper", False))


def _fixed(node: Any) -> bool:
    """Returns whether all shapes, strides and numbers of a node's operands are constants."""
    numbers: list[Any] = []
    for x in node.inputs:
        layout = x.get_layout()
        numbers += [*layout.size, *layout.stride, layout.offset]
    for value in node.constant_args:
        numbers += value if isinstance(value, (list, tuple)) else [value]
    return not any(getattr(n, "free_symbols", ()) for n in numbers)
