"""Replaces the operators of an exported program by the steps of their bodies: PyTorch's operations and launches."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from cupyops.errors import ExportError
from cupyops.launch.recording import while_planning
from cupyops.sizes import is_symbol
from cupyops.torch.core.layouts import on_fakes
from cupyops.torch.core.operator import Operator, operator_of

from .launches import Launches

__all__ = ["replace_operators"]


def replace_operators(module: fx.GraphModule, launches: Launches) -> None:
    """Replaces the calls of operators in a graph, and in the graphs of its branches and loops.

    Raises:
        ExportError: a body has no such steps. The message names the operator and the reason.
    """
    for graph_module in [m for m in module.modules() if isinstance(m, fx.GraphModule)]:
        # The body of an operator may call operators.
        while found := [(n, op) for n in graph_module.graph.nodes if (op := operator_of(n.target)) is not None]:
            for node, op in found:
                _replace(graph_module, node, op, launches)
        for node in graph_module.graph.nodes:
            if wrapped := [op for x in node.args if (op := operator_of(x)) is not None]:
                launches.operator = wrapped[0].qualified_name
                raise launches.refuse(
                    "the program calls it through a higher-order operator, as after run_decompositions"
                )
        graph_module.recompile()


def _replace(module: fx.GraphModule, node: fx.Node, op: Operator, launches: Launches) -> None:
    arguments = op.op._schema.arguments
    given = [*node.args, *(node.kwargs.get(a.name, a.default_value) for a in arguments[len(node.args) :])]
    launches.operator = op.qualified_name
    flat, spec = pytree.tree_flatten(given)
    nodes = [x for x in flat if isinstance(x, fx.Node)]
    fakes = [n.meta["val"] for n in nodes]
    steps = _traced(op, flat, spec, fakes, launches)
    for inner in steps.graph.nodes:
        if inner.op == "get_attr":  # a constant of the body
            name = f"{node.name}_{inner.target}".replace(".", "_")
            value = getattr(steps, inner.target)
            module.register_buffer(name, value) if isinstance(value, Tensor) else setattr(module, name, value)
            inner.target = name
    places = dict(zip([n for n in steps.graph.nodes if n.op == "placeholder"], nodes, strict=True))
    with module.graph.inserting_before(node):
        results: Any = module.graph.graph_copy(steps.graph, places)
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    elif results is not None:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
    module.graph.erase_node(node)


def _traced(op: Operator, flat: list[Any], spec: Any, fakes: list[Any], launches: Launches) -> fx.GraphModule:
    """Returns the steps of a body for fake tensors and symbols in place of the graph's values."""
    steps = _steps_of(op, fakes, launches)

    def call(*values: Any) -> Any:
        rest = iter(values)
        args = pytree.tree_unflatten([next(rest) if isinstance(x, fx.Node) else x for x in flat], spec)
        with while_planning(launches.plan):
            return steps(args)

    mode = next((x.fake_mode for x in fakes if hasattr(x, "fake_mode")), None)
    env = mode and mode.shape_env
    guards = len(env.guards) if env is not None else 0
    fixed = dict(env.replacements) if env is not None else {}
    written = {a.name for a in op.op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    names = [a.name for a in op.op._schema.arguments]
    args = pytree.tree_unflatten([x.meta["val"] if isinstance(x, fx.Node) else x for x in flat], spec)
    tensors = [x for name, x in zip(names, args, strict=True) if isinstance(x, Tensor) and name not in written]
    launches.kept = {x.untyped_storage()._cdata for x in tensors}
    dynamic = any(is_symbol(n) for x in fakes for n in getattr(x, "shape", (x,)))
    instead = ". Export the model with fixed sizes" if dynamic else ""
    try:
        with torch.no_grad():
            found = make_fx(call, tracing_mode="real")(*fakes)
    except ExportError:
        raise
    except Exception as error:
        raise launches.refuse(f"its body cannot be traced: {type(error).__name__}: {error}{instead}") from error
    if env is not None:
        if bound := [f"{old} = {new}" for old, new in env.replacements.items() if old not in fixed and new.is_number]:
            raise launches.refuse(f"its body fixes a dynamic size: {', '.join(bound)}{instead}")
        launches.conditions += [guard.expr for guard in env.guards[guards:]]
    found.graph.eliminate_dead_code()
    return found


def _steps_of(op: Operator, fakes: list[Any], launches: Launches) -> Callable[[list[Any]], Any]:
    """Returns the body on a GPU, and on a CPU the reference, as calls of the operator run them."""
    if not all(x.is_cpu for x in fakes if isinstance(x, Tensor)):
        return lambda args: on_fakes(op._held, args)
    reference = op.reference
    if reference is None:
        raise launches.refuse("it has no reference, which runs on a CPU")
    return lambda args: reference(*args)
