"""A transformer over characters. Each residual addition and the norm that follows are one operator.

A pre-norm block adds the result of a branch to the residual stream, and the next branch reads a norm of the sum.
The blocks pass the stream on as the pair (branch, residual). Every norm computes

    residual ← branch + residual
    y        ← layer_norm(residual)

is one call of `add_layer_norm`, which reads and writes the stream once. Under autocast the branches are bfloat16 and the
stream is float32: dozens of small additions to a bfloat16 stream would each be rounded to 8 bits of the sum. The norms
write bfloat16, the dtype to which autocast would convert them for the matrix products. The bits are the same, and each
direction saves a pass over memory.
"""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import AddLayerNorm, LayerNorm, Linear, LinearGELU, linear_cross_entropy

INITIAL_STD = 0.02
TEMPERATURE = 0.8  # of samples: logits are divided by it
# cuBLAS takes its fast paths for 16-bit matrices whose rows are a multiple of 16 bytes, and its best for tiles of 64.
VOCABULARY_MULTIPLE = 64


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast converts a matrix product's operands on x's device; None while autocast is off."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class NormOfProduct(LayerNorm):
    """`LayerNorm` before a matrix product. Under autocast the result has the product's dtype."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, dtype=autocast_dtype(x))


class AddNormOfProduct(AddLayerNorm):
    """`AddLayerNorm` before a matrix product. Under autocast the norm, and not the sum, has the product's dtype."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x, residual, dtype=autocast_dtype(x))


class TorchAddLayerNorm(nn.LayerNorm):
    """`AddLayerNorm` in PyTorch's own operators."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        s = x + residual
        return super().forward(s), s


class TorchLinearGELU(nn.Linear):
    """`LinearGELU` in PyTorch's own operators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x))


def loss_without_logits(head: nn.Linear, y: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy () of the head's logits, which on a GPU are never in memory as a whole."""
    return linear_cross_entropy(y, head.weight, targets)


def loss_of_logits(head: nn.Linear, y: Tensor, targets: Tensor) -> Tensor:
    """`loss_without_logits` in PyTorch's own operators: the logits (B, T, rows), then their loss."""
    return F.cross_entropy(head(y).flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Operators:
    """The modules of a backend, and its loss. The parameters are the same, so a `state_dict` fits every backend."""

    norm: Callable[[int], nn.Module]
    add_norm: Callable[[int], nn.Module]
    linear: Callable[[int, int], nn.Linear]
    linear_gelu: Callable[[int, int], nn.Module]
    loss: Callable[[nn.Linear, Tensor, Tensor], Tensor]


OPERATORS = {
    "kernels": Operators(NormOfProduct, AddNormOfProduct, Linear, LinearGELU, loss_without_logits),
    "torch": Operators(nn.LayerNorm, TorchAddLayerNorm, nn.Linear, TorchLinearGELU, loss_of_logits),
}


class Attention(nn.Module):
    """Causal self-attention, (B, T, width) to (B, T, width)."""

    def __init__(self, width: int, heads: int, operators: Operators) -> None:
        super().__init__()
        self.head_width = width // heads
        self.qkv = operators.linear(width, 3 * width)
        self.out = operators.linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # Heads become the second dimension by strides alone: q, k, v are (B, heads, T, head_width). A head's q, k and v
        # lie side by side, so that a rank of tensor parallelism holds whole heads.
        q, k, v = self.qkv(x).unflatten(2, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer network; takes and gives (y, residual), where y is the norm of residual.

    The first norm of the next block is the last operation of this block, and is fused with this block's last addition.
    """

    def __init__(self, width: int, heads: int, operators: Operators) -> None:
        super().__init__()
        self.attention = Attention(width, heads, operators)
        self.norm1 = operators.add_norm(width)
        self.mlp = nn.Sequential(operators.linear_gelu(width, 4 * width), operators.linear(4 * width, width))
        self.norm2 = operators.add_norm(width)

    def forward(self, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y, residual = self.norm1(self.attention(y), residual)
        y, residual = self.norm2(self.mlp(y), residual)
        return y, residual


class CharGPT(nn.Module):
    """Characters (B, T), int64 with T up to `context`, to logits (B, T, at least `vocabulary`) of those that follow.

    With the `targets` (B, T) that follow, the result is the mean cross entropy () in nats, by `self.loss`.
    """

    def __init__(
        self, vocabulary: int, *, context: int, layers: int, heads: int, width: int, operators: Operators
    ) -> None:
        super().__init__()
        self.context, self.vocabulary = context, vocabulary
        rows = math.ceil(vocabulary / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        self.token = nn.Embedding(rows, width)
        self.position = nn.Embedding(context, width)
        self.norm = operators.norm(width)
        self.blocks = nn.ModuleList(Block(width, heads, operators) for _ in range(layers))
        self.head = nn.Linear(width, rows, bias=False)
        self.loss = operators.loss
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        """N(0, 0.02²) for matrices and 0 for biases, as GPT-2 began; norms stay at 1 and 0.

        The stream is the sum of 2·layers branches, so the last matrix of each branch is divided by √(2·layers).
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                last_of_branch = name.endswith(("attention.out.weight", "mlp.1.weight"))
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(2 * layers if last_of_branch else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, characters: Tensor, targets: Tensor | None = None) -> Tensor:
        residual = self.token(characters) + self.position(torch.arange(characters.shape[1], device=characters.device))
        y = self.norm(residual)
        for block in self.blocks:
            y, residual = block(y, residual)
        found: Tensor = self.head(y) if targets is None else self.loss(self.head, y, targets)
        return found


def build_model(vocabulary: int, options: Namespace) -> CharGPT:
    """The model with random parameters from `options.seed`, drawn on the CPU: the same on every device and backend."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(options.seed)
        sizes = {name: getattr(options, name) for name in ("context", "layers", "heads", "width")}
        return CharGPT(vocabulary, **sizes, operators=OPERATORS[options.backend])


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW with weight decay for the matrices, and none for norms and biases."""
    matrices = {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}
    vectors = {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}
    return torch.optim.AdamW([matrices, vectors], lr=lr, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, steps: int, highest: float) -> float:
    """The rate of step `step`, counted from 0: a linear rise to `highest`, then half a cosine to a tenth of it."""
    rise = min(100, max(1, steps // 10))
    if step < rise:
        return highest * (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    return highest * (0.1 + (1 - 0.1) * (1 + math.cos(math.pi * done)) / 2)


@torch.no_grad()
def generate(model: Any, prompt: Tensor, count: int, seed: int) -> Tensor:
    """`prompt` (n) continued by `count` characters, each drawn from the model's distribution of the next character.

    The model has the attributes `context` and `vocabulary`. The host reads nothing from the device before the last character
    is drawn.
    """
    generator = torch.Generator(prompt.device).manual_seed(seed % 2**63)
    length = len(prompt) + count
    # The model reads a whole context each time, because sequence parallelism splits it. Causal attention does not read
    # the zeros after the last character.
    tokens = torch.zeros(max(length, model.context), dtype=torch.int64, device=prompt.device)
    tokens[: len(prompt)] = prompt
    for end in range(len(prompt), length):
        first = max(0, end - model.context)
        logits = model(tokens[first : first + model.context].unsqueeze(0))[0, end - first - 1, : model.vocabulary]
        chances = (logits.float() / TEMPERATURE).softmax(0)
        tokens[end : end + 1] = torch.multinomial(chances, 1, generator=generator)
    return tokens[:length]
