"""The options of ``%%cu``."""

import argparse
import io
import shlex
from contextlib import redirect_stdout
from typing import NoReturn

from cupyops import Elementwise, GridStride, Rows, Threads
from cupyops.launch.geometry import Geometry

__all__ = ["CellError", "constants_of", "geometry_of", "parse"]


class CellError(Exception):
    """A cell that does not become an operator. A notebook shows the message alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class _Help(Exception):
    """``--help``: the message is the help."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CellError(f"%%cu: {' '.join(message.split())}; %cu --help lists the options")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Help


def _parser() -> _Parser:
    parser = _Parser(
        "%%cu",
        description="Makes a PyTorch operator of each kernel in the cell: const pointers are its inputs, other pointers "
        "its results, numbers its other arguments. An integer that a shape comment names is a size, which the tensors "
        "give. A kernel NAME_backward is the gradient of NAME: its parameters are named grad_y, x, y, grad_x.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("name", nargs="?", help="what to call the operator (default: the name of the kernel)")
    grid = parser.add_mutually_exclusive_group()
    grid.add_argument("--threads", metavar="SIZES", help="a thread for each index: n, or N,M (default: the one size)")
    grid.add_argument("--rows", metavar="SIZE", help="a block for each row, whose number is blockIdx.x: M")
    grid.add_argument(
        "--elementwise", metavar="SIZE", help="a thread for each 16 bytes, for `map` of elementwise.cuh: n"
    )
    grid.add_argument("--grid-stride", metavar="SIZE", help="as many blocks as run at once: n")
    add("--block", metavar="THREADS", help="threads of a block: 256, or 32,8")
    add("--constants", metavar="NAME=N,...", default="", help="macros of the text: TILE=16")
    add(
        "--reference",
        metavar="FUNCTION",
        help="the same in PyTorch, a function of the notebook: it runs on CPU tensors",
    )
    add("--inputs", metavar="EXPRESSION", help="arguments for --check and --explain: 'torch.randn(5, 300), 1e-5'")
    add(
        "--check",
        metavar="CHECKS",
        nargs="?",
        const="all",
        help="run check_op, or only the checks named: values,gradients",
    )
    add("--explain", action="store_true", help="print what the compiler reports of each kernel, and cupyops.explain")
    return parser


def parse(line: str) -> argparse.Namespace | str:
    """Returns the options of a line after ``%%cu``, or the help if the line requests it.

    Raises:
        CellError: the line is wrong; the message is one line.
    """
    shown = io.StringIO()
    try:
        with redirect_stdout(shown):
            return _parser().parse_args(shlex.split(line))
    except _Help:
        return shown.getvalue()
    except ValueError as error:
        raise CellError(f"%%cu: {error} in: {line}") from None


def geometry_of(options: argparse.Namespace, kernel: str, sizes: list[str]) -> Geometry:
    """Returns the launch policy of a kernel that has these sizes.

    Raises:
        CellError: the options do not say how many threads the kernel needs, or name another size.
    """
    block = _numbers("--block", options.block) if options.block else None
    one = {} if block is None else {"block": block[0]}
    kinds = {"rows": Rows, "elementwise": Elementwise, "grid_stride": GridStride}
    chosen = next((name for name in (*kinds, "threads") if getattr(options, name)), None)
    named = (getattr(options, chosen) if chosen else sizes[0] if len(sizes) == 1 else "").split(",")
    if not named[0]:
        what = f"its sizes are {', '.join(sizes)}" if sizes else "no shape comment names a size"
        raise CellError(f"%%cu: say how many threads {kernel} needs, by --threads or --rows: {what}")
    if wrong := [size for size in named if size not in sizes]:
        raise CellError(f"%%cu: {kernel} has the sizes {', '.join(sizes) or 'none'}, and no {', '.join(wrong)}")
    if chosen in kinds:
        if len(named) > 1 or (block is not None and len(block) > 1):
            raise CellError(f"%%cu: --{chosen.replace('_', '-')} takes one size, and --block one number with it")
        return kinds[chosen](named[0], **one)
    if len(named) > 3:
        raise CellError(f"%%cu: --threads takes one to three sizes, got {', '.join(named)}")
    x, y, z = (*named, None, None)[:3]
    return Threads(x, y, z, block=block or ((256,) if y is None else (32, 8)))


def constants_of(options: argparse.Namespace) -> dict[str, int]:
    """Returns the macros of ``--constants``.

    Raises:
        CellError: a macro has no integer value.
    """
    pairs = [text.partition("=") for text in options.constants.split(",") if text]
    return {name: _numbers(f"--constants {name}", value)[0] for name, _, value in pairs}


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise CellError(f"%%cu: {option} must be whole numbers, got {text!r}") from None
