"""The layers of the folder `hub`, put into modules as Hugging Face's `kernels` puts them: as the `forward` of an instance."""

from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops import simulate
from cupyops.integrations.hub import layers
from cupyops.launch import recording

from .modules import Turn, Zeroed


class Llama(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.variance_epsilon, self.weight = 1e-5, nn.Parameter(torch.randn(n))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class MLP(nn.Module):
    def __init__(self, act_fn: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)
        self.act_fn = act_fn

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return y


class Scaled(Turn):
    """It computes something else."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        q, k = super().forward(q, k, cos, sin, unsqueeze_dim)
        return 2 * q, k


MODULES = {
    "LayerNorm": lambda: nn.LayerNorm(24),
    "RMSNorm": lambda: Llama(24),
    "RMSNorm of PyTorch": lambda: nn.RMSNorm(24, eps=1e-6),
    "RMSNormZeroCentered": lambda: Zeroed(24),
    "GELU": lambda: nn.GELU(),
    "GELU by tanh": lambda: nn.GELU("tanh"),
    "GELUTanh": Tanh,
    "GatedMLP with SiLU": lambda: MLP(nn.SiLU()),
    "GatedMLP with GELU": lambda: MLP(nn.GELU("tanh")),
    "GatedMLP with ReLU": lambda: MLP(nn.ReLU()),
}
with_each = pytest.mark.parametrize("name", MODULES)


def with_layer(name: str) -> tuple[Any, Any]:
    """A module, and one with equal parameters whose forward is the layer's."""
    torch.manual_seed(0)
    module = MODULES[name]()
    torch.manual_seed(0)
    ours = MODULES[name]()
    ours.forward = MethodType(getattr(layers, name.partition(" ")[0]).forward, ours)
    return module, ours


@with_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_layer_computes_what_its_module_does(name: str, dtype: torch.dtype) -> None:
    module, ours = (m.to(dtype) for m in with_layer(name))
    x = torch.randn(2, 5, 24, dtype=dtype)[:, ::2]
    results = []
    for m in (module, ours):
        given = x.clone().requires_grad_()
        y = m(given)
        results.append([y, *torch.autograd.grad(y.square().sum(), [given, *m.parameters()])])
    wide = {torch.bfloat16: {"rtol": 0.05, "atol": 0.05}}.get(dtype, {"rtol": 1e-5, "atol": 1e-5})
    torch.testing.assert_close(results[1], results[0], **wide)


@with_each
@pytest.mark.simulator
def test_the_kernel_of_a_layer_runs(name: str) -> None:
    module, ours = with_layer(name)
    x = torch.randn(6, 24)
    with simulate(), recording.recorded() as record:
        y = ours(x)
    assert record
    torch.testing.assert_close(y, module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.simulator
@pytest.mark.parametrize(("module", "kernels"), [(Turn, {"rotary_embedding"}), (Scaled, set())])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_a_function_that_turns_rows_is_found_by_what_it_computes(
    module: type[Turn], kernels: set[str], unsqueeze_dim: int
) -> None:
    q, k = torch.randn(2, 2, 3, 5, 8).requires_grad_().unbind()
    angle = torch.randn(2, 5 if unsqueeze_dim == 1 else 3, 4).repeat(1, 1, 2)
    right = module()(q, k, angle.cos(), angle.sin(), unsqueeze_dim)
    ours: Any = module()
    ours.forward = MethodType(layers.RotaryEmbedding.forward, ours)
    ours(q, k, angle.cos(), angle.sin(), unsqueeze_dim)  # the first call finds out what it computes
    with simulate(), recording.recorded() as record:
        found = ours(q, k, angle.cos(), angle.sin(), unsqueeze_dim)
    assert {launch.kernel.name for launch in record} == kernels
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, angle.cos(), angle.sin(), unsqueeze_dim), right)


def test_a_gated_unit_with_another_activation_is_the_modules_own() -> None:
    mlp: Any = MLP(nn.Tanh())
    mlp.forward = MethodType(layers.GatedMLP.forward, mlp)
    torch.testing.assert_close(mlp(x := torch.randn(6, 24)), MLP.forward(mlp, x))


@with_each
def test_other_tensors_and_autocast_give_what_the_module_gives(name: str) -> None:
    class Tagged(Tensor):
        pass

    module, ours = with_layer(name)
    x = torch.randn(6, 24)
    assert type(ours(x.as_subclass(Tagged))) is type(module(x.as_subclass(Tagged)))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x.bfloat16()).dtype is module(x.bfloat16()).dtype
    if not name.startswith(("LayerNorm", "GatedMLP")):  # PyTorch's refuse a mixture on a CPU
        assert ours(x.bfloat16()).dtype is module(x.bfloat16()).dtype
        assert ours(x.double()).dtype is module(x.double()).dtype


def test_a_norm_without_a_weight_is_the_modules_own() -> None:
    norm = nn.RMSNorm(24, elementwise_affine=False)
    norm.forward = MethodType(layers.RMSNorm.forward, norm)  # type: ignore[method-assign]
    torch.testing.assert_close(norm(x := torch.randn(6, 24)), F.rms_norm(x, (24,)))


@with_each
def test_a_layer_has_no_state_and_no_other_members(name: str) -> None:
    layer = getattr(layers, name.partition(" ")[0])
    assert layer.__init__ is nn.Module.__init__
    assert set(dir(layer)) - set(dir(nn.Module)) == {"can_torch_compile", "has_backward"}
    assert layer.can_torch_compile
    assert layer.has_backward
