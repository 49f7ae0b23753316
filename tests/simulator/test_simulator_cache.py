"""The cache of simulated kernels, what is compiled when, and what a debugger finds."""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.simulator import build, host
from cupyops.simulator.host import Compiler
from cupyops.simulator.lines import line_program, line_table
from tests.support import HANG

from .test_simulator_use import TEXT, twice

# The header that stands before every text.
DEVICE = str(build.HERE / "cuda" / "device.h")

pytestmark = pytest.mark.simulator


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Records further commands of the compiler. The cache is empty but for the runtime and the object of all kernels."""
    for name in ("runtime_path", "module_path"):
        monkeypatch.setattr(build, name, partial(Path, getattr(build, name)()))
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(folder))
    asked: list[Sequence[str]] = []
    run = build.run
    monkeypatch.setattr(
        build, "run", lambda tool, arguments, folder: asked.append(arguments) or run(tool, arguments, folder)
    )
    return asked


def test_a_library_is_compiled_once_for_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = recorded(tmp_path, monkeypatch)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)

    def compilations() -> int:
        count = len([a for a in compiled if "kernel.cpp" in a])
        compiled.clear()
        return count

    with cupyops.simulate():
        twice()(x, y, 3)
        assert compilations() == 1
        twice()(x, y, 3)
        assert compilations() == 0
        twice(TEXT.replace("x[i] + x[i]", "x[i] * 2"))(x, y, 3)
        assert compilations() == 1
        with cupyops.simulate(sanitize=True):
            twice()(x, y, 3)
        assert compilations() == 0, "the default and all checks have one library"
        with cupyops.simulate(sanitize=False):
            twice()(x, y, 3)
        assert compilations() == 1
        for library in tmp_path.rglob("kernel.so"):
            half = library.read_bytes()[:1000]  # as a full disk would leave it
            library.unlink()  # a loaded library stays as it is
            library.write_bytes(half)
        twice()(x, y, 3)
        assert compilations() == 1
    assert y.tolist() == [2, 2, 2]
    assert not [p for p in (tmp_path / "simulator").iterdir() if p.name.startswith(".")], "something half made is left"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "command", ["g++", "clang++", f"{sys.executable} -m ziglang c++"], ids=lambda c: c.split()[-2:]
)
def test_headers_are_precompiled_for_the_second_kernel(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (importlib.util.find_spec("ziglang") if "ziglang" in command else shutil.which(command)) is None:
        pytest.skip(f"{command} is not here")
    monkeypatch.setenv("CUPYOPS_CXX", command)
    compiled = recorded(tmp_path, monkeypatch)
    x, y = np.ones(3, np.float16), np.zeros(3, np.float16)

    def run(factor: str) -> float:
        compiled.clear()
        text = TEXT.replace("x[i] + x[i]", f"__hmul(x[i], __float2half({factor}))")
        with cupyops.simulate(sanitize=True):
            Kernel(text, "twice", Threads("n"), dtypes=("float16",))(x, y, 3)
        return float(y[1])

    def asked() -> list[str]:
        return [a[a.index("-c" if "-c" in a else "-x") + 1] for a in compiled if "-shared" not in a and "-E" not in a]

    def as_text() -> list[bool]:
        return [DEVICE in a for a in compiled if "kernel.cpp" in a]

    assert run("2.f") == 2
    assert (asked(), as_text()) == (["kernel.cpp"], [True])
    assert run("3.f") == 3
    assert (asked(), as_text()) == (["c++-header", "kernel.cpp"], [False])
    assert run("4.f") == 4
    assert (asked(), as_text()) == (["kernel.cpp"], [False])
    with pytest.raises(CompileError, match=r"twice\.cu\D+6\b.*nothing"):
        run("nothing")
    assert as_text() == [False, True]  # so the message is that of a compilation without precompiled headers
    (headers,) = (p for p in tmp_path.rglob("headers.*") if p.suffix in (".gch", ".pch"))
    assert "<cuda_fp16.h>" in headers.with_name("headers.h").read_text(), "they are not the text's"
    headers.write_bytes(headers.read_bytes()[:1000])
    assert run("5.f") == 5


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fault", [CompileError("no"), OSError("no space left"), None], ids=["refused", "full", "useless"]
)
def test_headers_that_cannot_be_precompiled_are_compiled_with_each_kernel(
    fault: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = recorded(tmp_path, monkeypatch)
    run = build.run

    def refuse(tool: Compiler, arguments: Sequence[str], folder: Path) -> str:
        said = run(tool, arguments, folder)
        if fault is None and "kernel.cpp" in arguments and DEVICE not in arguments:
            raise CompileError("cannot be used")
        if fault is not None and "c++-header" in arguments:
            raise fault
        return said

    monkeypatch.setattr(build, "run", refuse)
    for factor in (2, 3, 4):
        y = np.zeros(3, np.float32)
        with cupyops.simulate():
            twice(TEXT.replace("x[i] + x[i]", f"x[i] * {factor}"))(np.ones(3, np.float32), y, 3)
        assert y.tolist() == [factor] * 3
    assert len([a for a in compiled if "c++-header" in a]) == 1
    assert len([a for a in compiled if "kernel.cpp" in a]) == (3 if fault else 4), "what was refused is tried again"


def test_a_cache_folder_that_cannot_be_written_costs_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    runtime = build.runtime_path()
    monkeypatch.setattr(build, "runtime_path", lambda: runtime)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "file"))
    y = np.zeros(3, np.float32)
    with cupyops.simulate():
        twice()(np.ones(3, np.float32), y, 3)
    assert y.tolist() == [2, 2, 2]


def test_the_headers_leave_out_what_takes_long_and_cuda_lacks() -> None:
    """Without the special functions of the C++ library, a compilation loads the precompiled headers in half of the time."""
    command = [*host.compiler().command, "-E", "-std=c++17", f"-I{build.HERE / 'cuda'}", f"-I{build.HERE / 'runtime'}"]
    done = subprocess.run(
        [*command, "-x", "c++", "-include", "device.h", os.devnull], capture_output=True, text=True, check=True
    )
    assert "cupyops_exp10" in done.stdout
    assert "riemann_zeta" not in done.stdout


def test_lines_of_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"not a library")
    (tmp_path / "cut").write_bytes(b"\x7fELF\x02\x01" + bytes(40))
    for name in ("text", "cut", "absent"):
        assert line_table(line_program(tmp_path / name)).at(0) is None
    assert line_table(b"\x04\x00\x00\x00\x04\x00").at(0) is None, "a program that ends too early"


@pytest.mark.sample(1)
@pytest.mark.skipif(not shutil.which("gdb"), reason="needs gdb")
@pytest.mark.parametrize("optimize", [True, False])
def test_gdb_stops_at_a_line_of_the_text(tmp_path: Path, optimize: bool) -> None:
    script = tmp_path / "debug.py"
    script.write_text(
        f"import numpy as np, cupyops\ntext = {TEXT!r}\n"
        "kernel = cupyops.Kernel(text, 'twice', cupyops.Threads('n'), dtypes=('float32',))\n"
        f"with cupyops.simulate(optimize={optimize}, sanitize={False if optimize else None}):\n"
        f"    kernel(np.arange(9, dtype='f4'), np.zeros(9, 'f4'), 9)\n"
    )
    commands = [
        "set breakpoint pending on",
        "break twice.cu:6 if threadIdx.x == 7",
        "run",
        "print threadIdx.x",
        "print n",
        "backtrace",
        "info source",
    ]
    arguments = [a for c in commands for a in ("-ex", c)]
    command = ["gdb", "-q", "-batch", "-nx", *arguments, "--args", sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cupyops.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment)
    if "ptrace" in done.stderr:
        pytest.skip("gdb may not trace here")
    assert "$1 = 7" in done.stdout, done.stdout + done.stderr
    assert "$2 = 9" in done.stdout
    assert re.search(r"^6\s+if \(i < n\) y\[i\] = x\[i\] \+ x\[i\];", done.stdout, re.M), "the source is not found"
    assert re.search(r"#0 .*twice \(.*at .*twice.cu:6", done.stdout)


def test_structures_are_as_large_as_the_runtimes() -> None:
    from cupyops.simulator.abi import Fault

    runtime = build.runtime()
    runtime.cupyops_fault_bytes.restype = ctypes.c_size_t
    assert runtime.cupyops_fault_bytes() == ctypes.sizeof(Fault)
