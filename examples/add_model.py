"""A model with no input whose loss must fall by exactly 0.98^50 every 25 epochs.

Two parameters a, b of length n, drawn from N(0, 1); the model gives a² + b², the loss is the sum. Its gradient is
(2a, 2b), so SGD with learning rate 0.01 multiplies every parameter by 1 - 2·0.01 = 0.98 a step, and the loss by 0.98².
An addition whose gradient is wrong cannot keep that ratio::

    python -m examples.add_model
"""

import argparse
import math
from collections.abc import Callable, Sequence

from .command import Parser, at_least, run_command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("add_model", __doc__, "device", "backend", "seed", "plot")
    parser.add_argument(
        "--n", type=at_least(1), default=1024, metavar="N", help="length of both parameters (default: %(default)s)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
from torch import Tensor, nn

from autograd_bridge import add2

from .command import Progress, describe_device, pick_device
from .pictures import picture, plot_curves
from .showing import what_runs

EPOCHS, PRINT_EVERY, LEARNING_RATE = 500, 25, 0.01
EXPECTED_DECAY = (1 - 2 * LEARNING_RATE) ** (2 * PRINT_EVERY)
# A float32 step rounds a parameter twice (lr · gradient, then the subtraction). The relative error of a rounding is at
# most 2^-24, and twice as large in the square. The ratio of two losses, 25 steps apart, has an error of at most 25 · 4
# · 2^-24 = 6e-6.
DECAY_TOLERANCE = 1e-5


class AddModel(nn.Module):
    """``forward() = add(a², b²)`` with parameters `a`, `b` of shape (n,), drawn from N(0, 1).

    `add` is the operator that is tested. The draw is made on the CPU, so that a seed gives the same model on every
    device.
    """

    def __init__(
        self, n: int, add: Callable[[Tensor, Tensor], Tensor] = add2, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(n, generator=generator))
        self.b = nn.Parameter(torch.randn(n, generator=generator))
        self.add = add

    def forward(self) -> Tensor:
        return self.add(self.a.square(), self.b.square())


def train(model: AddModel, echo: Callable[[str], object] = print) -> list[float]:
    """Run the 500 epochs; return the losses of epochs 0, 25, ..., 475, each taken before its step and printed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    with Progress("Training", EPOCHS, "epochs") as bar:
        for epoch in range(EPOCHS):
            loss = model().sum()
            if epoch % PRINT_EVERY == 0:  # only these epochs wait for the device
                losses.append(loss.item())
                bar.say(f"epoch {epoch:3d}: loss = {losses[-1]:8.3f}", echo)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update(1)
    return losses


def measured_decay(losses: Sequence[float]) -> float:
    """Geometric mean of the ratios of each loss to the loss before it: NaN if a loss is zero, negative or not
    finite."""
    first, last = losses[0], losses[-1]
    if not all(loss > 0 and math.isfinite(loss) for loss in losses):
        return math.nan
    return math.exp((math.log(last) - math.log(first)) / (len(losses) - 1))


def run(options: argparse.Namespace) -> int:
    """Train and compare the decay with the expected decay. Returns 0 if they agree, else 1."""
    device = pick_device(options.device)
    add = add2 if options.backend == "kernels" else torch.add
    print(f"device:  {describe_device(device)}")
    model = AddModel(options.n, add, torch.Generator().manual_seed(options.seed)).to(device)
    what_runs(options, device, ("autograd_bridge.add2", "torch.add"), model, lambda: model().sum())
    losses = train(model)
    decay, at = measured_decay(losses), range(0, EPOCHS, PRINT_EVERY)
    print(f"measured decay per {PRINT_EVERY} epochs: {decay:.6f}; 0.98^50 = {EXPECTED_DECAY:.6f}")
    if not abs(decay / EXPECTED_DECAY - 1) <= DECAY_TOLERANCE:  # a NaN is not close either
        print(f"The decay is wrong by more than {DECAY_TOLERANCE:g} of its value: the operator or its gradient is.")
        return 1
    lines = {"measured": losses, "0.98^2 a step": [losses[0] * EXPECTED_DECAY ** (i / PRINT_EVERY) for i in at]}
    picture(options.plot, plot_curves, {"loss": lines}, "a² + b² under SGD", "epoch", at)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 if the decay is the expected one, 1 if not, 2 if an option is wrong."""
    options = parse(argv)
    return run_command("add_model", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
