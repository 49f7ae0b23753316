"""How check_op is asked, what it skips and says, and what it makes of operators that are not of one mould."""

import math
import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cupyops import CompileError, Kernel, Threads
from cupyops.compile import toolchain
from cupyops.compile.compiler import first_error
from cupyops.simulator import host
from cupyops.torch import CHECKS, CheckFailed, Operator, check_op, checks_for
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_ops import Mix, assert_found, failing, samples

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
    assert re.search(
        r"\nreturned, sanitizer, inputs_kept, .*, threads \(simulator\) skipped: there is no C\+\+ compiler\n",
        str(report),
    )


def test_the_reason_reaches_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix(reference=None).operator()
    with pytest.raises(pytest.skip.Exception, match="the operator has no reference"):
        check_op(op, samples(), checks="empties", backends=["reference"], skip=pytest.skip)
    told: list[str] = []
    check_op(Mix().operator(), samples(), checks="empties", backends=["reference"], skip=told.append)
    check_op(Mix().operator(), samples(), checks="guard_bands", backends=["reference"], skip=told.append)
    assert told == ["no check runs on these backends"]


# A kernel that does not compile


def _does_not_compile(mix: Kernel, road: str) -> Any:
    """A body whose kernel does not compile, and what its author makes of that."""

    def body(x: Tensor, w: Tensor, factor: float) -> Tensor:
        try:
            return faulty.body(x, w, factor, mix)
        except CompileError as error:
            if road == "raised from":
                raise ValueError("mix failed") from error
            if road == "raised within":
                raise RuntimeError("mix failed")  # noqa: B904 (as authors do)
            raise

    return body


@pytest.mark.simulator
@pytest.mark.parametrize("road", ["as it is", "raised from", "raised within"])
@pytest.mark.parametrize("checks", [None, ["strides", "sizes", "fakes", "compile_static", "opcheck", "threads"]])
def test_a_kernel_that_does_not_compile_is_said_once_with_the_authors_line(road: str, checks: Any) -> None:
    op = Mix(
        body=_does_not_compile(faulty.kernel("mix", ("acc_t(w[i]));\n    }", "acc_t(w[i]))\n    }")), road)
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
    """Exceptions, say: a host has them."""
    if not toolchain.has_nvrtc():
        pytest.skip("needs NVRTC")
    op = Mix(
        body=faulty.changed(
            ("if (i < n) {\n        const acc_t v", "if (n < 0) throw 1;\n    if (i < n) {\n        const acc_t v")
        )
    ).operator()
    report = check_op(op, samples(), backends=["simulator"], checks=["compiles", "threads"], raises=False)
    assert [row.check for row in report.failed] == ["compiles"]
    head, place, *lines = report.failed[0].words.splitlines()
    assert head.startswith("mix<float32> does not compile for sm_")
    assert re.match(r"mix\.cu:\d+: error: .*exception", place), place
    assert next(line for line in lines if line.startswith(">")).endswith("if (n < 0) throw 1;")
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


def test_a_failure_is_seen_once(capsys: pytest.CaptureFixture[str]) -> None:
    op = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double()).operator()
    with pytest.raises(CheckFailed) as caught:
        check_op(op, samples(), checks="fakes", backends=["reference"])
    assert str(caught.value) == str(caught.value.report)
    assert capsys.readouterr().out == ""
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


@pytest.mark.simulator
def test_without_a_reference_low_dtypes_stand_beside_the_operator_in_float64() -> None:
    op = Mix(reference=None).operator()
    report = check_op(op, samples(), checks=["values", "gradients", "vmap", "special_values"], backends=["simulator"])
    words = {row.check: row.words for row in report.rows}
    assert "beside the operator itself, since there is no reference, in float64: float32" in words["values"]
    assert "beside the operator itself" in words["gradients"]
    assert words["special_values"] == "the operator has no reference"


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["float32", "lower"])
def test_a_declared_policy_of_autocast_is_what_is_asked_for(policy: str) -> None:
    from cupyops.torch.ops.gelu import _gelu, gelu_backward_operator, gelu_reference

    schema = f"faulty::gelu_{policy}(Tensor x, str approximate) -> Tensor y"
    op = Operator(schema, _gelu.body, backward=gelu_backward_operator, reference=gelu_reference, autocast=policy)
    report = check_op(op, (torch.randn(19, 7), "none"), checks="autocast")
    assert [row.words for row in report.passed if row.backend == "simulator"] == [
        f"4 samples of float32, float16, bfloat16, float64, policy '{policy}'"
    ]
    op._autocast = {"cpu": "float32" if policy == "lower" else "lower"}  # it does one thing, and is said to do another
    op.call = op.body
    found = check_op(op, (torch.randn(19, 7), "none"), checks="autocast", backends=["simulator"], raises=False).failed
    assert [row.check for row in found] == ["autocast"]


@pytest.mark.simulator
def test_dtypes_that_are_refused_are_told_and_those_asked_for_have_to_be_taken() -> None:
    op = Mix().operator()
    report = check_op(op, samples(), checks="values", backends=["simulator"])
    assert report.rows[0].words.endswith("; refused: float16, bfloat16")
    for asked in ([torch.float16], "float16", torch.float16, ("float16",), np.float16):
        with pytest.raises(
            CheckFailed, match="float16 is refused: TypeError: mix: `x` must have dtype float32 or float64"
        ):
            check_op(op, samples(), checks="values", backends=["simulator"], dtypes=asked)
    with pytest.raises(
        ValueError, match="check_op: `dtypes` must be names of .*, got 'flaot16'; did you mean 'float16'?"
    ):
        check_op(op, samples(), dtypes="flaot16")


@pytest.mark.simulator
def test_tolerance_lets_an_approximation_pass() -> None:
    op = Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.00001)).operator()
    assert "values" in failing(op, "simulator", "values")
    check_op(op, samples(), checks="values", backends=["simulator"], tolerance=1e12)


@pytest.mark.simulator
def test_gradients_are_taken_by_what_requires_them() -> None:
    """x alone: the wrong gradient of w is nobody's business."""
    op = Mix(backward_body=faulty.wrong_gradient).operator()
    x, w, factor = samples()[0]
    check_op(op, (x.requires_grad_(), w, factor), checks=["gradients", "gradcheck"], backends=["simulator"])
    assert x.grad is None
    assert "gradients" in failing(op, "simulator", "gradients")


def refused(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    raise RuntimeError("mix has no gradient: declare it with backward=")


def refused_again(grad_y: Tensor, ctx: Any, gradient: Operator) -> Any:
    if torch.is_grad_enabled():
        raise RuntimeError("mix_backward has no gradient: declare it with backward=")
    return gradient(grad_y, *ctx.saved_tensors, ctx.factor)


@pytest.mark.simulator
def test_an_operator_that_says_that_it_has_no_gradient_is_not_at_fault() -> None:
    checks = ["inputs_kept", "values", "gradients", "gradcheck", "gradgradcheck", "autocast", "threads"]
    report = check_op(Mix(backward=refused).operator(), samples(), checks=checks, backends=["simulator"])
    assert [row.check for row in report.skipped] == ["gradients", "gradcheck", "gradgradcheck"]
    words = "the operator refuses gradients: RuntimeError: mix has no gradient: declare it with backward="
    assert {row.words for row in report.skipped} == {words}
    assert f"gradients, gradcheck, gradgradcheck (simulator) skipped: {words}" in str(report)
    report = check_op(Mix(backward=refused_again).operator(), samples(), checks=checks, backends=["simulator"])
    assert [row.check for row in report.skipped] == ["gradgradcheck"]
    assert (
        "the operator has no second derivative: RuntimeError: mix_backward has no gradient" in report.skipped[0].words
    )


@pytest.mark.simulator
def test_an_operator_that_writes_into_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.library, "register_autograd", lambda *args, **options: None)  # PyTorch refuses it here
    text = """
    extern "C" __global__ void double_it(
        scalar_t* x,  // (n)
        long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * scalar_t(2);
    }
    """
    kernel = Kernel(text, "double_it", Threads("n"), dtypes=("float32", "float64"))

    def body(x: Tensor) -> Tensor:
        kernel(x, x.numel())
        return x.new_zeros(1)

    op = Operator("faulty::double_it(Tensor(a!) x) -> Tensor", body, reference=lambda x: (x.mul_(2), x.new_zeros(1))[1])
    assert "gradcheck" not in checks_for(op)
    report = check_op(
        op, (torch.randn(5),), checks=["values", "inputs_kept", "determinism", "gradcheck"], backends=["simulator"]
    )
    assert [(row.check, row.outcome) for row in report.rows] == [
        ("inputs_kept", "passed"),
        ("determinism", "passed"),
        ("values", "passed"),
        ("gradcheck", "skipped"),
    ]
    assert report.skipped[0].words == "the operator writes into its arguments, and has no gradient"
    undeclared = Operator("faulty::double_it_unsaid(Tensor x) -> Tensor", body, reference=lambda x: x.new_zeros(1))
    assert_found(failing_of(undeclared, (torch.randn(5),), "inputs_kept"), "inputs_kept", "`x` is written into")


def failing_of(op: Operator, sample: tuple[Any, ...], checks: Any) -> dict[str, str]:
    report = check_op(op, sample, raises=False, backends=["simulator"], checks=checks)
    return {row.check: row.words for row in report.failed}


def test_every_check_says_what_holds_and_what_to_change() -> None:
    names = checks_for(Mix().operator())
    assert names == list(CHECKS)
    for one in CHECKS.values():
        assert len(one.holds) > 20
        assert one.change.endswith((".", "opcheck"))
        assert set(one.needs) <= set(CHECKS)
        assert [n for n in names if n in one.needs or n == one.name][-1] == one.name, "it runs before what it needs"


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


def test_arguments_with_a_default_may_be_left_out() -> None:
    def body(x: Tensor, w: Tensor, factor: float = 0.5) -> Tensor:
        return faulty.body(x, w, factor)

    op = Mix(body=body, schema="(Tensor x, Tensor w, float factor=0.5) -> Tensor").operator()
    x, w, _ = samples()[0]
    assert check.samples_of(op, (x, w))[0][2] == 0.5
    assert check_op(op, (x, w), checks="gradcheck", backends=["reference"]).passed
    with pytest.raises(ValueError, match=r"hold the 2 to 3 arguments of faulty::mix\d+ \(x, w, factor\), got 1"):
        check_op(op, (x,))


@pytest.mark.simulator
def test_rows_and_dtypes_are_changed_as_an_operator_takes_them() -> None:
    """A target for each row, and a table that is always of float32."""
    text = """
    extern "C" __global__ void picked(
        const scalar_t* x,        // (M, N)
        const long long* target,  // (M)
        const float* table,       // (N)
        scalar_t* y,              // (M)
        long long M, long long N) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < M) y[i] = scalar_t(acc_t(x[i * N + target[i]]) * acc_t(table[target[i]]));
    }
    """
    kernel = Kernel(text, "picked", Threads("M"), dtypes=("float16", "float32", "float64"))

    def body(x: Tensor, target: Tensor, table: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0])
        kernel(x.contiguous(), target.contiguous(), table.contiguous(), y, *x.shape)
        return y

    def reference(x: Tensor, target: Tensor, table: Tensor) -> Tensor:
        return (x * table).gather(1, target[:, None])[:, 0].to(x.dtype)

    x, target, table = torch.randn(19, 7), torch.arange(19) % 7, torch.rand(7) + 1
    for given in (reference, None):
        name = f"faulty::picked{'' if given else '_alone'}(Tensor x, Tensor target, Tensor table) -> Tensor"
        op = Operator(name, body if given else Picked.around(body), reference=given)  # type: ignore[arg-type]
        sample = (x.clone().requires_grad_(), target, table)
        report = check_op(op, sample, checks=["values", "empties", "strides", "fakes"], backends=["simulator"])
        assert [row.outcome for row in report.rows] == ["passed"] * 4
        assert "float16" in report.rows[0].words
        assert "float64" in report.rows[0].words
        assert "refused: bfloat16" in report.rows[0].words


class Picked:
    @staticmethod
    def around(body: Any) -> Any:
        """The body as a Function without a gradient to speak of."""

        class Function(torch.autograd.Function):
            forward = staticmethod(body)

            @staticmethod
            def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
                ctx.mark_non_differentiable(output)

            @staticmethod
            def backward(ctx, grad):  # type: ignore[no-untyped-def]
                return None, None, None

        return Function


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


# Numbers with a default, and derivatives that there are not


def numbers_tried(schema: str, given: list[tuple[Any, ...]], body: Any = None) -> list[float]:
    """The last argument of each sample that is tried."""
    op = Mix(schema=schema, body=body or faulty.body, reference=body or faulty.reference).operator()
    return [args[-1] for args in check.Subject(op, check.samples_of(op, given), "reference").samples]


def test_numbers_are_tried_at_their_defaults_and_elsewhere() -> None:
    schema = "(Tensor x, Tensor w, float factor=0.25) -> Tensor"
    x, w, _ = samples()[0]
    assert numbers_tried(schema, [(x, w)]) == [0.25, 0.5]
    assert numbers_tried(schema, [(x, w, 2.0), (w, x, 3.0)]) == [2.0, 3.0, 0.25]
    assert numbers_tried(schema, [(x, w), (w, x, 3.0)]) == [0.25, 3.0]
    assert numbers_tried("(Tensor x, Tensor w, float factor) -> Tensor", [(x, w, 2.0)]) == [2.0]

    def only_small(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if factor > 0.3:
            raise ValueError("factor must be at most 0.3")
        return faulty.reference(x, w, factor)

    assert numbers_tried(schema, [(x, w)], only_small) == [0.25, 0.125]


def test_a_third_derivative_that_pytorch_has_wrong_is_not_asked_for() -> None:
    def reference(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    op = Operator("faulty::normalized(Tensor x) -> Tensor", reference, reference=reference)
    report = check_op(op, (torch.randn(5, 4),), checks=["derivatives", "transforms"], backends=["reference"])
    assert len(report.passed) == 2
    assert all(
        "PyTorch's own of order 3 of the reference is not what differences give" in r.words for r in report.passed
    )


@pytest.mark.simulator
def test_a_second_derivative_that_there_is_not_is_left_out() -> None:
    op = Mix(reference=None, backward_reference=None).operator()
    report = check_op(op, samples(), checks=["derivatives", "transforms"], backends=["simulator"])
    words = r"no derivative of order 2: RuntimeError: mix\d+_backward has no gradient"
    assert all(re.search(words, row.words) for row in report.rows)
    assert [(row.check, row.outcome) for row in report.rows] == [("derivatives", "skipped"), ("transforms", "passed")]
