"""Programs that NVRTC has compiled as a test wants them, by hash: a test need not compile one of them again.

    python -m tests.compiled    # compiles all of them, and writes compiled.json

A hash is of all that decides what NVRTC does: the program's tokens, the headers that are passed with it, the names that are
asked for, the flags, and the versions of NVRTC, of CUDA's headers and of CuPy, which contains CUDA's C++ libraries. A change of
any of them is compiled in every run until the file is written again.
"""

import importlib.metadata
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cupyops.compile import compiler
from cupyops.compile.cache import Binary
from tests.gpu.fingerprints import _hash as hash_of
from tests.gpu.fingerprints import installed_nvrtc, tokens

__all__ = ["compile_unknown"]

FILE = Path(__file__).with_suffix(".json")
# The tests that ask.
TESTS = {
    "tests/kernels/test_constructs.py": "test_nvrtc_compiles_every_construct",
    "tests/programs/test_programs.py": "test_what_is_written_compiles_without_a_warning_or_a_spill",
    "tests/simulator/test_library.py": "test_a_text_runs_in_the_simulator_and_does_not_compile",
    "tests/compile/test_system_headers.py": "test_nvrtc_finds_every_header_of_the_list",
    "tests/project/test_docs.py": "test_samples_run_in_order",
}
_OF_A_PACKAGE = re.compile(r"-I.*/(?:site|dist)-packages/")
asked: set[str] = set()


class _KnownError(Exception):
    pass


class _Nvrtc:
    """CuPy's interface to NVRTC, which raises _KnownError in place of the compilation of a known program."""

    def __init__(self, real: Any, known: frozenset[str]) -> None:
        self._real, self._known, self._program = real, known, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def createProgram(self, text: str, *rest: Any) -> Any:  # noqa: N802
        self._program = [tokens(text), repr(rest)]
        return self._real.createProgram(text, *rest)

    def addNameExpression(self, program: Any, name: str) -> None:  # noqa: N802
        self._program.append(name)
        self._real.addNameExpression(program, name)

    def compileProgram(self, program: Any, flags: Sequence[str]) -> None:  # noqa: N802
        portable = [_OF_A_PACKAGE.sub("-I", flag, count=1) for flag in flags]
        key = hash_of([versions(), self._program, portable])
        # What a folder of no package contains is no part of the hash.
        if all(short != flag for short, flag in zip(portable, flags, strict=True) if flag.startswith("-I")):
            asked.add(key)
            if key in self._known:
                raise _KnownError
        self._real.compileProgram(program, flags)


@cache
def versions() -> list[str]:
    """Those of NVRTC, CUDA's headers and CuPy."""
    found = [installed_nvrtc()]
    for package in ("nvidia-cuda-runtime-cu12", "cupy-cuda12x"):
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            found.append("")
    return found


@cache
def known() -> frozenset[str]:
    return frozenset(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else frozenset()


def compile_unknown(
    text: str, what: str, target: str, options: Sequence[str], *, relocatable: bool = False
) -> Binary | None:
    """Compiles as :func:`cupyops.compile.compiler.compile_text` does; returns None if the program is known to compile as the
    test wants it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "nvrtc", lambda nvrtc=compiler.nvrtc: _Nvrtc(nvrtc(), known()))
        try:
            return compiler.compile_text(text, what, target, options, relocatable=relocatable)
        except _KnownError:
            return None


def main() -> int:
    """Runs the tests on an empty file, and writes it if they pass."""
    FILE.unlink(missing_ok=True)
    status = int(pytest.main(["-q", *(f"{file}::{test}" for file, test in TESTS.items())]))
    if not status:
        FILE.write_text(json.dumps(sorted(sys.modules["tests.compiled"].asked), indent=0) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
