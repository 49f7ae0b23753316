"""Calls of atomic functions and of others that the simulator takes where NVRTC takes them. test_cuda_functions.py has all types."""

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel
from cupyops.commands.compile import compile_job, jobs_for
from cupyops.compile import toolchain

pytestmark = pytest.mark.simulator
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cstdint>\n"


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ("atomicMax((float*)y, 1.f)", False),
        ("atomicCAS((float*)y, 0.f, 1.f)", False),
        ("atomicAdd((unsigned char*)y, (unsigned char)1)", False),
        ("atomicAdd_system((__half*)y, __half())", False),
        ("atomicOr((long long*)y, 1); atomicAdd((uint64_t*)y, 0); atomicCAS((unsigned short*)y, 9, 1)", True),
        ("float4 a{}; a.x = 1; atomicCAS((float4*)y, float4{}, a)", True),
        ('fopen("name", "w")', False),
        ("y[0] = RAND_MAX", False),
        ("y[0] = exp10f(1)", True),
    ],
)
def test_a_call_is_taken_where_nvrtc_takes_it(call: str, taken: bool) -> None:
    kernel, y = Kernel(HEADERS + f'extern "C" __global__ void a(int* y) {{ {call}; }}', "a"), np.zeros(4, np.int32)
    if toolchain.has_nvrtc():
        assert (not compile_job(jobs_for([kernel], [90])[0]).error) == taken
    with cupyops.simulate():
        if taken:
            kernel[1](y)
            assert y[0]
        else:
            with pytest.raises(CompileError):
                kernel[1](y)
