"""Finds the C++ compiler of this machine and the CUDA headers on first use; the import searches nothing."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from cupyops.compile import toolchain
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from cupyops.sharing import once, run_program

__all__ = ["Compiler", "absolute_folders", "compiler", "cuda_include", "missing"]

THREE_WAYS = (
    "Get one in one of three ways: install g++ by the system's package manager (apt install g++, dnf install gcc-c++), "
    f"or clang++ the same way (apt install clang), or {pip_install('simulator', 'ziglang')}, a package that contains "
    "clang"
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: the command line's first words, which start the compiler.
        family: ``"gcc"`` or ``"clang"``.
        version: the first line that ``--version`` prints.
    """

    command: tuple[str, ...]
    family: str
    version: str

    @property
    def major(self) -> int:
        """The major version number, or 0 if the version line has no number."""
        found = re.search(r"(?:version |\) )(\d+)\.", self.version) or re.search(r"(\d+)\.\d+", self.version)
        return int(found[1]) if found else 0


def candidates() -> Iterator[tuple[str, ...]]:
    """Yields the compiler commands to try, in order: g++, clang++, c++ and the clang of the ziglang package. The search
    for a command reads folders, so a command is searched for when the ones before it do not run.

    If ``CUPYOPS_CXX`` is set, its command is the only one. The command is split into words as a shell does, and no shell
    runs it. Folders of ``PATH`` that are relative or empty are left out: their compiler would depend on the working
    directory.

    Raises:
        MissingDependencyError: ``CUPYOPS_CXX`` has a quotation mark without its partner.
    """
    if chosen := os.environ.get("CUPYOPS_CXX", "").strip():
        try:
            yield tuple(shlex.split(chosen))
        except ValueError as problem:
            raise MissingDependencyError(
                f"CUPYOPS_CXX={chosen!a} is not the command of a compiler: {problem}"
            ) from None
        return
    folders = absolute_folders()
    for name in ("g++", "clang++", "c++"):
        if folders and (at := shutil.which(name, path=folders)):
            yield (at,)
    if _has_ziglang():
        yield sys.executable, "-m", "ziglang", "c++"


def absolute_folders() -> str:
    """Returns ``PATH`` without its relative and empty folders."""
    return os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p))


def _has_ziglang() -> bool:
    import importlib.util

    return importlib.util.find_spec("ziglang") is not None


def compiler() -> Compiler:
    """Returns the first compiler that runs.

    Raises:
        MissingDependencyError: no compiler runs, or the system is not Linux; the message names three ways to get a
            compiler.
    """
    if sys.platform != "linux":
        raise MissingDependencyError(
            f"the simulator runs on Linux (on Windows inside WSL, elsewhere in a container), and this is {sys.platform}"
        )
    tried = []
    for command in candidates():
        tried.append(command)
        if found := once(command, partial(_ask, command)):
            return found
    problem = f"{', '.join(' '.join(c) for c in tried)} does not run" if tried else "there is none"
    raise MissingDependencyError(
        f"the simulator compiles kernels with the machine's C++ compiler, and {problem}. {instead()}"
    )


@cache
def _ask(command: tuple[str, ...]) -> Compiler | None:
    try:
        done = run_program([*command, "--version"], timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not done.stdout:
        return None
    line = done.stdout.splitlines()[0].strip()
    return Compiler(command, "clang" if "clang" in done.stdout.lower() else "gcc", line)


def instead() -> str:
    """Returns what to do about a compiler that does not work: a sentence without its full stop."""
    if chosen := os.environ.get("CUPYOPS_CXX", "").strip():
        return f"CUPYOPS_CXX={chosen!a} names it: name another compiler there, or unset CUPYOPS_CXX"
    return THREE_WAYS


def missing() -> str:
    """Returns why the simulator cannot run on this machine, or an empty string if it can."""
    try:
        compiler()
    except MissingDependencyError as error:
        return str(error)
    return ""


@cache
def cuda_include() -> Path:
    """Returns a folder that holds cuda_fp16.h, of any CUDA version.

    Raises:
        MissingDependencyError: no CUDA headers are installed.
    """
    folders = toolchain.header_candidates()
    if not folders:
        raise MissingDependencyError(
            "float16 and bfloat16 are simulated by CUDA's own headers (cuda_fp16.h), and none were found. "
            f"Install them with: {pip_install('simulator', 'nvidia-cuda-runtime-cu12')}"
        )
    return folders[0]
