"""Reports Ctrl-C in one line during the imports of ``python -m cupyops``, before :func:`cupyops.__main__.main` runs.

``cupyops/__init__.py`` imports this module first. In other programs the module does nothing.
"""

import sys
from types import TracebackType

__all__ = ["one_line"]


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replaces ``sys.excepthook``: prints one line for Ctrl-C, and the usual traceback for another exception.

    Raises:
        SystemExit: with status 130, after Ctrl-C.
    """
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print("interrupted", file=sys.stderr)
    raise SystemExit(130)


# While Python locates the module of `python -m`, sys.argv[0] is "-m", and sys.orig_argv holds the module's name
# directly before the arguments.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == __package__:
    sys.excepthook = one_line
