"""The doctor's checks of what cupyops works without: the simulator, PyTorch's own NVRTC, ONNX, TensorBoard."""

import importlib.metadata
import re
import sys
from collections.abc import Iterator

from cupyops.compile import toolchain
from cupyops.errors import CompileError, LaunchError, MissingDependencyError
from cupyops.installing import pip_install
from cupyops.simulator import host

from .findings import Fact, Fault, Finding

__all__ = ["RUNS", "check_optional", "check_simulator", "check_torch_nvrtc"]

# How the report begins where a kernel has run in the simulator.
RUNS = "compiles and runs kernels"

# Name in the report, extra, packages, and what needs the packages.
OPTIONAL = (
    ("onnx", "onnx", ("onnx", "onnxruntime", "onnxscript"), "ONNX files"),
    ("tensorboard", "examples", ("tensorboard",), "the training curves of the examples"),
)


def check_simulator() -> Iterator[Finding]:
    """Reports the C++ compiler that compiles kernels for this CPU, and compiles and runs a kernel with it."""
    if sys.platform != "linux":
        yield Fact("simulator", f"not on {sys.platform}: it runs on Linux, on Windows inside WSL")
        return
    try:
        compiler = host.compiler()
    except MissingDependencyError as error:
        what, _, mend = str(error).partition(". Get one in one of three ways: ")
        yield Fact("simulator", "not available")
        yield Fault(f"no kernel runs on CPU tensors: {what}", mend or "unset CUPYOPS_CXX")
        return
    if version_of("numpy") == "":
        yield Fact("simulator", f"{compiler.version}, not tried without NumPy")
        return
    if problem := simulation_problem():
        yield Fact("simulator", f"{compiler.version} fails")
        yield Fault(
            f"no kernel runs on CPU tensors by {' '.join(compiler.command)}: {problem}",
            "install the compiler's C++ library and linker (apt install g++), or choose another with CUPYOPS_CXX",
        )
        return
    try:
        halves = "float16 and bfloat16, too"
        host.cuda_include()
    except MissingDependencyError as error:
        halves = "but not of float16 and bfloat16"
        mend = str(error).partition("Install them with: ")[2]
        yield Fault("the simulator lacks CUDA's headers for float16 and bfloat16 (cuda_fp16.h)", mend)
    yield Fact("simulator", f"{RUNS} on this CPU by {compiler.version}; {halves}")


# Each thread of a block writes what its neighbour has put into shared memory: a runtime that switches threads, and the checks.
_TRIAL = """\
extern "C" __global__ void trial(const float* x, float* y) {  // (64), (64)
    __shared__ float s[64];
    s[threadIdx.x] = 2 * x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""


def simulation_problem() -> str:
    """Compiles a small kernel for this CPU, through the cache, and runs it; returns what fails, or an empty string."""
    import numpy

    from cupyops import Kernel, Threads, simulate

    x = numpy.arange(64, dtype=numpy.float32)
    y = numpy.zeros_like(x)
    try:
        with simulate():
            Kernel(_TRIAL, "trial", Threads(block=64))[1](x, y)
    except (CompileError, LaunchError, MissingDependencyError, OSError) as error:
        return str(error)
    return "" if (y == 2 * x[::-1]).all() else f"a kernel computes {y[:4].tolist()} for {(2 * x[::-1])[:4].tolist()}"


def check_torch_nvrtc() -> Iterator[Finding]:
    """Reports the NVRTC that PyTorch's packages have installed. cupyops does not load this NVRTC."""
    if toolchain.torch_build() is None:
        return
    found = torch_nvrtc()
    yield Fact("nvrtc of torch", f"{found}; cupyops compiles with CuPy's" if found else "none")


def torch_nvrtc() -> str:
    """Returns the NVRTC package that the installed PyTorch requires, with its version, or an empty string."""
    try:
        needed = importlib.metadata.requires("torch") or []
        if any(re.match(r"cuda-toolkit\b", line) for line in needed):  # names NVRTC in place of PyTorch
            needed = [*needed, *(importlib.metadata.requires("cuda-toolkit") or [])]
    except importlib.metadata.PackageNotFoundError:
        return ""
    names = {m[0] for line in needed if (m := re.match(r"nvidia-cuda-nvrtc[\w-]*", line))}
    for name in sorted(names):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def check_optional() -> Iterator[Finding]:
    """Reports the packages of the optional features, and the command that installs missing ones."""
    for name, extra, packages, needs in OPTIONAL:
        versions = {package: version_of(package) for package in packages}
        there = ", ".join(f"{p} {v}" if p != name else v for p, v in versions.items() if v)
        lacking = [p for p, v in versions.items() if not v]
        mend = f"{needs} need {', '.join(lacking)}: {pip_install(extra, *lacking)}" if lacking else ""
        yield Fact(name, "; ".join(filter(None, (there or "not installed", mend))))


def version_of(package: str) -> str:
    """Returns the version of an installed package, or an empty string."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
