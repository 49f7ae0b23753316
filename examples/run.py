"""One training run: its options, its epochs, and the files that it keeps."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.installing import pip_install
from examples.checkpoint import open_folder, save_checkpoint
from examples.console import Progress, UserError, check_common
from examples.datasets import MNIST_MIRRORS
from examples.endings import Diverged, check_finite
from examples.reporting import (
    EpochRecord,
    EventLog,
    GpuMonitor,
    describe_run,
    plot_curves,
    write_metrics,
)
from examples.training import Trainer, epoch_order

__all__ = ["DEFAULT_EPOCHS", "EXAMPLE", "Config", "Diverged", "Result", "Run"]

EXAMPLE = "lenet5"
DEFAULT_EPOCHS = {"digits": 20, "mnist": 10}


@dataclass(frozen=True)
class Config:
    """The options of the command line, under the same names. `out=None` writes nothing; `epochs=None` is the default.

    Raises `UserError` for values that cannot be.
    """

    dataset: str = "digits"
    data_dir: Path = Path("data/mnist")
    mirrors: tuple[str, ...] = MNIST_MIRRORS
    epochs: int | None = None
    batch_size: int = 64
    lr: float = 3e-3
    seed: int = 0
    device: str = "auto"
    backend: str = "kernels"
    fast: bool = False
    resume: bool = False
    out: Path | None = Path("runs/lenet5")
    export: Path | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_common(self.backend, self.seed)
        if self.dataset not in DEFAULT_EPOCHS:
            raise UserError(f"--dataset must be one of {', '.join(DEFAULT_EPOCHS)}, got {self.dataset!r}")
        for option, value in (("--epochs", self.total_epochs), ("--batch-size", self.batch_size)):
            if value < 1:
                raise UserError(f"{option} must be at least 1, got {value}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a positive number, got {self.lr}")
        if self.resume and self.out is None:
            raise UserError("--resume needs the folder of the run: --out DIR")

    @property
    def total_epochs(self) -> int:
        return DEFAULT_EPOCHS[self.dataset] if self.epochs is None else self.epochs

    def settings(self, device: torch.device) -> dict[str, object]:
        """All that decides the numbers: a resumed run must repeat it. The number of epochs may grow."""
        names = ("dataset", "batch_size", "lr", "seed", "backend", "fast")
        return {**{name: getattr(self, name) for name in names}, "device": device.type}


@dataclass(frozen=True)
class Result:
    """`history` has one record per epoch, those before a resume included; `setup_seconds` is what capturing took."""

    model: nn.Module
    history: list[EpochRecord]
    setup_seconds: float

    def median_seconds(self, part: str = "seconds") -> float:
        """Median over the epochs of `seconds`, `train_seconds` or `test_seconds`."""
        return statistics.median(getattr(record, part) for record in self.history)


@dataclass
class Run:
    """The epochs of one run, and the files that it keeps."""

    config: Config
    device: torch.device
    model: nn.Module
    trainer: Trainer
    history: list[EpochRecord]
    samples: int
    echo: Callable[[str], object]

    def open_folder(self) -> None:
        """Make ``--out``, if there is one, ready to be written to."""
        if self.config.out is not None:
            done = f"epoch {len(self.history)}" if self.config.resume else None
            open_folder(self.config.out, self.echo, going_on_after=done, save=self.save)

    def run_epochs(self) -> None:
        """Train and test up to ``--epochs``, writing each epoch's lines, events, checkpoint and metrics."""
        monitor = GpuMonitor(self.device)
        try:
            with EventLog(self.config.out and self.config.out / "tensorboard") as log:
                if self.config.out and log.why_not:
                    self.echo(f"No TensorBoard events: {log.why_not}")
                if self.device.type == "cuda" and monitor.why_not:
                    self.echo(f"No GPU utilisation: {monitor.why_not}")
                if len(self.history) >= self.config.total_epochs:
                    self.echo(f"Nothing to train: {len(self.history)} epochs are done; a higher --epochs goes on")
                for epoch in range(len(self.history) + 1, self.config.total_epochs + 1):
                    record, losses = self.run_epoch(epoch, monitor)
                    self.history.append(record)
                    self.echo(f"Epoch: [ {epoch} ], Average Loss: {record.loss:.6f}")
                    self.echo(f"Test Accuracy: {record.accuracy:.2f} %")
                    log.write(record, losses.tolist())
                    self.save()
        finally:
            monitor.close()

    def run_epoch(self, epoch: int, monitor: GpuMonitor) -> tuple[EpochRecord, Tensor]:
        """One epoch and its test; the losses, one per batch, are looked at when the epoch is done."""
        order = epoch_order(self.config.seed, epoch, self.samples)
        batches = math.ceil(self.samples / self.config.batch_size)
        began = time.perf_counter()
        with Progress(f"Epoch {epoch}", batches, enabled=self.config.progress) as progress:
            losses = self.trainer.train_epoch(order, progress.advance)
        trained = time.perf_counter()
        check_finite(
            losses,
            self.model,
            where=lambda batch: f"batch {batch + 1} of epoch {epoch}",
            after=f"epoch {epoch}",
            lr=self.config.lr,
        )
        gpu = monitor.read()
        testing = time.perf_counter()
        accuracy = self.trainer.accuracy()
        tested = time.perf_counter()
        loss = losses.double().mean().item()
        return EpochRecord(epoch, loss, accuracy, trained - began, tested - testing, gpu), losses

    def save(self) -> None:
        """Write the checkpoint and the metrics of the epochs so far."""
        out = self.config.out
        if out is None:
            return
        history = [record.as_dict() for record in self.history]
        save_checkpoint(
            out,
            EXAMPLE,
            model=self.model,
            settings=self.config.settings(self.device),
            epoch=len(self.history),
            optimizer=self.trainer.optimizer_state(),
            history=history,
        )
        write_metrics(out / "metrics.json", self.metrics(history))

    def metrics(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """What a script needs to compare runs. Losses are means over batches, accuracies percent, times seconds."""
        config = replace(self.config, epochs=self.config.total_epochs)
        return {
            **describe_run(config, self.device, self.model),
            "setup_seconds": self.trainer.setup_seconds,
            "epochs": history,
        }

    def summarise(self, result: Result) -> None:
        """Print the times, and draw the curves."""
        total, training, test = (result.median_seconds(part) for part in ("seconds", "train_seconds", "test_seconds"))
        self.echo(
            f"Time per epoch: {total:.3f} s (training {training:.3f} s, test {test:.3f} s; "
            f"medians of {len(self.history)} epochs)"
        )
        uses = [record.gpu for record in self.history if record.gpu is not None]
        if uses:
            busy = statistics.mean(use.utilisation_percent for use in uses)
            self.echo(f"GPU: {busy:.0f} % busy, {max(use.memory_mib for use in uses):,.0f} MiB in use")
        if self.config.out is None:
            return
        curves = self.config.out / "curves.png"
        title = f"LeNet-5 on {self.config.dataset}, --backend {self.config.backend}"
        if plot_curves(curves, self.history, title):
            self.echo(f"Curves: {curves}")
        else:
            self.echo(f"No curves: matplotlib is not installed ({pip_install('examples', 'matplotlib')})")
