"""The kernels of a starting file: the device code of a CUDA file, in the form that :class:`cupyops.Kernel` takes."""

import os
import re
from collections.abc import Sequence

from cupyops.compile.cuda_text import Function, scan
from cupyops.compile.standard import unknown
from cupyops.errors import CompileError
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.parameter import Parameter

from .errors import NotTranslated
from .reads import with_const
from .slice import sliced
from .tree import Unit

__all__ = ["device_half", "launches", "parameters"]


# Regular expressions of code that NVRTC cannot compile, each with the reason.
_REFUSED = (
    (r"<<<", "a launch from device code, which is not supported"),
    (r"\b(?:at|torch|c10)\s*::\s*Tensor\b|\bTensor\s*&", "a tensor of PyTorch, which has no form on a GPU"),
    (r"\bcuda(?:Stream|Event)_t\b|\bgetCurrentCUDAStream\b", "a stream or an event, which is of the host"),
    (
        r"\bTensor(?:Iterator|List\w*)\b|\bIntDivider\b|\bOffsetCalculator\b",
        "a structure of PyTorch's own kernels",
    ),
)


def device_half(unit: Unit, file: str, kernels: Sequence[str]) -> tuple[str, list[Function], dict[str, str]]:
    """Returns the text of the kernels that NVRTC can compile, these kernels, and for each other kernel the reason why
    it cannot."""
    refused = {name: why for name in kernels if (why := _refusal(unit, file, name))}
    kept = [name for name in kernels if name not in refused]
    if not kept:
        return "", [], refused
    text = _tidied(sliced(unit, kept))

    def own() -> list[Function]:
        return [*{f.path: f for f in scan(text).functions if not f.special}.values()]

    text = with_const(text, own())
    return text, own(), refused


def _refusal(unit: Unit, file: str, kernel: str) -> str:
    """Returns why NVRTC cannot compile a kernel, or ``""``."""
    try:
        text = sliced(unit, [kernel])
    except NotTranslated as problem:
        return str(problem).removeprefix(f"{kernel}: ")
    bare = scan(text).bare
    places = [(m.start(), m[0], why) for pattern, why in _REFUSED for m in re.finditer(pattern, bare)]
    places += [(at, f"std::{name}", "of the host's library") for at, name in unknown(bare)]
    for at, found, why in sorted(places)[:1]:
        return f"`{' '.join(found.split())}` at {_place(text, file, at)} is {why}"
    try:
        for function in scan(text).functions:
            if function.path == kernel:
                parameters(text, function)
    except (CompileError, TypeError, ValueError) as problem:
        return str(problem).removeprefix(f"{kernel}: ")
    return ""


def parameters(text: str, kernel: Function) -> tuple[Parameter, ...]:
    """Returns the parameters of a kernel; none of a template whose arguments no array decides: its launches give them."""
    try:
        return signature_of(text, kernel.path).parameters
    except ValueError:
        if kernel.template is None:
            raise
        return ()


def _place(text: str, file: str, at: int) -> str:
    """Returns the file and the line of a place in a text with ``#line`` directives."""
    *_, (start, line, file) = [(0, 1, file), *((m.end(), int(m[1]), m[2]) for m in _LINE.finditer(text, 0, at))]
    return f"{os.path.basename(file)}:{line + text.count(chr(10), start, at)}"


_LINE = re.compile(r'(?m)^#line (\d+) "([^"\n]*)"\n')


def _tidied(text: str) -> str:
    """Returns a slice without ``#line`` directives and without the blanks of removed code."""
    text = "\n".join(line.rstrip() for line in _LINE.sub("", text).splitlines())
    while (shorter := re.sub(r"\bnamespace(?:\s+[\w:]+)?\s*\{\s*\}[^\S\n]*(?://[^\n]*)?", "", text)) != text:
        text = shorter
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def launches(unit: Unit, kernel: str) -> tuple[str, ...]:
    """Returns the launches of a kernel, as the files have them."""
    launch = re.compile(rf"(?<!\w)(?:\w+\s*::\s*)*{kernel}\s*(?:<(?!<)[^;{{}}]*?>)?\s*<<<[^;]*?>>>")
    found = (" ".join(m[0].split()) for text in unit.files.values() for m in launch.finditer(scan(text).bare))
    return tuple(dict.fromkeys(found))
