"""Bytes that compiled blocks of models save for their backward after ``optimize()``, beside the same blocks of PyTorch's
modules: counted in the partitioned graph."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from cupyops.torch import optimize

from . import stand_ins
from .test_recompute import saved_tensors

ROWS, WIDTH, HIDDEN = 32, 64, 256


@pytest.fixture(autouse=True)
def _widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_ins, "WIDTH", WIDTH)
    monkeypatch.setattr(stand_ins, "HIDDEN", HIDDEN)


class Residual(nn.Module):
    def __init__(self, block: nn.Module, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.block = norm(WIDTH), block

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.block(self.norm(x))
        return x  # noqa: RET504 - as it is written in models


class Gated(nn.Module):
    """Llama's MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Pixels(nn.Module):
    """ConvNeXt's block: a norm after a convolution and a permutation, then the layers of an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.mlp = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.LayerNorm(WIDTH), stand_ins.Mlp()

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(-1, 4, 4, WIDTH).permute(0, 3, 1, 2)
        y = self.mlp(self.norm(self.conv(images).permute(0, 2, 3, 1)))
        return (images + y.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).reshape(x.shape)


def encoder() -> nn.Module:
    """BERT's layer: the norms follow the residual sums."""
    return nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # a block, and its layer norms
    "ViT": (stand_ins.PreNorm, 2),
    "BERT": (encoder, 2),
    "Whisper": (stand_ins.EncoderLayer, 1),
    "GPT-2": (lambda: Residual(stand_ins.Gpt2Mlp()), 1),
    "Llama": (lambda: Residual(Gated(), stand_ins.RootNorm), 0),
    "ConvNeXt": (Pixels, 1),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "autocast": torch.float32}


class Stack(nn.Module):
    """A layer in front, so that the input of the first block is not an input of the graph, and blocks."""

    def __init__(self, autocast: bool, *blocks: nn.Module) -> None:
        super().__init__()
        self.autocast, self.first, self.blocks = autocast, nn.Linear(WIDTH, WIDTH), nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)  # float32 under autocast, as the sums of a model with float32 embeddings are
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            y: Tensor = self.blocks(x.view(2, ROWS // 2, WIDTH))
            return y.view(ROWS, WIDTH)


class Saved(NamedTuple):
    """Bytes that a compiled stack saves: tensors as large as the rows, and numbers of each row."""

    activations: int
    statistics: int


def counted(mode: str, *make: Callable[[], nn.Module], exclude: str = "") -> tuple[Saved, Saved]:
    """Returns the bytes that the compiled blocks save before and after optimize()."""
    found: list[Saved] = []
    for ours in (True, False):
        module = Stack(mode == "autocast", *(block() for block in make))
        if ours:
            assert optimize(module.blocks, exclude=exclude or ()).replaced
        saved = saved_tensors(module, DTYPES[mode], WIDTH)
        large = [x for x in saved if x.numel() >= ROWS * WIDTH]
        assert large
        activations = sum(x.nbytes for x in large)
        found.append(Saved(activations, sum(x.nbytes for x in saved) - activations))
    return found[0], found[1]


# Graphs of float32 and of bfloat16 have the same tensors: of either kind of norm, one block is counted in float32 and not in bfloat16.
CASES = [
    (name, mode) for name in BLOCKS for mode in ("float32" if name in ("ViT", "Llama") else "bfloat16", "autocast")
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_optimised_blocks_save_the_activations_that_pytorchs_save(name: str, mode: str) -> None:
    block, norms = BLOCKS[name]
    ours, theirs = counted(mode, block, block)
    assert ours.activations <= theirs.activations
    # A kernel saves mean and 1/√(var + eps) of a row in float32. PyTorch's graph saves one of the two, or 16 bits.
    assert ours.statistics <= theirs.statistics + 2 * norms * ROWS * 2 * 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("depth", [1, 3])
def test_the_last_norm_of_a_model_adds_at_most_half_a_tensor_under_autocast(depth: int) -> None:
    """PyTorch's graph may save the 16-bit summand of the last sum in place of the float32 sum, and add again in the
    backward. The difference does not grow with depth."""

    def last() -> nn.Module:
        return nn.LayerNorm(WIDTH)

    ours, theirs = counted("autocast", *[stand_ins.PreNorm] * depth, last)
    assert ours.activations <= theirs.activations + ROWS * WIDTH * (4 - 2)
    ours, theirs = counted("bfloat16", *[stand_ins.PreNorm] * depth, last)
    assert ours.activations <= theirs.activations


class Head(nn.Module):
    """BERT's, in front of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.act, self.norm = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)
        self.decoder = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.dense(x))
        x = self.norm(x)
        return self.decoder(x)


def test_gelu_in_front_of_a_norm_is_computed_again() -> None:
    """For the kernel of the norm's backward. The forward saved both results of linear_gelu."""
    ours, theirs = counted("bfloat16", Head)
    assert ours.activations <= theirs.activations


class GatedNorm(nn.Module):
    """EVA-02's MLP: a norm of the gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.norm(nn.functional.silu(self.gate(x)) * self.up(x)))
        return y


class Tanh(nn.Module):
    """An activation of PyTorch's in front of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x)
        y: Tensor = self.norm(nn.functional.softplus(z))
        return y


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("made", [GatedNorm, Tanh])
def test_what_the_backward_computes_from_what_it_reads_is_not_saved(made: type[nn.Module], mode: str) -> None:
    """In front of the kernel of the norm's backward. The forward saved the product of a gated unit."""
    ours, theirs = counted(mode, lambda: Residual(made()), lambda: Residual(made()))
    assert ours.activations <= theirs.activations
