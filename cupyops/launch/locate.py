"""Explains compiler messages: the lines of the Python file that declares the kernel."""

import linecache
import re
import sys

__all__ = ["declaring_file", "in_python", "located", "placed"]


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
    return _located(message, rf"^({re.escape(filename)}:(\d+))(?=: )", text, file)


def in_python(message: str, filename: str, text: str, file: str) -> str:
    """Does the same for the places within a sentence, as the simulator's messages have them: ``at ops.py:31 (scale.cu:7)``."""
    return _located(message, rf"(?<![\w./\\(-])({re.escape(filename)}:(\d+))\b", text, file)


def _located(message: str, place: str, text: str, file: str) -> str:
    source = "".join(linecache.getlines(file))
    if source.count(text) != 1:
        return message
    before = source.count("\n", 0, source.index(text))
    return re.sub(place, lambda found: f"{file}:{before + int(found[2])} ({found[1]})", message, flags=re.MULTILINE)


def placed(text: str, filename: str, offset: int) -> str:
    """Returns the file and the line of an offset of a text, which may have ``#line`` directives."""
    line = 1
    for at in text[:offset].split("\n")[:-1]:
        line += 1
        if directive := re.match(r'#line (\d+) "([^"]+)"', at):
            line, filename = int(directive[1]), directive[2]
    return f"{filename}:{line}"
