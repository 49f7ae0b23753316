"""Loads a compiled kernel into this process, and reads and sets the variables of its text."""

import ctypes
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupyops.compile.file_scope import DeviceVariable, variables
from cupyops.compile.linking import parts
from cupyops.errors import CompileError
from cupyops.launch.variables import LoadedCode
from cupyops.sharing import once, own_folder

from .abi import Module, Variable
from .build import load_library

__all__ = ["HostCode", "load"]


class HostCode(LoadedCode):
    """The library of a simulated text.

    Attributes:
        library: the loaded library.
    """

    def __init__(self, kernel: Any, types: Mapping[str, str], text: str, path: Path, own: bool) -> None:
        super().__init__(kernel, types, text)
        self.library = _loaded(_copied(path) if own else path, own, self.what)
        self._names = list(kernel.source.kernels())

    def module(self, kernel: str) -> Any:
        """Returns the description of a kernel, and makes it the kernel that the library launches."""
        get_module = self.library.cupyops_get_module
        get_module.restype = ctypes.POINTER(Module)
        return get_module(self._names.index(kernel))

    def locate(self, variable: DeviceVariable) -> tuple[int, int] | None:
        get_variables = self.library.cupyops_get_variables
        get_variables.restype = ctypes.POINTER(Variable)
        table = get_variables()
        for i in range(len(self.variables)):
            if table[i].name == variable.name.encode():
                return int(table[i].address), int(table[i].bytes)
        return None

    def load(self, address: int, size: int, stream: Any) -> bytes:
        return ctypes.string_at(address, size)

    def store(self, address: int, data: bytes, stream: Any) -> None:
        ctypes.memmove(address, data, len(data))


def load(kernel: Any, types: Mapping[str, str], text: str, path: Path) -> HostCode:
    """Returns the loaded library of a kernel.

    A text with variables is loaded once for each kernel object, or for each module: the loader would give two kernels with
    the same file the same variables.
    """
    own = bool(variables(parts(text)[0])) or bool(kernel.source.module)
    if not own:
        return HostCode(kernel, types, text, path, own)
    found: HostCode = kernel.storage.code(("cpu", str(path)), lambda: HostCode(kernel, types, text, path, own))
    return found


_folders: dict[int, Path] = {}


def _copied(path: Path) -> Path:
    """Returns a copy of a library in a folder of this process."""
    folder = once("copies of libraries", lambda: _folders.get(os.getpid()) or own_folder("cupyops-variables-"))
    _folders[os.getpid()] = folder
    copy = folder / f"{secrets.token_hex(8)}.so"
    shutil.copyfile(path, copy)
    return copy


def _loaded(path: Path, own: bool, what: str) -> Any:
    try:
        return load_library(path)
    except OSError as error:
        found = re.search(r"undefined symbol: (\w+)", str(error))
        if found is None:
            raise
        raise CompileError(
            f"{what}: no text defines `{_demangled(found[1])}`, which the text declares; give the text that defines it in link="
        ) from None
    finally:
        if own:
            path.unlink()  # the loaded library stays in memory


def _demangled(symbol: str) -> str:
    demangle = getattr(ctypes.CDLL(None), "__cxa_demangle", None)
    if demangle is None:
        return symbol
    demangle.restype = ctypes.c_char_p
    found = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
    return found.decode(errors="replace") if found else symbol
