"""Locates a kernel's text in the Python file that declares the kernel, for the line numbers of compiler messages."""

import linecache
import re
import sys

__all__ = ["declaring_file", "located"]


def declaring_file() -> str:
    """Returns the file name of the innermost caller outside cupyops: the file or cell that declares a kernel."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cupyops":
        frame = frame.f_back
    return frame.f_code.co_filename


def located(message: str, filename: str, text: str, file: str) -> str:
    """Returns a compiler message in which each place in the text also gives its line of the Python file.

    ``scale.cu:7:`` becomes ``ops.py:31 (scale.cu:7):``. If the file does not contain the text exactly once, the message
    is returned unchanged.
    """
    source = "".join(linecache.getlines(file))
    if source.count(text) != 1:
        return message
    before = source.count("\n", 0, source.index(text))
    return re.sub(
        rf"^{re.escape(filename)}:(\d+): ",
        lambda place: f"{file}:{before + int(place[1])} ({place[0][:-2]}): ",
        message,
        flags=re.MULTILINE,
    )
