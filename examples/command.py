"""What the examples share at the command line: options, one-line errors, exit codes, progress, whole files.

No heavy import at the top: `--help` and wrong arguments are answered before PyTorch is imported.
"""

import argparse
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

PACKAGE = __package__  # examples in a checkout, cupyops.examples in a wheel: what a user types
CHECKPOINT = "checkpoint.pt"


class UserError(ValueError):
    """A request that cannot be met. The message is one line: what was expected, what was got, what mends it."""


class Diverged(RuntimeError):
    """A loss or a parameter is infinite or NaN."""


# Options -------------------------------------------------------------------------------------------------------------


def checked(kind: Callable[[str], Any], holds: Callable[[Any], object], words: str) -> Callable[[str], Any]:
    """The type of an option: what `kind` makes of the text, if the condition `holds`, which `words` state."""

    def convert(text: str) -> Any:
        if not holds(value := kind(text)):
            raise argparse.ArgumentTypeError(f"must {words}, got {text}")
        return value

    convert.__name__ = getattr(kind, "__name__", "value")  # argparse names the type in its error
    return convert


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option: a whole number, `least` or more."""
    return checked(int, lambda value: value >= least, f"be at least {least}")


positive = checked(float, lambda value: 0 < value < math.inf, "be a positive number")
seed = checked(int, lambda value: 0 <= value < 2**63, "lie in 0 .. 2**63 - 1")
device = checked(str, re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch, "be auto, cpu, cuda or cuda:N")

BACKEND = "this project's operators, or PyTorch's own to compare with (default: %(default)s)"
DEVICE = "auto takes a GPU if there is one; cuda:1 works too"
SHARED: dict[str, dict[str, Any]] = {
    "device": {"type": device, "default": "auto", "metavar": "auto|cpu|cuda", "help": DEVICE},
    "backend": {"choices": ("kernels", "torch"), "default": "kernels", "help": BACKEND},
    "seed": {"type": seed, "default": 0, "metavar": "N", "help": "a seed fixes the whole run (default: %(default)s)"},
    "plot": {"type": Path, "metavar": "FILE", "help": "where the picture goes, .png or .svg (default: %(default)s)"},
}


def program(example: str) -> str:
    """What a user types to run an example."""
    return f"python -m {PACKAGE}.{example}".rstrip(".")


class Parser(argparse.ArgumentParser):
    """The command line of an example. A wrong argument ends the program with one line and status 2.

    Args:
        description: a docstring, whose first line `--help` shows.
        shared: the options of `SHARED` that the example has.
        out: the default folder of the run's files; the example then has `--out` and `--resume`.
    """

    def __init__(self, example: str, description: str | None, *shared: str, out: str | None = None) -> None:
        super().__init__(program(example), description=(description or "").split("\n")[0])
        for name in shared:
            of_example = {"default": Path("runs", f"{example}.png")} if name == "plot" else {}
            self.add_argument(f"--{name}", **{**SHARED[name], **of_example})
        if out is not None:
            where = "where the run's files go; an earlier run's move into DIR/earlier-N first (default: %(default)s)"
            self.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help=where)
            again = f"go on from DIR/{CHECKPOINT}, with its settings, to the numbers of a run without a break"
            self.add_argument("--resume", action="store_true", help=again)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")

    def parse_run(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments of a run; a checkpoint to resume from has to exist."""
        options = self.parse_args(argv)
        if options.resume and not (checkpoint := options.out / CHECKPOINT).is_file():
            self.error(f"--resume: there is no {checkpoint}; leave out --resume to begin, or name the run's --out")
        return options


# Devices -------------------------------------------------------------------------------------------------------------


def pick_device(name: str) -> "torch.device":
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device that exists, else raise `UserError`."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # AssertionError: PyTorch is built without CUDA
        reason = str(error).split("\n")[0]  # what follows is advice on debugging kernels
        raise UserError(f"--device {name}: PyTorch {torch.__version__}: {reason}; use --device cpu") from None


def describe_device(device: "torch.device") -> str:
    """`cuda:0 (NVIDIA H200)` or `cpu (2 threads)`, with the version of PyTorch."""
    import torch

    detail = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device} ({detail}), PyTorch {torch.__version__}"


# Exit codes ----------------------------------------------------------------------------------------------------------


def run_command(example: str, action: Callable[[], object], checkpoint: Path | None = None) -> int:
    """Call `action` and return the exit status.

    The status is the result of `action` if that is a number, else 0. It is 1 if the run diverged, 2 for a request that
    cannot be met, 130 after Ctrl-C, and 141 when the reader of stdout has left. Each of them but the last prints one
    line, which names `checkpoint` if that file exists.
    """

    def told(words: str) -> str:
        return f" {checkpoint} {words}" if checkpoint is not None and checkpoint.is_file() else ""

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text may hold what the terminal's encoding does not
    try:
        result = action()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # the interpreter flushes stdout once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Diverged as error:
        print(f"Stopped: {error}.{told('holds the last good state.')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        told_of = told("is kept; the same command with --resume goes on from it.")
        print(f"\nInterrupted.{told_of}", file=sys.stderr)
        return 130
    except Exception as error:
        from cupyops.errors import ExportError, MissingDependencyError
        from cupyops.installing import pip_install

        if not isinstance(error, UserError | ExportError | MissingDependencyError | ModuleNotFoundError | OSError):
            raise
        mend = f"; install what the examples need: {pip_install('examples')}"
        message = f"{error}{mend if isinstance(error, ModuleNotFoundError) else ''}"
        print(f"{program(example)}: error: {' '.join(message.split())}", file=sys.stderr)
        return 2


# Progress and files --------------------------------------------------------------------------------------------------


def progress(label: str, total: int | None, unit: str, done: int = 0) -> Any:
    """A bar of tqdm on stderr, with an estimate of the time left: stdout holds results alone. Where stderr is no
    terminal, a line every ten seconds. Without tqdm, nothing is shown.

    Args:
        done: units that an earlier run has done.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return nullcontext(SimpleNamespace(update=lambda count: None, external_write_mode=nullcontext))
    line = "{desc}: {n_fmt} of {total_fmt} {unit}, {remaining} left\n"
    plain = {"mininterval": 10, "delay": 10, "miniters": 1, "bar_format": line}
    form: dict[str, Any] = {} if sys.stderr.isatty() else plain
    return tqdm(desc=label, total=total, unit=unit, unit_scale=unit == "B", leave=False, initial=done, **form)


def beside(bar: Any, echo: Callable[[str], object] = print) -> Callable[[str], object]:
    """`echo`, for lines that appear while the bar does: on a terminal the bar makes room for them."""

    def told(line: str) -> None:
        with bar.external_write_mode() if sys.stderr.isatty() else nullcontext():
            echo(line)

    return told


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Turn a failed write of the block, whose error may name no file, into a `UserError` that names `target`."""
    try:
        yield
    except (OSError, ValueError) as error:
        system = error if isinstance(error, OSError) else error.__cause__  # Fabric's logger wraps what a disk says
        if not isinstance(system, OSError) or system.errno is None:
            raise
        raise UserError(f"{target} cannot be written: {system.strerror}") from error


def write_whole(target: Path, contents: bytes | memoryview) -> None:
    """Write a file, or leave the one that is there untouched and raise `UserError`.

    A reader of `target` sees the old file or the new one, never a part. The temporary file lies in the same folder,
    because only a rename within one file system is atomic.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with naming(target):
            temporary.write_bytes(contents)
            os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
