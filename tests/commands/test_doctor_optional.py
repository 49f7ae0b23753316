"""python -m cupyops doctor: the simulator, machines without a GPU, and the packages that cupyops works without."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from cupyops.commands import doctor_optional
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from cupyops.simulator import host
from tests.commands.doctor_support import Machine, gpus, raises


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(monkeypatch, tmp_path, capsys)


# Machines without a GPU -----------------------------------------------------------------------------------------------

NOTHING = gpus(driver=0, problem="cudaErrorInsufficientDriver") | {
    "driver_release": lambda: None,
    "nvidia_hardware": lambda: False,
}
COMPILES = "CUDA kernels compile here, for any architecture that NVRTC knows. There is no NVIDIA GPU: "


def test_a_machine_without_a_gpu_is_in_order_if_the_simulator_is(machine: Machine) -> None:
    machine.has(**NOTHING)
    status, facts, faults, verdict = machine.report()
    assert (status, faults) == (0, [])
    assert "GPUs: none" in facts
    assert verdict == f"{COMPILES}kernels run in the simulator, and CPU tensors work."


def test_a_machine_without_a_gpu_and_nvrtc_runs_kernels_in_the_simulator(machine: Machine) -> None:
    missing = raises(MissingDependencyError("NVRTC is missing. Install it with: pip"))
    machine.has(**NOTHING, nvrtc=missing, nvrtc_version=missing)
    status, _, _, verdict = machine.report()
    words = "CUDA kernels can be neither compiled nor launched here"
    assert (status, verdict) == (0, f"{words}. Kernels on CPU tensors run, in the simulator.")
    machine.has(nvidia_hardware=lambda: True)
    assert machine.report()[0] == 1, "the GPU runs no kernel"
    machine.has(nvidia_hardware=lambda: False)
    machine.patch.setattr(doctor_optional, "simulation_problem", lambda: "no header")
    status, _, _, verdict = machine.report()
    assert (status, verdict) == (1, f"{words}.")
    machine.patch.setattr(sys, "platform", "darwin")  # where the simulator is not tried
    assert machine.report()[0] == 1


def test_a_machine_without_gpu_and_compiler_is_told_how_to_get_one(machine: Machine) -> None:
    machine.patch.setattr(host, "compiler", raises(MissingDependencyError(f"there is none. {host.THREE_WAYS}")))
    machine.has(**NOTHING)
    status, facts, faults, verdict = machine.report()
    assert faults == [("no kernel runs on CPU tensors: there is none", host.THREE_WAYS.partition(": ")[2])]
    assert "simulator: not available" in facts
    assert (status, verdict) == (
        1,
        f"{COMPILES}CPU tensors work through the operators' references in plain PyTorch.",
    )
    machine.has(**gpus(), nvidia_hardware=lambda: True)
    status, _, faults, verdict = machine.report()
    assert (status, len(faults), verdict) == (0, 1, "CUDA kernels compile and run here.")


def test_a_compiler_that_runs_no_kernel_is_a_fault(machine: Machine) -> None:
    machine.patch.setattr(doctor_optional, "simulation_problem", lambda: "fatal error: vector: No such file")
    machine.has(**NOTHING)
    status, facts, ((what, mend),), _ = machine.report()
    assert what == "no kernel runs on CPU tensors by g++: fatal error: vector: No such file"
    assert "apt install g++" in mend
    assert "simulator: g++ 14.2.0 fails" in facts
    assert status == 1


@pytest.mark.simulator
def test_a_compiler_is_tried_with_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_optional.simulation_problem() == ""
    (fake := tmp_path / "g++").write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo g++ 1.0; exit; }\necho 'x.cpp:1: fatal error: atomic: none' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CUPYOPS_CXX", str(fake))
    assert "fatal error: atomic: none" in doctor_optional.simulation_problem()


def test_a_simulator_without_headers_says_which_package_has_them(machine: Machine) -> None:
    lacking = f"none were found. Install them with: {pip_install('simulator', 'nvidia-cuda-runtime-cu12')}"
    machine.patch.setattr(host, "cuda_include", raises(MissingDependencyError(lacking)))
    status, facts, faults, _ = machine.report()
    assert "simulator: compiles and runs kernels on this CPU by g++ 14.2.0; but not of float16 and bfloat16" in facts
    words = "the simulator lacks CUDA's headers for float16 and bfloat16 (cuda_fp16.h)"
    assert (status, faults) == (0, [(words, "pip install nvidia-cuda-runtime-cu12")])


# Optional parts -------------------------------------------------------------------------------------------------------


def test_the_nvrtc_of_torch_is_told(machine: Machine) -> None:
    versions = {"nvidia-cuda-nvrtc": "13.0.88"}
    needed = ["numpy", 'nvidia-cuda-nvrtc==13.0.88; platform_system == "Linux"']
    version = importlib.metadata.version
    machine.patch.setattr(importlib.metadata, "requires", lambda name: needed if name == "torch" else [])
    machine.patch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or version(name))
    assert "nvrtc of torch: nvidia-cuda-nvrtc 13.0.88; cupyops compiles with CuPy's" in machine.report()[1]
    needed[1:] = ["cuda-toolkit[cudart,nvrtc]==13.0.2"]
    assert "nvrtc of torch: none" in machine.report()[1]
    toolkit = ['nvidia-cuda-nvrtc==13.0.*; extra == "nvrtc"']
    machine.patch.setattr(importlib.metadata, "requires", {"torch": needed, "cuda-toolkit": toolkit}.get)
    assert "nvrtc of torch: nvidia-cuda-nvrtc 13.0.88; cupyops compiles with CuPy's" in machine.report()[1]
    needed.pop()
    assert "nvrtc of torch: none" in machine.report()[1]


def test_optional_packages_are_told_with_what_installs_them(machine: Machine) -> None:
    versions = {"onnx": "1.23.2", "tensorboard": ""}

    def version(name: str) -> str:
        if not (found := versions.get(name, "1")):
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    machine.patch.setattr(importlib.metadata, "version", version)
    status, facts, faults, _ = machine.report()
    assert (status, faults) == (0, [])
    assert "onnx: 1.23.2, onnxruntime 1, onnxscript 1" in facts
    install = pip_install("examples", "tensorboard")
    assert f"tensorboard: not installed; the training curves of the examples need tensorboard: {install}" in facts
    versions["onnxscript"] = ""
    install = pip_install("onnx", "onnxscript")
    assert f"onnx: 1.23.2, onnxruntime 1; ONNX files need onnxscript: {install}" in machine.report()[1]
