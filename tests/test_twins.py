"""PTX in the shared headers and its twins for the simulator give the same values."""

import re

import numpy as np
import pytest
import torch

import cupyops
import kernels_cu
from cupyops import Kernel, Threads
from cupyops.kernel import all_kernels

TWINS = ("fast_exp2", "fast_reciprocal")
# These compute no value: they move data and wait for it. What is made of the data is compared by the operators that use
# them, whose results are held to the same float64 in every lane.
MOVERS = {
    *("arrival_init", "arrival_wait", "arrive", "arrive_expecting"),
    *("bulk_load", "reads_before_copies", "send", "shared_address_in"),
}
TEXT = """
#include "fast_math.cuh"
extern "C" __global__ void twin(
    const float* x,  // (n)
    float* y,        // (n)
    long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = FUNCTION == 0 ? fast_exp2(x[i]) : fast_reciprocal(x[i]);
}
"""


def kernel(function: str) -> Kernel:
    return Kernel(TEXT, "twin", Threads("n"), dtypes=("float32",), constants={"FUNCTION": TWINS.index(function)})


def numbers() -> np.ndarray:
    """Every exponent with both signs and several significands, what exp2 is asked for, and what is special."""
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-152, 130, 40_001, dtype=np.float32)
    tiny = np.float32(
        [0, -0.0, 1e-45, -1e-45, 1.17549421e-38, 1.17549435e-38, -1.17549435e-38, 8.5e37, 8.51e37, 1.7e38, 3.4e38]
    )
    special = np.float32([np.inf, -np.inf, np.nan, -126, -126.00001, -127, 127.99999, 128])
    return np.concatenate([bits, near, tiny, special])


def simulated(function: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    with cupyops.simulate(sanitize=True):
        kernel(function)(x, y, x.size)
    return y


def assert_twins(x: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Within 2^-22 of each other, and of one kind: NaN, infinite with a sign, zero with a sign, or normal."""
    for kind in (np.isnan, np.isposinf, np.isneginf, lambda v: v == 0):
        differ = kind(ours) != kind(theirs)
        # Where one of them falls just below the smallest normal number it is flushed, and the other one may not be.
        edge = np.maximum(np.abs(ours), np.abs(theirs)) <= 1.1754945e-38
        assert not (differ & ~edge).any(), x[differ & ~edge][:5]
    assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(ours)].all()
    finite = np.isfinite(ours) & (ours != 0) & (theirs != 0)
    error = np.abs(ours[finite].astype(np.float64) / theirs[finite] - 1)
    assert error.max() <= 2.0**-22, (x[finite][error.argmax()], error.max())


# Of matrix units and of the hardware that feeds them, which the simulator does not have: for kernels of one generation alone.
WITHOUT_TWINS = "wgmma.cuh"


def test_what_has_no_twins_is_included_by_kernels_of_one_generation_alone() -> None:
    shipped = [k for k in all_kernels() if any(k.text is kernels_cu.source(n) for n in kernels_cu.names())]
    using = {k.name for k in shipped if f'"{WITHOUT_TWINS}"' in k.text}
    assert using == {k.name for k in shipped if k.exactly} == {"hopper_linear"}


def test_every_instruction_of_the_headers_is_compared() -> None:
    functions = []
    for name, header in kernels_cu.headers().items():
        if name == WITHOUT_TWINS:
            continue
        code = re.sub(r"//.*", "", header)
        for match in re.finditer(r"\basm\b", code):
            functions += re.findall(r"__device__[^;{}]*?(\w+)\([^;{}]*\) \{", code[: match.start()])[-1:]
    assert set(functions) == {*TWINS, *MOVERS}
    for name in TWINS:
        assert sum(len(re.findall(rf"\b{name}\(float x\) \{{", h)) for h in kernels_cu.headers().values()) == 2, name


@pytest.mark.simulator
@pytest.mark.parametrize("function", TWINS)
def test_twins_are_the_function_that_flushes(function: str) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        exact = np.exp2(x.astype(np.float64)) if function == "fast_exp2" else 1 / x.astype(np.float64)
        flushed = np.where((np.abs(exact) < 1.17549435e-38) & (exact != 0), np.copysign(0, exact), exact)
        if function == "fast_reciprocal":
            flushed = np.where((np.abs(x) < 1.17549435e-38), np.copysign(np.inf, x), flushed)
        assert_twins(x, simulated(function, x), flushed.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.simulator
@pytest.mark.parametrize("function", TWINS)
def test_twins_have_the_values_of_the_gpu(function: str) -> None:
    x = numbers()
    on_gpu = torch.from_numpy(x).cuda()
    y = torch.empty_like(on_gpu)
    kernel(function)(on_gpu, y, on_gpu.numel())
    assert_twins(x, simulated(function, x), y.cpu().numpy())
