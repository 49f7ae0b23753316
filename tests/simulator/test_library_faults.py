"""Planted faults in uses of CUDA's libraries: with sanitize=True the simulator finds each, and names its line."""

from pathlib import Path

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, LaunchError, Rows
from cupyops.simulator import simulated
from tests.simulator.library.cases import CASES
from tests.simulator.test_library import run

pytestmark = pytest.mark.simulator


@pytest.fixture(autouse=True)
def _unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC does not read the texts: it takes a second for the headers of a library, and takes all of them.
    test_library.py tests what it accepts."""
    monkeypatch.setattr(simulated, "has_nvrtc", lambda: False)


def fault_of(kernel: str, **constants: int) -> str:
    case = next(c for c in CASES if c.kernel == kernel)
    with pytest.raises(LaunchError) as raised:
        run(case, "cpu", case.arrays(), **constants)
    return str(raised.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kernel", "constant", "value", "words"),
    [
        ("collectives", "NO_BARRIER", 1, "a race in shared memory: writes element 0 of `temp`"),
        ("barriers", "NO_WAIT", 1, "reads shared memory that nobody has written: element 63 of `s`"),
        ("memory", "PENDING", 1, "reads shared memory that nobody has written: element 1 of `s`"),
        ("wmma_shapes", "NO_SYNC_WARP", 1, "reads shared memory that nobody has written: element 26 of `sd`"),
        ("grid", "NO_GRID_BARRIER", 1, "a race in global memory: writes element 0 of `peaks`"),
    ],
)
def test_a_dropped_wait_or_barrier_is_not_found(kernel: str, constant: str, value: int, words: str) -> None:
    message = fault_of(kernel, **{constant: value})
    assert words in message
    assert f"{kernel}.cu:" in message


FAULTS = (Path(__file__).parent / "library" / "faults.cu").read_text()
WORDS = {
    0: "a barrier is not reached by all threads of its block: threads 0-39 wait at __syncthreads",
    1: "__shfl_sync with mask 0xffffffff names lane 20, which has ended, from lane 0",
    2: "__syncwarp with mask 0xffffffff names lane 5, which has ended",
    3: "a race in shared memory: writes element 32 of `s`, which has 64, which thread (31, 0, 0) read",
    4: "reads shared memory that nobody has written: element 62 of `s`",
    5: "a barrier is not reached by all threads of its block: threads 0-31 wait at __syncthreads",
    6: "waits for ever: the remaining threads only read memory that none of them changes",
    7: "more threads arrive at a barrier than it expects",
    8: "__pipeline_memcpy_async: an address is not a multiple of the copy's size",
    9: "out of bounds: reads 4 bytes at element 64 of `x`",
    10: "out of bounds in shared memory: writes 4 bytes at element 64 of `s`, which has 64",
    11: "ldmatrix: the address of a row is not a multiple of 16 bytes",
    12: "__syncwarp with mask 0xffffffff names lane 31, which has ended, from lane 0",
    13: "a race in shared memory: ",
    14: "misaligned",
}


@pytest.mark.parametrize("fault", WORDS)
def test_a_misuse_is_not_found_or_not_placed(fault: int) -> None:
    kernel = Kernel(FAULTS, "k", Rows("M", block=64), dtypes=("float32",))
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with cupyops.simulate(sanitize=True), pytest.raises(LaunchError) as raised:
        kernel(x, y, 1, fault)
    line = next(n for n, words in enumerate(FAULTS.splitlines(), 1) if f"// {fault}:" in words)
    assert WORDS[fault] in str(raised.value)
    assert f"k.cu:{line}" in str(raised.value)


COOPERATIVE = "#include <cooperative_groups.h>"
REFUSED = {
    "instruction": (
        'asm volatile("wgmma.fence.sync.aligned;");',
        "",
        "the simulator does not cover the instruction `wgmma.fence.sync.aligned` in inline PTX",
    ),
    "sparse": (
        'asm("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0};" : "+f"(y[0]));',
        "",
        "the instruction `mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32`",
    ),
    "register": ('float r; asm("mov.f32 %0, %%pm0;" : "=f"(r)); y[0] = r;', "", "the operand `%%pm0`"),
    "macro": (
        '#define OP(a) a "add.f32"\nasm(OP(n) " %0, %0, %0;" : "+f"(y[0]));',
        "",
        "a template with the macro `OP`",
    ),
    "member": ("cooperative_groups::this_multi_grid().sync();", COOPERATIVE, "declares no `this_multi_grid`"),
    "tile": (
        "auto t = cooperative_groups::tiled_partition<64>(cooperative_groups::this_thread_block());",
        COOPERATIVE,
        "the simulator does not cover tiles of more than 32 threads",
    ),
    "cub": (
        "",
        "#include <cub/block/block_histogram.cuh>",
        "the simulator cannot include <cub/block/block_histogram.cuh>: the simulator has no twin of it",
    ),
    "std": (
        "",
        "#include <cuda/std/chrono>",
        "the simulator cannot include <cuda/std/chrono>: the simulator has no twin of it",
    ),
    "function": (
        "y[0] = curand_log_normal((curandState*)0, 0, 1);",
        "#include <curand_kernel.h>",
        "(the text declares no `curand_log_normal`, and neither does the simulator)",
    ),
    "constraint": (
        'unsigned r; asm("mov.u32 %0, %1;" : "=r"(r) : "r"(1ll));',
        "",
        "the operand of an asm statement must have the size of its constraint",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_covered_is_not_named(what: str) -> None:
    body, before, words = REFUSED[what]
    text = f'{before}\nextern "C" __global__ void k(float* y /* (n) */, long long M, int n) {{\n{body}\n}}'
    kernel = Kernel(text, "k", Rows("M", block=32), dtypes=("float32",))
    with cupyops.simulate(), pytest.raises(CompileError) as raised:
        kernel(np.zeros(32, np.float32), 1, 32)
    assert words in str(raised.value)


def test_a_branch_that_the_simulator_does_not_take_is_refused_for_its_ptx() -> None:
    text = """extern "C" __global__ void k(float* y /* (n) */, long long M, int n) {
#ifdef CUPYOPS_SIMULATOR
        y[threadIdx.x] = 2.0f;
#else
        asm volatile("tcgen05.wait::ld.sync.aligned;");
#endif
    }"""
    y = np.zeros(32, np.float32)
    with cupyops.simulate():
        Kernel(text, "k", Rows("M", block=32), dtypes=("float32",))(y, 1, 32)
    assert (y == 2.0).all()


def test_lanes_of_two_branches_are_one_coalesced_group() -> None:
    """Both branches call one function, so that the lanes wait at one instruction with two call stacks."""
    text = """#include <cooperative_groups.h>
    __device__ __noinline__ int size() { return cooperative_groups::coalesced_threads().size(); }
    extern "C" __global__ void k(int* y /* (n) */, long long M, int n) {
        if (threadIdx.x < 10) y[threadIdx.x] = size();
        else y[threadIdx.x] = size() + 100;
    }"""
    y = np.zeros(32, np.int32)
    with cupyops.simulate():
        Kernel(text, "k", Rows("M", block=32), dtypes=("int32",))(y, 1, 32)
    assert y.tolist() == [10] * 10 + [122] * 22
