"""What the examples share at the command line: options, one-line errors, exit codes, progress, whole files.

No heavy import at the top: `--help` and wrong arguments are answered before PyTorch is imported.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    import torch

CHECKPOINT = "checkpoint.pt"
EPILOG = (
    "If DIR holds an earlier run, its files move into DIR/earlier-N first. "
    "--resume goes on with it instead, to the same numbers as a run without a break."
)


class UserError(ValueError):
    """A request that cannot be met. The message is one line: what was expected, what was got, what mends it."""


class Diverged(RuntimeError):
    """A loss or a parameter is infinite or NaN."""


class Unwritable(OSError):
    """A file cannot be written. The message names the file and the reason."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


# Options -------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """The command line of an example. A wrong argument ends the program with one line and status 2."""

    def __init__(self, example: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(f"python -m examples.{example}", description=(description or "").split("\n")[0], epilog=epilog)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")

    def add_common(self) -> None:
        """Add `--device`, `--backend` and `--seed`."""
        self.add_device()
        help = "this project's operators, or PyTorch's own to compare with (default: %(default)s)"
        self.add_argument("--backend", choices=("kernels", "torch"), default="kernels", help=help)
        self.add_seed()

    def add_device(self) -> None:
        """Add `--device`."""
        help = "auto takes a GPU if there is one; cuda:1 works too"
        self.add_argument("--device", type=device_name, default="auto", metavar="auto|cpu|cuda", help=help)

    def add_seed(self) -> None:
        """Add `--seed`."""
        help = "a seed fixes the whole run (default: %(default)s)"
        self.add_argument("--seed", type=seed, default=0, metavar="N", help=help)

    def add_run(self, out: str) -> None:
        """Add `--out`, with the default `out`, and `--resume`."""
        help = "where the run's files go (default: %(default)s)"
        self.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help=help)
        help = f"go on from DIR/{CHECKPOINT}, with the settings that it was made with"
        self.add_argument("--resume", action="store_true", help=help)

    def parse_run(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments of a run; a checkpoint to resume from has to exist."""
        options = self.parse_args(argv)
        if options.resume and not (options.out / CHECKPOINT).is_file():
            where = options.out / CHECKPOINT
            self.error(f"--resume: there is no {where}; leave out --resume to begin, or name the run's --out")
        return options


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number, `least` or more."""

    def int_(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    int_.__name__ = "int"  # argparse names the type in its error
    return int_


def positive(text: str) -> float:
    """The type of an option: a finite number above 0."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return value


def seed(text: str) -> int:
    """The type of `--seed`: what PyTorch's generators take."""
    if not 0 <= (value := int(text)) < 2**63:
        raise argparse.ArgumentTypeError(f"must lie in 0 .. 2**63 - 1, got {value}")
    return value


def device_name(text: str) -> str:
    """The type of `--device`."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, got {text!r}")
    return text


# Devices -------------------------------------------------------------------------------------------------------------


def pick_device(name: str) -> "torch.device":
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device that exists, else raise `UserError`."""
    import torch

    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"--device {name}: PyTorch {torch.__version__} sees no CUDA GPU; use --device cpu, "
            "or install a driver and a CUDA build of PyTorch"
        )
    index = torch.device("cuda" if name == "auto" else name).index
    index = torch.cuda.current_device() if index is None else index
    if index >= torch.cuda.device_count():
        raise UserError(
            f"--device {name}: PyTorch sees {torch.cuda.device_count()} GPU(s), numbered from 0; use a lower number"
        )
    return torch.device("cuda", index)


def describe_device(device: "torch.device") -> str:
    """`cuda:0 (NVIDIA H200)` or `cpu (2 threads)`, with the version of PyTorch."""
    import torch

    detail = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device} ({detail}), PyTorch {torch.__version__}"


# Exit codes ----------------------------------------------------------------------------------------------------------


def run_command(example: str, action: Callable[[], object], checkpoint: Path | None = None) -> int:
    """Call `action` and return the exit status: its result if that is a number, else 0; 1 if it diverged; 2 for a request that cannot be met;
    130 after Ctrl-C; 141 when the reader of stdout has left.

    Each but the last prints one line. The line names `checkpoint` if that file exists.
    """
    kept = checkpoint is not None and checkpoint.is_file
    try:
        result = action()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # the interpreter flushes stdout once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Diverged as error:
        hint = f" {checkpoint} holds the last good state." if kept and kept() else ""
        print(f"Stopped: {error}.{hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        hint = f" {checkpoint} is kept; the same command with --resume goes on from it." if kept and kept() else ""
        print(f"\nInterrupted.{hint}", file=sys.stderr)
        return 130
    except Exception as error:
        from cupyops.errors import ExportError, MissingDependencyError

        if not isinstance(error, UserError | ExportError | MissingDependencyError | OSError):
            raise
        print(f"python -m examples.{example}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


# Progress ------------------------------------------------------------------------------------------------------------


@contextmanager
def progress(
    label: str, total: int | None, unit: str, *, stream: TextIO | None = None, interval: float = 10.0
) -> Iterator[Callable[[int], object]]:
    """Yield a function that is called with the number of units just done.

    A terminal gets a tqdm bar. Another stream, or a terminal without tqdm, gets a line every `interval` seconds. The
    default stream is stderr: stdout holds results alone.
    """
    stream = sys.stderr if stream is None else stream
    bar: Any = None
    if stream.isatty():
        with suppress(ImportError):
            from tqdm import tqdm

            bar = tqdm(desc=label, total=total, unit=unit, unit_scale=unit == "B", file=stream, leave=False)
    done, shown = 0, time.monotonic()

    def print_line(count: int) -> None:
        nonlocal done, shown
        done += count
        if time.monotonic() - shown >= interval:
            shown = time.monotonic()
            print(f"{label}: {done:,}{'' if total is None else f' of {total:,}'} {unit}", file=stream, flush=True)

    try:
        yield print_line if bar is None else bar.update
    finally:
        if bar is not None:
            bar.close()


# Files ---------------------------------------------------------------------------------------------------------------


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, which may name no file, into `Unwritable`, which names `target`."""
    try:
        yield
    except Unwritable:
        raise
    except (OSError, ValueError) as error:
        system = error if isinstance(error, OSError) else error.__cause__  # Fabric's logger wraps what a disk says
        if not isinstance(system, OSError) or system.errno is None:
            raise
        raise Unwritable(system.errno, system.strerror, str(target)) from error


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path. The file there becomes `target` if the block succeeds, and is removed if not.

    A reader of `target` sees the old file or the new one, never a part. The temporary file lies in the same folder,
    because only a rename within one file system is atomic.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(target: Path, contents: bytes | memoryview) -> None:
    """Write a file, or leave the one that is there untouched and raise `Unwritable`."""
    with naming(target), whole_file(target) as temporary:
        temporary.write_bytes(contents)
