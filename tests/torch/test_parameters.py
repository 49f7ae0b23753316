"""Modules find their parameters wherever PyTorch keeps them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autograd_bridge import AddLayerNorm, AddRMSNorm, LayerNorm, Linear, LinearGELU, RMSNorm

MODULES: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: LayerNorm(8),
    "LayerNorm without bias": lambda: LayerNorm(8, bias=False),
    "LayerNorm without both": lambda: LayerNorm(8, elementwise_affine=False),
    "AddLayerNorm": lambda: AddLayerNorm(8),
    "AddRMSNorm": lambda: AddRMSNorm(8),
    "Linear": lambda: Linear(8, 8),
    "LinearGELU": lambda: LinearGELU(8, 8, bias=False),
    "RMSNorm": lambda: RMSNorm(8),
}


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def called(module: nn.Module, x: Tensor) -> Tensor:
    y = module(x, x) if isinstance(module, (AddLayerNorm, AddRMSNorm)) else module(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", ["LayerNorm", "AddLayerNorm", "AddRMSNorm", "Linear", "LinearGELU", "RMSNorm"])
def test_a_parametrised_module(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(3, 8)
    for parameter in module.parameters():
        nn.init.uniform_(parameter)
    kept = {key: value.clone() for key, value in module.state_dict().items()}
    for key in kept:
        parametrize.register_parametrization(module, key, Twice())
    wanted = MODULES[name]()
    wanted.load_state_dict({key: 2 * value for key, value in kept.items()})
    torch.testing.assert_close(called(module, x), called(wanted, x))


@pytest.mark.parametrize("name", list(MODULES))
def test_parameters_that_are_exchanged_for_a_call(name: str) -> None:
    module, x = MODULES[name](), torch.randn(3, 8)
    others = {key: torch.rand_like(value).requires_grad_() for key, value in module.state_dict().items()}
    args = (x, x) if name in ("AddLayerNorm", "AddRMSNorm") else (x,)
    y = torch.func.functional_call(module, others, args)
    wanted = MODULES[name]()
    wanted.load_state_dict(others)
    torch.testing.assert_close(y[0] if isinstance(y, tuple) else y, called(wanted, x))
    if others:
        torch.autograd.grad((y[0] if isinstance(y, tuple) else y).sum(), list(others.values()))


def test_a_parameter_that_has_become_a_plain_attribute() -> None:
    """Sharded and replicated modules have such attributes."""
    module, x = Linear(8, 8), torch.randn(3, 8)
    wanted = module(x)
    weight = module.weight.detach()
    del module.weight
    module.weight = weight
    assert torch.equal(module(x), wanted)
