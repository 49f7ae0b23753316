"""Tokens per second of both backends, measured in turns, so that a machine that slows down slows all of them."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from examples.console import Progress, describe_device
from examples.endings import check_finite
from examples.gpt.config import Config
from examples.gpt.corpus import Corpus
from examples.gpt.trainer import WARMUP_STEPS, Trainer

__all__ = ["Contestant", "compare"]

ROUNDS = 5


@dataclass
class Contestant:
    """A backend, eager or compiled: its speed in each round, and the loss of its last step."""

    backend: str
    mode: str
    trainer: Trainer
    steps_done: int = 0
    speeds: list[float] = field(default_factory=list)
    loss: float = math.nan

    def run(self, steps: int, *, measured: bool) -> None:
        """Take `steps` more steps; `Diverged` if a loss is not finite, because NaN might cost another time."""
        first, last = self.steps_done, self.steps_done + steps
        losses, seconds = self.trainer.train(first, last, lambda _: None)
        check_finite(
            losses,
            self.trainer.model,
            where=lambda index: f"step {first + index + 1} of {self.backend}, {self.mode}",
            after=f"step {last} of {self.backend}, {self.mode}",
            lr=self.trainer.config.lr,
        )
        self.steps_done, self.loss = last, losses[-1].item()
        if measured:
            self.speeds.append(self.trainer.tokens_per_step * steps / seconds)


def compare(config: Config, corpus: Corpus, device: torch.device, echo: Callable[[str], object]) -> list[Contestant]:
    """Train every backend for ``--steps`` from the same beginning, eager and, with ``--compile``, compiled.

    All take the same batches and so must come to about the same loss, which is printed beside the speed. The last line
    is JSON: by ``"backend, mode"``, the median tokens per second and the loss.
    """
    modes = ("eager", "compiled") if config.compile else ("eager",)
    contestants = [
        Contestant(backend, mode, Trainer(replace(config, backend=backend, compile=mode == "compiled"), corpus, device))
        for mode in modes
        for backend in ("kernels", "torch")
    ]
    with Progress("Measuring", (ROUNDS + 1) * len(contestants), "turn", enabled=config.progress) as progress:
        for contestant in contestants:
            contestant.trainer.warm_up()
            contestant.run(WARMUP_STEPS, measured=False)
            progress.advance()
        for _ in range(ROUNDS):
            for contestant in contestants:
                contestant.run(math.ceil(config.steps / ROUNDS), measured=True)
                progress.advance()
    echo(
        f"tokens per second, median of {ROUNDS} rounds (slowest to fastest), and the loss of step {last_step(config)}:"
    )
    for c in contestants:
        low, high = min(c.speeds), max(c.speeds)
        echo(
            f"  {c.mode:<8} {c.backend:<7} {statistics.median(c.speeds):>12,.0f} ({low:,.0f} to {high:,.0f}), "
            f"loss {c.loss:.4f}"
        )
    for ours, theirs in zip(contestants[::2], contestants[1::2], strict=True):
        ratio = statistics.median(ours.speeds) / statistics.median(theirs.speeds)
        echo(f"  {ours.mode}: kernels at {ratio:.3f} times the speed of torch")
    figures = {
        f"{c.backend}, {c.mode}": {"tokens_per_second": round(statistics.median(c.speeds), 1), "loss": c.loss}
        for c in contestants
    }
    echo(json.dumps({"device": describe_device(device), "amp": config.amp, **figures}))
    return contestants


def last_step(config: Config) -> int:
    """How many steps a contestant has taken in the end."""
    return WARMUP_STEPS + ROUNDS * math.ceil(config.steps / ROUNDS)
