"""Graphs that the passes of Fusions rewrite, made by hand: dtypes that a CPU's autocast does not give, and names of places."""

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from cupyops.torch.fusions.rewrite import place_of, rewrite
from cupyops.torch.ops.add_layer_norm import add_layer_norm
from cupyops.torch.ops.layer_norm import layer_norm
from cupyops.torch.ops.rms_norm import rms_norm

N = 8


def test_parameters_of_another_dtype_than_the_operator_takes_are_left_alone() -> None:
    """Autocast on a GPU lets PyTorch's layer norm take them."""

    def refusal(*dtypes: torch.dtype) -> str:
        (site,) = rewrite(added_norm(*dtypes, dtypes[0]), ["add_layer_norm"], ["cpu"])
        return site.refusal

    half, single = torch.bfloat16, torch.float32
    assert refusal(half, half, half) == refusal(half, single, single) == refusal(single, single, single) == ""
    assert refusal(single, half, half) == "its parameters are torch.bfloat16, and the sum is torch.float32"
    assert (
        refusal(half, half, single) == "its parameters are torch.bfloat16, torch.float32, and the sum is torch.bfloat16"
    )


def added_norm(*dtypes: torch.dtype) -> GraphModule:
    """A graph as Dynamo traces it: x + x and its layer norm. The dtypes are those of x, weight, bias and the result."""
    graph = Graph()
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    s = graph.call_function(operator.add, (x, x))
    y = graph.call_function(F.layer_norm, (s, (N,), weight, bias))
    graph.output((y, s))
    of_x, of_weight, of_bias, of_y = dtypes
    with FakeTensorMode():
        for node, shape, dtype in ((x, (2, N), of_x), (weight, (N,), of_weight), (bias, (N,), of_bias)):
            node.meta["example_value"] = torch.empty(shape, dtype=dtype)
        s.meta["example_value"], y.meta["example_value"] = torch.empty(2, N, dtype=of_x), torch.empty(2, N, dtype=of_y)
    return GraphModule(nn.Module(), graph)


def test_the_norm_has_the_dtype_that_it_had() -> None:
    """Autocast on a GPU gives a 16-bit sum a float32 norm."""
    half, single = torch.bfloat16, torch.float32
    for of_y, dtype in ((half, None), (single, single)):
        module = added_norm(half, single, single, of_y)
        rewrite(module, ["add_layer_norm"], ["cpu"])
        (call,) = (n for n in module.graph.nodes if n.target is add_layer_norm)
        assert call.kwargs == ({} if dtype is None else {"dtype": dtype})


def test_a_second_norm_of_the_sum_has_the_dtype_that_it_had() -> None:
    half, single = torch.bfloat16, torch.float32
    for of_y, dtype, refusal in (
        (half, None, ""),
        (single, single, "its result is torch.float32, and the sum is torch.bfloat16"),
    ):
        module = added_norm(half, single, single, of_y)
        graph = module.graph
        first = next(n for n in graph.nodes if n.target is F.layer_norm)
        s, _, weight, bias = first.args
        with graph.inserting_after(first):
            layer = graph.call_function(F.layer_norm, (s, (N,), weight, bias, 0.5))
            rms = graph.call_function(F.rms_norm, (s, (N,), weight, 0.25))
        layer.meta, rms.meta = dict(first.meta), dict(first.meta)
        sites = rewrite(module, ["add_layer_norm", "add_rms_norm"], ["cpu"])
        assert [(s.fusion, s.refusal) for s in sites] == [
            ("add_layer_norm", ""),
            ("add_rms_norm", refusal),
            ("add_layer_norm", ""),
        ]
        (again,) = (n for n in graph.nodes if n.target is layer_norm)
        assert again.args[1:] == ((N,), weight, bias, 0.5)
        assert again.kwargs == ({} if dtype is None else {"dtype": dtype})
        assert [n.args[1:] for n in graph.nodes if n.target is rms_norm] == [((N,), weight, 0.25)][bool(dtype) :]
        (both,) = (n for n in graph.nodes if n.target is add_layer_norm)
        assert again.args[0].args == (both, 1)


def test_an_rms_norm_of_another_dtype_than_the_sum_is_left_alone() -> None:
    half, single = torch.bfloat16, torch.float32
    for of_y, refusal in ((half, ""), (single, "its result is torch.float32, and the sum is torch.bfloat16")):
        module = added_norm(half, single, single, of_y)
        norm = next(n for n in module.graph.nodes if n.target is F.layer_norm)
        norm.target, norm.args = torch.rms_norm, norm.args[:3]
        (site,) = rewrite(module, ["add_layer_norm", "add_rms_norm"], ["cpu"])
        assert (site.fusion, site.refusal) == ("add_rms_norm", refusal)


@pytest.mark.parametrize("view", [False, True])
def test_gelu_has_the_dtype_that_it_had(view: bool) -> None:
    """Autocast on a GPU gives a 16-bit product the float32 GELU of a form with torch.pow."""
    graph, half = Graph(), torch.bfloat16
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    z = product = graph.call_function(F.linear, (x, weight, bias))
    if view:
        z = graph.call_method("view", (product, 1, 2, N))
    y = graph.call_function(F.gelu, (z,))
    graph.output(y)
    with FakeTensorMode():
        for node, shape in ((x, (2, N)), (weight, (N, N)), (bias, (N,)), (product, (2, N)), (z, (1, 2, N)[not view :])):
            node.meta["example_value"] = torch.empty(shape, dtype=half)
        y.meta["example_value"] = torch.empty((1, 2, N)[not view :])
    module = GraphModule(nn.Module(), graph)
    (site,) = rewrite(module, ["linear_gelu"], ["cpu"])
    assert not site.refusal
    operands = [torch.randn(shape, dtype=half) for shape in ((2, N), (N, N), (N,))]
    found, right = module(*operands), F.gelu(F.linear(*operands)).reshape((1, 2, N)[not view :])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("path", ["L['m'].a.b", "L['m']._modules['a'].b", "getattr(getattr(L['m'], 'a'), 'b')"])
def test_a_site_has_the_name_of_its_module(path: str) -> None:
    """Versions of Dynamo write the path of a module in these ways."""
    node: Any = SimpleNamespace(meta={"nn_module_stack": {"0": ("L['m']", nn.Module), "1": (path, nn.Module)}})
    assert place_of(node) == "a.b"
