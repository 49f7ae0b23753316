"""The benchmarks' own parts: statistics, cases, checking of results, results file, plots, tables, command line."""

import gc
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import results_file
from benchmarks.cases import (
    OPERATORS,
    PRODUCTS,
    ROWWISE,
    Case,
    Choice,
    WrongResult,
    check,
    device_cases,
    error_in_eps,
    host_cases,
)
from benchmarks.measure import check_call, measure_device, measure_host
from benchmarks.peers import BuildFailed, Unavailable, extension, liger_kernels
from cupyops.torch.bench.timing import gigabytes_per_second, interleave, rotation, spread
from tests import preloaded

CPU = torch.device("cpu")
SIZES = (16, 64)
ELEMENTWISE = tuple(op for op in OPERATORS if op not in (*ROWWISE, *PRODUCTS))
PEERS = {"ours", "eager", "compile", "triton", "extension"}


def all_cases() -> list[Any]:
    cases = [case for op in ELEMENTWISE for case in (*device_cases(op, SIZES), *host_cases(op))]
    return [pytest.param(c, id=f"{c.op}-{c.variant}-{c.direction}-{c.dtype}-{c.shape}".replace(" ", "")) for c in cases]


def one_case(op: str, direction: str, dtype: str = "float32", variant: str | None = None) -> Case:
    for case in (*device_cases(op, SIZES), *device_cases(op, (2**24,)), *host_cases(op)):
        if (case.direction, case.dtype) == (direction, dtype) and variant in (None, case.variant):
            return case
    raise LookupError(f"{op} has no case {direction}, {dtype}, {variant}")


# Statistics


def test_percentiles_interpolate_between_samples() -> None:
    found = spread([40.0, 10.0, 30.0, 20.0, 50.0])
    assert (found.median, found.p10, found.p90, found.samples) == pytest.approx((30.0, 14.0, 46.0, 5))


def test_one_sample_is_its_own_spread() -> None:
    found = spread([7.0])
    assert (found.median, found.p10, found.p90) == (7.0, 7.0, 7.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        spread([])


def test_bandwidth_is_in_units_of_a_thousand_million_bytes_a_second() -> None:
    assert gigabytes_per_second(8_000_000_000, 2000.0) == pytest.approx(4000.0)


@pytest.mark.parametrize(("nbytes", "sets"), [(12, 512), (2**20, 240), (2**24, 15), (2**33, 2)])
def test_a_rotation_outgrows_the_cache_within_limits(nbytes: int, sets: int) -> None:
    assert rotation(nbytes, 60 * 2**20) == sets


def test_timers_take_turns_and_the_collector_comes_back() -> None:
    order: list[str] = []

    class Recording:
        name = "recording"

        def __init__(self, label: str) -> None:
            self.label = label

        def calibrate(self) -> None:
            raise AssertionError("interleave only samples")

        def sample(self) -> float:
            assert not gc.isenabled()
            order.append(self.label)
            return float(len(order))

    found = interleave({"a": Recording("a"), "b": Recording("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert (found["a"].median, found["b"].median) == (4.0, 3.0)
    assert gc.isenabled()


# Cases


@pytest.mark.parametrize(
    ("op", "direction", "dtype", "variant", "nbytes"),
    [
        ("add2", "forward", "float32", "one shape", 3 * 16 * 4),
        ("add2", "forward", "float16", "one shape", 3 * 16 * 2),
        ("add2", "forward", "bfloat16+float32", "one shape", 64 * (2 + 4 + 4)),
        ("add2", "forward", "float32", "(M, N) + (N,)", (64 + 8 + 64) * 4),
        ("add2", "forward", "float32", "(M, N) + (M, 1)", (64 + 8 + 64) * 4),
        ("add2", "backward", "float32", "one shape", 3 * 2**24 * 4),
        ("gelu", "forward", "bfloat16", "none", 2 * 16 * 2),
        ("gelu", "backward", "float32", "tanh", 3 * 16 * 4),
    ],
)
def test_bytes_count_every_read_and_write_once(op: str, direction: str, dtype: str, variant: str, nbytes: int) -> None:
    assert one_case(op, direction, dtype, variant).nbytes == nbytes


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_cases_cover_what_is_claimed(op: str) -> None:
    cases = [*device_cases(op, (16, 64, 2**24))]
    wanted = {"forward", "backward", "tangent"} if op == "gelu" else {"forward", "backward"}
    assert {case.direction for case in cases} == wanted
    assert {case.dtype for case in cases} >= {"float32", "bfloat16", "float16", "float64"}
    assert {case.shape for case in cases if case.dtype == "float64"} == {(2**24,)}
    labels = [json.dumps(case.labels()) for case in cases]
    assert len(set(labels)) == len(labels)
    for case in (*cases, *host_cases(op)):
        # PyTorch's extensions and Triton's examples have no tangents.
        assert set(case.implementations) >= ({"ours", "eager", "compile"} if case.direction == "tangent" else PEERS)
    assert [case.direction for case in host_cases(op)] == ["forward", "forward, recording", "forward and backward"]


@pytest.mark.sample(60)
@pytest.mark.parametrize("case", all_cases())
@pytest.mark.parametrize("name", ["ours", "eager"])
@pytest.mark.usefixtures("without_onednn")
def test_every_case_agrees_with_its_reference(case: Case, name: str) -> None:
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.bind(case.implementations[name](), inputs)
    assert check_call(case, call, case.expected(inputs), CPU) <= 4.0


def test_operands_are_random_and_of_the_right_type() -> None:
    case = one_case("add2", "forward", "bfloat16+float32")
    a, b = case.inputs(torch.Generator().manual_seed(0))
    assert (a.dtype, b.dtype) == (torch.bfloat16, torch.float32)
    assert a.unique().numel() > 8
    assert not torch.equal(a.float(), b)


@pytest.mark.parametrize("direction", ["forward and backward", "backward"])
def test_gradients_do_not_pile_up_from_call_to_call(direction: str) -> None:
    case = replace(one_case("add2", "forward and backward"), bind=one_case("add2", direction).bind)
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = case.bind(torch.add, inputs)
    call()
    assert check(case, call(), case.expected(inputs)) == 0.0


@pytest.mark.parametrize(
    ("dtypes", "directions", "found"),
    [
        (("float32",), (), {("float32", "forward"), ("float32", "backward")}),
        (("bfloat16",), ("forward",), {("bfloat16", "forward")}),
        (("bfloat16", "float32"), ("forward",), {(d, "forward") for d in ("bfloat16", "float32", "bfloat16+float32")}),
    ],
)
def test_cases_are_chosen_by_dtype_and_direction(
    dtypes: tuple[str, ...], directions: tuple[str, ...], found: set[tuple[str, str]]
) -> None:
    cases = [*Choice((2**24,), dtypes=dtypes, directions=directions).cases("add2")]
    assert {(case.dtype, case.direction) for case in cases} == found
    assert {case.dtype for case in Choice((2**24,)).cases("add2")} >= {"float16", "float64"}


# Wrong results


def wrong(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda a, b: change(a + b)


def one_element_off(out: torch.Tensor) -> torch.Tensor:
    out[-1] += 0.01
    return out


def one_element_nan(out: torch.Tensor) -> torch.Tensor:
    out[3] = math.nan
    return out


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a, b: a - b, id="another operation"),
        pytest.param(wrong(torch.empty_like), id="nothing written"),
        pytest.param(wrong(one_element_off), id="one element"),
        pytest.param(wrong(one_element_nan), id="NaN"),
        pytest.param(wrong(lambda out: out.to(torch.bfloat16).float()), id="too few bits"),
        pytest.param(wrong(torch.Tensor.double), id="dtype"),
        pytest.param(wrong(lambda out: out[:-1]), id="shape"),
        pytest.param(wrong(lambda out: (out, out)), id="two results"),
        pytest.param(wrong(lambda out: (None,)), id="no tensor"),
    ],
)
def test_a_wrong_implementation_is_an_error_and_not_a_row(function: Callable[..., Any]) -> None:
    case = one_case("add2", "forward")
    planted = replace(case, implementations={"ours": case.implementations["ours"], "eager": lambda: function})
    findings = measure_host([planted], CPU, ("ours", "eager"), rounds=2, calls=2, echo=lambda line: None)
    assert [row["implementation"] for row in findings.rows] == ["ours"]
    assert findings.failed
    (entry,) = findings.skipped
    assert entry.what.startswith("eager, add2")
    assert "WrongResult" in entry.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_value_that_is_not_finite_is_an_infinite_error(bad: float) -> None:
    out = torch.ones(16)
    out[7] = bad
    assert error_in_eps(out, torch.ones(16, dtype=torch.float64)) == math.inf


def test_an_exception_is_recorded_as_a_failure() -> None:
    def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    planted = replace(one_case("add2", "forward"), implementations={"triton": lambda: broken})
    findings = measure_host([planted], CPU, ("triton",), rounds=1, calls=2, echo=lambda line: None)
    assert not findings.rows
    assert findings.skipped[0].reason == "RuntimeError: no such kernel"
    assert findings.failed


@pytest.mark.parametrize(("kind", "failed"), [(Unavailable, False), (BuildFailed, True)])
def test_a_missing_peer_is_skipped_by_name_once(kind: type[Unavailable], failed: bool) -> None:
    def missing() -> Any:
        raise kind("nvcc is missing")

    planted = replace(one_case("add2", "forward"), implementations={"extension": missing})
    findings = measure_host([planted, planted], CPU, ("extension",), rounds=1, calls=2, echo=lambda line: None)
    (entry,) = findings.skipped
    assert (entry.section, entry.what, entry.reason) == ("add2.host", "extension", "nvcc is missing")
    assert findings.failed is failed


def test_host_rows_carry_their_labels_and_times() -> None:
    findings = measure_host(host_cases("gelu"), CPU, ("ours", "eager"), rounds=2, calls=2, echo=lambda line: None)
    assert not findings.skipped
    assert [row["direction"] for row in findings.rows[::2]] == ["forward", "forward, recording", "forward and backward"]
    for row in findings.rows:
        assert row["shape"] == [1024]
        assert row["samples"] == 2
        assert 0 < row["p10"] <= row["microseconds"] <= row["p90"]


# On a GPU


@pytest.mark.gpu
def test_memory_that_is_never_written_holds_nan() -> None:
    case = one_case("gelu", "forward")
    inputs = case.inputs(torch.Generator("cuda").manual_seed(0))
    with pytest.raises(WrongResult, match="off by inf"):
        check_call(case, case.bind(torch.empty_like, inputs), case.expected(inputs), torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_rows_of_the_gpu_are_timed_in_graphs(op: str) -> None:
    device = torch.device("cuda")
    findings = measure_device(
        device_cases(op, (4096,)), device, 1000.0, ("ours", "eager"), rounds=2, echo=lambda line: None
    )
    assert not findings.skipped
    assert {row["implementation"] for row in findings.rows} == {"ours", "eager"}
    for row in findings.rows:
        assert (row["timer"], row["sets"], row["samples"]) == ("graph", 512, 2)
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["microseconds"] / 1e3, rel=0.01, abs=0.01)
        assert row["share_of_copy"] == pytest.approx(row["gb_per_s"] / 1000, rel=0.01, abs=1e-4)


@pytest.mark.gpu
def test_a_backward_through_autograd_is_timed_by_events() -> None:
    (case, *_) = (case for case in device_cases("add2", (2**24,)) if case.direction == "backward")
    findings = measure_device([case], torch.device("cuda"), 1000.0, ("ours",), rounds=2, echo=lambda line: None)
    assert [row["timer"] for row in findings.rows] == ["events"]


@pytest.mark.gpu
def test_a_graph_in_which_nothing_happens_is_found_out() -> None:
    case = one_case("gelu", "forward")
    kept: dict[int, torch.Tensor] = {}

    def remembering(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = torch.nn.functional.gelu(x)
        return kept[x.data_ptr()]

    planted = replace(case, implementations={"eager": lambda: remembering})
    findings = measure_device([planted], torch.device("cuda"), 1000.0, ("eager",), rounds=2, echo=lambda line: None)
    assert not findings.rows
    assert "in a graph's replay" in findings.skipped[0].reason


# Peers


def test_the_extension_exports_what_the_cases_call() -> None:
    text, declarations, functions = extension.sources()
    assert functions == ["add2", "gelu_forward", "gelu_backward", "layer_norm_forward", "layer_norm_backward"]
    assert declarations.count(";") == len(functions)
    for name in functions:
        assert re.search(rf"^(at::Tensor|std::vector<at::Tensor>) {name}\(", declarations, re.MULTILINE)
        assert f"extension().{name}" in "".join(
            (results_file.ROOT / "benchmarks" / f"{op}.py").read_text(encoding="utf-8") for op in OPERATORS
        )
    assert text.count("#include") > 0


@pytest.mark.parametrize(("missing", "message"), [("liger_kernel", "liger_kernel is not"), ("triton", "Triton is not")])
def test_liger_is_told_apart_from_what_it_needs(monkeypatch: pytest.MonkeyPatch, missing: str, message: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    with pytest.raises(Unavailable, match=message):
        liger_kernels("layer_norm")


def test_importing_the_benchmarks_imports_no_peer() -> None:
    # PyTorch's counter of FLOPs, which cupyops imports, imports Triton by itself.
    lines = (
        "import sys, torch.utils.flop_counter; sys.modules.pop('triton', None)",
        "import benchmarks.__main__, benchmarks.add2, benchmarks.layer_norm",
        "peers = {'triton', 'liger_kernel', 'quack'}; print(peers & sys.modules.keys())",
    )
    found = preloaded.run(["-c", "\n".join(lines)], cwd=results_file.ROOT)
    assert found.stdout == "set()\n", found.stderr
