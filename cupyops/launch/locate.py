"""Explains compiler messages: the lines of the Python file that declares the kernel, and what to do about some errors."""

import linecache
import re
import sys

__all__ = ["TOLD", "declaring_file", "in_python", "located", "placed"]

_UNMASKED = (
    "shuffles and votes without a mask are of GPUs before sm_70: call __shfl_down_sync and the like, whose first "
    "argument is the mask of the threads, 0xffffffff for a whole warp"
)
# Patterns of compiler messages, and what to do about each.
TOLD = {
    "device-side kernel launch": "dynamic parallelism is not supported: launch the kernel from Python, or call its code as a __device__ "
    "function",
    'namespace "std" has no member': "device code does not have this name of the host's library; <cuda/std/...> has types and functions "
    "of the library for kernels, in the namespace cuda::std",
    'identifier "__shfl': _UNMASKED,
    "without '.sync' is not supported": _UNMASKED,
    "Unresolved extern function": "a function that a kernel calls has no body for the GPU: declare the function, and each member "
    "function, __device__, or give the file that has its body as link=",
    "the size of an array must be greater than zero": "g++, and nvcc with it, takes an array of no elements, and NVRTC does not: give "
    "the array one element",
    'class "__half" has no member "x"': "the 16-bit float of PyTorch is CUDA's __half here: __half_as_ushort(v) has the bits of its x",
}


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
