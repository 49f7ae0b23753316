"""Tokens per second of ``examples.char_gpt`` with this project's operators and with PyTorch's, measured in turns.

A change in the machine's speed affects all of them. The command is ``python -m examples.char_gpt --compare``.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ..command import Progress, describe_device, pick_device
from ..run import check_finite, make_fabric
from .text import load_corpus

__all__ = ["ROUNDS", "UNTIMED_STEPS", "compare"]

ROUNDS = 5
UNTIMED_STEPS = 10  # at first, while memory is still being allocated


def compare(
    make_trainer: Callable[..., Any], options: argparse.Namespace, echo: Callable[[str], object] = print
) -> dict[str, dict[str, float]]:
    """Train every backend for `--steps` from the same start, eager and, with `--compile`, compiled; write no file.

    All take the same batches and must come to about the same loss, which is printed beside the speed. The result is a
    dictionary from ``"backend, mode"`` to the median tokens per second and the loss. The last printed line is the
    result in JSON.

    Raises:
        Diverged: a loss is not finite. Steps on NaN may take another time.
    """
    corpus, device = load_corpus(options.text, options.context), pick_device(options.device)
    fabric, tokens = make_fabric(device, options.amp), options.batch_size * options.context
    modes = ("eager", "compiled") if options.compile else ("eager",)
    trainers, figures = {}, {}
    for mode, backend in itertools.product(modes, ("kernels", "torch")):
        own = argparse.Namespace(**{**vars(options), "backend": backend, "compile": mode == "compiled"})
        trainers[f"{backend}, {mode}"] = make_trainer(fabric, own, corpus)
    each = math.ceil(options.steps / ROUNDS)
    ends = [0, *(UNTIMED_STEPS + i * each for i in range(ROUNDS + 1))]
    speeds: dict[str, list[float]] = {name: [] for name in trainers}
    found = dict.fromkeys(trainers, math.nan)
    echo(f"{describe_device(device)}: {corpus}; {tokens:,} characters a step")
    with Progress("Measuring", (ROUNDS + 1) * len(trainers), "turns") as bar:
        for (first, last), (name, trainer) in itertools.product(itertools.pairwise(ends), trainers.items()):
            if first == 0:
                trainer.warm_up()
            began = time.perf_counter()
            losses = torch.stack([trainer.step(step) for step in range(first, last)]).cpu()  # waits for the device
            speeds[name].append((last - first) * tokens / (time.perf_counter() - began))
            place, after = f"step {{}} of {name}", f"step {last} of {name}"
            check_finite(losses, trainer.module, place, first=first + 1, after=after, lr=options.lr)
            found[name] = losses[-1].item()
            bar.update(1)
    echo(f"tokens per second, median of {ROUNDS} rounds (slowest to fastest), and the loss of step {ends[-1]}:")
    for name, (_, *timed) in speeds.items():
        median = statistics.median(timed)
        figures[name] = {"tokens_per_second": round(median, 1), "loss": found[name]}
        echo(f"  {name:<17} {median:>12,.0f} ({min(timed):,.0f} to {max(timed):,.0f}), loss {found[name]:.4f}")
    for mode in modes:
        ours, theirs = (figures[f"{backend}, {mode}"]["tokens_per_second"] for backend in ("kernels", "torch"))
        echo(f"  {mode}: kernels at {ours / theirs:.3f} times the speed of torch")
    echo(json.dumps({"device": describe_device(device), "amp": options.amp, **figures}))
    return figures
