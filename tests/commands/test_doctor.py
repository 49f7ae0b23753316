"""python -m cupyops doctor: the message of each fault and the line that fixes it, on simulated machines."""

import importlib.machinery
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cupyops.commands import doctor
from cupyops.compile import compiler, toolchain
from cupyops.compile.cache import Binary
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.installing import pip_install
from tests.commands.doctor_support import (
    ROOT,
    SEARCH_FOR_HEADERS,
    Machine,
    compile_anything,
    gpus,
    raises,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(monkeypatch, tmp_path, capsys)


def test_a_machine_in_order_has_its_facts_and_no_fault(machine: Machine, tmp_path: Path) -> None:
    status, facts, faults, verdict = machine.report()
    assert (status, faults, verdict) == (0, [], "CUDA kernels compile and run here.")
    for fact in (
        f"cupyops: 0.1.0 in {ROOT / 'cupyops'}",
        "torch: 2.11.0+cu130, built for CUDA 13.0",
        "cupy: 14.2.0 (cupy-cuda12x 14.2.0) in /site-packages/cupy",
        "nvrtc: 12.9, /lib/libnvrtc.so.12",
        "nvrtc compiles for: sm_75, sm_80, sm_90, sm_100",
        f"headers: 12.9, {tmp_path}",
        f"cache: {tmp_path / 'cache'} (to be made when first needed), 0 kernels, 0.0 MiB",
        "driver: 580.95.05, supports CUDA up to 13.0",
        "GPU 0: NVIDIA H200, sm_90, 139.0 GiB, compiled for as sm_90",
        "launch: add2 of 1000 float32, every one right",
        "simulator: compiles and runs kernels on this CPU by g++ 14.2.0; float16 and bfloat16, too",
        f"environment CUPYOPS_CACHE_DIR: '{tmp_path / 'cache'}'",
    ):
        assert fact in facts
    assert not (tmp_path / "cache").exists()


# Faults ---------------------------------------------------------------------------------------------------------------

NO_CUPY = MissingDependencyError(
    f"CUDA kernels need CuPy, and it is not installed. Install it with: {toolchain.INSTALL}"
)
BROKEN_CUPY = MissingDependencyError(
    f"CuPy does not import (\n=====\nlibx.so\n=====\n). Install it with: {toolchain.INSTALL}"
)
NO_NVRTC = MissingDependencyError(f"the library of NVRTC does not load. Install it with: {toolchain.INSTALL}")
TWO_WHEELS = {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.1.0"}
CONTAINER = "for a container, start it with --gpus all"


def without(error: MissingDependencyError, *names: str) -> dict[str, Callable[..., Any]]:
    """Parts that raise."""
    return dict.fromkeys(names, raises(error))


class Case(NamedTuple):
    """A machine with one fault: its difference from a working one, the output, and the exit status."""

    id: str
    parts: dict[str, Callable[..., Any]]
    what: str
    mend: str
    status: int
    fact: str


FAULTS = [
    Case(
        "no CuPy",
        without(NO_CUPY, "cupy", "nvrtc", "nvrtc_version") | {"cupy_distributions": dict},
        "CUDA kernels need CuPy, and it is not installed",
        pip_install("cuda13"),  # as torch
        1,
        "cupy: not installed",
    ),
    Case(
        "CuPy does not import",
        without(BROKEN_CUPY, "cupy", "nvrtc", "nvrtc_version"),
        "CuPy does not import ( libx.so )",
        f"pip uninstall -y cupy-cuda12x && {pip_install('cuda13')}",
        1,
        "cupy: cupy-cuda12x 14.2.0, does not import",
    ),
    Case(
        "two CuPy wheels",
        {"cupy_distributions": lambda: TWO_WHEELS},
        "cupy-cuda12x 14.2.0, cupy-cuda13x 14.1.0 are installed into one folder: they overwrite each other's files",
        f"pip uninstall -y cupy-cuda12x cupy-cuda13x && {pip_install('cuda12')}",
        0,  # while a launch works
        "cupy: 14.2.0 (cupy-cuda12x 14.2.0, cupy-cuda13x 14.1.0) in /site-packages/cupy",
    ),
    Case(
        "two CuPy wheels, the newer one loaded",
        {"cupy_distributions": lambda: TWO_WHEELS, **gpus(cuda=13000)},
        "cupy-cuda12x 14.2.0, cupy-cuda13x 14.1.0 are installed into one folder: they overwrite each other's files",
        f"pip uninstall -y cupy-cuda12x cupy-cuda13x && {pip_install('cuda13')}",
        0,
        "CUDA of torch, cupy: 13.0, 13.0; the majors agree",
    ),
    Case(
        "no torch",
        {"torch_build": lambda: None},
        "torch is not installed: autograd_bridge does not import, cupyops does",
        "pip install 'torch>=2.9'",
        0,
        "torch: not installed",
    ),
    Case(
        "torch without CUDA beside a GPU",
        {"torch_build": lambda: ("2.11.0+cpu", None)},
        "torch 2.11.0+cpu is built without CUDA, and there is a GPU: no tensor can be put on it",
        "pip uninstall -y torch && pip install torch (on Windows as pytorch.org/get-started says)",
        0,
        "torch: 2.11.0+cpu, built without CUDA",
    ),
    Case(
        "torch too new for the driver",
        gpus(driver=12040),
        "torch is built for CUDA 13.0, and the driver supports it up to 12.4: torch sees no GPU",
        "update the NVIDIA driver, or install a torch built for CUDA 12 (as pytorch.org/get-started says)",
        0,
        "driver: 580.95.05, supports CUDA up to 12.4",
    ),
    Case(
        "no NVRTC",
        without(NO_NVRTC, "nvrtc", "nvrtc_version"),
        "the library of NVRTC does not load",
        pip_install("cuda12"),  # as CuPy
        1,
        "launch: not tried without NVRTC",
    ),
    Case(
        "headers of another CUDA",
        {
            "cuda_headers": SEARCH_FOR_HEADERS,
            "header_candidates": lambda: [Path("/cuda/include")],
            "header_version": lambda _: (13, 0),
        },
        "float16 and bfloat16 kernels need CUDA 12 headers (cuda_fp16.h), and none were found, only /cuda/include (CUDA 13.0)",
        pip_install("cuda12"),
        0,  # float32 goes on working
        "headers: not found",
    ),
    Case(
        "no driver",
        gpus(driver=0, problem="cudaErrorInsufficientDriver") | {"driver_release": lambda: None},
        "no driver: there is an NVIDIA GPU, and no kernel runs on it; CPU tensors work, through the operators' "
        "references in plain PyTorch",
        f"install the GPU's driver, until `nvidia-smi` lists the GPU; {CONTAINER}",
        1,
        "driver: none that CUDA can load",
    ),
    Case(
        "a driver too old for CuPy 13",
        gpus(driver=12040, cuda=13000, problem="cudaErrorInsufficientDriver")
        | {"cupy_distributions": lambda: {"cupy-cuda13x": "14.2.0"}, "torch_build": lambda: ("2.9", (12, 6))},
        "the driver is too old: it supports CUDA up to 12.4, and CuPy is built for CUDA 13",
        f"update the NVIDIA driver, or pip uninstall -y cupy-cuda13x && {pip_install('cuda12')}",
        1,
        "GPUs: none",
    ),
    Case(
        "a driver too old for any",
        gpus(driver=11080, problem="cudaErrorInsufficientDriver") | {"torch_build": lambda: ("2.9", (11, 8))},
        "the driver is too old: it supports CUDA up to 11.8, and CuPy is built for CUDA 12",
        "update the NVIDIA driver",
        1,
        "launch: not tried without a GPU",
    ),
    Case(
        "a GPU that is not well",
        gpus(problem="cudaErrorSystemNotReady: system not yet initialized"),
        "no GPU: cudaErrorSystemNotReady: system not yet initialized",
        f"check whether `nvidia-smi` lists a healthy GPU; {CONTAINER}",
        1,
        "GPUs: none",
    ),
    Case(
        "a driver without GPUs",
        gpus(capabilities=()),
        "no GPU: the driver counts none",
        f"check whether `nvidia-smi` lists a healthy GPU; {CONTAINER}",
        1,
        "GPUs: none",
    ),
    Case(
        "a GPU too old for NVRTC",
        gpus(capabilities=(61,)),
        "GPU 0: NVRTC 12.9 compiles for sm_75 and newer, and this GPU is sm_61",
        "use a newer GPU: no CUDA 12 compiles for this one",
        1,
        "GPU 0: NVIDIA H200, sm_61, 139.0 GiB, too old for this NVRTC",
    ),
    Case(
        "a second GPU too old for NVRTC",
        gpus(capabilities=(90, 61)),
        "GPU 1: NVRTC 12.9 compiles for sm_75 and newer, and this GPU is sm_61",
        "use a newer GPU: no CUDA 12 compiles for this one",
        0,
        "GPU 0: NVIDIA H200, sm_90, 139.0 GiB, compiled for as sm_90",
    ),
]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_fault_and_what_mends_it(case: Case, machine: Machine) -> None:
    machine.has(**case.parts)
    status, facts, faults, verdict = machine.report()
    assert faults == [(case.what, case.mend)]
    assert case.fact in facts
    assert status == case.status
    assert (verdict == "CUDA kernels compile and run here.") == (status == 0)


def test_verdict_tells_compiling_from_launching(machine: Machine) -> None:
    machine.has(**gpus(capabilities=()))
    last = "Everything but launching works here: CUDA kernels compile, for any architecture that NVRTC knows."
    assert machine.report()[3] == last
    machine.has(**without(NO_NVRTC, "nvrtc", "nvrtc_version"))
    words = "CUDA kernels can be neither compiled nor launched here. Kernels on CPU tensors run, in the simulator."
    assert machine.report()[3] == words


def test_nvrtc_13_that_dropped_a_gpu_is_mended_by_cuda_12(machine: Machine) -> None:
    machine.patch.setattr(compiler, "nvrtc_version", lambda: (13, 0))
    machine.has(nvrtc_version=lambda: (13, 0), cupy_distributions=lambda: {"cupy-cuda13x": "14.2.0"})
    machine.has(**gpus(cuda=13000, capabilities=(61,)))
    assert machine.report()[2][0][1] == f"pip uninstall -y cupy-cuda13x && {pip_install('cuda12')}"


def test_hidden_gpus(machine: Machine) -> None:
    machine.has(**gpus(problem="cudaErrorNoDevice: no CUDA-capable device is detected"))
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    status, facts, faults, _ = machine.report()
    assert faults == [("no GPU: CUDA_VISIBLE_DEVICES is '-1', which names none", "unset CUDA_VISIBLE_DEVICES")]
    assert status == 1
    assert "environment CUDA_VISIBLE_DEVICES: '-1'" in facts


@pytest.mark.parametrize(
    ("name", "what", "mend"),
    [
        ("numpy", "CuPy does not import without it", "pip install 'numpy>=2'"),
        ("ml_dtypes", "there are no bfloat16 arrays outside torch", "pip install 'ml_dtypes>=0.5'"),
    ],
)
def test_missing_package(machine: Machine, name: str, what: str, mend: str) -> None:
    def version(distribution: str) -> str:
        if distribution == name:
            raise importlib.metadata.PackageNotFoundError(name)
        return "9.9"

    machine.patch.setattr(importlib.metadata, "version", version)
    _, facts, faults, _ = machine.report()
    assert faults == [(f"{name} is not installed: {what}", mend)]
    assert f"{name}: not installed" in facts


def test_kernels_that_do_not_compile(machine: Machine) -> None:
    def compile_text(text: str, what: str, *_: Any) -> Binary:
        if "float16" in what:
            raise CompileError("many\nlines")
        return compile_anything(text)

    machine.compiles(compile_text)
    status, facts, faults, _ = machine.report()
    ((what, mend),) = faults
    assert what.startswith(
        "gelu_forward<float16, TANH=0> for sm_90 does not compile: files of NVRTC or of CUDA's headers"
    )
    again = "python -m cupyops compile --arch 90 --kernels gelu_forward --dtypes float16"
    assert mend == f"{pip_install('cuda12')}; see the compiler's errors with {again}"
    assert status == 0  # float32 goes on working
    assert "compile: gelu_forward<float32, TANH=0> for sm_90 in 100 ms" in facts
    machine.compiles(raises(CompileError("x")))
    status, _, faults, _ = machine.report()
    assert (status, len(faults)) == (1, 2)


def test_cache_that_cannot_be_written(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine.patch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    status, facts, faults, _ = machine.report()
    folder, problem = tmp_path / "file" / "cache", f"{tmp_path / 'file'} is not a folder"
    what = f"the cache folder {folder} cannot be written ({problem}): every process compiles all kernels again"
    assert faults == [(what, "export CUPYOPS_CACHE_DIR=FOLDER, naming a folder that you may write")]
    assert status == 0
    assert f"cache: {folder} (not writable: {problem}), 0 kernels, 0.0 MiB" in facts


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system has no such descriptors")
@pytest.mark.parametrize("below", ["", "simulator"])
def test_cache_that_another_user_can_change(machine: Machine, tmp_path: Path, below: str) -> None:
    folder = tmp_path / "cache" / below
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    machine.patch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    machine.patch.delenv("CUPYOPS_CACHE_SHARED", raising=False)
    status, facts, faults, _ = machine.report()
    what = f"the cache folder is not used, since another user can change it: {folder} can be written by every user"
    assert [fault for fault, _ in faults] == [what]
    assert f"cache: {tmp_path / 'cache'} (refused)" in facts
    assert status == 0


def test_cache_on_a_read_only_disk(machine: Machine) -> None:
    machine.patch.setattr(doctor.tempfile, "TemporaryFile", raises(OSError(30, "Read-only file system")))
    assert "cannot be written (Read-only file system)" in machine.report()[2][0][0]


def test_launch_that_fails(machine: Machine) -> None:
    machine.patch.setattr(doctor, "launches_right", raises(RuntimeError("CUDA_ERROR_UNKNOWN\nand more")))
    status, facts, faults, _ = machine.report()
    mend = "mend the other faults first; then see the state of the GPU with `nvidia-smi`"
    assert faults == [("a launch of add2 fails: CUDA_ERROR_UNKNOWN and more", mend)]
    assert status == 1
    assert "launch: fails" in facts


def test_launch_with_wrong_results(machine: Machine) -> None:
    machine.patch.setattr(doctor, "launches_right", lambda: False)
    status, _, faults, _ = machine.report()
    mend = "CUPYOPS_DEBUG=1 python -m cupyops doctor, and report what it says"
    assert faults == [("a launch of add2 gives wrong results", mend)]
    assert status == 1


# No faults ------------------------------------------------------------------------------------------------------------


def test_torch_without_cuda_is_no_fault_without_a_gpu(machine: Machine) -> None:
    machine.has(torch_build=lambda: ("2.11.0+cpu", None), **gpus(capabilities=()))
    assert [what for what, _ in machine.report()[2]] == ["no GPU: the driver counts none"]


def test_cuda_majors_that_differ_are_told(machine: Machine) -> None:
    (fact,) = [f for f in machine.report()[1] if f.startswith("CUDA of torch, cupy: ")]
    assert fact.startswith("CUDA of torch, cupy: 13.0, 12.9; the majors differ: kernels run anyway")


def test_gpu_newer_than_nvrtc_is_told(machine: Machine) -> None:
    machine.has(**gpus(capabilities=(121,)))
    status, facts, faults, _ = machine.report()
    assert (status, faults) == (0, [])
    told = "compiled for as compute_100, newer than NVRTC: the driver compiles its PTX"
    assert f"GPU 0: NVIDIA H200, sm_121, 139.0 GiB, {told}" in facts


def test_cache_entries_are_counted(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    for name in ("a.cubin", "b.cubin"):
        (tmp_path / "cache" / name).write_bytes(bytes(2**20))
    assert f"cache: {tmp_path / 'cache'} (writable), 2 kernels, 2.0 MiB" in machine.report()[1]
