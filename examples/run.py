"""The class of a training run: Lightning Fabric, checkpoints, metrics, TensorBoard events and curves."""

import io
import itertools
import json
import logging
import pickle
import shlex
import statistics
import sys
import threading
import zipfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .command import (
    CHECKPOINT,
    CHECKPOINTS,
    Diverged,
    UserError,
    describe_device,
    naming,
    pick_device,
    processes,
    say,
    write_whole,
)
from .parallel import Plan, devices_of, join, strategy_of
from .pictures import picture, plot_curves

ARTEFACTS = (CHECKPOINT, CHECKPOINTS, "metrics.json", "curves.png", "digits.png", "tensorboard")


@dataclass
class Run:
    """A training run: `device`, `fabric`, and the folder `options.out` with checkpoint, metrics and TensorBoard events.

    The folder stays untouched until `begin`. Leaving the `with` block closes the event file. With `--parallel`, every
    rank makes a run, and the first one writes; the checkpoints are sharded (`checkpoints.py`). A run that torchrun has
    restarted goes on from its last checkpoint.

    Attributes:
        example: name of the example and version of its checkpoints, "lenet5/1". Another name is refused.
        settings: the options that a resumed run must repeat to get the same numbers, by name.
        unit: "epoch" or "step", the key under which the state counts what is done.
        records: the key of the state's "history" in `metrics.json`. The entries of `metrics` are added to the file.
        plans: how `--parallel` spreads the model over devices, beside "ddp".
    """

    example: str
    options: Namespace
    settings: dict[str, object]
    unit: str
    records: str
    echo: Callable[[str], object] = say
    plans: Mapping[str, Plan] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    told: bool = False

    def __post_init__(self) -> None:
        self.out: Path = self.options.out
        self.parallel: str | None = getattr(self.options, "parallel", None)
        amp, device = getattr(self.options, "amp", False), pick_device(self.options.device)
        more: dict[str, Any] = {}
        if self.parallel is not None:
            more = {"strategy": strategy_of(self.parallel, self.plans), **devices_of(device, self.options)}
        self.fabric = make_fabric(device, amp, self.out, self.echo, more)
        self.device: torch.device = device if self.parallel is None else self.fabric.device
        precision = {True: ", bfloat16 autocast", False: ", float32", None: ""}[getattr(self.options, "amp", None)]
        self.echo(f"device:  {describe_device(self.device)}{precision}")
        settings = {**self.settings, "device": self.device.type}
        self.header: dict[str, Any] = {"format": f"examples.{self.example}", "settings": settings}
        self.last: tuple[Path, dict[str, Any]] | None = None
        if self.parallel is not None:
            from .checkpoints import Checkpoints

            join(device)
            self.fabric.launch()
            self.echo(f"ranks:   {self.fabric.world_size}, --parallel {self.parallel}")
            self.header["launch"] = self.fabric.broadcast(processes().launch)
            self.checkpoints = Checkpoints(self.out / CHECKPOINTS, self.fabric, self.echo)
            self.find()
        elif self.options.resume:
            self.check()

    def find(self) -> None:
        """Look for the sharded checkpoint to go on from, for `--resume` or after a restart by torchrun."""
        if not (self.options.resume or processes().restarts):
            return
        self.last = self.checkpoints.newest()
        if self.options.resume and self.last is None:
            raise UserError(f"{self.out / CHECKPOINTS} has no whole checkpoint; leave out --resume to begin anew")
        if self.last is not None and not self.options.resume and self.last[1].get("launch") != self.header["launch"]:
            self.last = None  # another launch wrote this checkpoint: this launch was stopped before its first
        if self.last is not None:
            self.compare(*self.last)

    def check(self) -> None:
        """Raise `UserError` if the checkpoint is damaged, belongs to another example, or has other settings."""
        path, mend = self.out / CHECKPOINT, "leave out --resume to begin anew"
        try:
            with zipfile.ZipFile(path) as archive:  # torch.load does not look at the checksums that torch.save writes
                if part := archive.testzip():
                    raise zipfile.BadZipFile(f"the checksum of its part {part} is wrong")
            found = self.fabric.load(path, weights_only=True)
        except (zipfile.BadZipFile, EOFError, pickle.UnpicklingError, RuntimeError) as error:
            reason = str(error).split("\n")[0]
            raise UserError(f"{path} is damaged or is no checkpoint ({reason}); {mend}") from None
        self.compare(path, found)

    def compare(self, path: Path, found: Mapping[str, Any]) -> None:
        """Raise `UserError` if the checkpoint `found` at `path` belongs to another example or has other settings."""
        mend = "leave out --resume to begin anew"
        if found.get("format") != self.header["format"]:
            others = f"expected format {self.header['format']!r}, found {found.get('format')!r}"
            raise UserError(f"{path} is no checkpoint of this example: {others}; {mend}")
        pairs = {name: (found["settings"].get(name), value) for name, value in self.header["settings"].items()}
        others = "; ".join(f"--{n.replace('_', '-')} was {a}, is {b}" for n, (a, b) in pairs.items() if a != b)
        if others:
            raise UserError(f"--resume must repeat the settings that {path} was made with: {others}; or {mend}")

    def begin(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Make the folder ready: go on from its checkpoint, or move an earlier run's files aside and save the start.

        Modules and optimizers in `state` are loaded in place, other values are replaced. Returns the state's history,
        which is empty at the start.
        """
        state["history"] = []
        self.out.mkdir(parents=True, exist_ok=True)
        if self.options.resume or self.last is not None:
            if self.last is not None:
                self.checkpoints.load(*self.last, state)
            else:
                self.fabric.load(self.out / CHECKPOINT, state, weights_only=True, strict=False)
            done, units = state[self.unit], f"{self.unit}s"
            self.echo(f"output:  {self.out}, going on after {self.unit} {done}")
            if done >= getattr(self.options, units):
                more = "" if units in self.settings else f"; a higher --{units} goes on"
                self.echo(f"Nothing to train: {done} {units} are done{more}")
        else:
            earlier = set_aside(self.out) if self.fabric.is_global_zero else None
            self.echo(f"output:  {self.out}" + (f" (an earlier run's files moved to {earlier})" if earlier else ""))
            self.save(state)
        history: list[dict[str, Any]] = state["history"]
        return history

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint and `metrics.json` atomically. If a write fails, raise `UserError` and keep the last
        files."""
        if self.parallel is not None:
            self.checkpoints.save(state[self.unit], state, self.header)
        else:
            self.fabric.save(self.out / CHECKPOINT, {**self.header, **state})
        if not self.fabric.is_global_zero:
            return
        metrics = {
            "config": vars(self.options),
            "device": self.device,
            "device_description": describe_device(self.device),
            "ranks": self.fabric.world_size,
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "parameters": sum(p.numel() for p in state["model"].parameters()),
            **self.metrics,
            self.records: state["history"],
        }
        write_whole(self.out / "metrics.json", (json.dumps(metrics, indent=2, default=str) + "\n").encode())

    def log(self, name: str, values: Sequence[float], first: int) -> None:
        """Add `values` to TensorBoard's curve `name`, at steps numbered from `first`."""
        with naming(self.out / "tensorboard"):
            for step, value in enumerate(values, first):
                self.fabric.log(name, value, step)

    def gpu_use(self, step: int) -> dict[str, float] | None:
        """Utilisation of the GPU (percent of the last second or less) and memory in use (MiB), for TensorBoard, too.

        None on a CPU, and if the driver reports no utilisation, as for a slice (MIG) of a GPU.
        """
        if self.device.type != "cuda":
            return None
        try:
            busy, used = torch.cuda.utilization(self.device), torch.cuda.device_memory_used(self.device) / 2**20
        except Exception as error:  # nvidia-ml-py is missing, or raises an exception class of its own
            if not self.told:
                self.told = True
                self.echo(f"No GPU utilisation: {error}")
            return None
        self.log("GPU/Utilisation_percent", [busy], step)
        self.log("GPU/Memory_MiB", [used], step)
        return {"utilisation_percent": busy, "memory_mib": used}

    def summarise(self, history: Sequence[dict[str, Any]]) -> None:
        """Print the accuracy, the times per epoch and the use of the GPU."""
        best, last = max(history, key=lambda record: record["accuracy"]), history[-1]
        found = " and ".join(
            f"{name} {r['accuracy']:.2f} % (epoch {r['epoch']})" for name, r in (("best", best), ("final", last))
        )
        self.echo(f"Accuracy: {found}")
        training, test = (statistics.median(r[f"{part}_seconds"] for r in history) for part in ("train", "test"))
        total = statistics.median(r["train_seconds"] + r["test_seconds"] for r in history)
        parts = f"training {training:.3f} s, test {test:.3f} s; medians of {len(history)} epochs"
        self.echo(f"Time per epoch: {total:.3f} s ({parts})")
        if uses := [r["gpu"] for r in history if r["gpu"] is not None]:
            busy = statistics.mean(use["utilisation_percent"] for use in uses)
            self.echo(f"GPU: {busy:.0f} % busy, {max(use['memory_mib'] for use in uses):,.0f} MiB in use")

    def draw(
        self, history: Sequence[dict[str, Any]], curves: Mapping[str, str | Mapping[str, str]], title: str
    ) -> None:
        """Draw curves over the records, and print the command that starts TensorBoard. `curves` maps a label to a
        record's key, or to keys by name.

        The first rank draws.
        """
        if not self.fabric.is_global_zero:
            return

        def values(key: str) -> list[float]:
            return [record[key] for record in history]

        drawn = {
            label: values(key) if isinstance(key, str) else {name: values(k) for name, k in key.items()}
            for label, key in curves.items()
        }
        path, at = self.out / "curves.png", [record[self.unit] for record in history]
        picture(path, plot_curves, drawn, title, self.unit, at, name="Curves", echo=self.echo)
        if self.fabric.loggers:
            self.echo(f"TensorBoard: {shlex.join(['python', '-m', 'tensorboard.main', '--logdir', str(self.out)])}")

    def __enter__(self) -> "Run":
        self.hook, threading.excepthook = threading.excepthook, self.thread_ended
        return self

    def thread_ended(self, how: Any) -> None:
        """Keep Python from printing an OSError of TensorBoard's writing thread: the next call that logs raises it
        again."""
        if not (isinstance(how.exc_value, OSError) and writes_events(how.thread)):
            self.hook(how)

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with naming(self.out / "tensorboard"):
                for logger in self.fabric.loggers:
                    logger.finalize("success" if error is None else "failed")
        except UserError:
            if error is None:  # else the run already ends with `error`
                raise
        finally:
            for thread in threading.enumerate():
                # A thread that has failed is about to end, and calls the hook then. The call that logs may raise first.
                if writes_events(thread) and getattr(thread, "exception", None) is not None:
                    thread.join()
            threading.excepthook = self.hook


def writes_events(thread: threading.Thread | None) -> bool:
    """Whether a thread is the one in which TensorBoard writes events."""
    return type(thread).__module__.startswith("tensorboard")


def make_fabric(
    device: torch.device,
    amp: bool,
    log_to: Path | None = None,
    echo: Callable[[str], object] = say,
    parallel: Mapping[str, Any] | None = None,
) -> Any:
    """A `lightning_fabric.Fabric` on one device, in float32 or bfloat16 autocast, that writes whole checkpoints.

    TensorBoard events go to `log_to`. `parallel` has Fabric's strategy and numbers of devices and nodes, for several.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.loggers import TensorBoardLogger
    from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

    class WholeFiles(TorchCheckpointIO):
        """Writes beside the target. Fabric writes to the system's temporary folder, and a move to another disk is not
        atomic."""

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            contents = io.BytesIO()  # on a full disk, torch.save raises an error of its own
            torch.save(checkpoint, contents)
            write_whole(Path(path), contents.getbuffer())

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # Fabric would log each precision that it sets
    loggers: list[Any] = []
    if log_to is not None:
        try:  # a queue that holds an epoch: the writing thread works through it while the next epoch trains
            loggers = [TensorBoardLogger(log_to, name="", version="tensorboard", max_queue=4096)]
        except ModuleNotFoundError as error:
            reason = str(error).split("\n")[0]
            echo(f"No TensorBoard events: {reason}")
    common: dict[str, Any] = {"loggers": loggers, "precision": "bf16-mixed" if amp else "32-true"}
    if parallel:
        return Fabric(accelerator=device.type, **common, **parallel)
    devices = 1 if device.index is None else [device.index]
    return Fabric(accelerator=device.type, devices=devices, plugins=[WholeFiles()], **common)


def set_aside(folder: Path) -> Path | None:
    """Move an earlier run's files in `folder` to `folder/earlier-N`; return that folder, or None if there were none."""
    left = [folder / name for name in ARTEFACTS if (folder / name).exists()]
    if not left:
        return None
    target = next(path for n in itertools.count(1) if not (path := folder / f"earlier-{n}").exists())
    target.mkdir()
    for path in left:
        path.rename(target / path.name)
    return target


def check_finite(losses: Tensor, model: nn.Module, place: str, *, first: int = 1, after: str, lr: float) -> None:
    """Raise `Diverged` unless all losses and this rank's parameters are finite. The last step's effect on the
    parameters shows in no loss.

    The message contains `place` and `after`. `place.format(n)` names the loss n, counted from `first`.
    """
    bad = losses.isfinite().logical_not().nonzero()
    if len(bad):
        value, where = losses[bad[0]].item(), place.format(int(bad[0]) + first)
        raise Diverged(f"the loss became {value} in {where}; a lower --lr may help, this run had {lr:g}")
    local = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    if not torch.stack([parameter.isfinite().all() for parameter in local]).all():
        raise Diverged(f"the parameters are not finite after {after}; a lower --lr may help")
