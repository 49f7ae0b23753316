"""Training scripts to run and to read: ``python -m examples.`` followed by ``add_model``, ``lenet5`` or ``char_gpt``."""

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
    if len(sys.argv) > 1 and "examples.own_op" in sys.orig_argv:  # whose forty lines have no parser, and no options
        from examples.command import Parser

        Parser("own_op", "An operator of one's own, from CUDA text to gradients: checked, then measured.").parse_args()
