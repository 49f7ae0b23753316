"""``python -m cupyops new NAME``: writes a starter file of an operator: kernels, declaration, check and benchmark."""

import argparse
import importlib.util
import keyword
import re
from pathlib import Path
from typing import Any

import cupyops
from cupyops.errors import expected

from .starters import KINDS

__all__ = ["add_parser", "starter"]


def starter(name: str, kind: str = "elementwise") -> str:
    """Returns the starter file for an operator of this name.

    Args:
        kind: a key of :data:`~cupyops.commands.starters.KINDS`.

    Raises:
        ValueError: the name is not valid for a module, a function and a kernel, or the name is taken.
    """
    text = KINDS[kind].text
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"NAME must be a lower-case identifier and no keyword, got {name!r}")
    if re.search(rf"\b{name}\b", text) or importlib.util.find_spec(name) is not None:
        raise ValueError(f"NAME {name!r} is already used in the file or by a module; choose another")
    return text.replace("NAME", name)


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``new`` to the command line."""
    parser = commands.add_parser(
        "new",
        help="write a starter file for an operator of your own",
        description="Writes NAME.py: kernels, declaration, check and benchmark of an operator. The file needs no other "
        "package than cupyops and PyTorch.",
        epilog="Exit status: 0 if the file is written, else 2. An existing file is never overwritten.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the operator, such as swish")
    what = "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())
    parser.add_argument("--kind", choices=tuple(KINDS), default="elementwise", help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--from-extension",
        type=Path,
        metavar="FILE",
        help="write the file from the .cu file of a PyTorch C++/CUDA extension: its kernels, its host half in Python, and "
        "operators (NAME by default: the name of the file)",
    )
    parser.add_argument(
        "--include",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder of files that FILE includes",
    )
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="default: the current folder")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0.

    Raises:
        SystemExit: with status 2, if the name is invalid or the file cannot be written.
    """
    if options.from_extension is not None:
        return _from_extension(options)
    if options.name is None:
        options.parser.error("the following arguments are required: NAME")
    path = options.into / f"{options.name}.py"
    try:
        if path.exists():
            raise FileExistsError(0, "it is there already")
        text = starter(options.name, options.kind)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        options.parser.error(f"{path}: {problem.strerror}")
    except ValueError as problem:
        options.parser.error(str(problem))
    print(
        f"{path}: the operator {options.name}, {KINDS[options.kind].what}, with its gradient, a check and a benchmark."
    )
    print(f"Next: python {path} checks the operator, on a CPU in the simulator, and times it on a GPU.")
    print("Then put your own formula into the kernels and the reference, and run the file again.")
    return 0


def _from_extension(options: argparse.Namespace) -> int:
    """Writes the starting file of an extension."""
    name = re.sub(r"\W", "_", options.from_extension.stem) if options.name is None else options.name
    path = options.into / f"{name}.py"
    try:
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or keyword.iskeyword(name):
            raise ValueError(expected("new", "NAME", "be an identifier and no keyword", repr(name)))
        if path.exists():
            raise FileExistsError(0, "it is there already", str(path))
        extension = cupyops.from_extension(options.from_extension, include=options.include, namespace=name)
        extension.write(path)
    except OSError as problem:
        options.parser.error(f"{problem.filename or path}: {problem.strerror}")
    except ValueError as problem:
        options.parser.error(str(problem))
    print(extension)
    print(f"{path}: {len(extension.kernels)} kernels, the host half in Python, and operators.")
    print("Next: give the operators a reference and a backward, and check them with check_op.")
    return 0
