"""``python -m cupyops optimize SCRIPT``: runs a training script with its models on this project's kernels."""

import argparse
import sys
from typing import Any

from .run import add_script, find_script, run_script

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``optimize`` to the command line."""
    parser = commands.add_parser(
        "optimize",
        help="run a training script with every model optimized",
        description="Runs a Python program. Before the first call of each model, cupyops.torch.optimize changes the model. "
        "The first line of each report goes to stderr.",
        epilog="Exit status: the program's; 2 if the options are invalid.",
    )
    parser.add_argument("--report", action="store_true", help="print the whole reports")
    add_script(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0. Exceptions of the program, including SystemExit, propagate.

    Raises:
        SystemExit: with status 2, if there is no such program.
    """
    find_script(options)
    from cupyops.integrations.scripts import optimizing  # it imports PyTorch

    def show(report: Any) -> None:
        if report.replaced or options.report:
            print(report if options.report else str(report).partition("\n")[0], file=sys.stderr)

    with optimizing(show):
        run_script(options)
    return 0
