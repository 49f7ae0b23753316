"""check_op: its arguments, skipped checks, messages of faults, and calls that it refuses."""

import math
import re
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cupyops import CompileError, Kernel
from cupyops.compile import toolchain
from cupyops.compile.compiler import first_error
from cupyops.simulator import host
from cupyops.torch import CHECKS, CheckFailed, check_op, checks_for
from cupyops.torch.check.compare import assert_same_bits, error_in_eps
from cupyops.torch.check.registry import Fault
from cupyops.torch.check.report import Report, Row
from cupyops.torch.check.values import target
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_common import Totals
from tests.torch.faulty_ops import Mix
from tests.torch.finding import samples

check = import_module("cupyops.torch.check.run")  # the package has the function under this name

# What is asked for, and what cannot run


def test_checks_can_be_chosen_by_name() -> None:
    op = Mix().operator()
    report = check_op(op, samples(), checks=["threads", "empties"], backends=["reference"])
    assert [(row.check, row.backend, row.outcome) for row in report.rows] == [
        ("empties", "reference", "passed"),
        ("threads", "reference", "passed"),
    ]
    with pytest.raises(ValueError, match="check_op: there is no check 'stride'; did you mean 'strides'"):
        check_op(op, samples(), checks="stride")


def test_a_failure_raises_with_the_report() -> None:
    op = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double()).operator()
    with pytest.raises(
        CheckFailed, match="fakes .reference. failed: .*\n    What to change: Have the reference return"
    ) as caught:
        check_op(op, samples(), checks="fakes", backends=["reference"])
    assert [row.check for row in caught.value.report.failed] == ["fakes"]
    assert isinstance(caught.value, AssertionError)


def test_what_cannot_run_is_skipped_by_name_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "missing", lambda: "there is no C++ compiler")
    report = check_op(Mix(reference=None).operator(), samples())
    assert {row.outcome for row in report.rows} == {"skipped"}
    assert {row.words for row in report.rows if row.backend == "simulator"} == {"there is no C++ compiler"}
    assert {row.words for row in report.rows if row.backend == "reference"} == {"the operator has no reference"}
    skips = str(report).splitlines()[1]
    why = "every check on reference: the operator has no reference; every check on simulator: there is no C++ compiler"
    assert skips == f"skipped: {why}"


def test_the_reason_reaches_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix(reference=None).operator()
    with pytest.raises(pytest.skip.Exception, match="the operator has no reference"):
        check_op(op, samples(), checks="empties", backends=["reference"], skip=pytest.skip)
    told: list[str] = []
    check_op(Mix().operator(), samples(), checks="empties", backends=["reference"], skip=told.append)
    check_op(Mix().operator(), samples(), checks="guard_bands", backends=["reference"], skip=told.append)
    assert told == ["no check runs on these backends"]


# A kernel that does not compile


def _does_not_compile(mix: Kernel, path: str) -> Any:
    """A body whose kernel does not compile, and the exceptions that its author raises from that."""

    def body(x: Tensor, w: Tensor, factor: float) -> Tensor:
        try:
            return faulty.body(x, w, factor, mix)
        except CompileError as error:
            if path == "raised from":
                raise ValueError("mix failed") from error
            if path == "raised within":
                raise RuntimeError("mix failed")  # noqa: B904 (as authors do)
            raise

    return body


@pytest.mark.sample(2)
@pytest.mark.simulator
@pytest.mark.parametrize("path", ["as it is", "raised from", "raised within"])
@pytest.mark.parametrize("checks", [None, ["strides", "sizes", "fakes", "compile_static", "opcheck", "threads"]])
def test_a_kernel_that_does_not_compile_is_said_once_with_the_authors_line(path: str, checks: Any) -> None:
    op = Mix(
        body=_does_not_compile(faulty.kernel("mix", ("acc_t(w[i]));\n    }", "acc_t(w[i]))\n    }")), path)
    ).operator()
    with pytest.raises(CheckFailed) as caught:
        check_op(op, samples(), backends=["simulator"], checks=checks)
    report = caught.value.report
    first = "strides" if checks else "sanitizer"
    assert [row.check for row in report.failed] == [first]
    assert {row.words for row in report.skipped} == {f"not run, since `{first}` failed"}
    words = report.failed[0].words
    head, place, *lines = words[words.index("CompileError") :].splitlines()
    assert head.startswith("CompileError: mix<float32> does not compile for the simulator, by ")
    assert re.match(r".*mix\.cu:\d+\)?: (error: )?.*error: expected '?;'?", place), place
    assert [line for line in lines if line.startswith(">")] == [next(line for line in lines if "factor * v" in line)]
    assert all(re.match(r"[> ] +\d+ \| ", line) for line in lines)
    assert str(caught.value).count("error: ") == 1
    assert report.failed[0].change.startswith("Mend the kernel's text at the first error")


@pytest.mark.simulator
def test_what_nvrtc_alone_refuses_is_said_by_the_check_of_it() -> None:
    """A function that nobody has, say, in a branch that is discarded, which g++ takes."""
    if not toolchain.has_nvrtc():
        pytest.skip("needs NVRTC")
    line = "auto f = [](auto v) { if constexpr (false) missing(1); return v; }; f(1);"
    op = Mix(
        body=faulty.changed(
            (
                "if (i < n) {\n        const acc_t v",
                f"{line}\n    if (i < n) {{\n        const acc_t v",
            )
        )
    ).operator()
    report = check_op(op, samples(), backends=["simulator"], checks=["compiles", "threads"], raises=False)
    assert [row.check for row in report.failed] == ["compiles"]
    head, place, *lines = report.failed[0].words.splitlines()
    assert head.startswith("CompileError: mix<float32> does not compile for compute_90 (NVRTC")
    assert re.match(r"mix\.cu:\d+: error: .*missing.* is undefined", place), place
    assert lines[0].strip().endswith(line.strip())
    assert report.failed[0].change.startswith("Mend the kernel's text at the first error")


def test_the_first_error_of_a_long_message_is_kept_with_what_led_to_it() -> None:
    told = [
        "mix<float32> does not compile for the simulator, by g++ 12.2:",
        "mix.cu:7: required from here",
        ">    7 |     store(y);",
        "scalar.cuh:3: error: no match",
        ">    3 | y = x",
        "     4 | }",
    ]
    later = ["mix.cu:9: error: another", ">    9 | }"]
    accepts = "NVRTC accepts the text (for sm_90a): it uses something that the simulator does not cover."
    assert first_error("\n".join([*told, *later])) == "\n".join(told)
    assert first_error("\n".join([*told, *later, accepts])) == "\n".join([*told, accepts])
    assert (
        first_error("mix does not compile for sm_90\nptxas fatal\nand more")
        == "mix does not compile for sm_90\nptxas fatal"
    )


def test_what_pytorch_and_the_author_wrap_around_an_error_does_not_hide_it() -> None:
    def body(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if isinstance(x, FakeTensor):
            try:
                _ = {}["the table of sizes"]
            except KeyError as error:
                raise RuntimeError("mix failed") from error
        return faulty.reference(x, w, factor)

    op = Mix(body=body).operator()
    report = check_op(op, samples(), checks=["compile_static"], backends=["reference"], raises=False)
    assert report.failed[0].words.startswith("float32, compiled by aot_eager: KeyError: 'the table of sizes'")


def test_a_check_is_printed_when_it_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def late(subject: Any) -> str:
        assert re.fullmatch(r".*: 2 samples\n1/2  returned +reference +passed \d+\.\d s\n", capsys.readouterr().out)
        return "after the first"

    monkeypatch.setitem(CHECKS, "fakes", replace(CHECKS["fakes"], run=late))
    op = Mix().operator()
    report = check_op(op, samples(), checks=["returned", "fakes"], backends=["reference"], raises=False)
    assert [row.outcome for row in report.rows] == ["passed", "passed"], report


def test_each_skip_has_its_line_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    report = check_op(Mix(reference=None).operator(), samples(), backends=["reference"], verbose=True)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert printed.count("skipped: the operator has no reference") == len(report.rows)


def test_a_notebook_shows_a_report_as_a_table() -> None:
    found = Report("a::b(Tensor x) -> Tensor", (Row("values", "simulator", "failed", "x < y", "mend"),))._repr_html_()
    assert "<th>simulator</th>" in found
    assert "-&gt; Tensor" in found
    assert "x &lt; y" in found


def test_a_failure_is_seen_once(capsys: pytest.CaptureFixture[str]) -> None:
    op = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double()).operator()
    with pytest.raises(CheckFailed) as caught:
        check_op(op, samples(), checks="fakes", backends=["reference"])
    printed = capsys.readouterr().out
    assert "failed: " in str(caught.value)
    assert "failed: " not in printed
    title = str(caught.value).partition("\n")[0]
    assert f"{printed}{str(caught.value).removeprefix(title + chr(10))}" == str(caught.value.report)
    report = check_op(op, samples(), checks="fakes", backends=["reference"], raises=False)
    assert capsys.readouterr().out == f"{report}\n"


def test_a_gpu_that_is_lost_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double()).operator()
    monkeypatch.setattr(
        check, "_lost", lambda subject: "not run, since the GPU is lost to this process: ILLEGAL_ADDRESS"
    )
    report = check_op(op, samples(), checks=["fakes", "opcheck", "threads"], backends=["reference"], raises=False)
    assert [row.outcome for row in report.rows] == ["failed", "skipped", "skipped"]
    assert report.rows[2].words.endswith("ILLEGAL_ADDRESS")


def test_the_checks_of_an_operator_run_behind_those_that_they_need() -> None:
    names = checks_for(Mix(repeats=True, recompute=faulty.reference, inplace=faulty.in_place).operator())
    assert names == [name for name in CHECKS if name != "common"], "it has one result"
    assert "common" in checks_for(Totals().operator())
    assert set(names) - set(checks_for(Mix().operator())) == {"recompute", "repeats", "inplace"}
    for one in CHECKS.values():
        assert set(one.needs) <= set(CHECKS)
        assert [n for n in CHECKS if n in one.needs or n == one.name][-1] == one.name, "it runs before what it needs"


@pytest.mark.simulator
@pytest.mark.parametrize("right", [True, False])
def test_deterministic_algorithms_are_behind_a_check_as_before(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    op = Mix(body=faulty.body if right else faulty.last_of_four_left_out).operator()
    samples = [(torch.randn(7), torch.randn(7), 0.5)]
    report = check_op(op, samples, checks="written", backends=["simulator"], raises=False)
    assert bool(report.failed) != right
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


# Wrong calls


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            [torch.ones(3)],
            TypeError,
            "`sample_inputs` must be a tuple of arguments, or a list of such tuples, got list",
        ),
        ((torch.ones(3),), ValueError, r"must hold the 3 arguments of faulty::mix\d+ \(x, w, factor\), got 1"),
        ([], ValueError, "must hold at least one sample, each with a tensor, got 0"),
        ((1.0, 2.0, 3.0), ValueError, "must hold at least one sample, each with a tensor"),
        ((torch.ones(3),) * 3, ValueError, "must hold a float as `factor`, as the schema says, got a tensor"),
        ((torch.ones(3, device="meta"),) * 2 + (1.0,), ValueError, "be on the CPU or on a GPU, got meta"),
    ],
)
def test_samples_that_do_not_fit_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_op(Mix().operator(), given)


def test_other_callables_and_backends_are_refused() -> None:
    with pytest.raises(TypeError, match="`op` must be a cupyops.torch.Operator, or a function whose .* got randn"):
        check_op(torch.randn, samples())
    with pytest.raises(ValueError, match=r"`backends` must be names of reference, simulator, cuda, got \['gpu'\]"):
        check_op(Mix().operator(), samples(), backends=["gpu"])


def test_a_function_stands_for_its_operator() -> None:
    def mix(x: Tensor, w: Tensor, factor: float = 1.0) -> Tensor:
        return mix.op(x, w, factor)  # type: ignore[attr-defined]

    mix.op = Mix().operator()  # type: ignore[attr-defined]
    assert check_op(mix, samples(), checks="empties", backends=["reference"]).passed


# Its own measure


def test_errors_are_counted_in_eps_and_kinds_have_to_agree() -> None:
    from cupyops.torch.check.compare import error_in_eps

    exact = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    assert error_in_eps(exact.float(), exact) == 0
    off = exact.float() + torch.tensor([0, 0, 2 * torch.finfo(torch.float32).eps, 0])
    assert error_in_eps(off, exact) == pytest.approx(1.0)
    for got, right, same in ((math.nan, math.nan, True), (math.inf, math.inf, True), (math.inf, -math.inf, False),
                             (math.nan, 1.0, False), (1.0, math.nan, False), (math.inf, 1e300, True)):  # fmt: skip
        found = error_in_eps(torch.tensor([got, 1.0]), torch.tensor([right, 1.0], dtype=torch.float64))
        assert found == (0 if same else math.inf), (got, right)
    assert error_in_eps(torch.tensor([1, 2]), torch.tensor([1, 3])) == math.inf
    assert error_in_eps(torch.empty(0), torch.empty(0)) == 0


def test_equal_bits_of_another_dtype_or_shape_are_other_results() -> None:
    zeros = {"output": torch.zeros(2)}
    assert_same_bits("call", zeros, zeros, "the first gives")
    for other in (torch.zeros(2, dtype=torch.int32), torch.zeros(1, 2)):
        with pytest.raises(Fault, match=r"call: output is .*, and the first gives float32\[2\]"):
            assert_same_bits("call", {"output": other}, zeros, "the first gives")


def test_the_allowed_error_is_twice_that_of_the_reference_and_half_an_eps_and_no_less_than_any_kernels() -> None:
    exact = torch.linspace(1, 2, 9, dtype=torch.float64)
    for off, allowed in ((0, 16), (40, None)):
        theirs = (exact * (1 + off * torch.finfo(torch.float32).eps)).float()
        found = iter(({"output": exact}, {"output": theirs}))
        subject: Any = SimpleNamespace(
            op=SimpleNamespace(reference=True),
            reference=None,
            tolerance=1,
            wanted=lambda _: {},
            results=lambda *_, found=found, **options: next(found),
        )
        right = target(subject, (), {"output": theirs}, {})
        assert right.allowed["output"] == (allowed or 2 * (error_in_eps(theirs, exact) + 0.5))


@pytest.mark.simulator
def test_a_kernel_that_is_wrong_at_an_odd_address_is_found() -> None:
    def body(x: Tensor, w: Tensor, factor: float) -> Tensor:
        return faulty.reference(x, w, factor) + float(x.data_ptr() % 16 != 0)

    with pytest.raises(CheckFailed, match="misaligned .* failed: .*one element after a multiple of 16 bytes"):
        check_op(Mix(body=body).operator(), samples(), checks="misaligned", backends=["simulator"])
