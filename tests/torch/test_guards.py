"""How many guards Dynamo checks before each step of a compiled function that calls operators.

Dynamo guards what it reads while it traces. A step that reads more of this package's Python objects takes more of the
host's time.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autograd_bridge as bridge
from cupyops.torch import Operator, optimize

WIDTH = 16


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def guards_of(function: Callable[..., Any], *args: Any) -> int:
    """The leaf guards of the only graph that a call of a compiled function makes."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    code = function.forward.__code__ if isinstance(function, nn.Module) else function.__code__  # type: ignore[attr-defined]
    torch.compile(function, backend="aot_eager", fullgraph=True)(*args)
    (entry,) = _debug_get_cache_entry_list(code)
    return leaves(entry.guard_manager.root)


def leaves(manager: Any) -> int:
    return len(manager.get_leaf_guards()) + sum(leaves(child) for child in manager.get_child_managers())


class Layer(nn.Module):
    """A layer of a transformer without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        h = self.norm2(x)
        h = self.act(self.fc1(h))
        return x + self.fc2(h)


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def more_than_pytorch(count: int) -> int:
    found = []
    for ours in (False, True):
        torch.compiler.reset()
        model = Layers(count)
        if ours:
            report = str(optimize(model))
            assert f"linear_gelu: {count} x" in report
            assert f"add_layer_norm: {count} x" in report
        found.append(guards_of(model, torch.randn(2, 3, WIDTH)))
    return found[1] - found[0]


def test_an_optimized_layer_adds_few_guards() -> None:
    """The general dispatch of three operators would add 140."""
    assert more_than_pytorch(1) <= 40


def test_the_guards_of_operators_are_checked_once_for_all_layers() -> None:
    assert more_than_pytorch(4) - more_than_pytorch(1) <= 3 * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_call_of_an_operator_adds_few_guards(dtype: torch.dtype) -> None:
    """Also in 16 bits, where AOTAutograd's graph has the operations of the reference."""
    x = torch.randn(4, WIDTH).to(dtype)

    def ours(x: Tensor) -> Tensor:
        return bridge.gelu(x)

    def pytorch(x: Tensor) -> Tensor:
        return F.gelu(x)

    assert guards_of(ours, x) - guards_of(pytorch, x) <= 24


def test_a_users_operator_adds_few_guards() -> None:
    """Dynamo adds a few guards on the Operator and its generated dispatch to those of a call through torch.ops."""
    double = Operator(
        "tests_guards::double(Tensor x, Tensor? y, float factor) -> Tensor",
        lambda x, y, factor: x * factor if y is None else x * factor + y,
        reference=lambda x, y, factor: x * factor if y is None else x * factor + y,
        autocast="lower",
    )

    def called(x: Tensor) -> Tensor:
        found: Tensor = double(x, None, 2.0)
        return found

    def registered(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.tests_guards.double(x, None, 2.0)
        return found

    x = torch.randn(3)
    assert guards_of(called, x) - guards_of(registered, x) <= 20
