"""The types of which the simulator has an atomic function are those of which NVRTC has it."""

import re

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.commands.compile import compile_job, jobs_for
from cupyops.compile import toolchain

pytestmark = pytest.mark.simulator
FUNCTIONS = [
    f"atomic{name}{scope}"
    for name in ("Add", "Sub", "Exch", "Min", "Max", "Inc", "Dec", "And", "Or", "Xor", "CAS")
    for scope in ("", "_block", "_system")
]
TYPES = (
    *("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned"),
    *("long long", "unsigned long long", "float", "double", "__half", "__half2", "__nv_bfloat16", "__nv_bfloat162"),
    *("float2", "float4", "int2", "int4", "ulonglong2"),
)
PAIRS = [(function, type_) for function in FUNCTIONS for type_ in TYPES]
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cstdint>\n"


def table(expressions: list[str], asked: str = "") -> str:
    """A text that keeps a truth value for each pair."""
    values = f"__device__ unsigned char table[{len(PAIRS)}] = {{{', '.join(expressions)}}};\n"
    kernel = (
        'extern "C" __global__ void k(unsigned char* y) { int i = blockIdx.x * 32 + threadIdx.x; y[i] = table[i]; }'
    )
    return HEADERS.replace("#include <cstdint>\n", "") + asked + values + kernel


def of_nvrtc() -> list[bool]:
    from cupy_backends.cuda.libs import nvrtc

    arguments = {f: "(T*)0, T(), T()" if "CAS" in f else "(T*)0, T()" for f in FUNCTIONS}
    head = "template <typename T> __device__ constexpr"
    asked = "".join(
        f"{head} auto has_{f}(int) -> decltype({f}({arguments[f]}), true) {{ return true; }}\n"
        f"{head} bool has_{f}(...) {{ return false; }}\n"
        for f in FUNCTIONS
    )
    program = nvrtc.createProgram(table([f"has_{f}<{t}>(0)" for f, t in PAIRS], asked), "k.cu", [], [])
    options = ["-arch=compute_90", "-std=c++17", f"-I{toolchain.cuda_headers()}"]
    nvrtc.compileProgram(program, options)
    ptx = nvrtc.getPTX(program)
    found = re.search(r"table\[\d+\] = \{([^}]*)\}", ptx.decode() if isinstance(ptx, bytes) else ptx)
    assert found
    return [bool(int(number)) for number in found[1].split(",")]


@pytest.mark.skipif(not toolchain.has_nvrtc(), reason="NVRTC is not installed")
def test_the_simulator_has_the_atomic_functions_of_cuda_and_no_others() -> None:
    truth, y = of_nvrtc(), np.zeros(len(PAIRS), np.uint8)
    text = table([f"HAS({f}, {t})" for f, t in PAIRS]).replace("y[i] =", f"if (i < {len(PAIRS)}) y[i] =")
    text = f"#ifdef CUPYOPS_SIMULATOR\n#define HAS(f, ...) cupyops_has_##f<__VA_ARGS__>\n#else\n#define HAS(f, ...) 0\n#endif\n{text}"
    with cupyops.simulate():
        Kernel(text, "k", Threads(block=32))[len(PAIRS)](y)
    assert dict(zip(PAIRS, map(bool, y), strict=True)) == dict(zip(PAIRS, truth, strict=True))
    assert 90 < sum(truth) < 150


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
