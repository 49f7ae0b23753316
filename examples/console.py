"""What the examples share at the command line: options, devices, progress, and errors of one line."""

import argparse
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch

__all__ = [
    "EPILOG",
    "Progress",
    "UserError",
    "add_common_options",
    "add_run_options",
    "check_common",
    "describe_device",
    "pick_device",
    "report_error",
]

BACKENDS = ("kernels", "torch")
EPILOG = (
    "If DIR holds an earlier run, its files move into DIR/earlier-N first. "
    "--resume goes on with it instead, to the same numbers as a run without a break."
)


class UserError(ValueError):
    """Something asked for cannot be had. The message is one line: what was expected, what was got, what mends it."""


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, ``--backend`` and ``--seed``."""
    parser.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda", help="auto takes a GPU if there is one; cuda:1 works too"
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="kernels",
        help="this project's operators, or PyTorch's own to compare with (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="a seed fixes the whole run (default: %(default)s)")


def add_run_options(parser: argparse.ArgumentParser, out: Path | None) -> None:
    """Add ``--out``, with `out` as its default, and ``--resume``; `EPILOG` explains them."""
    parser.add_argument(
        "--out", type=Path, default=out, metavar="DIR", help="where the run's files go (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from DIR/checkpoint.pt, with the settings that it was made with"
    )


def check_common(backend: str, seed: int) -> None:
    """Raise `UserError` for a backend that is not one of `BACKENDS`, or a negative seed."""
    if backend not in BACKENDS:
        raise UserError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed must lie in 0 .. 2**63 - 1, got {seed}")


def pick_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device that exists, else raise `UserError`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"--device {name}: PyTorch {torch.__version__} sees no CUDA GPU; use --device cpu, "
            "or install a driver and a CUDA build of PyTorch"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise UserError(
            f"--device {name}: PyTorch sees {torch.cuda.device_count()} GPU(s), numbered from 0; use a lower number"
        )
    return torch.device("cuda", index)


def describe_device(device: torch.device) -> str:
    """``cuda:0 (NVIDIA H200)`` or ``cpu (2 threads)``, with the version of PyTorch."""
    if device.type == "cuda":
        detail = torch.cuda.get_device_name(device)
    else:
        detail = f"{torch.get_num_threads()} threads"
    return f"{device} ({detail}), PyTorch {torch.__version__}"


def report_error(program: str, error: Exception) -> int:
    """Print `error` on one line of stderr, the way argparse does, and return its exit status, 2."""
    print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


class Progress:
    """A progress bar on a terminal; elsewhere a plain line, at most one every `interval` seconds.

    Both go to stderr, so that stdout holds results alone. The bar needs tqdm; without it a terminal gets the lines.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str = "batch",
        *,
        interval: float = 10.0,
        enabled: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self.label, self.total, self.unit, self.interval, self.enabled = label, total, unit, interval, enabled
        self.stream = sys.stderr if stream is None else stream
        self.done = 0
        self._last_line = time.monotonic()
        self._bar: Any = None
        if enabled and self.stream.isatty():
            self._bar = self._make_bar()

    def _make_bar(self) -> Any:
        try:
            from tqdm import tqdm
        except ImportError:
            return None
        in_bytes = self.unit == "B"
        return tqdm(
            desc=self.label, total=self.total, unit=self.unit, unit_scale=in_bytes, file=self.stream, leave=False
        )

    def advance(self, count: int = 1) -> None:
        """Say that `count` more units are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self.enabled and time.monotonic() - self._last_line >= self.interval:
            self._last_line = time.monotonic()
            of_total = "" if self.total is None else f" of {self.total:,}"
            print(f"{self.label}: {self.done:,}{of_total} {self.unit}", file=self.stream, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
