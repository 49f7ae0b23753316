"""LayerNorm's benchmark cases: what is measured, operands that belong together, and sums that are judged as sums."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import layer_norm
from benchmarks.cases import Case, Operand, WrongResult, check, device_cases, host_cases, tolerance
from benchmarks.measure import check_call, measure_device

CPU = torch.device("cpu")
PEERS = {"ours", "eager", "compile", "triton", "extension"}
# 768 is a length at which everything is measured: 4 rows, and 1.
SMALL = [*device_cases("layer_norm", (4 * 768,), (12, 768), full=True), *host_cases("layer_norm")]


def one_case(variant: str, direction: str, dtype: str = "float32", shape: tuple[int, ...] = (256, 12)) -> Case:
    for case in SMALL:
        if (case.variant, case.direction, case.dtype, case.shape) == (variant, direction, dtype, shape):
            return case
    raise LookupError(f"no case {variant}, {direction}, {dtype}, {shape}")


def drawn(case: Case) -> tuple[Tensor, ...]:
    return case.inputs(torch.Generator().manual_seed(0))


def by_title(cases: Sequence[Case]) -> list[Any]:
    return [pytest.param(case, id=case.title.removeprefix("layer_norm ").replace(" ", "")) for case in cases]


@pytest.mark.parametrize("case", by_title(SMALL))
def test_ours_agrees_with_the_reference(case: Case) -> None:
    inputs = drawn(case)
    call = case.bind(case.implementations["ours"](), inputs)
    assert check_call(case, call, case.expected(inputs), CPU) <= 6.0


# On a CPU PyTorch keeps the statistics of 16-bit rows in 16 bits, and its backward takes no others.
@pytest.mark.parametrize(
    "case", by_title([case for case in SMALL if case.direction != "backward" or case.dtype == "float32"])
)
def test_eager_agrees_with_the_reference(case: Case) -> None:
    inputs = drawn(case)
    call = case.bind(case.implementations["eager"](), inputs)
    assert check_call(case, call, case.expected(inputs), CPU) <= 6.0


def test_the_backwards_reference_is_the_gradient_of_the_forwards() -> None:
    case = one_case("affine", "backward")
    grad_y, x, _, weight = (operand.double() for operand in drawn(case))
    bias = torch.zeros_like(weight)
    leaves = [operand.requires_grad_() for operand in (x, weight, bias)]
    right = torch.autograd.grad(F.layer_norm(x, (12,), weight, bias, layer_norm.EPS), leaves, grad_y)
    variance, mean = torch.var_mean(x.detach(), -1, correction=0, keepdim=True)
    stats = torch.stack([mean, torch.rsqrt(variance + layer_norm.EPS)])
    found = layer_norm.backward_reference(grad_y, x.detach(), stats, weight.detach())
    for mine, autograds in zip(found, right, strict=True):
        torch.testing.assert_close(mine, autograds, rtol=1e-12, atol=1e-12)


def test_references_in_chunks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for direction in ("forward", "backward"):
        case = one_case("affine", direction)
        inputs = drawn(case)
        whole = case.expected(inputs)
        with monkeypatch.context() as patch:
            patch.setattr(layer_norm, "CHUNK", 7 * 12)  # 256 rows: the last chunk is shorter
            for parts, at_once in zip(case.expected(inputs), whole, strict=True):
                torch.testing.assert_close(parts, at_once, rtol=1e-12, atol=1e-12)


def test_statistics_are_those_of_the_rows_drawn() -> None:
    grad_y, x, stats, weight = drawn(one_case("affine", "backward", "bfloat16"))
    assert (stats.shape, stats.dtype) == ((2, 256, 1), torch.float32)
    torch.testing.assert_close(stats[0], x.float().mean(1, keepdim=True), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stats[1], (x.float().var(1, correction=0, keepdim=True) + 1e-5).rsqrt())
    # Far from the values that would hide an operand that is forgotten.
    assert x.float().mean() > 0.8
    assert weight.float().std() > 0.05
    assert abs(grad_y.float().mean()) < 0.2


@pytest.mark.parametrize(
    ("variant", "direction", "dtype", "values"),
    [
        ("affine", "forward", "float32", 2 * 3072 + 2 * 12),
        ("no weight", "forward", "bfloat16", 2 * 3072),
        ("add_layer_norm", "forward", "float32", 4 * 3072 + 2 * 12),
        ("affine", "backward", "bfloat16", 3 * 3072 + 3 * 12),
        ("no weight", "backward", "float32", 3 * 3072),
        ("add_layer_norm", "backward", "float16", 4 * 3072 + 3 * 12),
    ],
)
def test_bytes_leave_the_statistics_out(variant: str, direction: str, dtype: str, values: int) -> None:
    case = one_case(variant, direction, dtype)
    assert case.nbytes == values * (4 if dtype == "float32" else 2)
    assert case.dtype == dtype


def test_cases_cover_what_is_claimed() -> None:
    cases = [*device_cases("layer_norm")]
    labels = [json.dumps(case.labels()) for case in cases]
    assert len(set(labels)) == len(labels)
    assert {case.direction for case in cases} == {"forward", "backward", "tangent"}
    for case in cases:
        if case.direction == "tangent":
            assert set(case.implementations) == {"ours", "eager", "compile"}
            continue
        assert set(case.implementations) >= PEERS
        assert ("liger" in case.implementations) == (case.variant == "affine" and case.shape[1] <= 65536)
    for direction in ("forward", "backward"):
        for dtype in ("float32", "bfloat16"):
            shapes = {c.shape for c in cases if (c.variant, c.direction, c.dtype) == ("affine", direction, dtype)}
            assert shapes >= {(2**28 // n, n) for n in layer_norm.ROW_LENGTHS}
            assert shapes >= {(m, n) for m in (1, 8, 64, 512) for n in (768, 1024, 4096, 8192)}
    everything = {json.dumps(case.labels()) for case in device_cases("layer_norm", full=True)}
    assert everything > set(labels)
    for variant in ("affine", "no weight"):
        for dtype in ("float32", "bfloat16", "float16"):
            case = replace(cases[0], variant=variant, results=(Operand((4096, 65536), getattr(torch, dtype)),))
            assert json.dumps({**case.labels(), "dtype": dtype}) in everything
    assert [case.direction for case in host_cases("layer_norm")] == [
        "forward",
        "forward, recording",
        "forward and backward",
    ]


def test_row_lengths_are_those_asked_for() -> None:
    shapes = [case.shape for case in device_cases("layer_norm", (2**10, 2**20), (4096, 64))]
    assert shapes[0] == (2**14, 64)
    assert set(shapes) == {(2**14, 64), *((m, 4096) for m in (1, 8, 64, 256))}


# What is wrong


def changed(direction: str, change: Callable[..., Any]) -> tuple[Case, Callable[[], Any], Any]:
    case = one_case("affine", direction)
    inputs = drawn(case)
    function = case.implementations["ours"]()
    return case, lambda: change(function, *inputs), case.expected(inputs)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f, x, w, b: f(x + 100 * x.mean(), w, b), id="cancellation"),
        pytest.param(lambda f, x, w, b: f(x, None, None), id="no weight"),
        pytest.param(lambda f, x, w, b: f(x, w, torch.zeros_like(b)), id="no bias"),
        pytest.param(lambda f, x, w, b: x * x.var(1, correction=0, keepdim=True).rsqrt() * w + b, id="mean left"),
        pytest.param(lambda f, x, w, b: f(x, w, b) * (11 / 12) ** 0.5, id="variance over N - 1"),
    ],
)
def test_a_wrong_forward_is_found(change: Callable[..., Any]) -> None:
    case, call, expected = changed("forward", change)
    with pytest.raises(WrongResult, match="eps of torch.float32"):
        check_call(case, call, expected, CPU)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f, g, x, s, w: f(g, x, s, torch.ones_like(w)), id="weight forgotten"),
        pytest.param(lambda f, g, x, s, w: f(g, x, s.flip(0), w), id="statistics exchanged"),
        pytest.param(lambda f, g, x, s, w: (f(g, x, s, w)[0], *f(g, x, s, w)[:0:-1]), id="gradients exchanged"),
        pytest.param(lambda f, g, x, s, w: (f(g, x, s, w)[0], *f(g[1:], x[1:], s[:, 1:], w)[1:]), id="a row left out"),
        pytest.param(lambda f, g, x, s, w: f(g, x, s, w)[:1], id="grad_x alone"),
    ],
)
def test_a_wrong_backward_is_found(change: Callable[..., Any]) -> None:
    case, call, expected = changed("backward", change)
    with pytest.raises(WrongResult):
        check_call(case, call, expected, CPU)


def test_a_sum_is_allowed_the_rounding_of_its_terms_and_no_missing_row() -> None:
    m = 2**22
    assert tolerance(Operand((8,), torch.float32)) == 64.0
    allowed = tolerance(Operand((8,), torch.float32, terms=m))
    assert allowed == 64.0 + math.sqrt(m)
    # One row of so many is 1/√M of the result's mean size.
    assert allowed * torch.finfo(torch.float32).eps < 0.6 / math.sqrt(m)
    # The final rounding to 16 bits hides it.
    assert tolerance(Operand((8,), torch.bfloat16, terms=m)) == pytest.approx(2.0, abs=0.04)
    assert tolerance(Operand((8,), torch.float64, terms=m)) == 64.0 + math.sqrt(m)


def test_a_running_sum_in_float32_is_within_what_is_allowed() -> None:
    m = 2**16
    case = replace(one_case("affine", "forward"), results=(Operand((16,), torch.float32, terms=m),))
    terms = torch.randn(m, 16, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(16)
    for term in terms.numpy():
        total += torch.from_numpy(term)
    expected = terms.double().sum(0)
    assert 1.0 < check(case, total, (expected,)) < math.sqrt(m) / 4
    with pytest.raises(WrongResult):
        check(case, total - terms[terms[:, 0].abs().argmax()], (expected,))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [768, 1000])
@pytest.mark.parametrize(
    "names", [("ours", "eager", "triton", "liger"), ("ours", "compile", "extension")], ids="/".join
)
def test_every_variant_is_right_and_timed_on_a_gpu(names: tuple[str, ...], n: int) -> None:
    cases = device_cases("layer_norm", (2**14,), (n,), full=True)
    findings = measure_device(cases, torch.device("cuda"), 1000.0, names, rounds=2, echo=lambda line: None)
    assert not findings.failed
    assert {row["timer"] for row in findings.rows} == {"graph"}
