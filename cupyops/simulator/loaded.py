"""Loads a compiled kernel into this process, and reads and sets the variables of its text."""

import ctypes
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupyops.compile.ask import arguments_in, demangled
from cupyops.compile.file_scope import DeviceVariable, variables
from cupyops.compile.linking import parts
from cupyops.errors import CompileError
from cupyops.launch.variables import LoadedCode
from cupyops.sharing import once, own_folder

from .abi import Module, Origin, Range, Variable
from .build import load_library
from .lines import objects, section, symbol_names

__all__ = ["HostCode", "answers_of", "load"]

# Functions that a compiled kernel may take from the process besides those of the math library: the runtime's, and those
# that the compiler calls.
_OF_RUNTIME = ("cupyops_", "__tsan_", "__ubsan_", "__sanitizer_cov_")
_OWN = {"cupyops_module", "cupyops_kernels", "cupyops_variables", "threadIdx", "blockIdx", "blockDim", "gridDim"}
_ANSWERED = re.compile(rb"_ZN15CupyopsAnsweredILi(\d+)E\w+E4toldE")
_OF_COMPILER = re.compile(
    r"_ITM_\w+|_Unwind_Resume|__gmon_start__|__cxa_finalize|mem(?:cpy|move|set|cmp)|_Z(?:TVN10__cxxabiv1|dlPv)\w*|__gxx_personality_v0|__(?:aarch64|stack_chk_guard|tls_get_addr|dso_handle)\w*"
)


class HostCode(LoadedCode):
    """The library of a simulated text.

    Attributes:
        library: the loaded library.
    """

    def __init__(self, kernel: Any, types: Mapping[str, str], text: str, path: Path, own: bool) -> None:
        super().__init__(kernel, types, text)
        elf = path.read_bytes()
        _check_imports(elf, self.what)
        self.library = _loaded(_copied(path) if own else path, own, self.what)
        self._names = list(kernel.source.kernels())
        self._tell_addresses(elf)

    def _tell_addresses(self, elf: bytes) -> None:
        """Gives the runtime the addresses of the library's variables and instructions. A kernel writes none of the simulator's own
        variables, and none in constant memory."""
        found, origin = objects(elf), Origin()
        constants = {place[0] for v in self.variables.values() if v.constant and (place := self.locate(v))}
        ctypes.CDLL(None).dladdr(self.library.cupyops_get_module, ctypes.byref(origin))
        self._variables = (Range * max(len(found), 1))(
            *(
                Range(start, start + size, writable and name not in _OWN and start not in constants)
                for name, start, size, writable in ((n, origin.base + at, size, w) for n, at, size, w in found)
            )
        )
        module = self.module(self._names[0]).contents
        module.variables, module.variable_count = ctypes.addressof(self._variables), len(found)
        start, code = section(elf, b".text")
        module.code, module.code_end = origin.base + start, origin.base + start + len(code)

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


def answers_of(elf: bytes, count: int) -> tuple[str, ...]:
    """Returns the answers of a library to the questions of its source (:mod:`cupyops.compile.ask`): its symbols have them.

    Args:
        elf: the content of the library.
        count: the number of the questions.
    """
    symbols = {int(match[1]): match[0].decode() for match in _ANSWERED.finditer(elf)} if count else {}
    instances = [demangled(symbols[number]) for number in range(count)]
    return tuple(", ".join(arguments_in(one)[1:]) if "<" in one else "" for one in instances)


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
            f"{what}: no text defines `{demangled(found[1])}`, which the text declares; give the text that defines it in link="
        ) from None
    finally:
        if own:
            path.unlink()  # the loaded library stays in memory


def _origin(library: Any, name: str) -> str:
    """Returns the file of the library that has a function, which `library` or a library that it needs has; "" for none."""
    function, found = getattr(library, name, None), Origin()
    if function is None or not ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)):
        return ""
    return (found.path or b"").decode(errors="replace")


def _check_imports(elf: bytes, what: str) -> None:
    """Raises CompileError if a library calls a function of the host that CUDA does not have, such as ``quick_exit``: it would
    act on this process. A name that the process does not have is left to the loader."""
    process = ctypes.CDLL(None)
    math = _origin(process, "erff")
    for name in symbol_names(elf, dynamic=True)[1]:
        if name.startswith(_OF_RUNTIME) or _OF_COMPILER.fullmatch(name) or not _origin(process, name):
            continue
        if _origin(ctypes.CDLL(math), name) != math:
            raise CompileError(
                f"{what}: the text calls `{demangled(name)}`, a function of the host, which CUDA does not have"
            )
