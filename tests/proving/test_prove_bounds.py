"""Planted faults of bounds are found and shown, right kernels are proved, and what is not understood is not judged."""

import itertools
import re
from pathlib import Path

import pytest

import autograd_bridge  # noqa: F401  # makes the shipped kernels
from cupyops import Kernel, Threads
from cupyops.launch.kernel import all_kernels
from cupyops.proving.ptx import parse
from cupyops.proving.solver import Solver
from cupyops.proving.terms import TRUE, Space, all_of, at_most, equal
from cupyops.proving.words import Words
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
        (
            one("float** x, /* (n) */ float* y, /* (n) */ int n", I32 + "if (i < n) y[i] = *x[i];"),
            "not that of an array",
        ),
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


def listed() -> list[tuple[str, str, str]]:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- bounds: begin -->")[2].partition("<!-- bounds: end -->")[0]
    rows = re.findall(r"^\| (`.+?`) \| ([a-z ]+) \|(.*)\|$", table, re.MULTILINE)
    return [(name, answer, because) for names, answer, because in rows for name in re.findall(r"\w+", names)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "answer", "because"), listed())
def test_the_page_lists_what_is_judged(name: str, answer: str, because: str) -> None:
    found = ((k, next(iter(k.type_choices()))) for k in all_kernels() if k.name == name)
    kernel, types = min(found, key=lambda two: two[0].describe(two[1]))
    assume = re.findall("`([^`]+)`", because) if "its callers guarantee" in because else ()
    (proof,) = prove_bounds(kernel, types=types, assume=assume)
    assert proof.answer == answer, str(proof)


def test_an_unknown_that_no_condition_has_is_at_its_bound_next_to_0() -> None:
    space = Space()
    asked, *others = (space.fresh("n", *bounds) for bounds in ((1, 9), (-5, 9), (2, None), (None, -3), (None, None)))
    model = Solver(space).model([at_most(asked, 4)])
    assert model is not None
    assert [model.of(poly) for poly in others] == [0, 2, -3, 0]


def test_bounds_of_a_polynomial_hold_for_all_values_of_its_unknowns() -> None:
    space = Space()
    a, b = space.fresh("a", -3, 4), space.fresh("b", 1, 3)
    for of_a, of_b, of_both in itertools.product((-2, 0, 1), repeat=3):
        values = [of_a * x + of_b * y + of_both * x * y + 5 for x in range(-3, 5) for y in range(1, 4)]
        low, high = space.range_of(a * of_a + b * of_b + a * b * of_both + 5)
        assert low is not None
        assert high is not None
        assert low <= min(values) <= max(values) <= high
        if [of_a, of_b, of_both].count(0) >= 2:
            assert (low, high) == (min(values), max(values))


def test_a_division_excludes_no_execution() -> None:
    """By 0 it gives any number: what the proof assumes of a quotient may not say that the divisor is another."""
    space = Space()
    solver = Solver(space)
    a, b = space.fresh("a", 0, 9), space.fresh("b", 0, 3)
    quotient, rest = Words(space, solver).divided(a, b, TRUE, signed=False) or (None, None)
    assert quotient is not None
    assert rest is not None
    for divisor in range(4):
        for got in (quotient, rest):
            assert solver.model([equal(b, divisor), equal(a, 7), at_most(got, 9)]) is not None
    assert solver.implies(all_of(equal(a, 7), equal(b, 3)), equal(quotient, 2))
    assert solver.implies(all_of(equal(a, 7), equal(b, 3)), equal(rest, 1))
