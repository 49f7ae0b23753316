"""The simulator has CUDA's functions, for the types for which NVRTC has them, with the same results' types, and no others."""

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel, Threads
from cupyops.commands.compile import compile_job, jobs_for
from cupyops.compile import toolchain

from . import cuda_functions

pytestmark = pytest.mark.simulator
TABLE = cuda_functions.TABLE.read_text()
ANSWERS = cuda_functions.questions(TABLE)
PIECES = list(cuda_functions.pieces(list(ANSWERS), 240))
# NVRTC's isnan is an int, and the C++ library's a bool.
A_BOOL = {"isfinite(T)", "isinf(T)", "isnan(T)"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("piece", range(len(PIECES)))
def test_the_simulator_takes_what_nvrtc_takes_and_no_more(piece: int) -> None:
    found = cuda_functions.of_simulator(PIECES[piece])
    wanted = {q: ANSWERS[q].replace("i", "b") if q in A_BOOL else ANSWERS[q] for q in PIECES[piece]}
    assert {q: a for q, a in found.items() if a != wanted[q]} == {}


def test_an_answer_that_differs_is_seen() -> None:
    """The probes detect a refused call, another result and another size."""
    asked = ["__ldg(T*)", "pow(T, int)", "sizeof(char3)", "T << int", "clock()", "make_uint3(T, T, T)", "nonsense(T)"]
    found = cuda_functions.of_simulator(asked)
    assert found["nonsense(T)"] == "." * len(cuda_functions.TYPES)
    assert [found[q] for q in asked[:-1]] == [ANSWERS[q] for q in asked[:-1]]
    assert found["__ldg(T*)"].startswith(".c")
    assert found["pow(T, int)"][12:14] == "fd"
    assert found["sizeof(char3)"] == "3"
    assert len(ANSWERS) > 1300
    assert sum("." in a for a in ANSWERS.values()) > 900


@pytest.mark.thorough
@pytest.mark.skipif(not toolchain.has_nvrtc(), reason="NVRTC is not installed")
def test_the_table_is_what_nvrtc_says() -> None:
    version = ".".join(map(str, toolchain.nvrtc_version()))
    if f"# NVRTC {version}\n" not in TABLE:
        pytest.skip(f"the table is of another version than {version}")
    found = cuda_functions.of_nvrtc(list(ANSWERS))
    assert {q: a for q, a in found.items() if a != ANSWERS[q]} == {}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", cuda_functions.NOT_SIMULATED)
def test_a_function_that_is_not_simulated_is_an_error_that_names_it(name: str) -> None:
    assert f"# not simulated: {name}(" in TABLE
    arguments = {"__cluster_map_shared_multicast": "y, 1", "__uni_sync": "~0u, 1"}.get(name, "y")
    kernel = Kernel(f'extern "C" __global__ void k(int* y) {{ {name}({arguments}); }}', "k")
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=f"the text declares no `{name}`, and neither does the simulator"),
    ):
        kernel[1](np.zeros(1, np.int32))


# Expressions of overloads that the C++ library lacks, and their values by the definitions of CUDA's mathematical functions.
INF, NAN = float("inf"), float("nan")
VALUES = {
    "pow(1.1f, 3)": float(np.float32(float(np.float32(1.1)) ** 3)),
    "pow(-2.0f, 3)": -8.0,
    "pow(0.0f, -1)": INF,
    "pow(-0.0f, -3)": -INF,
    "pow((float)NAN, 0)": 1.0,
    "pow(2.0f, (-2147483647 - 1))": 0.0,
    "pow(-1.0f, 16777217)": -1.0,  # a float would round the exponent to an even number
    "sizeof(std::pow(2.0f, 3))": 4.0,
    "1 / sinpi(-0.0f)": -INF,
    "sinpi(0.5f)": 1.0,
    "sinpi((float)INFINITY)": NAN,
    "cospi(1e30f)": 1.0,
    "1 / cospi(0.5f)": INF,
    "rcbrt(-8.0f)": -0.5,
    "rcbrt(-0.0f)": -INF,
    "erfinv(1.0f)": INF,
    "erfcinv(0.0f)": INF,
    "normcdfinv(2.0f)": NAN,
    "normcdf((float)-INFINITY)": 0.0,
    "erfcx((float)INFINITY)": 0.0,
    "erfcx(-INFINITY)": INF,
    "cyl_bessel_i1((float)-INFINITY)": -INF,
    "j0(0)": 1.0,
    "y0(0.0f)": -INF,
    "jn(1, 0.0f)": 0.0,
    "fdivide(1, 4)": 0.25,
    "fdivide(-1.0, 0.0)": -INF,
    "__fmaf_ieee_rd(1.0f, 1.0f, 1e-30f)": 1.0,
    "__fmaf_ieee_ru(1.0f, 1.0f, 1e-30f)": 1.0 + 2.0**-23,
    "__fmaf_ieee_rz(1.4e-45f, 0.5f, 0.0f)": 0.0,
    "exp(h)": float(np.float32(np.exp(-1.5))),
    "floor(h)": -2.0,
    "lrint(h)": -2.0,
    "ilogb(h)": 0.0,
    "fmax(h, 2)": 2.0,
    "fmin(NAN, h)": -1.5,
    "fma(h, h, h)": 0.75,
    "1 / copysign(__half(0.0f), -1.0f)": -INF,
    "frexp(h, &n) * 100 + n": -74.0,
    "ldexp(h, 200)": -INF,
    "sizeof(copysign(h, 1.0))": 8.0,
    "isnan(log(h))": 1.0,
    "std::fabs(h) + std::fmax(h, 2)": 3.5,
    "__syncthreads_count(0.5f)": 0.0,
    "__syncthreads_or(-1.5)": 1.0,
    "__shfl_sync(1, (short)-32768, 0)": -32768.0,
    "sizeof(__shfl_sync(1, (short)1, 0))": 4.0,
    "__shfl_xor_sync(1, 1e300, 0)": 1e300,
    "__half2float(__shfl_down_sync(1, h, 0))": -1.5,
    "__match_any_sync(1, -0.0f)": 1.0,
    "__isCtaShared(&shared) + 2 * __isClusterShared(y)": 1.0,
    "of(uint64_t()) + 2 * of(0ul)": 1.0,
}  # fmt: skip


def test_the_values_of_overloads_are_those_that_cuda_defines() -> None:
    """Each expression compiles under NVRTC, too, which the thorough tests run."""
    lines = "".join(f"    y[{i}] = {e};\n" for i, e in enumerate(VALUES))
    text = f"""#include <cuda_fp16.h>
#include <cmath>
#include <cstdint>
__device__ int of(unsigned long long) {{ return 1; }}
__device__ int of(unsigned long) {{ return 0; }}
extern "C" __global__ void k(double* y) {{
    __shared__ int shared;
    shared = 0;
    int n = 0;
    const __half h = __float2half(-1.5f);
    __barrier_sync(0);
{lines}}}"""
    kernel, y = Kernel(text, "k", Threads(block=1)), np.zeros(len(VALUES))
    if toolchain.has_nvrtc():
        assert not compile_job(jobs_for([kernel], [90])[0]).error
    with cupyops.simulate(sanitize=True):
        kernel[1](y)
    found = dict(zip(VALUES, y.tolist(), strict=True))
    assert {e: v for e, v in found.items() if not (v == VALUES[e] or (v != v and VALUES[e] != VALUES[e]))} == {}
