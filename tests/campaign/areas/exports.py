"""Exports of modules with dynamic dimensions."""

import math
import warnings
from collections.abc import Callable

import torch
from hypothesis import strategies as st

import autograd_bridge as bridge

__all__ = ["export"]


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.function(*given)


# By the number of columns: a module, and how many tensors of one shape it takes.
MODULES: dict[str, tuple[Callable[[int], torch.nn.Module], int]] = {
    "GELU": (lambda n: bridge.GELU(), 1),
    "GELU tanh": (lambda n: bridge.GELU(approximate="tanh"), 1),
    "LayerNorm": (bridge.LayerNorm, 1),
    "RMSNorm": (bridge.RMSNorm, 1),
    "Linear": (lambda n: bridge.Linear(n, 3), 1),
    "LinearGELU": (lambda n: bridge.LinearGELU(n, 3), 1),
    "softmax": (lambda n: Calls(lambda x: bridge.softmax(x, -1)), 1),
    "log_softmax": (lambda n: Calls(lambda x: bridge.log_softmax(x, -1)), 1),
    "add2": (lambda n: Calls(bridge.add2), 2),
    "add_layer_norm": (lambda n: Calls(lambda x, r: bridge.add_layer_norm(x, r, (n,))[0]), 2),
    "add_rms_norm": (lambda n: Calls(lambda x, r: bridge.add_rms_norm(x, r, (n,))[0]), 2),
}


def export(data: st.DataObject, backend: str) -> None:
    """A program that is exported with dynamic dimensions gives the numbers of the module at other sizes."""
    name = data.draw(st.sampled_from(sorted(MODULES)))
    make, count = MODULES[name]
    rank, columns = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 20))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    module = make(columns).to(dtype).eval()
    # Different sizes, none of which is 0 or 1: an export takes equal ones for equal for ever, and these for constants.
    batch = data.draw(st.lists(st.integers(21, 40), min_size=rank - 1, max_size=rank - 1, unique=True))
    batch = [n if i == 0 else n % 8 + 8 * i for i, n in enumerate(batch)]
    chosen = data.draw(st.sets(st.integers(0, rank - 2), min_size=1))
    others = [data.draw(st.integers(2, 9)) if i in chosen else n for i, n in enumerate(batch)]

    def tensors(shape: list[int]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(*shape, columns, generator=generator, dtype=dtype) for _ in range(count))

    dims = {i: torch.export.Dim(f"d{i}") for i in chosen}
    shapes = ((dims,) * count,) if isinstance(module, Calls) else (dims,) * count
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, tensors(batch), dynamic_shapes=shapes, strict=data.draw(st.booleans()))
        given = tensors(others)
        got, right = program.module()(*given), module(*given)
    assert got.shape == right.shape, f"{name}: {tuple(got.shape)}, right {tuple(right.shape)}"
    eps = torch.finfo(dtype).eps * math.sqrt(columns)
    assert torch.allclose(got, right, rtol=64 * eps, atol=64 * eps), f"{name} at {others}"
