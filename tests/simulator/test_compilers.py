"""Compilers that do not work, the clang of the package ziglang, and caches that are only read or hold no programs."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import Kernel, LaunchError, MissingDependencyError, Threads
from cupyops.simulator import build, host

pytestmark = pytest.mark.simulator
TEXT = 'extern "C" __global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; y[i AT] = 2 * x[i]; }'


def doubled(at: str = "", sanitize: bool = False) -> list[float]:
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    with cupyops.simulate(sanitize=sanitize):
        Kernel(TEXT.replace("AT", at), "k", Threads(block=4))[1](x, y, 4)
    return list(map(float, y))


def test_the_compiler_of_ziglang_compiles_links_and_checks_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUPYOPS_CXX", raising=False)
    assert host.compiler().command == (sys.executable, "-m", "ziglang", "c++")
    assert doubled() == [2, 2, 2, 2]
    with pytest.raises(LaunchError, match="out of bounds: writes 4 bytes at element 4 of `y`"):
        doubled("+ 1", sanitize=True)
    y = np.zeros(1, np.float32)
    text = "#include <torch/extension.h>\n__global__ void divided(float* y, int n) { y[0] = n / 2 + at::Half(1.5f); }"
    with cupyops.simulate(optimize=False):  # and headers of the C++ library, behind those of the simulator
        Kernel(text, "divided", Threads(block=1))[1](y, 7)
    assert y[0] == 4.5


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
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    doubled()
    (own := tmp_path / "own").mkdir()
    monkeypatch.setattr(build, "_root", lambda: own)  # as where the folder of the cache is mounted for reading
    monkeypatch.setattr(build, "run", lambda *_: pytest.fail("compiled again"))
    build._runtime_of.cache_clear()
    assert doubled() == [2, 2, 2, 2]
    assert not list(own.iterdir())


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
