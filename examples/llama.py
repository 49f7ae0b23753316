"""A small Llama, trained from random weights on the source code of Python's standard library or on your text.

::

    python -m examples.llama                      # on a CPU a small model, about a minute; on a GPU a larger one
    python -m examples.llama --tied               # the embedding and the head share one matrix
    python -m examples.llama --layers 24 --width 1024 --heads 16 --kv-heads 4

A block adds what its attention and its network compute to a stream s of residuals, and passes on a norm y of s:

    s ← s + attention(y),  y ← rms_norm(s)      # AddRMSNorm; rotary_embedding turns the queries and the keys
    s ← s + network(y),    y ← rms_norm(s)      # AddRMSNorm; swiglu is the unit between the matrices

The last y goes to LinearCrossEntropyLoss, head and loss in one: on a GPU, the logits are never in memory as a whole.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

from .command import Parser, Sizes, UserError, fill_in, run_command

SIZES: Sizes = {
    "layers": ("blocks of attention and network", 3, 12),
    "heads": ("heads of queries", 4, 12),
    "kv_heads": ("heads of keys and values, each for a group of heads of queries", 2, 4),
    "width": ("length of each character's vector", 128, 768),
    "context": ("characters that the model sees at once", 64, 512),
    "batch_size": ("windows of text in a step", 16, 64),
    "steps": ("steps of the optimizer", 600, 2000),
    "eval_every": ("steps between evaluations", 100, 200),
    "lr": ("highest learning rate of AdamW", 4e-3, 6e-4),
}
EVAL_BATCHES, SAMPLE, EPS, BASE = 20, 300, 1e-5, 10000.0  # characters of the sample; of the norms; of the angles


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line. Sizes that are left out are None."""
    parser = Parser("llama", __doc__, "device", "seed", "text", "plot")
    parser.add_sizes(SIZES)
    parser.add_argument("--tied", action="store_true", help="the embedding and the head share one matrix")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import AddRMSNorm, LinearCrossEntropyLoss, RMSNorm, rotary_embedding, swiglu

from .command import Progress, describe_device
from .gpt.model import generate, learning_rate, make_optimizer
from .gpt.text import Windows, load_corpus, nats
from .pictures import picture, plot_curves
from .run import check_finite
from .showing import what_runs


class Attention(nn.Module):
    """Causal self-attention, (B, T, width) to (B, T, width). A head of keys and values serves a group of heads of queries."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads = heads, kv_heads, kv_heads
        self.qkv = nn.Linear(width, sum(self.heads) * (width // heads), bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.qkv(y).unflatten(2, (sum(self.heads), -1)).transpose(1, 2)  # (B, heads, T, n), by strides alone
        q, k, v = heads.split(self.heads, 1)
        q, k = rotary_embedding(q, cos, sin), rotary_embedding(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and network; takes and gives (y, s). The network is (silu(y·Gᵀ)⊙(y·Uᵀ))·Dᵀ, with G and U in one matrix."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads, kv_heads), AddRMSNorm(width, EPS)
        hidden = math.ceil(8 * width / 3 / 64) * 64  # three matrices have about the elements of two of 4·width
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.norm2 = AddRMSNorm(width, EPS)

    def forward(self, y: Tensor, s: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        y, s = self.norm1(self.attention(y, cos, sin), s)
        y, s = self.norm2(self.down(swiglu(self.gate_up(y))), s)
        return y, s


class Llama(nn.Module):
    """Characters (B, T), int64 with T up to `context`, to logits (B, T, vocabulary); with the `targets` (B, T) that follow,
    to the mean cross entropy () in nats. Raises `UserError` for sizes that do not fit each other."""

    def __init__(self, vocabulary: int, options: argparse.Namespace) -> None:
        super().__init__()
        width, heads, kv_heads, layers = (getattr(options, name) for name in ("width", "heads", "kv_heads", "layers"))
        if width % (2 * heads):
            raise UserError(f"--width must be a multiple of twice --heads, got {width} and {heads}")
        if heads % kv_heads:
            raise UserError(f"--heads must be a multiple of --kv-heads, got {heads} and {kv_heads}")
        self.vocabulary, self.context = vocabulary, options.context
        self.token = nn.Embedding(vocabulary, width)
        self.norm = RMSNorm(width, EPS)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(layers))
        self.head = LinearCrossEntropyLoss(width, vocabulary)
        if options.tied:
            self.head.linear.weight = self.token.weight
        # At position t, the numbers i and i + n/2 of a head's n are turned by the angle t / BASE^(2i/n).
        n = width // heads
        angles = torch.outer(torch.arange(self.context), BASE ** (-torch.arange(0, n, 2) / n)).repeat(1, 2)
        self.cos, self.sin = (nn.Buffer(table, persistent=False) for table in (angles.cos(), angles.sin()))
        generator = torch.Generator().manual_seed(options.seed)  # on the CPU: the same weights on every device
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # the stream is a sum over 2·layers branches
                branches = 2 * layers if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 / math.sqrt(branches), generator=generator)

    def forward(self, characters: Tensor, targets: Tensor | None = None) -> Tensor:
        s = self.token(characters)
        y, length = self.norm(s), characters.shape[1]
        for block in self.blocks:
            y, s = block(y, s, self.cos[:length], self.sin[:length])
        found: Tensor = self.head.linear(y) if targets is None else self.head(y, targets)
        return found


def train(options: argparse.Namespace, echo: Callable[[str], object] = print) -> list[float]:
    """Train as the options say; return the loss of each step. Raises `UserError` for an impossible request, `Diverged` if
    a number is not finite."""
    device = fill_in(options, SIZES)
    corpus = load_corpus(options.text, options.context)
    model = Llama(len(corpus.characters), options).to(device)
    optimizer = make_optimizer(model, options.lr)
    windows = Windows(corpus, options.context, options.batch_size, device, options.seed)
    # Entered anew for each step: within one context, autocast keeps the bfloat16 copies of the weights.
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.amp)
    echo(f"device:  {describe_device(device)}, {'bfloat16 autocast' if options.amp else 'float32'}")
    echo(f"text:    {corpus}")
    sizes = f"{options.layers} layers, {options.width} wide, heads {options.heads} on {options.kv_heads}"
    echo(f"model:   {sum(p.numel() for p in model.parameters()):,} parameters: {sizes}, context {options.context}")
    batch = next(windows.held_out(EVAL_BATCHES))
    with autocast:
        what_runs(options, device, ("autograd_bridge", "torch.nn"), model, lambda: model(*batch), echo)
        loss = model(*batch)
    loss.backward()  # compiles the kernels on a GPU, before time is taken
    optimizer.zero_grad()
    losses: list[float] = []
    validation, spent, each = [], 0.0, options.batch_size * options.context
    ends = [*range(options.eval_every, options.steps, options.eval_every), options.steps]
    with Progress("Training", options.steps, "steps") as bar:
        for first, last in itertools.pairwise([0, *ends]):
            stack, began = [], time.perf_counter()
            for step in range(first, last):
                with autocast:
                    loss = model(*windows.draw())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, options.steps, options.lr)
                optimizer.step()
                optimizer.zero_grad()
                stack.append(loss.detach())
                bar.update(1)
            found = torch.stack(stack).cpu()  # waits for the device
            seconds = time.perf_counter() - began
            check_finite(found, model, "step {}", first=first + 1, after=f"step {last}", lr=options.lr)
            with autocast:
                validation.append(windows.validation_loss(model, EVAL_BATCHES))
            losses, spent = losses + found.tolist(), spent + seconds
            told = f"training loss {found.mean():.4f}, validation loss {nats(validation[-1])}"
            bar.say(f"step {last:>5}: {told}, {(last - first) * each / seconds:,.0f} tokens/s", echo)
    with autocast:
        sample = generate(model, corpus.encode(corpus.beginning).to(device), SAMPLE, options.seed)
    echo(f"sample after step {last}:\n{corpus.decode(sample)}\n")
    means = [statistics.mean(losses[a:b]) for a, b in itertools.pairwise([0, *ends])]
    curves = {"loss (nats per character)": {"training": means, "validation": validation}}
    picture(options.plot, plot_curves, curves, "The Llama", "step", ends, echo=echo)
    echo(f"tokens per second: {options.steps * each / spent:,.0f}")
    if device.type == "cuda":
        echo(f"peak memory: {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB")
    echo(f"validation loss: {nats(validation[-1])}")
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 1 if the loss diverged, 2 for an impossible request, 130 after Ctrl-C."""
    options = parse(argv)
    return run_command("llama", lambda: train(options) and 0)


if __name__ == "__main__":
    raise SystemExit(main())
