"""Tokens per second of both backends, measured in turns: a machine that slows down slows all of them."""

import argparse
import copy
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from examples.command import describe_device, pick_device, progress
from examples.gpt.options import UNTIMED_STEPS, complete
from examples.gpt.text import load_corpus
from examples.run import check_finite, make_fabric

ROUNDS = 5


@dataclass
class Contestant:
    """A backend, eager or compiled: its tokens per second in each round, and the loss of its last step."""

    backend: str
    mode: str
    trainer: Any
    steps_done: int = 0
    speeds: list[float] = field(default_factory=list)
    loss: float = math.nan

    def run(self, steps: int) -> None:
        """Take `steps` more steps; `Diverged` if a loss is not finite, because NaN might cost another time."""
        trainer, options, first = self.trainer, self.trainer.options, self.steps_done
        began = trainer.synchronize()
        losses = torch.stack([trainer.step(first + i) for i in range(steps)])
        seconds = trainer.synchronize() - began
        self.steps_done, who = first + steps, f"{self.backend}, {self.mode}"
        after = f"step {self.steps_done} of {who}"
        check_finite(losses, trainer.module, f"step {{}} of {who}", first=first + 1, after=after, lr=options.lr)
        self.loss = losses[-1].item()
        self.speeds.append(options.batch_size * options.context * steps / seconds)


def compare(
    make_trainer: Callable[..., Any], options: argparse.Namespace, echo: Callable[[str], object] = print
) -> list[Contestant]:
    """Train every backend for `--steps` from the same start, eager and, with `--compile`, compiled; write no file.

    All take the same batches and must come to about the same loss, which is printed beside the speed. The last line is
    JSON: by ``"backend, mode"``, the median tokens per second and the loss.
    """
    complete(options)
    corpus = load_corpus(options.text, options.context)
    fabric = make_fabric(pick_device(options.device), amp=options.amp)
    make_trainer(fabric, options, corpus).describe(echo)
    contestants = []
    for mode in ("eager", "compiled") if options.compile else ("eager",):
        for backend in ("kernels", "torch"):
            own = copy.copy(options)
            own.backend, own.compile = backend, mode == "compiled"
            contestants.append(Contestant(backend, mode, make_trainer(fabric, own, corpus)))
    each = math.ceil(options.steps / ROUNDS)
    with progress("Measuring", (ROUNDS + 1) * len(contestants), "turn") as advance:
        for contestant in contestants:
            contestant.trainer.warm_up()
            contestant.run(UNTIMED_STEPS)
            contestant.speeds.clear()
            advance(1)
        for _ in range(ROUNDS):
            for contestant in contestants:
                contestant.run(each)
                advance(1)
    last = UNTIMED_STEPS + ROUNDS * each
    echo(f"tokens per second, median of {ROUNDS} rounds (slowest to fastest), and the loss of step {last}:")
    medians = [statistics.median(c.speeds) for c in contestants]
    for c, median in zip(contestants, medians, strict=True):
        spread = f"({min(c.speeds):,.0f} to {max(c.speeds):,.0f})"
        echo(f"  {c.mode:<8} {c.backend:<7} {median:>12,.0f} {spread}, loss {c.loss:.4f}")
    for c, ours, theirs in zip(contestants[::2], medians[::2], medians[1::2], strict=True):
        echo(f"  {c.mode}: kernels at {ours / theirs:.3f} times the speed of torch")
    figures = {
        f"{c.backend}, {c.mode}": {"tokens_per_second": round(median, 1), "loss": c.loss}
        for c, median in zip(contestants, medians, strict=True)
    }
    echo(json.dumps({"device": describe_device(fabric.device), "amp": options.amp, **figures}))
    return contestants
