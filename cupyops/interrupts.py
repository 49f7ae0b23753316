"""Ctrl-C during the imports of ``python -m cupyops``, before :func:`cupyops.__main__.main` can catch it: one line, too.

It is imported before everything else of this package, and does nothing in any other program.
"""

import sys
from types import TracebackType

__all__ = ["one_line"]


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python calls for an error that nobody has caught.

    Raises:
        SystemExit: with status 130, after Ctrl-C.
    """
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("interrupted", file=sys.stderr)
    raise SystemExit(130)


# While Python looks for the module that it is to run, "-m" stands for its file; the name is in front of the arguments.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == __package__:
    sys.excepthook = one_line
