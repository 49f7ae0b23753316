"""Planted faults of bounds are found and shown, right kernels are proved, and what is not understood is not judged."""

import re
from pathlib import Path

import pytest

import autograd_bridge  # noqa: F401  # makes the shipped kernels
from cupyops import Kernel, Threads
from cupyops.launch.kernel import all_kernels
from cupyops.proving.ptx import parse
from cupyops.testing import prove_bounds

from .kernels import BROKEN, I32, I64, RIGHT, XY, Case

pytest.importorskip("z3")
pytest.importorskip("cupy")
pytestmark = pytest.mark.simulator
SLOW = ("grid-stride loop to the end", "loop over a row to the end", "sums of rows", "pairs of even rows")
PAGE = Path(__file__).parents[2] / "docs" / "checking.md"


def cases(given: tuple[Case, ...]) -> list[object]:
    return [pytest.param(c, id=c.name, marks=pytest.mark.thorough if c.name in SLOW else ()) for c in given]


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", cases(BROKEN))
def test_a_planted_fault_is_shown_by_a_launch_that_the_simulator_breaks(case: Case) -> None:
    (proof,) = prove_bounds(case.kernel, assume=case.assume)
    assert proof.answer == "broken", str(proof)
    assert proof.fault is not None
    assert re.search("out of bounds|misaligned|belongs to no array", proof.fault.message)


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", cases(RIGHT))
def test_a_right_kernel_is_inside_for_all_sizes(case: Case) -> None:
    found = prove_bounds(case.kernel, assume=case.assume)
    assert found.inside, str(found)


def one(parameters: str, body: str) -> Kernel:
    return Case("", parameters, body, Threads("n")).kernel


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (one("const float* x, float* y, /* (n) */ long long n", I64 + "if (i < n) y[i] = x[i];"), "the size of `x`"),
        pytest.param(
            one(
                "float4* y, /* (n) */ int n",
                I32 + "__shared__ float t[256]; t[threadIdx.x] = i; __syncthreads();\n"
                "if (i < n) y[i] = *(float4*)(t + 4 * (threadIdx.x / 4));",
            ),
            "a multiple of 16",
            marks=pytest.mark.thorough,  # z3 thinks for three seconds
        ),
        (one("float** x, /* (n) */ float* y, /* (n) */ int n", I32 + "if (i < n) y[i] = *x[i];"), "no array's"),
        (
            one(
                "float* y, /* (n) */ int n",
                I32 + 'if (i < n) { asm volatile("prefetchu.L1 [%0];" :: "l"(y)); y[i] = 0; }',
            ),
            "prefetchu",
        ),
    ],
    ids=["a view", "a vector of shared numbers", "a pointer from memory", "an instruction that is not known"],
)
def test_what_is_not_understood_is_not_judged(kernel: Kernel, why: str) -> None:
    (proof,) = prove_bounds(kernel)
    assert proof.answer == "not judged"
    assert why in proof.why
    assert proof.line.startswith("k.cu:")


def test_an_assumption_is_used() -> None:
    kernel = one(XY, I64 + "if (i + 3 < n) y[i] = x[i]; else if (i < n) y[i] = x[n - 4];")
    assert prove_bounds(kernel, assume="n >= 4").inside
    (proof,) = prove_bounds(kernel)
    assert proof.fault is not None
    assert proof.fault.sizes["n"] < 4


def test_an_assumption_that_no_launch_meets_proves_nothing() -> None:
    (proof,) = prove_bounds(one(XY, I64 + "y[i] = x[i];"), assume=("n >= 4", "n < 4"))
    assert proof.answer == "not judged"


def test_a_label_of_inline_assembly_is_that_of_its_braces() -> None:
    program = parse(
        ".visible .entry k() { .reg .pred %p<2>;\n"
        "{ again: setp.eq.u32 %p1, 1, 2; @%p1 bra again; }\n{ again: setp.eq.u32 %p1, 3, 4; @%p1 bra again; } ret; }"
    )
    blocks = program.functions["k"].blocks
    targets = [program.functions["k"].labels[i.operands[0]] for b in blocks for i in b if i.opcode == ("bra",)]
    assert [blocks[t][0].operands[1] for t in targets] == ["1", "3"]


def test_wrong_arguments_are_named() -> None:
    kernel = one(XY, I64 + "if (i < n) y[i] = x[i];")
    with pytest.raises(TypeError, match="prove_bounds: `kernel` must be a Kernel, got str"):
        prove_bounds("scale")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`assume` must have integer parameters of k, got `m`"):
        prove_bounds(kernel, assume="m > 1")
    with pytest.raises(ValueError, match="`assume` must be comparisons of size expressions"):
        prove_bounds(kernel, assume="n + 1")
    with pytest.raises(ValueError, match="leave out `geometry`"):
        prove_bounds(kernel, geometry=Threads("n"))


def listed() -> list[tuple[str, str]]:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- bounds: begin -->")[2].partition("<!-- bounds: end -->")[0]
    return re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", table, re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "answer"), listed())
def test_the_page_lists_what_is_judged(name: str, answer: str) -> None:
    found = ((k, next(iter(k.type_choices()))) for k in all_kernels() if k.name == name)
    kernel, types = min(found, key=lambda two: two[0].describe(two[1]))
    (proof,) = prove_bounds(kernel, types=types)
    assert proof.answer == answer, str(proof)
