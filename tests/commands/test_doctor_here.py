"""The doctor itself: a check that fails unexpectedly, its questions to PyTorch and libraries, and this machine."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops.commands.doctor import Fact, Fault, examine
from cupyops.compile import toolchain
from cupyops.installing import pip_install
from tests.commands.doctor_support import ROOT
from tests.conftest import NO_COMPILER, NO_GPU
from tests.support import HANG


def test_a_check_that_breaks_is_a_fault_and_the_others_go_on() -> None:
    def breaks() -> Any:
        yield Fact("before", "told")
        raise ZeroDivisionError("of its own")

    findings = examine([breaks, lambda: [Fact("after", "told")]])
    assert [f.name for f in findings if isinstance(f, Fact)] == ["before", "after"]
    (fault,) = [f for f in findings if isinstance(f, Fault)]
    assert fault.what == "breaks broke: ZeroDivisionError: of its own"
    assert fault.mend == "report this output as a bug"


def test_torch_is_read_from_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    major_minor = torch.version.cuda and tuple(map(int, torch.version.cuda.split(".")[:2]))
    assert toolchain.torch_build() == (torch.__version__, major_minor)
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    text = "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"
    (tmp_path / "version.py").write_text(text)
    assert toolchain.torch_build() == ("2.11.0+cu130", (13, 0))
    (tmp_path / "version.py").unlink()
    assert toolchain.torch_build() == ("of unknown version", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert toolchain.torch_build() is None


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms do not tell the files of a process's libraries")
def test_loaded_libraries_are_told() -> None:
    assert [Path(p).name for p in toolchain.loaded_libraries("libc.so")] == ["libc.so.6"]
    assert toolchain.loaded_libraries("libnothing") == []


def run_doctor(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "CUPYOPS_CACHE_DIR": str(folder / "cache"), **environment}
    command = [sys.executable, *options, "-m", "cupyops", "doctor"]
    return subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, timeout=HANG, check=False)


@pytest.mark.thorough
def test_on_this_machine_it_tells_the_truth(tmp_path: Path) -> None:
    result = run_doctor(tmp_path)
    assert result.stderr == ""
    facts = dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)
    assert facts["torch"].startswith(torch.__version__)
    assert {
        "python",
        "cupyops",
        "numpy",
        "cupy",
        "nvrtc",
        "headers",
        "ml_dtypes",
        "cache",
        "driver",
        "launch",
    } <= facts.keys()
    assert "broke" not in result.stdout
    assert {"simulator", "nvrtc of torch", "onnx", "tensorboard"} <= facts.keys()
    if NO_GPU:
        in_order = not (toolchain.nvidia_hardware() or toolchain.driver_cuda() or NO_COMPILER)
        assert result.returncode == (0 if in_order else 1)
        assert (tmp_path / "cache" / "simulator").exists() == (not NO_COMPILER), "a kernel runs, through the cache"
    else:
        assert result.returncode == 0
        assert facts["launch"] == "add2 of 1000 float32, every one right"
        assert list((tmp_path / "cache").glob("*.cubin"))


def test_where_nothing_is_installed_it_says_so_and_does_not_crash(tmp_path: Path) -> None:
    result = run_doctor(tmp_path, "-S", PYTHONPATH="")  # without any installed package
    assert (result.returncode, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert {
        "numpy: not installed",
        "ml_dtypes: not installed",
        "torch: not installed",
        "cupy: not installed",
        "nvrtc: not found",
    } <= set(lines)
    assert "onnx: not installed; ONNX files need onnx, onnxruntime, onnxscript: " + pip_install("onnx") in lines
    assert "FAULT CUDA kernels need CuPy, and CuPy is not installed" in lines
    assert f"  mend: {pip_install('cuda12')}" in lines
    assert "broke" not in result.stdout
