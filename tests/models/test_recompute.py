"""The tensors that a compiled layer saves for its backward, compared with the same layer of PyTorch's modules, in the
partitioned graph."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._functorch.partitioners as partitioners
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import autograd_bridge as bridge
from cupyops.torch import elementwise
from cupyops.torch.compiled import recompute

ROWS, WIDTH = 32, 16


def backward_of(
    module: nn.Module, dtype: torch.dtype, width: int = WIDTH, before: Callable[[Any], Any] = lambda graph: None
) -> torch.fx.Graph:
    """The graph of a compiled module's backward, for an input of the given width. `before` rewrites Dynamo's graph."""
    found: list[torch.fx.Graph] = []

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    def backward(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.append(graph.graph)
        return make_boxed_func(graph.forward)

    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=partitioners.min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),  # Inductor's
    )
    torch.compiler.reset()
    x = torch.randn(ROWS, width, dtype=dtype, requires_grad=True)

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        before(graph)
        return compiler(graph, inputs)

    torch.compile(module.to(dtype), backend=backend, fullgraph=True)(x).sum().backward()
    (graph,) = found
    return graph


def saved_tensors(
    module: nn.Module, dtype: torch.dtype, width: int = WIDTH, before: Callable[[Any], Any] = lambda graph: None
) -> list[Tensor]:
    """Fake tensors for what the forward of a compiled module saves, without its parameters and inputs."""
    taken = [n for n in backward_of(module, dtype, width, before).nodes if n.op == "placeholder"]
    saved = [n.meta["val"] for n in taken if not n.name.startswith(("primals", "tangents"))]
    assert saved
    return saved


def saved_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    return sum(x.nbytes for x in saved_tensors(module, dtype))


class Gated(nn.Module):
    """GELU of one product, times another."""

    def __init__(self, gelu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gelu, self.a, self.b = gelu, nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gelu(self.a(x)) * self.b(x))


def mlp(gelu: type[nn.GELU]) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu(), nn.Linear(4 * WIDTH, WIDTH))


def norm(layer_norm: type[nn.LayerNorm]) -> nn.Module:
    return nn.Sequential(layer_norm(WIDTH), nn.Linear(WIDTH, WIDTH))


class Scaled(nn.Module):
    """The result of a layer, times another tensor that needs a gradient."""

    def __init__(self, layer: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(WIDTH, WIDTH), layer
        self.other, self.out = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.layer(self.first(x)) * self.other(x))
        return y


class Sum(nn.Module):
    """A norm of a sum, by an operator that adds, or by PyTorch's operations; and the sum."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.branch, self.norm = nn.Linear(WIDTH, WIDTH), norm
        self.adds = isinstance(norm, (bridge.AddLayerNorm, bridge.AddRMSNorm))

    def forward(self, x: Tensor) -> Tensor:
        if self.adds:
            y, s = self.norm(self.branch(x), x)
        else:
            s = self.branch(x) + x
            y = self.norm(s)
        return y + s


def head(norm: type[nn.Module], gelu: type[nn.GELU]) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(WIDTH), gelu(), nn.Linear(WIDTH, WIDTH))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU())


def normed(perceptron: nn.Module, norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), perceptron, norm, nn.Linear(4 * WIDTH, WIDTH))


LAYERS: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "Linear, GELU, Linear": lambda: (mlp(bridge.GELU), mlp(nn.GELU)),
    "LayerNorm, Linear": lambda: (norm(bridge.LayerNorm), norm(nn.LayerNorm)),
    "gated GELU": lambda: (Gated(bridge.gelu), Gated(F.gelu)),
    "scaled LayerNorm": lambda: (Scaled(bridge.LayerNorm(WIDTH)), Scaled(nn.LayerNorm(WIDTH))),
    "scaled LayerNorm without parameters": lambda: (
        Scaled(bridge.LayerNorm(WIDTH, elementwise_affine=False)),
        Scaled(nn.LayerNorm(WIDTH, elementwise_affine=False)),
    ),
    "scaled LayerNorm of a pointwise result": lambda: (
        Scaled(nn.Sequential(nn.Tanh(), bridge.LayerNorm(WIDTH))),
        Scaled(nn.Sequential(nn.Tanh(), nn.LayerNorm(WIDTH))),
    ),
    "scaled RMSNorm": lambda: (Scaled(bridge.RMSNorm(WIDTH)), Scaled(nn.RMSNorm(WIDTH))),
    "scaled RMSNorm without a weight": lambda: (
        Scaled(bridge.RMSNorm(WIDTH, elementwise_affine=False)),
        Scaled(nn.RMSNorm(WIDTH, elementwise_affine=False)),
    ),
    "scaled LinearGELU": lambda: (
        Scaled(bridge.LinearGELU(WIDTH, 4 * WIDTH), 4 * WIDTH),
        Scaled(perceptron(), 4 * WIDTH),
    ),
    "scaled AddLayerNorm": lambda: (Scaled(Sum(bridge.AddLayerNorm(WIDTH))), Scaled(Sum(nn.LayerNorm(WIDTH)))),
    "scaled AddRMSNorm": lambda: (Scaled(Sum(bridge.AddRMSNorm(WIDTH))), Scaled(Sum(nn.RMSNorm(WIDTH)))),
    "LinearGELU, LayerNorm, Linear": lambda: (
        normed(bridge.LinearGELU(WIDTH, 4 * WIDTH), bridge.LayerNorm(4 * WIDTH)),
        normed(perceptron(), nn.LayerNorm(4 * WIDTH)),
    ),
    "LinearGELU, RMSNorm, Linear": lambda: (
        normed(bridge.LinearGELU(WIDTH, 4 * WIDTH), bridge.RMSNorm(4 * WIDTH)),
        normed(perceptron(), nn.RMSNorm(4 * WIDTH)),
    ),
    "Linear, LayerNorm, GELU, Linear": lambda: (head(bridge.LayerNorm, bridge.GELU), head(nn.LayerNorm, nn.GELU)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_compiled_layer_saves_no_more_than_pytorchs(layer: str, dtype: torch.dtype) -> None:
    """The partitioner recomputes PyTorch's operations alone. A gated GELU saved a third more, and a scaled norm half as
    much again."""
    ours, theirs = (saved_bytes(module, dtype) for module in LAYERS[layer]())
    # PyTorch rounds mean and rstd of 16-bit rows to 16 bits; a kernel keeps their float32.
    keeps = layer.startswith(("LayerNorm", "LinearGELU, LayerNorm"))
    statistics = ROWS * 2 * 2 if keeps and dtype is torch.bfloat16 else 0
    assert ours <= theirs + statistics


def prefers_norms(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    norm = torch.ops.cupyops.layer_norm.default
    return CheckpointPolicy.PREFER_SAVE if op is norm else CheckpointPolicy.PREFER_RECOMPUTE


PREFERS_NORMS = partial(create_selective_checkpoint_contexts, prefers_norms)


class Selected(nn.Module):
    """A scaled norm in a checkpoint whose policy prefers to save the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled(bridge.LayerNorm(WIDTH))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.scaled, x, use_reentrant=False, context_fn=PREFERS_NORMS)


def test_a_norm_that_the_policy_of_a_checkpoint_saves_is_not_recomputed() -> None:
    assert (ROWS, WIDTH) in [x.shape for x in saved_tensors(Selected(), torch.float32)]


def test_an_elementwise_operator_of_a_user_is_recomputed_too() -> None:
    squash = elementwise(
        "y = x / (1 + fabs(x))", "grad_x = grad_y / ((1 + fabs(x)) * (1 + fabs(x)))", name="tests::squash"
    )

    def plain(x: Tensor) -> Tensor:
        return x / (1 + x.abs())

    assert saved_bytes(Gated(squash), torch.float32) <= saved_bytes(Gated(plain), torch.float32)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_gelu_is_freed_before_the_products(dtype: torch.dtype, bias: bool) -> None:
    """When one operation computed all gradients of linear_gelu, the gradients of y and z, and z itself, were alive
    together with those of x and the weight: one activation more than PyTorch's in a compiled ViT."""
    module = nn.Sequential(bridge.LinearGELU(WIDTH, 4 * WIDTH, bias=bias), nn.Linear(4 * WIDTH, WIDTH))
    graph = backward_of(module, dtype)
    targets = [str(n.target) for n in graph.nodes]
    assert "cupyops.linear_gelu_backward.default" not in targets
    assert targets.count("aten.mm.default") == 4
    held = ("cupyops.gelu_bias_backward.default", "cupyops.gelu_backward.default")
    for node in graph.nodes:
        if str(node.target) in held:
            assert all(list(x.users) == [node] for x in node.all_input_nodes)
    assert (held[0] in targets) == bias


@pytest.mark.parametrize("bias", [True, False])
def test_the_compiled_gradients_of_linear_gelu_are_those_of_eager_mode(bias: bool) -> None:
    module, x = bridge.LinearGELU(WIDTH, 4 * WIDTH, bias=bias).double(), torch.randn(2, 3, WIDTH, dtype=torch.float64)
    torch.compiler.reset()
    found = [
        torch.autograd.grad(f(x).sin().sum(), list(module.parameters()))
        for f in (torch.compile(module, fullgraph=True, backend="aot_eager"), module)
    ]
    torch.testing.assert_close(*found)


def test_the_list_is_extended_once_and_forgets_operators_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    recompute.allow("cupyops::gelu", True)
    extended = partitioners.get_default_op_list
    recompute.allow("cupyops::gelu", True)
    assert partitioners.get_default_op_list is extended
    monkeypatch.setattr(recompute, "_NAMES", {"tests::never_declared", "cupyops::gelu"})
    found = extended()
    assert torch.ops.cupyops.gelu in found.recomputable_ops
    assert torch.ops.cupyops.layer_norm not in found.recomputable_ops, "reductions are saved, as PyTorch's are"
