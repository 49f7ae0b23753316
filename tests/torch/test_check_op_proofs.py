"""`check_op(..., prove=True)` finds what no sample shows: an access out of bounds at other sizes."""

import pytest
import torch
from torch import Tensor

from cupyops import Kernel, Threads
from cupyops.torch import Operator, check_op

pytest.importorskip("z3")
pytest.importorskip("cupy")
pytestmark = pytest.mark.simulator

HEAD = 'extern "C" __global__ void twice(const float* x, /* (n) */ float* y, /* (n) */ long long n)'
WIDE = "const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
NARROW = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
PAIRS = "if (2 * i < n) { y[2 * i] = 2 * x[2 * i]; y[2 * i + 1] = 2 * x[2 * i + 1]; }"


def operator(name: str, body: str, per_call: bool = False) -> Operator:
    kernel = Kernel(f"{HEAD} {{ {body} }}", "twice", None if per_call else Threads("n"), dtypes="float32")

    def twice(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        (kernel[x.numel()] if per_call else kernel)(x, y, x.numel())
        return y

    return Operator(f"proved::{name}(Tensor x) -> Tensor", twice, reference=lambda x: 2 * x)


SAMPLE = (torch.randn(6, 10),)


def test_a_fault_at_sizes_that_no_sample_has_is_found() -> None:
    op = operator("narrow", f"{NARROW} if (i < n) y[i] = 2 * x[i];")
    report = check_op(op, SAMPLE, checks=["sanitizer", "values"], backends=["simulator"], prove=True, raises=False)
    assert [row.check for row in report.passed] == ["sanitizer", "values"]
    (row,) = report.failed
    assert row.check == "bounds"
    assert "twice" in row.words
    assert "broken at" in row.words
    assert "n=" in row.words


def test_a_right_kernel_is_inside_and_the_report_says_so() -> None:
    op = operator("wide", f"{WIDE} if (i < n) y[i] = 2 * x[i];")
    report = check_op(op, SAMPLE, checks="bounds", backends=["simulator"])
    (row,) = report.passed
    assert row.words.startswith("1 kernels inside for all sizes")


def test_what_the_body_guarantees_is_a_condition() -> None:
    op = operator("pairs", f"{WIDE} {PAIRS}")
    assert check_op(op, SAMPLE, checks=[], backends=["simulator"], prove=True, raises=False).failed
    report = check_op(op, SAMPLE, checks=[], backends=["simulator"], prove=("n % 2 == 0", "other > 1"))
    assert [row.check for row in report.passed] == ["bounds"]


def test_a_grid_of_the_call_is_not_judged() -> None:
    op = operator("per_call", f"{WIDE} if (i < n) y[i] = 2 * x[i];", per_call=True)
    (row,) = check_op(op, SAMPLE, checks="bounds", backends=["simulator"]).skipped
    assert "twice gets its grid from each call" in row.words
