"""A model's training step before and after ``cupyops.torch.optimize``.

::

    python -m examples.faster                                    # a small transformer that needs no other package
    python -m examples.faster vit_base_patch16_224 --batch 64    # any model of timm
    python -m examples.faster bert --length 512 --compile        # any model type of transformers

The model is built from its configuration with random weights; nothing is downloaded. The two copies of the model take
turns. The times go into a bar chart, ``faster.png``.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .command import (
    Parser,
    Progress,
    UserError,
    at_least,
    describe_device,
    pick_device,
    run_command,
)

SMALL = "small"
MODEL = "a name of timm.list_models(), a model type of transformers such as bert, or %(default)s (default: %(default)s)"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("faster", __doc__, "device", "seed", "plot")
    add = parser.add_argument
    add("model", nargs="?", default=SMALL, metavar="MODEL", help=MODEL)
    add("--batch", type=at_least(1), default=8, metavar="N", help="samples of a step (default: %(default)s)")
    add("--length", type=at_least(1), default=128, metavar="N", help="tokens of a sample (default: %(default)s)")
    add(
        "--dtype",
        choices=("bfloat16", "float32", "float16"),
        help="of parameters and inputs (default: bfloat16 on a GPU, float32 on a CPU)",
    )
    add("--compile", action="store_true", help="compile both copies with torch.compile")
    add("--steps", type=at_least(3), default=20, metavar="N", help="timed steps of each copy (default: %(default)s)")
    parser.set_defaults(plot=Path("faster.png"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import optimize

from . import any_model
from .pictures import new_figure, picture, write_figure


class Block(nn.Module):
    """A transformer block with normalisation before attention and before the two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        x = x + self.projection(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def small() -> nn.Module:
    """A transformer that needs no other package."""
    return nn.Sequential(*(Block(256, 4) for _ in range(4)))


def build(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> tuple[Any, dict[str, Tensor]]:
    """The model of a name in training mode, and a batch of random inputs by the names of the parameters of its ``forward``.

    Raises:
        UserError: there is no such model, it does not fit into memory, or it does not run on random inputs.
    """
    name, batch, length = options.model, options.batch, options.length
    make = small if name == SMALL else any_model.maker(name)
    any_model.check_memory(name, make, 2, device, dtype)
    model = any_model.built(name, make)
    drawn = {"input": torch.randn(batch, length, 256)} if name == SMALL else any_model.inputs_of(model, batch, length)
    model.to(device, dtype).train()
    inputs = {key: x.to(device, dtype if x.is_floating_point() else None) for key, x in drawn.items()}
    any_model.check_run(name, model, inputs)
    return model, inputs


def stepper(model: Any, inputs: dict[str, Tensor], compiled: bool) -> Callable[[], float]:
    """A function that takes one training step and returns its milliseconds, from an idle GPU to an idle GPU."""
    device = next(iter(inputs.values())).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    call = torch.compile(model) if compiled else model

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def step() -> float:
        wait()
        began = time.perf_counter()
        any_model.first_tensor(call(**inputs)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        return (time.perf_counter() - began) * 1e3

    return step


def plot(path: Path, title: str, times: dict[str, list[float]]) -> None:
    """Bars of the medians, and a point for each step."""
    figure = new_figure(7, 2.4)
    axes = figure.subplots()
    axes.barh(list(times), [statistics.median(t) for t in times.values()], color=["#999999", "#3b7dd8"])
    for name, each in times.items():
        axes.plot(each, [name] * len(each), "k.", markersize=3)
    axes.set(title=title, xlabel="milliseconds of a training step")
    axes.invert_yaxis()
    write_figure(figure, path)


def run(options: argparse.Namespace) -> None:
    """Builds, optimises and times the model."""
    device = pick_device(options.device)
    try:
        compare(options, device)
    except torch.OutOfMemoryError as error:
        raise UserError(f"--batch {options.batch} takes more memory than {device} has; give a smaller one") from error


def compare(options: argparse.Namespace, device: torch.device) -> None:
    """Times the model before and after :func:`optimize`."""
    dtype = getattr(torch, options.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    torch.manual_seed(options.seed)
    model, inputs = build(options, device, dtype)
    title = f"{options.model}, batch {options.batch}, {str(dtype).removeprefix('torch.')}"
    print(f"{title}{', compiled' if options.compile else ''}, on {describe_device(device)}")
    faster = copy.deepcopy(model)
    print(report := optimize(faster))
    copies = {"PyTorch": model, "optimize()": faster}
    steps = {name: stepper(each, inputs, options.compile) for name, each in copies.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    with Progress("Steps", len(steps) * (3 + options.steps), "steps") as bar:
        for number in range(-3, options.steps):  # the first steps compile kernels, and the models with --compile
            for name, step in steps.items():
                milliseconds = step()
                if number >= 0:
                    times[name].append(milliseconds)
                bar.update(1)
    for name, each in times.items():
        print(f"{name:<11} {statistics.median(each):9.3f} ms a step, least {min(each):.3f}, of {len(each)} steps")
    ratio = statistics.median(times["PyTorch"]) / statistics.median(times["optimize()"])
    print(verdict(ratio, device.type, bool(report.replaced)))
    picture(options.plot, plot, title, times)


def verdict(ratio: float, device: str, replaced: bool) -> str:
    """The sentence that states the result of the measurement."""
    if device == "cpu" or not replaced:
        return f"{ratio:.2f} x: both copies run PyTorch's own kernels{', as on every CPU' if replaced else ''}."
    if ratio < 1.01:
        return f"{ratio:.2f} x: optimize() does not help this model at this batch. A larger batch or CUDA graphs may."
    return f"{ratio:.2f} x: a step takes {100 * (1 - 1 / ratio):.0f} % less time."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 2 for a request that cannot be met, 130 after Ctrl-C."""
    options = parse(argv)
    return run_command("faster", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
