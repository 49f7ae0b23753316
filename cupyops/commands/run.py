"""``python -m cupyops run SCRIPT``: runs a program that builds PyTorch extensions, without a compiler."""

import argparse
import os
import runpy
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["add_parser", "add_script", "find_script", "run_script"]


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``run`` to the command line."""
    parser = commands.add_parser(
        "run",
        help="run a program that builds PyTorch extensions, without a compiler",
        description="Runs a Python program with cupyops.cpp_extension's load_inline and load in the place of PyTorch's.",
        epilog="Exit status: the program's; 2 if the options are invalid.",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="run kernels in the simulator, on a CPU: .cuda() and device='cuda' leave tensors on the CPU",
    )
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="the same, and find races, uninitialised reads of shared memory and barriers that some threads do not reach",
    )
    add_script(parser)
    parser.set_defaults(run=run, parser=parser)


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds the program and its arguments to a parser."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as for python -m"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the program")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments")


def find_script(options: argparse.Namespace) -> None:
    """Looks for the program of :func:`add_script`.

    Raises:
        SystemExit: with status 2, if there is no such file or module.
    """
    if not options.module:
        if not Path(options.script).exists():
            options.parser.error(f"{options.script}: no such file")
        return
    try:
        found = find_spec(options.script) if all(options.script.split(".")) else None
    except ModuleNotFoundError as error:
        if not f"{options.script}.".startswith(f"{error.name}."):
            raise  # the package itself imports what is missing
        found = None
    if found is None:
        options.parser.error(f"{options.script}: no such module")


def run_script(options: argparse.Namespace) -> None:
    """Runs the program of :func:`add_script` as Python would run it. Its exceptions, including SystemExit,
    propagate."""
    before = sys.argv, sys.path[:]
    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(options.script).absolute().parent)
            runpy.run_path(options.script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0. Exceptions of the program, including SystemExit, propagate.

    Raises:
        SystemExit: with status 2, if there is no such program.
    """
    find_script(options)
    from cupyops import cpp_extension  # it imports PyTorch

    with ExitStack() as stack:
        stack.enter_context(cpp_extension.replaced())
        if options.simulate or options.sanitize:
            stack.enter_context(cpp_extension.simulated(sanitize=options.sanitize or None))
        run_script(options)
    return 0
