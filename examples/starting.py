"""What happens before an example is imported: Ctrl-C ends the program in one line, and ``own_op`` gets a parser.

The package imports this module first, under either of the names that it has: ``examples`` and ``cupyops.examples``.
"""

import re
import sys
from types import TracebackType


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Have Ctrl-C end an example in one line also while it imports, which takes seconds and is before its own try."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("Interrupted.", file=sys.stderr)
    raise SystemExit(130)


if sys.argv[:1] == ["-m"]:  # what stands there while Python looks for the module that it is to run
    sys.excepthook = one_line
    # The operators of one's own have no parser and no options: their files are the operator, and what runs it.
    name = sys.orig_argv[-len(sys.argv)].removeprefix("-m").removeprefix(f"{__package__}.")
    if len(sys.argv) > 1 and re.fullmatch(r"own_op|own_ops\.\w+", name):
        from .command import Parser

        Parser(name, "An operator of one's own, run once: its result, its error, and what it shows.").parse_args()
