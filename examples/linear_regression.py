"""Checks gradients, learns a line, and exports the model to a file that other programs run.

A linear layer with two inputs learns y = 2·x₁ + 3·x₂ + 4 from 300 random points, one point a step. Before the training,
the gradients are compared with finite differences. After the training, the model is exported to ONNX, and PyTorch and
onnxruntime compute y(3, 2) = 16::

    python -m examples.linear_regression --export runs/linear.onnx
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from .command import Parser, run_command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("linear_regression", __doc__, "device", "backend", "seed", "plot")
    add = parser.add_argument
    add("--export", type=Path, metavar="FILE", help="write the learned model as ONNX, and run that file")
    own = "with --export: as a node of our own, with its body in standard ones"
    add("--custom-domain", action="store_true", help=own)
    options = parser.parse_args(argv)
    if options.custom_domain and options.export is None:
        parser.error("--custom-domain has no meaning without --export FILE")
    return options


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import Linear, linear

from .command import Progress, describe_device, pick_device
from .exporting import exported
from .pictures import picture, plot_curves
from .showing import what_runs

WEIGHT, BIAS = (2.0, 3.0), 4.0
STEPS, PRINT_EVERY = 300, 50
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
POINT = (3.0, 2.0)
# Over 40 seeds the learned numbers have standard deviations of 0.014 to 0.017. Weight decay moves their means by up to
# 0.008. y(3, 2), which is outside the data, has a standard deviation of 0.06. The tolerances are six times these
# deviations.
TOLERANCE, TOLERANCE_AT_POINT = 0.11, 0.38


def gradients_are_right(function: Callable[..., Tensor], device: torch.device, generator: torch.Generator) -> bool:
    """Whether the gradients of x, W and b of a linear function agree with finite differences, in float64."""
    shapes = ((5, 2), (3, 2), (3,))
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator).to(device).requires_grad_() for s in shapes]
    return torch.autograd.gradcheck(function, inputs, raise_exception=False)


def train(model: nn.Linear, generator: torch.Generator, echo: Callable[[str], object] = print) -> list[float]:
    """Take the 300 steps of SGD on the squared error, each on one point drawn from [0, 1)²; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    like = model.weight
    weight = torch.tensor([WEIGHT], dtype=like.dtype, device=like.device)
    losses = []
    with Progress("Training", STEPS, "steps") as bar:
        for step in range(1, STEPS + 1):
            # Drawn on the CPU, so that a seed gives the same points on every device.
            x = torch.rand(1, 2, dtype=like.dtype, generator=generator).to(like.device)
            loss = F.mse_loss(model(x), F.linear(x, weight) + BIAS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if step % PRINT_EVERY == 0:
                bar.say(f"step {step:3d}: loss = {loss.item():9.6f}", echo)
            bar.update(1)
    return torch.stack(losses).tolist()


@torch.no_grad()
def evaluate(model: nn.Linear, echo: Callable[[str], object] = print) -> bool:
    """Print the learned parameters beside the true parameters; return whether they are close."""
    learned = [*model.weight[0].tolist(), model.bias.item()]
    for name, got, wanted in zip(("w1", "w2", "b"), learned, (*WEIGHT, BIAS), strict=True):
        echo(f"{name:>2} = {got:.4f} (true {wanted:g})")
    return all(abs(got - wanted) < TOLERANCE for got, wanted in zip(learned, (*WEIGHT, BIAS), strict=True))


def export(model: nn.Module, path: Path, *, custom_domain: bool, echo: Callable[[str], object] = print) -> bool:
    """Write the model as ONNX, with a free batch dimension, and print y(3, 2) from PyTorch and from the file; return
    whether they agree."""
    point = torch.tensor([POINT], dtype=torch.float64)
    _, run = exported(model, point, path, ("x", "y"), custom_domain=custom_domain)
    answer = run(point)
    ours = model(point).item()
    echo(f"y(3, 2) = {ours:.4f} from PyTorch, {answer.item():.4f} from {path} (true 16)")
    return abs(ours - answer.item()) < 1e-9


def build_model(kind: type[nn.Linear], seed: int) -> nn.Linear:
    """The layer with random parameters from the seed, drawn on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return kind(2, 1, dtype=torch.float64)


def run(options: argparse.Namespace) -> int:
    """Check the gradients, train and export. Returns 0 if every check passes, else 1."""
    device = pick_device(options.device)
    kernels = options.backend == "kernels"
    print(f"device:  {describe_device(device)}")
    model, point = build_model(Linear if kernels else nn.Linear, options.seed).to(device), torch.tensor([POINT])
    names, inputs = ("autograd_bridge.linear", "torch.nn.functional.linear"), point.to(device, torch.float64)
    what_runs(options, device, names, model, lambda: model(inputs).sum())
    generator = torch.Generator().manual_seed(options.seed)
    right = gradients_are_right(linear if kernels else F.linear, device, generator)
    print(f"gradients of x, W and b: {'as differences of values have them' if right else 'WRONG'}")
    if not right:
        return 1
    losses = train(model, generator)
    near = evaluate(model)
    picture(options.plot, plot_curves, {"loss of a point": losses}, "y = 2·x₁ + 3·x₂ + 4", "step")
    model = model.cpu().eval()
    with torch.no_grad():
        answer = model(torch.tensor([POINT], dtype=torch.float64)).item()
        near &= abs(answer - 16) < TOLERANCE_AT_POINT
        if options.export is None:
            print(f"y(3, 2) = {answer:.4f} (true 16)")
        elif not export(model, options.export, custom_domain=options.custom_domain):
            print("The file does not compute what the model does.")
            return 1
    if not near:
        print("The line was not learned: the operator or its gradient is wrong.")
    return 0 if near else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 if every check passes, 1 if not, 2 if an option is wrong."""
    options = parse(argv)
    return run_command("linear_regression", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
