"""Rewrites the graph that Dynamo traces: an addition and a norm, a linear layer and GELU, or an activation and a product of
elements become one call.

The graph contains the calls of PyTorch's functions, without their gradients. The gradient of a call is therefore the gradient of the operator, and
the backward needs no rewriting.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from torch.fx import GraphModule, Node

from cupyops.torch.ops.adaptive import adaptive_layer_norm, add_adaptive_layer_norm
from cupyops.torch.ops.add_layer_norm import add_layer_norm
from cupyops.torch.ops.add_rms_norm import add_rms_norm
from cupyops.torch.ops.fused_operations import FUSED
from cupyops.torch.ops.gated import geglu, reglu, swiglu
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.linear_gelu import linear_gelu
from cupyops.torch.ops.rms_norm import rms_norm

from .gates import UNITS, fuse_gated
from .linear_layers import fuse_linear_gelu
from .modulation import fuse_adaptive_layer_norm, fuse_add_adaptive_layer_norm
from .nodes import Refused
from .norms import fuse_add_layer_norm, fuse_add_rms_norm

__all__ = ["CALLED", "FUSIONS", "Site", "rewrite"]

# The functions that a rewritten graph calls.
CALLED = (
    *(adaptive_layer_norm, add_adaptive_layer_norm, add_layer_norm, add_rms_norm),
    *(swiglu, geglu, reglu, layer_norm, rms_norm, linear_gelu),
)


# The functions that look at one node each, and replace it if they find the last of the operations, in the order of the table.
# A gated sum alone is not one of them: Inductor fuses its elementwise operations with those beside them.
_FINDERS: dict[str, Callable[[Node, Collection[str]], bool]] = {
    **{unit: partial(fuse_gated, unit=unit) for unit in UNITS},
    "add_adaptive_layer_norm": fuse_add_adaptive_layer_norm,
    "adaptive_layer_norm": fuse_adaptive_layer_norm,
    "add_layer_norm": fuse_add_layer_norm,
    "add_rms_norm": fuse_add_rms_norm,
    "linear_gelu": fuse_linear_gelu,
}


FUSIONS = {name: _FINDERS[name] for name in FUSED if name in _FINDERS}


@dataclass(frozen=True)
class Site:
    """A place in a model with operations that one operator can compute together.

    Attributes:
        fusion: a key of :data:`FUSIONS`. Two norms of one sum are two places.
        where: the module that has the last of the operations, or the name of the graph's node.
        refusal: the reason why the operations are not fused; empty if they are one call.
    """

    fusion: str
    where: str
    refusal: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.fusion}" + (f", left alone: {self.refusal}" if self.refusal else "")


def rewrite(module: GraphModule, fusions: Collection[str], devices: Collection[str]) -> list[Site]:
    """Rewrites the graphs of a module in place, and returns the places found, in the order of the graph.

    Args:
        module: the graph, with the fake result of each node in ``meta["example_value"]``, as Dynamo traces it.
        fusions: keys of :data:`FUSIONS`.
        devices: the types of the devices on which tensors are fused.
    """
    sites: list[Site] = []
    for part in (m for m in module.modules() if isinstance(m, GraphModule)):
        nodes, found = list(part.graph.nodes), list[tuple[int, Site]]()
        # One fusion after the other, because two fusions may match a gate and the linear layer before it.
        for name in (n for n in FUSIONS if n in fusions):
            for i, node in enumerate(nodes):
                if node._erased:
                    continue
                try:
                    if FUSIONS[name](node, devices):
                        found.append((i, Site(name, place_of(node))))
                except Refused as refusal:
                    found.append((i, Site(name, place_of(node), str(refusal))))
        if any(not site.refusal for _, site in found):
            part.graph.lint()
            part.recompile()
        sites += (site for _, site in sorted(found, key=itemgetter(0)))
    return sites


def place_of(node: Node) -> str:
    """Returns the name of the module that computes a node, as ``named_modules`` has it."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    path = stack[-1] if stack else ""
    path = re.sub(r"\._modules\['(\w+)'\]", r".\1", path)  # the paths of PyTorch 2.9
    while (shorter := re.sub(r"getattr\((.*), '(\w+)'\)", r"\1.\2", path)) != path:
        path = shorter
    return re.sub(r"^L\['\w+'\]\.?", "", path) or node.name
