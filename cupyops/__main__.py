"""The command line: ``python -m cupyops COMMAND``.

A command is a module with a function ``add_parser``. :data:`COMMANDS` lists the commands.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cupyops import __version__
from cupyops.commands import bundle as bundle_command
from cupyops.commands import cache as cache_command
from cupyops.commands import compile as compile_command
from cupyops.commands import doctor
from cupyops.commands import ide as ide_command
from cupyops.commands import new as new_command
from cupyops.commands import optimize as optimize_command
from cupyops.commands import run as run_command

from .errors import MissingDependencyError

__all__ = ["COMMANDS", "main"]

# `add_parser` of each module adds a sub-parser with two defaults: `run` takes the options and returns the exit status,
# and `parser` is the sub-parser, which reports errors.
COMMANDS = (
    new_command,
    run_command,
    optimize_command,
    compile_command,
    bundle_command,
    cache_command,
    doctor,
    ide_command,
)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage that :mod:`argparse` prints before the error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def build_parser() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(
        "python -m cupyops",
        description="CUDA C++ kernels without a build step: start one, compile for any architecture, examine this installation.",
        epilog="`python -m cupyops COMMAND --help` lists the options of a command. No command needs a GPU.",
    )
    parser.add_argument("--version", action="version", version=f"cupyops {__version__}")
    parser.set_defaults(run=lambda options: parser.print_help(), parser=parser)  # without a command
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; without a command, prints the help.

    Returns:
        The exit status: 0 without findings, 1 when the command found a problem, 130 after Ctrl-C, 141 when the reader
        of the output closed the pipe.

    Raises:
        SystemExit: with status 2, when the arguments are invalid or a dependency is missing; stderr gets one line.
    """
    options = build_parser().parse_args(argv)
    try:
        status: int = options.run(options) or 0
        sys.stdout.flush()
    except MissingDependencyError as error:
        options.parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Stdout now points to the null device: flushing the buffered output
        # to the closed pipe at exit would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


if __name__ == "__main__":
    raise SystemExit(main())
