"""Links several texts into one binary, with nvJitLink.

The final text of a kernel with ``link=`` is the final texts of all its texts, separated by a line that :func:`joined`
writes. The cache, the bundles and the commands treat this text like any other. :func:`compile_linked` compiles each text
to relocatable code and links the results. Linking needs no GPU.
"""

import ctypes
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cupyops.errors import CompileError, MissingDependencyError
from cupyops.installing import pip_install

from . import toolchain
from .cache import Binary

__all__ = ["compile_linked", "is_linked", "joined", "parts"]

_BETWEEN = '\n// cupyops: the next text, compiled apart\n#line 1 "cupyops.cu"\n'
_LTO = re.compile(r"-{1,2}dlto\b|-lto\b")
_CUBIN, _LTOIR = 1, 3  # nvJitLinkInputType


def joined(texts: Sequence[str]) -> str:
    """Returns one text of several final texts."""
    return _BETWEEN.join(texts)


def parts(text: str) -> list[str]:
    """Returns the final texts that :func:`joined` joined."""
    return text.split(_BETWEEN)


def with_lto(options: Sequence[str]) -> bool:
    """Returns whether the options ask for optimization at link time."""
    return any(_LTO.fullmatch(option) for option in options)


def is_linked(text: str, options: Sequence[str]) -> bool:
    """Returns whether a binary needs the linker: several texts, or optimization at link time."""
    return _BETWEEN in text or with_lto(options)


def compile_linked(
    text: str,
    what: str,
    target: str,
    options: Sequence[str],
    compile_one: Callable[..., Binary],
    resources: Callable[[str], dict[str, tuple[int, int]]],
) -> Binary:
    """Compiles the texts and links them.

    Args:
        text: the result of :func:`joined`.
        what: kernel and dtypes, for messages.
        target: ``sm_90``, or ``compute_90`` for PTX.
        options: the NVRTC options. ``-dlto`` optimizes across the texts.
        compile_one: compiles one text to relocatable code.
        resources: reads the registers and spills of each kernel from a log.

    Raises:
        CompileError: a text does not compile, a function is defined in no text or in two, or the target is PTX.
        MissingDependencyError: nvJitLink is not installed.
    """
    chosen = next((o.partition("=")[2] for o in options if o.startswith("-arch=")), target)
    if chosen.startswith("compute_"):
        raise CompileError(
            f"{what}: linked texts are compiled for a GPU that NVRTC {'.'.join(map(str, toolchain.nvrtc_version()))} "
            f"knows, and this GPU is newer. Install a newer CuPy and NVRTC"
        )
    lto = with_lto(options)
    started = time.perf_counter()
    link = _library()
    flags = [o for o in options if not _LTO.fullmatch(o)]
    found = [compile_one(one, what, target, [*flags, *(["-dlto"] if lto else [])]) for one in parts(text)]
    # With -dlto the linker generates the code, and reports the registers. Code from its own cache has no report.
    of_lto = ["-lto", "-no-cache", *(o for o in flags if o.startswith("-Xptxas="))]
    settings = [f"-arch={chosen}", *(of_lto if lto else [])]
    code, log = _linked(link, [b.code for b in found], what, settings, lto)
    logs = "\n".join(filter(None, (*(b.log for b in found), log)))
    return Binary(code, logs, resources(logs), time.perf_counter() - started, entry=found[0].entry)


def _linked(
    library: "_Link", objects: Sequence[bytes], what: str, options: Sequence[str], lto: bool
) -> tuple[bytes, str]:
    handle = ctypes.c_void_p()
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    status = library.call("Create", ctypes.byref(handle), ctypes.c_uint(len(options)), array)
    if status:
        raise CompileError(f"{what}: nvJitLink refuses the options {' '.join(options)} (status {status})")
    try:
        for number, data in enumerate(objects):
            name = f"text {number + 1}".encode()
            kind = ctypes.c_int(_LTOIR if lto else _CUBIN)
            status = status or library.call("AddData", handle, kind, data, ctypes.c_size_t(len(data)), name)
        status = status or library.call("Complete", handle)
        if status:
            raise CompileError(
                f"{what}: the texts do not link ({options[0]}): {library.read(handle, 'ErrorLog').strip()}"
            )
        size = ctypes.c_size_t()
        library.call("GetLinkedCubinSize", handle, ctypes.byref(size))
        memory = ctypes.create_string_buffer(size.value)
        library.call("GetLinkedCubin", handle, memory)
        return memory.raw, library.read(handle, "InfoLog").strip()
    finally:
        library.call("Destroy", ctypes.byref(handle))


class _Link:
    """The functions of nvJitLink."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, f"nvJitLink{name}")(*arguments))

    def read(self, handle: Any, log: str) -> str:
        size = ctypes.c_size_t()
        self.call(f"Get{log}Size", handle, ctypes.byref(size))
        memory = ctypes.create_string_buffer(max(size.value, 1))
        self.call(f"Get{log}", handle, memory)
        return memory.value.decode(errors="replace")


@cache
def _library() -> _Link:
    """Loads nvJitLink of NVRTC's major version: of its wheel, of CUDA's folders, or of the system's.

    Raises:
        MissingDependencyError: no such library loads.
    """
    major = toolchain.nvrtc_version()[0]
    name = _file_name(major)
    folder = "bin" if sys.platform == "win32" else "lib"
    folders = [Path(p) / "nvidia" / sub / folder for p in sys.path for sub in ("nvjitlink", f"cu{major}")]
    for path in (*(str(f / name) for f in folders if (f / name).is_file()), name):
        try:
            return _Link(ctypes.CDLL(path))
        except OSError:
            continue
    raise MissingDependencyError(
        f"linked texts need nvJitLink, and {name} was not found. Install it with: {pip_install(f'link{min(max(major, 12), 13)}')}"
    )


def _file_name(major: int) -> str:
    return f"nvJitLink_{major}0_0.dll" if sys.platform == "win32" else f"libnvJitLink.so.{major}"
