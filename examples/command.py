"""Functions for the command lines of the examples: options, one-line errors, exit codes, progress, atomic writes.

No heavy import at the top: `--help` and wrong arguments are answered before PyTorch is imported.
"""

import argparse
import io
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch

PACKAGE = __package__  # examples in a checkout, cupyops.examples in a wheel: what a user types
CHECKPOINT, CHECKPOINTS = "checkpoint.pt", "checkpoints"


class UserError(ValueError):
    """A request that cannot be met. The message is one line: the expected value, the given value, and what to do."""


class Diverged(RuntimeError):
    """A loss or a parameter is infinite or NaN."""


# Processes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes, from torchrun's environment variables; one process without
    torchrun.

    Attributes:
        launch: name of the launch. A restart keeps the name.
        restarts: how often torchrun has started the processes again.
    """

    rank: int = 0
    world: int = 1
    local: int = 1
    launch: str = ""
    restarts: int = 0


def processes() -> Processes:
    """The rank of this process and the number of processes that torchrun started."""
    name, env = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ
    if name is None:
        return Processes()
    # torchrun names a launch "none" unless it is given a name. The parent's process id then distinguishes launches.
    launch = f"{name} {os.getppid()}" if name == "none" else name
    rank, world, local = (int(env[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return Processes(rank, world, local, launch, int(env.get("TORCHELASTIC_RESTART_COUNT", 0)))


def say(line: str) -> None:
    """Print a line on rank 0 only."""
    if processes().rank == 0:
        print(line, flush=processes().world > 1)


# Options -------------------------------------------------------------------------------------------------------------

Sizes = Mapping[str, tuple[str, Any, Any]]  # of an option's name: meaning, default on a CPU, default on a GPU


def checked(kind: Callable[[str], Any], holds: Callable[[Any], object], words: str) -> Callable[[str], Any]:
    """The argparse type of an option: `kind(text)`, if the condition `holds` is true of it. `words` state the
    condition."""

    def convert(text: str) -> Any:
        if not holds(value := kind(text)):
            raise argparse.ArgumentTypeError(f"must {words}, got {text}")
        return value

    convert.__name__ = getattr(kind, "__name__", "value")  # argparse names the type in its error
    return convert


def at_least(least: int) -> Callable[[str], int]:
    """The argparse type of an option: an integer of at least `least`."""
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
    "text": {
        "type": checked(Path, Path.exists, "name a file that exists"),
        "metavar": "FILE",
        "help": "what to learn, in UTF-8 (default: the standard library's sources)",
    },
    "plot": {"type": Path, "metavar": "FILE", "help": "where the picture goes, .png or .svg (default: %(default)s)"},
}


def program(example: str) -> str:
    """The command that runs an example."""
    return f"python -m {PACKAGE}.{example}".rstrip(".")


class Parser(argparse.ArgumentParser):
    """The command line of an example. A wrong argument ends the program with one line and status 2.

    Args:
        description: a docstring, whose first line `--help` shows.
        shared: the options of `SHARED` that the example has.
        parallel: the choices of `--parallel`. An example with these choices also has `--out` and `--resume`.
        alone: an option of the example that works in a single process only.
    """

    def __init__(
        self,
        example: str,
        description: str | None,
        *shared: str,
        parallel: Sequence[str] = (),
        alone: str = "",
    ) -> None:
        super().__init__(program(example), description=(description or "").split("\n")[0])
        self.parallel, self.alone = parallel, alone
        for name in shared:
            of_example = {"default": Path("runs", f"{example}.png")} if name == "plot" else {}
            self.add_argument(f"--{name}", **{**SHARED[name], **of_example})
        if parallel:
            how = "share the work with the processes that torchrun starts"
            self.add_argument("--parallel", choices=parallel, help=how)
            where = "where the run's files go; an earlier run's move into DIR/earlier-N first (default: %(default)s)"
            self.add_argument("--out", type=Path, default=Path("runs", example), metavar="DIR", help=where)
            again = f"go on from DIR/{CHECKPOINT}, with its settings, to the numbers of a run without a break"
            self.add_argument("--resume", action="store_true", help=again)

    def add_sizes(self, sizes: "Sizes") -> None:
        """Add an option for each size, and `--amp`. `fill_in` gives a value to those that are left out."""
        for name, (meaning, cpu, gpu) in sizes.items():
            kind = positive if name == "lr" else at_least(1)
            told = f"{meaning} (default: {cpu} on a CPU, {gpu} on a GPU)"
            self.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=told)
        told = "bfloat16 autocast (default: on a GPU of sm_80 or newer)"
        self.add_argument("--amp", action=argparse.BooleanOptionalAction, help=told)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n" if processes().rank == 0 else None)

    def parse_run(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments of a run; a checkpoint to resume from has to exist."""
        options = self.parse_args(argv)
        module, launched = self.prog.removeprefix("python "), processes()
        if options.parallel and not launched.launch:
            line = f"torchrun --nproc-per-node 2 {module} --parallel {options.parallel}"
            self.error(f"--parallel {options.parallel} needs the processes that torchrun starts: {line}")
        if options.parallel and getattr(options, self.alone):
            self.error(f"--{self.alone} works in one process; leave out --parallel")
        if launched.world > 1 and not options.parallel:
            self.error(f"torchrun started {launched.world} processes; add --parallel {'|'.join(self.parallel)}")
        checkpoint = kept_in(options)
        if options.resume and not (checkpoint.is_dir() if options.parallel else checkpoint.is_file()):
            mend = "leave out --resume to begin, or name the run's --out"
            if not options.parallel and (options.out / CHECKPOINTS).exists():
                mend = f"go on from {options.out / CHECKPOINTS} with torchrun and --parallel, in one process or several"
            self.error(f"--resume: there is no {checkpoint}; {mend}")
        return options


def kept_in(options: argparse.Namespace) -> Path:
    """The path of a run's checkpoint, or with `--parallel` the folder of its checkpoints."""
    folder: Path = options.out
    return folder / (CHECKPOINTS if options.parallel else CHECKPOINT)


# Devices -------------------------------------------------------------------------------------------------------------


def pick_device(name: str) -> "torch.device":
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device that exists, else raise `UserError`."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # AssertionError: PyTorch is built without CUDA
        reason = str(error).split("\n")[0]  # the other lines are advice on debugging kernels
        raise UserError(f"--device {name}: PyTorch {torch.__version__}: {reason}; use --device cpu") from None


def describe_device(device: "torch.device") -> str:
    """`cuda:0 (NVIDIA H200)` or `cpu (2 threads)`, with the version of PyTorch."""
    import torch

    detail = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device} ({detail}), PyTorch {torch.__version__}"


def fill_in(options: argparse.Namespace, sizes: Sizes) -> "torch.device":
    """Replace `amp` and the sizes that are None by the defaults of the device that `--device` names; return the device."""
    import torch

    on_gpu = (device := pick_device(options.device)).type == "cuda"
    # Without bfloat16 units, before compute capability 8.0, autocast would cost time instead of saving it.
    amp = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    for name, (_, *values) in {**sizes, "amp": ("", amp, amp)}.items():
        if getattr(options, name) is None:
            setattr(options, name, values[on_gpu])
    return device


# Exit codes ----------------------------------------------------------------------------------------------------------


def run_command(example: str, action: Callable[[], object], checkpoint: Path | None = None) -> int:
    """Call `action` and return the exit status.

    The status is the result of `action` if the result is an integer, else 0. The status is 1 if the run diverged, 2 for
    a request that cannot be met, 130 after Ctrl-C, and 141 if the reader of stdout has closed the pipe. With 1, 2 and
    130, stderr gets one line. With 1 and 130, the line names `checkpoint` if that file exists.
    """

    def told(words: str) -> str:
        return f" {checkpoint} {words}" if checkpoint is not None and checkpoint.exists() else ""

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
        if processes().rank == 0:
            print(f"\nInterrupted.{told_of}", file=sys.stderr)
        return 130
    except Exception as error:
        from cupyops.errors import ExportError, MissingDependencyError
        from cupyops.installing import pip_install

        if not isinstance(error, UserError | ExportError | MissingDependencyError | ModuleNotFoundError | OSError):
            raise
        mend = f"; install what the examples need: {pip_install('examples')}"
        message = f"{error}{mend if isinstance(error, ModuleNotFoundError) else ''}"
        rank = f"[rank {processes().rank}] " if processes().world > 1 else ""
        print(f"{rank}{program(example)}: error: {' '.join(message.split())}", file=sys.stderr)
        return 2


# Progress and files --------------------------------------------------------------------------------------------------


class Progress:
    """A bar on stderr with the estimated time left. If stderr is not a terminal, the bar is a line every ten seconds. On
    ranks other than 0, nothing is shown.

    Args:
        label: what is done, before the bar.
        total: units in all, or None if the number is unknown.
        unit: the units in the plural; "B" for bytes.
        done: units that an earlier run has completed.
    """

    def __init__(self, label: str, total: int | None, unit: str, done: int = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self.first = done
        self.width = 0  # of the bar on the terminal
        self.every = 0.1 if sys.stderr.isatty() else 10.0
        self.began = self.drawn = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *how: object) -> None:
        self.clear()

    def update(self, count: int) -> None:
        """Count units that are done."""
        self.done += count
        if processes().rank == 0 and time.monotonic() - self.drawn >= self.every:
            self.draw()

    def say(self, line: str, echo: Callable[[str], object] = say) -> None:
        """Print a line above the bar with `echo`."""
        shown = self.width
        self.clear()
        echo(line)
        if shown:
            self.draw()

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        if self.width:
            sys.stderr.write(f"\r{'':{self.width}}\r")
            sys.stderr.flush()
            self.width = 0

    def draw(self) -> None:
        """Draw the bar, or print the line."""
        self.drawn = time.monotonic()
        if not sys.stderr.isatty():
            print(self.text(0), file=sys.stderr)
            return
        text = self.text(20)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{text:{self.width}}")
        sys.stderr.flush()
        self.width = len(text)

    def text(self, cells: int) -> str:
        """`Training: [=====     ] 512 of 2,048 steps, 01:15 left`, with that many cells in the brackets."""
        spent, done = self.drawn - self.began, self.done - self.first
        amounts = [f"{n / 1e6:.1f} MB" if self.unit == "B" else f"{n:,}" for n in (self.done, self.total or 0)]
        unit = "" if self.unit == "B" else f" {self.unit}"
        if not self.total:
            return f"{self.label}: {amounts[0]}{unit}"
        share = min(self.done / self.total, 1)
        bar = f"[{'=' * int(share * cells):{cells}}] " if cells else ""
        left = f", {clock(spent / done * max(self.total - self.done, 0))} left" if done else ""
        return f"{self.label}: {bar}{amounts[0]} of {amounts[1]}{unit}{left}"


def clock(seconds: float) -> str:
    """`01:15`, or `2:01:15` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Turn a failed write in the block into a `UserError` that names `target`. The error of the write may name no
    file."""
    try:
        yield
    except (OSError, ValueError) as error:
        system = error if isinstance(error, OSError) else error.__cause__  # Fabric's logger wraps the system's error
        if not isinstance(system, OSError) or system.errno is None:
            raise
        raise UserError(f"{target} cannot be written: {system.strerror}") from error


def write_whole(target: Path, contents: bytes | memoryview) -> None:
    """Write a file atomically. If the write fails, the old file stays, and `UserError` is raised.

    A reader of `target` sees the old file or the new file, never a part of a file. The temporary file lies in the same
    folder, because only a rename within one file system is atomic.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with naming(target):
            temporary.write_bytes(contents)
            os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
