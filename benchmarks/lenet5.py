"""LeNet-5 on MNIST by ``examples.lenet5``: accuracy and seconds per epoch, with our GELU and with PyTorch's."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .choices import RECIPES
from .measure import Findings
from .results_file import ROOT

__all__ = ["BACKENDS", "RECIPES", "Plan", "measure_lenet5", "row_of"]

SECTION = "lenet5"
BACKENDS = ("kernels", "torch")


@dataclass(frozen=True)
class Plan:
    """Which runs to make.

    Attributes:
        mnist: folder with the four MNIST files.
        epochs: None for the example's own number.
        jobs: runs at a time. Beyond 1 they disturb each other: the first seed's runs are still made alone and timed, and
            of the other seeds' no seconds are recorded.
    """

    mnist: Path
    seeds: Sequence[int] = (0, 1, 2)
    epochs: int | None = None
    recipes: Sequence[str] = RECIPES
    backends: Sequence[str] = BACKENDS
    jobs: int = 1

    def timed(self, seed: int) -> bool:
        """Whether this seed's runs have the machine to themselves."""
        return self.jobs == 1 or seed == self.seeds[0]

    def command(self, backend: str, recipe: str, seed: int, out: Path) -> list[str]:
        """The run's command line, for the repository's folder."""
        command = [sys.executable, "-m", "examples.lenet5", "--dataset", "mnist", "--device", "cuda"]
        command += ["--data-dir", str(self.mnist.resolve()), "--out", str(out)]
        command += ["--backend", backend, "--seed", str(seed)]
        if self.epochs is not None:
            command += ["--epochs", str(self.epochs)]
        return [*command, "--fast"] if recipe == "fast" else command


def measure_lenet5(plan: Plan, *, echo: Callable[[str], object] = print) -> Findings:
    """One row per run. Seeds vary slowest, so that backends and recipes are compared under the same conditions."""
    findings = Findings()
    runs = [(b, r, s) for s, r, b in itertools.product(plan.seeds, plan.recipes, plan.backends)]
    with tempfile.TemporaryDirectory(prefix="cupyops-lenet5-", ignore_cleanup_errors=True) as folder:

        def run(which: tuple[str, str, int]) -> dict[str, Any] | str:
            return _run(plan, which, Path(folder) / "-".join(map(str, which)))

        alone = [w for w in runs if plan.timed(w[2])]
        with ThreadPoolExecutor(plan.jobs) as pool:
            outcomes = itertools.chain(map(run, alone), pool.map(run, runs[len(alone) :]))
            for which, outcome in zip(runs, outcomes, strict=True):
                title = "{}, {}, seed {}".format(*which)
                if isinstance(outcome, str):
                    findings.skip(SECTION, title, outcome, failed=True)
                    continue
                findings.rows.append(outcome)
                seconds = outcome["seconds_per_epoch"]
                timing = "" if seconds is None else f", {seconds:.2f} s per epoch"
                echo(f"lenet5, {title}: {outcome['accuracy']:.2f} % after {outcome['epochs']} epochs{timing}")
    return findings


def _run(plan: Plan, which: tuple[str, str, int], out: Path) -> dict[str, Any] | str:
    """The run's row, or what went wrong."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(plan.command(*which, out), cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return f"ended with {done.returncode}: {last}"
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return row_of(metrics, *which, timed=plan.timed(which[2]))


def row_of(metrics: dict[str, Any], backend: str, recipe: str, seed: int, *, timed: bool) -> dict[str, Any]:
    """The row of a run from its ``metrics.json``; seconds are medians over the epochs, training and test."""
    epochs = metrics["epochs"]
    train = statistics.median(e["train_seconds"] for e in epochs)
    total = statistics.median(e["train_seconds"] + e["test_seconds"] for e in epochs)
    return {
        "backend": backend,
        "recipe": recipe,
        "seed": seed,
        "epochs": len(epochs),
        "accuracy": float(epochs[-1]["accuracy"]),
        "loss": float(epochs[-1]["loss"]),
        "accuracies": [round(e["accuracy"], 4) for e in epochs],
        "seconds_per_epoch": round(total, 4) if timed else None,
        "train_seconds_per_epoch": round(train, 4) if timed else None,
        "setup_seconds": round(metrics["setup_seconds"], 4) if timed else None,
    }
