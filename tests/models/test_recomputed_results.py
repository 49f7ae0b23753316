"""Results that the backward of a compiled graph recomputes by ``recompute=``: values, graphs, and wrong declarations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autograd_bridge as bridge
from cupyops.torch import Operator
from cupyops.torch.compiled import recompute

from .test_recompute import WIDTH, Scaled, Sum, backward_of, normed, saved_bytes

MODULES: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: bridge.LayerNorm(WIDTH),
    "LayerNorm without parameters": lambda: bridge.LayerNorm(WIDTH, elementwise_affine=False),
    "RMSNorm": lambda: bridge.RMSNorm(WIDTH),
    "LinearGELU": lambda: bridge.LinearGELU(WIDTH, WIDTH),
    "AddLayerNorm": lambda: Sum(bridge.AddLayerNorm(WIDTH)),
    "AddRMSNorm": lambda: Sum(bridge.AddRMSNorm(WIDTH)),
}


def gradients(function: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> list[Tensor]:
    y = function(x)
    return [
        y,
        *torch.autograd.grad(
            (y * torch.linspace(0.5, 1.5, y.size(-1), dtype=y.dtype)).sum(), [*module.parameters(), x]
        ),
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("name", MODULES)
def test_compiled_gradients_are_those_of_eager_mode(name: str, backend: str) -> None:
    torch.manual_seed(0)
    module = Scaled(MODULES[name]()).double()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "backend", [pytest.param("inductor", marks=pytest.mark.thorough), "aot_eager_decomp_partition"]
)
@pytest.mark.parametrize("norm", [bridge.LayerNorm, bridge.RMSNorm])
def test_a_result_that_the_kernel_of_a_norm_reads_is_recomputed(norm: type[nn.Module], backend: str) -> None:
    torch.manual_seed(0)
    module = normed(bridge.LinearGELU(WIDTH, 4 * WIDTH), norm(4 * WIDTH)).double()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))
    targets = {str(node.target) for node in backward_of(module, torch.float64).nodes if node.op == "call_function"}
    assert any(f"cupyops.{kind}_backward" in t for t in targets for kind in ("layer_norm", "rms_norm"))
    assert not any("recompute" in target for target in targets)


def test_what_a_matrix_product_reads_is_saved() -> None:
    """Written to memory again, it would cost a pass that PyTorch's graph does not have."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), bridge.LayerNorm(WIDTH), bridge.LinearGELU(WIDTH, 4 * WIDTH))
    targets = [str(node.target) for node in backward_of(module, torch.float32).nodes]
    assert "aten.rsqrt.default" not in targets
    assert "aten.sub.Tensor" not in targets


@pytest.mark.thorough
def test_sizes_may_be_symbols() -> None:
    torch.manual_seed(0)
    module = Scaled(bridge.LayerNorm(WIDTH)).double()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for rows in (5, 9):
        x = torch.randn(2, rows, WIDTH, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


@pytest.mark.thorough
@pytest.mark.sample(1)
@pytest.mark.parametrize("norm", [bridge.LayerNorm, bridge.RMSNorm])
def test_a_recomputed_result_of_16_bits_is_the_saved_one_up_to_a_rounding(norm: type[nn.Module]) -> None:
    """The gradient of the other factor is the gradient of the product, which is one here, times the recomputed result."""
    torch.manual_seed(0)
    module = norm(64).bfloat16()
    x = torch.randn(128, 64, dtype=torch.bfloat16, requires_grad=True)
    other = torch.ones(128, 64, dtype=torch.bfloat16, requires_grad=True)
    torch.compiler.reset()
    product = torch.compile(lambda x, other: module(x) * other, fullgraph=True)(x, other)
    (found,) = torch.autograd.grad(product.sum(), [other])
    saved = module(x).detach()
    torch.testing.assert_close(found, saved, rtol=torch.finfo(torch.bfloat16).eps, atol=0)
    assert float((found == saved).float().mean()) > 0.99


def test_the_forward_calls_the_operator_and_the_backward_has_pointwise_operations() -> None:
    graph = backward_of(Scaled(bridge.LayerNorm(WIDTH)), torch.float32)
    targets = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    assert "cupyops.layer_norm.default" not in targets
    assert "aten.rsqrt.default" not in targets, "the statistics are saved"
    assert not [t for t in targets if "recomputed" in t]


@pytest.mark.thorough
def test_a_checkpoint_decides_itself() -> None:
    torch.manual_seed(0)
    module = Scaled(bridge.LayerNorm(WIDTH)).double()
    x = torch.randn(5, WIDTH, dtype=torch.float64, requires_grad=True)

    def within(x: Tensor) -> Any:
        return checkpoint(module, x, use_reentrant=False)

    torch.compiler.reset()
    compiled = torch.compile(within, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, module, x), gradients(module, module, x))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(-1, keepdim=True)
    return x / largest, largest.clone()


def halves_backward(grad_y: Tensor, x: Tensor, largest: Tensor) -> Tensor:
    return grad_y / largest + 0 * x


def own(name: str, **options: Any) -> Operator:
    schema = f"tests::{name}(Tensor x) -> (Tensor y, Tensor largest)"
    return Operator(schema, halves, reference=halves, backward=halves_backward, **options)


def test_an_operator_of_a_user_is_recomputed() -> None:
    class Own(nn.Module):
        def __init__(self, op: Operator) -> None:
            super().__init__()
            self.op = op

        def forward(self, x: Tensor) -> Any:
            return self.op(x)[0]

    saving = own("halves_saved")
    again = own("halves_again", recompute=lambda x, largest: x / largest)
    more, less = (saved_bytes(Scaled(Own(op)), torch.float32) for op in (saving, again))
    assert more - less == 32 * WIDTH * 4


def test_a_result_of_another_dtype_is_refused() -> None:
    op = own("halves_doubled", recompute=lambda x, largest: (x / largest).double())
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    torch.compiler.reset()
    words = r"tests::halves_doubled: `recompute` must return the first result, torch.float32 of shape \(3, 4\), got torch.float64 of"
    with pytest.raises(Exception, match=words):
        torch.compile(lambda x, w: op(x.sin())[0] * w, backend="aot_eager_decomp_partition")(x, w)


@pytest.mark.parametrize(
    "function", [lambda x, biggest: x, lambda y: y, lambda x: x], ids=["unknown", "the first result", "no other result"]
)
def test_wrong_parameters_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(
        ValueError, match="halves_wrong: `recompute` must take inputs and results other than the first, and"
    ):
        own("halves_wrong", recompute=function)


def test_targets_hold_no_address() -> None:
    """The partitioner compares the words of targets among processes."""
    assert repr(recompute.recomputed) == "cupyops.torch.compiled.recompute.recomputed"
