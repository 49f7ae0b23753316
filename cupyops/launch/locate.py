"""Where a kernel's text stands in the Python file that declares it, so that a compiler's message leads there."""

import linecache
import re
import sys

__all__ = ["declaring_file", "located"]


def declaring_file() -> str:
    """The file, or the cell of a notebook, whose code is declaring a kernel: the nearest that is not this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cupyops":
        frame = frame.f_back
    return frame.f_code.co_filename


def located(message: str, filename: str, text: str, file: str) -> str:
    """The message with each place in the text, ``scale.cu:7:``, as a place in the Python file, ``ops.py:31 (scale.cu:7):``;
    as it is where the text does not stand there, once and letter by letter."""
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
