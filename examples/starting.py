"""Runs before an example is imported: makes Ctrl-C end the program with one line, gives ``own_op`` a parser, and keeps idle
threads of PyTorch from occupying the CPU.

The package imports this module first, under each of the package's two names: ``examples`` and ``cupyops.examples``.
"""

import os
import re
import sys
from types import TracebackType


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Make Ctrl-C end an example with one line during its imports, too. They take seconds, and no `try` of the example
    encloses them."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("Interrupted.", file=sys.stderr)
    raise SystemExit(130)


if sys.argv[:1] == ["-m"]:  # sys.argv[0] while Python looks for the module to run
    sys.excepthook = one_line
    # Read when PyTorch is loaded. By default, OpenMP's threads spin while they wait for one another: on a busy machine, each
    # then takes the core that another one waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # The files of `own_ops` have no parser and no options. They have an operator and the code that runs it.
    name = sys.orig_argv[-len(sys.argv)].removeprefix("-m").removeprefix(f"{__package__}.")
    if len(sys.argv) > 1 and re.fullmatch(r"own_op|own_ops\.\w+", name):
        from .command import Parser

        Parser(name, "An operator of one's own, run once: its result, its error, and what it shows.").parse_args()
