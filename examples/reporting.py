"""What a run leaves to look at: TensorBoard events, metrics.json, a PNG with curves, and the GPU's utilisation."""

import io
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from cupyops.installing import pip_install
from examples.console import describe_device
from examples.files import naming, write_whole

__all__ = ["EpochRecord", "EventLog", "GpuMonitor", "GpuUse", "describe_run", "plot_curves", "write_metrics"]

QUEUED_EVENTS = 4096


@dataclass(frozen=True)
class GpuUse:
    """`utilisation_percent`: share of the last second (or less) with a kernel running; `memory_mib`: all in use."""

    utilisation_percent: int
    memory_mib: float


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: `loss` is the mean over its batches, `accuracy` is in percent of the whole test set."""

    epoch: int
    loss: float
    accuracy: float
    train_seconds: float
    test_seconds: float
    gpu: GpuUse | None

    @property
    def seconds(self) -> float:
        """Training and testing, without the writing of logs and checkpoints."""
        return self.train_seconds + self.test_seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EpochRecord":
        gpu = values["gpu"]
        return cls(**{**values, "gpu": None if gpu is None else GpuUse(**gpu)})


class GpuMonitor:
    """Asks the driver, through nvidia-ml-py, how busy a GPU is. `why_not` says why it cannot, where it cannot."""

    def __init__(self, device: torch.device) -> None:
        self.why_not = ""
        self._nvml: Any = None
        if device.type != "cuda":
            self.why_not = "the device is no GPU"
            return
        try:
            import pynvml
        except ImportError:
            self.why_not = f"nvidia-ml-py is not installed ({pip_install('examples', 'nvidia-ml-py')})"
            return
        try:
            pynvml.nvmlInit()
            # By UUID: the driver's numbering knows nothing of CUDA_VISIBLE_DEVICES.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except pynvml.NVMLError as error:
            self.why_not = f"the driver does not tell ({error})"

    def read(self) -> GpuUse | None:
        """The use of the GPU now, or None where it cannot be had (a slice of a GPU has no utilisation of its own)."""
        if self._nvml is None:
            return None
        try:
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
            used = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        except self._nvml.NVMLError as error:
            self.why_not = f"the driver does not tell ({error})"
            return None
        return GpuUse(int(busy), used / 2**20)

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None


class EventLog:
    """TensorBoard events, closed on every way out. Without a folder or without TensorBoard it writes nothing.

    A folder that cannot be written raises `Unwritable`, from the constructor, from a later call, or at the end.
    """

    def __init__(self, folder: Path | None) -> None:
        self.why_not = "" if folder is not None else "no folder was given"
        self._folder = folder or Path()
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.why_not = f"tensorboard is not installed ({pip_install('examples', 'tensorboard')})"
            return
        # A queue that holds an epoch: the writing thread then works through it while the next epoch trains.
        with naming(folder):
            self._writer = SummaryWriter(str(folder), max_queue=QUEUED_EVENTS)

    def write(self, record: EpochRecord, losses: Sequence[float]) -> None:
        """Add an epoch: ``Loss/Train`` per batch, numbered through from 0; the rest per epoch, numbered from 1."""
        self.add_series("Loss/Train", losses, (record.epoch - 1) * len(losses))
        self.add({"Accuracy/Test": record.accuracy}, record.epoch, record.gpu)

    def add(self, values: Mapping[str, float], step: int, gpu: GpuUse | None = None) -> None:
        """Add each of `values` under its name at `step`, and the use of the GPU."""
        if gpu is not None:
            values = {**values, "GPU/Utilisation_percent": gpu.utilisation_percent, "GPU/Memory_MiB": gpu.memory_mib}
        for name, value in values.items():
            self.add_series(name, [value], step)

    def add_series(self, name: str, values: Sequence[float], first: int) -> None:
        """Add `values` under one name, at steps numbered from `first`."""
        if self._writer is not None:
            with naming(self._folder):
                for step, value in enumerate(values, first):
                    self._writer.add_scalar(name, value, step)

    def __enter__(self) -> "EventLog":
        self._hook, threading.excepthook = threading.excepthook, self._thread_ended
        return self

    def _thread_ended(self, how: Any) -> None:
        """The writing thread gives its error to whoever writes next, and need not print it, too."""
        if not (isinstance(how.exc_value, OSError) and type(how.thread).__module__.startswith("tensorboard.")):
            self._hook(how)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._writer is not None:
                with naming(self._folder):
                    self._writer.close()
        except OSError:
            if error is None:  # else that is what ends the run
                raise
        finally:
            threading.excepthook = self._hook


def describe_run(config: Any, device: torch.device, model: nn.Module) -> dict[str, Any]:
    """What ``metrics.json`` says of every run: its options (a dataclass), where it ran, and the model's size."""
    options = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}
    return {
        "config": options,
        "device": str(device),
        "device_description": describe_device(device),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def write_metrics(path: Path, metrics: dict[str, Any]) -> None:
    """Write `metrics` as JSON, whole or not at all."""
    write_whole(path, (json.dumps(metrics, indent=2) + "\n").encode())


def plot_curves(path: Path, history: Sequence[EpochRecord], title: str) -> bool:
    """Draw loss and accuracy over the epochs into a PNG; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # not pyplot: no window, no global state
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    epochs = [record.epoch for record in history]
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    loss_axes.plot(epochs, [record.loss for record in history], marker="o", markersize=3)
    loss_axes.set(xlabel="epoch", ylabel="average training loss", yscale="log")
    accuracy_axes.plot(epochs, [record.accuracy for record in history], marker="o", markersize=3, color="tab:green")
    accuracy_axes.set(xlabel="epoch", ylabel="test accuracy (%)")
    for axes in (loss_axes, accuracy_axes):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=True, alpha=0.3)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_whole(path, drawn.getbuffer())
    return True
