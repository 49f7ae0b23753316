"""PTX, machine code, registers and spilled bytes of a kernel."""

import os
import struct
from pathlib import Path

import pytest
import torch

from cupyops import Kernel, LaunchError, MissingDependencyError, Threads, simulate
from cupyops.compile import toolchain
from cupyops.launch import listing

TEXT = """__global__ void twice(const scalar_t* x /* (n) */, scalar_t* y /* (n) */, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[i];
}"""
pytestmark = pytest.mark.skipif(not toolchain.has_nvrtc(), reason="NVRTC is not installed")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "gpu_count", lambda: 0)


def test_ptx_has_the_dtype_and_the_architecture_that_are_asked_for() -> None:
    kernel = Kernel(TEXT, "twice", Threads("n"), dtypes=("float32", "float64"))
    assert "add.f32" in kernel.ptx()
    assert "add.f64" in kernel.ptx("float64")
    assert "add.f64" in kernel.ptx(torch.float64)
    assert ".target sm_90\n" in kernel.ptx()
    assert ".target sm_80\n" in kernel.ptx(architecture=80)
    assert not kernel.ptx().endswith("\0")


@pytest.mark.simulator
def test_the_newest_dtype_of_a_call_is_listed() -> None:
    kernel = Kernel(TEXT, "twice", Threads("n"), dtypes=("float32", "float64"))
    x = torch.zeros(3, dtype=torch.float64)
    with simulate():
        kernel(x, torch.empty_like(x), 3)
    assert "add.f64" in kernel.ptx()


def test_registers_and_spills_are_the_compilers() -> None:
    kernel = Kernel(TEXT, "twice", Threads("n"))
    assert 4 <= kernel.registers <= 32
    assert kernel.spills == 0
    many = """__global__ void __launch_bounds__(1024) many(float* y /* (n) */, int n) {
        float a[96];
        #pragma unroll
        for (int i = 0; i < 96; i++) a[i] = y[i] / n;
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 96; i++) y[i] = a[95 - i] * a[(i * 7) % 96];
    }"""
    assert Kernel(many, "many", Threads("n")).spills > 0


def test_a_text_for_one_architecture_has_ptx_of_it() -> None:
    assert ".target sm_90a\n" in Kernel(TEXT, "twice", Threads("n"), since=90, exactly=True).ptx()
    with pytest.raises(LaunchError, match="needs a GPU of sm_90 or later, and architecture=80"):
        Kernel(TEXT, "twice", Threads("n"), since=90).ptx(architecture=80)


def test_machine_code_comes_from_the_tool_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(TEXT, "twice", Threads("n"))
    monkeypatch.setattr(listing, "_tool", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"twice\.sass\(\) needs cuobjdump or nvdisasm"):
        kernel.sass()
    monkeypatch.undo()
    tool = tmp_path / "bin" / "nvdisasm"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nhead -c 4 "$2" | tail -c 3; echo " $1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(listing, "_TOOLS", (("nvdisasm", "-c"),))
    monkeypatch.setattr(toolchain, "gpu_count", lambda: 0)
    monkeypatch.setenv("PATH", os.pathsep.join(["/usr/bin", "/bin"]))
    assert kernel.sass() == "ELF -c\n"
    tool.write_text(f'#!/bin/sh\ncp "$2" {tmp_path}/seen\n')
    kernel.sass()
    code = (tmp_path / "seen").read_bytes()
    start, (size, count) = struct.unpack_from("<Q", code, 32)[0], struct.unpack_from("<HH", code, 54)
    assert start + size * count <= len(code), "the program headers are the last part of a cubin"
    tool.write_text("#!/bin/sh\necho bad >&2; exit 3\n")
    with pytest.raises(RuntimeError, match="nvdisasm -c failed on twice: bad"):
        kernel.sass()
