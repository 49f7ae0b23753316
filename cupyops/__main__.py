"""The command line: ``python -m cupyops COMMAND``. A command is a module with ``add_parser``, listed in
:data:`COMMANDS`."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cupyops import __version__
from cupyops.commands import bundle as bundle_command
from cupyops.commands import compile as compile_command
from cupyops.commands import doctor
from cupyops.commands import new as new_command

from .errors import MissingDependencyError

__all__ = ["COMMANDS", "main"]

# Each adds its sub-parser, whose defaults hold `run` (options to exit status) and `parser` (itself, for its errors).
COMMANDS = (new_command, compile_command, bundle_command, doctor)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: a screenful of usage buries the sentence that helps."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def build_parser() -> Parser:
    """The command line."""
    parser = Parser(
        "python -m cupyops",
        description="CUDA C++ kernels without a build step: start one, compile for any architecture, examine this installation.",
        epilog="`python -m cupyops COMMAND --help` tells what a command takes. None of them needs a GPU.",
    )
    parser.add_argument("--version", action="version", version=f"cupyops {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 when all is well, 1 when what was looked at is not, 130 after Ctrl-C, 141 when the reader of the output has
        gone.

    Raises:
        SystemExit: with status 2, for what cannot be asked or had, after one line on stderr.
    """
    options = build_parser().parse_args(argv)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except MissingDependencyError as error:
        options.parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `... | head` has read enough. What is still buffered goes nowhere, or the interpreter would complain of it on
        # its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


if __name__ == "__main__":
    raise SystemExit(main())
