"""Two tasks that need memory over many steps: LLTM beside torch.nn.LSTM, by loss and by time.

``adding`` (Hochreiter and Schmidhuber, 1997): the input is a sequence of pairs (number, mark). Exactly two pairs are
marked, and the target is the sum of their numbers. The constant answer 1 has a mean square error of 1/6. A model with
an error below 0.01 remembers the first number until the end. ``digits``: the input is a handwritten digit, one row of
28 pixels at each step, and the target is the digit::

    python -m examples.sequence
    python -m examples.sequence --task digits --models lltm
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .command import Parser, at_least, positive, run_command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser, default = Parser("sequence", __doc__, "device", "seed", "plot"), "(default: %(default)s)"
    add = parser.add_argument
    add("--task", choices=("adding", "digits"), default="adding", help=default)
    add("--models", nargs="+", choices=("lltm", "lstm"), default=["lltm", "lstm"], help="default: both")
    add("--steps", type=at_least(2), default=50, metavar="N", help=f"of the adding problem {default}")
    add("--batch", type=at_least(1), default=64, metavar="N", help=f"rows {default}")
    add("--state", type=at_least(1), default=32, metavar="N", help=f"units {default}")
    add("--iterations", type=at_least(1), default=1500, metavar="N", help=default)
    add("--lr", type=positive, default=5e-3, help=f"of Adam {default}")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import LLTMLayers

from .command import Progress, describe_device, pick_device
from .data import ImageSet, load_digits
from .pictures import picture, plot_curves

MODELS = {"lltm": LLTMLayers, "lstm": nn.LSTM}
SOLVED_ADDING, SOLVED_DIGITS = 0.01, 0.90  # mean square error; accuracy


class Reader(nn.Module):
    """A recurrent layer of `state` units, and a linear layer on its output at the last step."""

    def __init__(self, model: str, features: int, state: int, outputs: int) -> None:
        super().__init__()
        self.memory = MODELS[model](features, state)
        self.answer = nn.Linear(state, outputs)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.memory(x)
        answer: Tensor = self.answer(output[-1])
        return answer


@dataclass(frozen=True)
class Task:
    """A task: data, loss and score.

    Attributes:
        features, outputs: number of features of a step, and of numbers in the answer.
        batches: endless pairs of x (T, B, features) and a target.
        loss: function of answer and target.
        score: function of a model, its score on data that are not in `batches`.
        solved: function of a score, whether the task counts as solved.
        unit: name of the score.
    """

    features: int
    outputs: int
    batches: Iterator[tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[nn.Module], float]
    solved: Callable[[float], bool]
    unit: str


def adding_batch(steps: int, batch: int, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers from [0, 1) with two marks, one in each half: x (T, B, 2) and the sums (B, 1)."""
    numbers = torch.rand(steps, batch, generator=generator)
    marks = torch.zeros(steps, batch)
    half = steps // 2
    rows = torch.arange(batch)
    marks[torch.randint(0, half, (batch,), generator=generator), rows] = 1
    marks[torch.randint(half, steps, (batch,), generator=generator), rows] = 1
    target = (numbers * marks).sum(0).unsqueeze(1)
    return torch.stack((numbers, marks), 2).to(device), target.to(device)


def adding(steps: int, batch: int, device: torch.device, seed: int) -> Task:
    """The adding problem with sequences of `steps` pairs."""
    generator = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield adding_batch(steps, batch, device, generator)

    def score(model: nn.Module) -> float:
        x, target = adding_batch(steps, 1000, device, torch.Generator().manual_seed(seed + 1))
        return float(F.mse_loss(model(x), target))

    return Task(2, 1, batches(), F.mse_loss, score, lambda found: found < SOLVED_ADDING, "mean square error")


def digits(batch: int, device: torch.device, seed: int) -> Task:
    """Digits by rows of pixels, scored on the test set."""

    def by_rows(images: ImageSet) -> tuple[Tensor, Tensor]:
        return (images.images.float() / 255).transpose(0, 1).to(device), images.labels.to(device)

    (x, labels), (unseen, right) = (by_rows(images) for images in load_digits())
    generator = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            at = torch.randint(x.shape[1], (batch,), generator=generator).to(device)
            yield x[:, at], labels[at]

    def score(model: nn.Module) -> float:
        return float((model(unseen).argmax(1) == right).float().mean())

    return Task(x.shape[2], 10, batches(), F.cross_entropy, score, lambda a: a >= SOLVED_DIGITS, "accuracy")


def train(
    model: nn.Module, task: Task, iterations: int, lr: float, echo: Callable[[str], object]
) -> tuple[list[float], list[float], float]:
    """Take `iterations` steps of Adam, print the score ten times, and return (losses, scores, seconds)."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    losses, scores, began, spent = [], [], time.perf_counter(), 0.0
    with Progress("Training", iterations, "steps") as bar:
        for i in range(1, iterations + 1):
            x, target = next(task.batches)
            optimizer.zero_grad()
            loss = task.loss(model(x), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
            bar.update(1)
            if i % max(1, iterations // 10) == 0 or i == iterations:
                value = loss.item()  # waits for the device
                spent += time.perf_counter() - began
                with torch.no_grad():
                    scores.append(task.score(model))
                line = f"  step {i:5d}: loss = {value:.5f}, {task.unit} = {scores[-1]:.5f}, {spent:.1f} s"
                bar.say(line, echo)
                began = time.perf_counter()
    return torch.stack(losses).tolist(), scores, spent


def run(options: argparse.Namespace) -> int:
    """Train each model on the task. Returns 0 if LLTM solves the task, else 1."""
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # threads would wait for each other for longer than such a small step takes
    print(f"device: {describe_device(device)}")
    results = {}
    curves: dict[str, dict[str, list[float]]] = {"training loss": {}}
    for name in options.models:
        if options.task == "adding":
            task = adding(options.steps, options.batch, device, options.seed)
        else:
            task = digits(options.batch, device, options.seed)
        torch.manual_seed(options.seed)
        model = Reader(name, task.features, options.state, task.outputs).to(device)
        print(f"{name}: {options.task}, {sum(p.numel() for p in model.parameters())} parameters")
        curves["training loss"][name], scores, seconds = train(model, task, options.iterations, options.lr, print)
        results[name] = task.solved(scores[-1])
        print(f"{name}: {task.unit} {scores[-1]:.5f}, {seconds:.1f} s, {'solved' if results[name] else 'not solved'}")
    picture(options.plot, plot_curves, curves, f"{options.task}, {options.state} units", "step")
    return 0 if results.get("lltm", True) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 if LLTM solves the task, 1 if not, 2 if an option is wrong."""
    options = parse(argv)
    return run_command("sequence", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
