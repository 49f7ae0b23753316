"""linear's benchmark cases: what is measured, and results that are judged as sums of products."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import linear
from benchmarks.cases import Case, WrongResult, check, device_cases, host_cases, tolerance
from benchmarks.measure import check_call, measure_device
from benchmarks.plots import largest

CPU = torch.device("cpu")
DIRECTIONS = ("forward", "backward", "forward and backward")


def small() -> list[Case]:
    found = [case for p in ((6, 5, 4), (40, 1, 30)) for case in _cases_of(*p)]
    return [*found, *host_cases("linear")]


def _cases_of(m: int, n: int, k: int) -> list[Case]:
    products = [
        linear.Product(m, n, k, dtype, gelu=gelu)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for gelu in (False, True)
    ]
    return [case for product in products for case in linear._each(product)]


def by_title(cases: Sequence[Case]) -> list[Any]:
    return [pytest.param(case, id=case.title.removeprefix("linear ").replace(" ", "")) for case in cases]


@pytest.mark.parametrize("case", by_title(small()))
@pytest.mark.parametrize("name", ["ours", "eager"])
def test_the_implementations_agree_with_the_reference(case: Case, name: str) -> None:
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.bind(case.implementations[name](), inputs)
    assert check_call(case, call, case.expected(inputs), CPU) <= 16.0


def test_the_backwards_reference_is_the_gradient_of_the_forwards() -> None:
    for gelu in (False, True):
        x, weight, bias, grad_y = (torch.randn(s, dtype=torch.float64) for s in ((6, 4), (5, 4), (5,), (6, 5)))
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        right = torch.autograd.grad(linear.reference(gelu, *leaves), leaves, grad_y)
        for mine, autograds in zip(
            linear.both_reference(gelu, torch.float64, *(t.detach() for t in leaves), grad_y), right, strict=True
        ):
            torch.testing.assert_close(mine, autograds, rtol=1e-12, atol=1e-12)


def test_cases_cover_what_is_claimed() -> None:
    cases = [*device_cases("linear")]
    labels = [json.dumps(case.labels()) for case in cases]
    assert len(set(labels)) == len(labels)
    for case in cases:
        assert set(case.implementations) == {"ours", "eager", "compile"}
    for m, n, k in linear.SHAPES:
        for variant in (f"K={k}", f"gelu, K={k}", f"K={k}, TF32", f"gelu, K={k}, TF32"):
            mine = [c for c in cases if c.variant == variant and {x.shape for x in c.operands} >= {(m, k), (n, k)}]
            assert {c.direction for c in mine} == set(DIRECTIONS)
            assert {c.dtype for c in mine} == ({"float32"} if "TF32" in variant else {"float32", "bfloat16", "float16"})
    assert {c.shape for c in device_cases("linear", (2**12,)) if c.direction == "forward"} == {(1, 4096), (1, 1)}
    calls = [(case.variant, case.direction) for case in host_cases("linear")]
    directions = ("forward", "forward, recording", "forward and backward")
    assert calls == [(v, d) for v in ("K=128", "gelu, K=128") for d in directions]


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_wrong_result_has_no_row(direction: str, gelu: bool) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        product = linear.Product(64, 16, 64, dtype, gelu=gelu)
        case = next(c for c in linear._each(product) if c.direction == direction)
        inputs = case.inputs(torch.Generator().manual_seed(0))
        expected = case.expected(inputs)
        right = tuple(e.to(r.dtype) for e, r in zip(expected, case.results, strict=True))
        check(case, right, expected)
        for i in range(len(right)):
            # One term of a sum left out: a share of 1/√(its terms).
            wrong = [t.clone() for t in right]
            wrong[i] += wrong[i].double().square().mean().sqrt().to(wrong[i].dtype) / 8
            with pytest.raises(WrongResult, match="eps of"):
                check(case, tuple(wrong), expected)


def test_gradients_behind_gelu_are_allowed_the_rounding_of_their_terms_and_nothing_else_is() -> None:
    for product in (linear.Product(4, 8, 8, torch.bfloat16, tf32=tf32, gelu=True) for tf32 in (False, True)):
        for mine, plain in zip(linear._each(product), linear._each(replace(product, gelu=False)), strict=True):
            times = 1 if mine.direction == "forward" else 2
            for result, other in zip(mine.results, plain.results, strict=True):
                assert tolerance(result) == times * tolerance(other)
    # Among millions of sums of four rounded terms, one is further off than a single rounding explains.
    product, worst = linear.Product(4, 1024, 1024, torch.bfloat16, gelu=True), 0.0
    case = next(c for c in linear._each(product) if c.direction == "backward")
    generator = torch.Generator().manual_seed(0)  # versions of PyTorch draw different numbers
    for _ in range(16):
        grad_y, z, x, weight = (t.double() for t in case.inputs(generator))
        expected = linear.backward_reference(True, grad_y, z, x, weight)
        slope = torch.autograd.functional.jvp(linear.exact_gelu, z, torch.ones_like(z))[1]
        terms = (grad_y * slope).bfloat16().double()
        found = tuple(t.bfloat16() for t in linear.backward_reference(False, terms, x, weight))
        worst = max(worst, check(case, found, expected))
    assert worst > max(tolerance(replace(result, rounded_terms=False)) for result in case.results)


def test_tf32_is_judged_by_its_own_roundings_and_leaves_the_mode_as_it_was() -> None:
    product = linear.Product(64, 32, 256, torch.float32)
    plain, fast = (next(linear._each(replace(product, tf32=tf32))) for tf32 in (False, True))
    assert tolerance(plain.results[0]) < 100
    assert 1e5 < tolerance(fast.results[0]) < 2e5  # of 2^-23: about 1 in 64, where one term of 256 is 1 in 16
    seen: list[bool] = []

    def spy(*inputs: Tensor) -> Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return inputs[0]

    before = torch.backends.cuda.matmul.allow_tf32
    linear._in_tf32(lambda: spy)(torch.ones(1))
    assert seen == [True]
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_rows_are_measured_and_the_readme_shows_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        name = "clock"
        outputs: tuple[Tensor, ...] = ()

        def calibrate(self) -> None:
            pass

        def sample(self) -> float:
            return 2.0

    from benchmarks import measure

    monkeypatch.setattr(measure, "_device_timer", lambda *_: Clock())
    monkeypatch.setattr(measure, "_memory_lacking", lambda *_: "")
    monkeypatch.setattr(measure, "l2_bytes", lambda _: 2**10)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    findings = measure_device(_cases_of(6, 5, 4)[:12], CPU, 1000.0, ("ours", "eager"), rounds=1, echo=lambda _: None)
    assert not findings.failed
    assert {row["dtype"] for row in largest(findings.rows)} == {"bfloat16"}
    assert len(largest(findings.rows)) == 2 * 6
