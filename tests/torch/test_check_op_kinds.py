"""check_op of unusual operators: without a reference, a gradient or a dtype, with numbers that have defaults, with
arguments that are written."""

import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cupyops import Kernel, Threads
from cupyops.torch import CheckFailed, Operator, check_op, checks_for
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_ops import Mix
from tests.torch.finding import assert_found, failing, samples

check = import_module("cupyops.torch.check.run")  # the package has the function under this name

# References, dtypes, gradients


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
    from cupyops.torch.ops.gelu import gelu_backward_operator, gelu_operator, gelu_reference

    schema = f"faulty::gelu_{policy}(Tensor x, str approximate) -> Tensor y"
    op = Operator(
        schema, gelu_operator.body, backward=gelu_backward_operator, reference=gelu_reference, autocast=policy
    )
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
def test_a_reference_without_a_gradient_is_skipped_on_every_backend() -> None:
    def body(x: Tensor) -> Tensor:
        return x.detach() * 2

    op = Operator("mylib::doubled(Tensor x) -> Tensor", body, reference=lambda x: x.detach() * 2)
    report = check_op(op, (torch.randn(7),), checks=["gradients", "gradcheck", "gradgradcheck"])
    assert {(row.outcome, row.words) for row in report.rows} == {("skipped", "no output takes a gradient")}
    assert {row.backend for row in report.rows} == {"reference", "simulator"}


@pytest.mark.simulator
def test_an_operator_that_says_that_it_has_no_gradient_is_not_at_fault() -> None:
    checks = ["inputs_kept", "values", "gradients", "gradcheck", "gradgradcheck", "autocast", "threads"]
    report = check_op(Mix(backward=refused).operator(), samples(), checks=checks, backends=["simulator"])
    assert [row.check for row in report.skipped] == ["gradients", "gradcheck", "gradgradcheck"]
    words = "the operator refuses gradients: RuntimeError: mix has no gradient: declare it with backward="
    assert {row.words for row in report.skipped} == {words}
    assert f"\nskipped: gradients, gradcheck, gradgradcheck: {words}\n" in str(report)
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


@pytest.mark.simulator
def test_a_second_output_in_the_memory_of_an_input_is_found() -> None:
    """The operator itself looks at its results in the first calls alone."""

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, x.contiguous()

    op = Operator(
        "faulty::twice_and_kept(Tensor x) -> (Tensor y, Tensor z)", body, reference=lambda x: (2 * x, x.clone())
    )
    op.call = body
    assert_found(
        failing_of(op, (torch.randn(5, 3),), "inputs_kept"), "inputs_kept", "output 1 shares the memory of `x`"
    )


def failing_of(op: Operator, sample: tuple[Any, ...], checks: Any) -> dict[str, str]:
    report = check_op(op, sample, raises=False, backends=["simulator"], checks=checks)
    return {row.check: row.words for row in report.failed}


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


def _mutated(x: Tensor, factor: float) -> None:
    x.mul_(factor)


X, IMAGES = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.randn(2, 3, 4, 4)
# By name: schema, body and reference in one, and a sample.
RIGHT: dict[str, tuple[str, Any, Any]] = {
    "integers": ("(Tensor x) -> Tensor", lambda x: x.argmax(-1), (X,)),
    "bools": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x.sin(), x > 0), (X,)),
    "an integer input": ("(Tensor x, int k) -> Tensor", lambda x, k: x * k, (torch.arange(12).view(3, 4), 3)),
    "a size by a number": ("(Tensor x, int k) -> Tensor", lambda x, k: x.topk(k, -1)[0].clone(), (X, 3)),
    "a list": ("(Tensor x, int[] p) -> Tensor", lambda x, p: torch.nn.functional.pad(x, p), (X, [1, 2])),
    "a kink": ("(Tensor x, float lo, float hi) -> Tensor", lambda x, lo, hi: x.clamp(lo, hi), (X, -0.5, 0.5)),
    "a step": ("(Tensor x, float f) -> Tensor", lambda x, f: (x * f).floor(), (X, 10.0)),
    "an absent tensor": (
        "(Tensor x, Tensor? w=None, float? f=None) -> Tensor",
        lambda x, w=None, f=None: (x.clone() if w is None else x * w) * (1.0 if f is None else f),
        (X, torch.ones(8), 2.0),
    ),
    "channels last": ("(Tensor x) -> Tensor", lambda x: (x * 2).to(memory_format=torch.channels_last), (IMAGES,)),
    "no elements": ("(Tensor x) -> Tensor", lambda x: x.new_empty(0), (X,)),
    "a square": ("(Tensor a, Tensor b) -> Tensor", lambda a, b: a @ b, (X[:, :5].clone(), X[:, 3:].clone())),
    "indices": ("(Tensor w, Tensor i) -> Tensor", lambda w, i: w[i], (X, torch.tensor([0, 4, 2]))),
    "sizes by values": ("(Tensor x) -> Tensor", lambda x: torch.unique((x > 0).int()), (X,)),
    "no 16-bit reference": ("(Tensor x) -> Tensor", lambda x: torch.fft.ifft(torch.fft.fft(x)).real.clone(), (X,)),
    "no dimension": ("(Tensor x) -> Tensor", lambda x: x.exp(), (torch.tensor(0.3),)),
    "a norm": (
        "(Tensor x, float eps) -> Tensor",
        lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
        (X, 1e-5),
    ),
    "written": ("(Tensor(a!) x, float factor) -> ()", _mutated, (X.clone(), 2.0)),
}


@pytest.mark.sample(2)
@pytest.mark.simulator
@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_operator_of_any_kind_fails_no_check(kind: str) -> None:
    schema, body, sample = RIGHT[kind]
    op = Operator(f"faulty::right_{kind.replace(' ', '_').replace('-', '_')}{schema}", body, reference=body)
    checks = ["inputs_kept", "values", "gradients", "special_values", "strides", "gradient_strides", "empties", "sizes"]
    checks += ["numbers", "data", "fakes", "compile_static", "compile_dynamic", "export", "vmap", "compiles"]
    assert check_op(op, sample, checks=checks, backends=["simulator"]).passed


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
