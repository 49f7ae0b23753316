"""Compilers that do not work, the clang of the package ziglang, and caches that are only read or hold no programs."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, MissingDependencyError, Threads
from cupyops.simulator import build, host, linker
from cupyops.simulator.linker import linker_of
from tests.support import ROOT, give_runtime, install

pytestmark = pytest.mark.simulator
TEXT = 'extern "C" __global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; y[i AT] = 2 * x[i]; }'


OUTSIDE = "out of bounds: writes 4 bytes at element 4 of `y`"
# One kernel, one fault that the sanitizer finds, and a text without optimization that includes PyTorch's header.
ZIGLANG = """
import importlib.metadata
import numpy as np
from cupyops import Kernel, LaunchError, Threads, simulate
from cupyops.simulator import host
from tests.simulator.test_compilers import OUTSIDE, doubled

print(importlib.metadata.version("ziglang"))
print(*host.compiler().command[1:])
print(doubled())
try:
    doubled("+ 1", sanitize=True)
except LaunchError as error:
    print(OUTSIDE if OUTSIDE in str(error) else error)
y = np.zeros(1, np.float32)
text = "#include <torch/extension.h>\\n__global__ void divided(float* y, int n) { y[0] = n / 2 + at::Half(1.5f); }"
with simulate(optimize=False):
    Kernel(text, "divided", Threads(block=1))[1](y, 7)
print(y[0])
"""


def doubled(at: str = "", sanitize: bool = False) -> list[float]:
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    with cupyops.simulate(sanitize=sanitize):
        Kernel(TEXT.replace("AT", at), "k", Threads(block=4))[1](x, y, 4)
    return list(map(float, y))


@pytest.mark.thorough
@pytest.mark.network
@pytest.mark.parametrize("version", ["0.17.1", "0.16.0", "0.15.2"])
def test_the_compiler_of_ziglang_compiles_links_and_checks_where_there_is_no_other(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "packages", f"ziglang=={version}")
    found = f"{tmp_path / 'packages'}{os.pathsep}{ROOT}"
    paths = {"PATH": str(tmp_path / "empty"), "PYTHONPATH": found, "CUPYOPS_CACHE_DIR": str(tmp_path / "cache")}
    environment = {k: v for k, v in os.environ.items() if k != "CUPYOPS_CXX"} | paths
    done = subprocess.run([sys.executable, "-c", ZIGLANG], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [version, "-m ziglang c++", "[2.0, 2.0, 2.0, 2.0]", OUTSIDE, "4.5", ""]


@pytest.mark.parametrize("command", ["/bin/true", "g++ ';' x", "g++ -fno-such-flag"])
def test_a_compiler_that_does_not_work_is_no_fault_of_the_text(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYOPS_CXX", command)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"not even an empty kernel. CUPYOPS_CXX=.* names it") as caught:
        doubled("+ 0")
    assert "simulator does not cover" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_runtime(tmp_path / "simulator")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    doubled()
    (own := tmp_path / "own").mkdir()
    monkeypatch.setattr(build, "_root", lambda: own)  # as where the folder of the cache is mounted for reading
    monkeypatch.setattr(build, "run", lambda *_: pytest.fail("compiled again"))
    build._runtime_of.cache_clear()
    assert doubled() == [2, 2, 2, 2]
    assert not list(own.iterdir())


@pytest.mark.thorough
def test_a_cache_without_room_is_replaced_by_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    make = build._make

    def full(root: Path, *arguments: object) -> None:
        if tmp_path in root.parents:
            raise OSError(28, "No space left on device")
        make(root, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "_make", full)
    monkeypatch.setattr(build, "_full", set())
    assert doubled("+ 0") == [2, 2, 2, 2]
    assert not [p for p in (tmp_path / "simulator").iterdir() if not p.name.startswith(".")]


def test_a_library_of_a_folder_mounted_with_noexec_is_loaded_from_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled()  # the runtime itself first: kernels are linked to the one that is loaded first
    load, path = ctypes.CDLL, tmp_path / "cache" / "key" / "library.so"
    path.parent.mkdir(parents=True)
    shutil.copyfile(build.runtime_path(), path)
    refused = [str(tmp_path)]

    def loaded(name: str) -> object:
        if any(name.startswith(folder) for folder in refused):
            raise OSError(f"{name}: failed to map segment from shared object")
        return load(name)

    monkeypatch.setattr(build.ctypes, "CDLL", loaded)
    with pytest.warns(RuntimeWarning, match="mounted with noexec"):
        assert build.load_library(path).cupyops_finished
    refused.append(os.sep)
    with pytest.raises(LaunchError, match="mounted with noexec. Choose another folder with CUPYOPS_CACHE_DIR"):
        build.load_library(path)


@pytest.mark.parametrize(
    ("called", "linked"),
    [("cupyops_barrier", "alone"), ("expf", "with libm"), ("strlen", "by g++"), ("nowhere", "by g++")],
)
def test_the_linker_reads_the_libraries_that_a_kernel_calls(
    called: str, linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """g++ would start three programs, which read all libraries of the host for most of their time."""
    tool = host.compiler()
    if tool.family != "gcc":
        pytest.skip("a clang may have its C++ library in an archive, which is always read")
    text = f'extern "C" float {called}(float); float once(float x) {{ return {called}(x); }}'
    (tmp_path / "kernel.cpp").write_text(text)
    build.run(tool, ["-fPIC", "-fno-builtin", "-c", "kernel.cpp", "-o", "kernel.o"], tmp_path)
    objects, runtime = [tmp_path / "kernel.o"], build.runtime_path()
    program, arguments = linker_of(tool, objects, runtime)
    assert Path(program.command[0]).name == ("g++" if linked == "by g++" else "ld")
    assert [Path(a).name for a in arguments if Path(a).name in ("libm.so.6", "-lc")] == {
        "alone": [],
        "with libm": ["libm.so.6"],
        "by g++": ["-lc"],
    }[linked]
    build.run(program, ["-shared", "kernel.o", "-o", "kernel.so", *arguments], tmp_path)
    if linked != "by g++":
        assert (b"libm.so.6" in (tmp_path / "kernel.so").read_bytes()) == (linked == "with libm")
    monkeypatch.setenv("PATH", "")
    linker._of_driver.cache_clear()
    assert linker_of(tool, objects, runtime)[0] is tool, "a linker that is not found"
    linker._of_driver.cache_clear()


# Of g++, of the header that it reads first, and of another.
@pytest.mark.parametrize("macro", ["__SSE2_MATH__", "__STDC_ISO_10646__", "__GLIBC__"])
def test_a_text_behind_precompiled_headers_sees_no_macro_of_the_host(macro: str) -> None:
    for n in range(3):  # the second compilation precompiles the headers
        text = f"#ifdef {macro}\n#define SEEN 9\n#else\n#define SEEN 0\n#endif\n__global__ void k(float* y) {{ y[0] = {n} + SEEN; }}"
        with cupyops.simulate():
            Kernel(text, "k", 1)[1](y := np.ones(1, np.float32))
        assert y[0] == n
