"""A text takes the branches and has the values in the simulator that it has under NVRTC."""

import re

import numpy as np
import pytest

import cupyops
from cupyops import CompileError, Kernel
from cupyops.compile.compiler import OPTIONS, compile_text

pytestmark = pytest.mark.simulator


def test_what_the_hosts_compiler_refuses_and_nvrtc_takes_has_the_values_of_a_gpu() -> None:
    """Braces that narrow, and functions of the text with names of <math.h>; also as a macro, and of a header."""
    text = """#include "own.h"
#define scalb(x) ((x) * 8)
__device__ float gamma(float x) { return x + 1; }
__global__ void k(float* y, int n) {
    int x[3] = {1.5f};
    unsigned u{-1};
    char c{300};
    float f[2] = {n, 2.5};
    y[0] = x[0], y[1] = u == 0xffffffffu, y[2] = c, y[3] = f[0], y[4] = gamma(2), y[5] = drem(3), y[6] = scalb(2);
}"""
    headers = {"own.h": "__device__ float drem(float x) { return x / 2; }"}
    y, kernel = np.zeros(8, np.float32), Kernel(text, "k", 1, headers=headers)
    with cupyops.simulate():
        kernel[1](y, 7)
    assert y.tolist() == [1, 1, 44, 7, 3, 1.5, 16, 0]
    pytest.importorskip("cupy")
    compile_text(kernel.final_text({}), "k", "sm_90", OPTIONS)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        *(("<stdio.h>", False), ("<vector>", False), ("<unistd.h>", False), ("<cmath>", False), ("<version>", False)),
        *(
            ('"own.h"', True),
            ("<own.h>", True),
            ('"other.h"', False),
            ("<cuda_bf16.h>", True),
            ("<cub/cub.cuh>", False),
        ),
        *(("<mma.h>", True), ("<cuda/std/atomic>", False)),
    ],
)
def test_a_question_for_a_header_has_nvrtcs_answer(asked: str, there: bool) -> None:
    text = f"""#include <cuda_fp16.h>
#if __has_include({asked})
#define ANSWER 1
#else
#define ANSWER 2
#endif
__global__ void k(int* y) {{ y[0] = ANSWER; }}"""
    y, kernel = np.zeros(1, np.int32), Kernel(text, "k", 1, headers={"own.h": ""})
    with cupyops.simulate():
        kernel[1](y)
    assert y[0] == (1 if there else 2)
    pytest.importorskip("cupy")
    found = compile_text(kernel.final_text({}), "k", "compute_90", OPTIONS[:1]).code.decode()
    assert re.search(rf"mov\.\w+\s*%r\d+, {y[0]};", found), found


@pytest.mark.parametrize(
    "body",
    [
        "if (n > 5) goto end; int z = n; y[0] = z; end: y[1] = 1;",
        "switch (n) { case 0: int z = 3; y[0] = z; break; case 1: y[0] = 2; }",
    ],
)
def test_a_jump_past_an_initializer_is_refused_with_its_line(body: str) -> None:
    """NVRTC takes it. g++ and clang cannot."""
    with (
        cupyops.simulate(),
        pytest.raises(CompileError, match=r"k\.cu:1: error: (?:jump to|cannot jump).*[\s\S]*NVRTC|not installed"),
    ):
        Kernel(f"__global__ void k(int* y, int n) {{ {body} }}", "k", 1)[1](np.zeros(2, np.int32), 7)
