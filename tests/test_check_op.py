"""check_op finds each fault that is planted in an operator, by the check that is for it and by no other."""

import math
import re
from collections.abc import Callable
from typing import Any

import faulty_ops as faulty
import pytest
import torch
from faulty_ops import Mix, changed
from torch import Tensor

from cupyops import Kernel, Threads
from cupyops.simulator import host
from cupyops.torch import CHECKS, CheckFailed, Operator, check, check_op, checks_for

# In the simulator, all checks run and this one alone fails: the fault, and what the message says of it.
PLANTED: dict[str, tuple[str, Callable[[], Mix], str]] = {
    "a bound off by one": (
        "sanitizer",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i <= n) {\n        const acc_t v"))
        ),
        r"mix<float32>: out of bounds: reads 4 bytes at element 133 of `x` .* at mix.cu:10",
    ),
    "a last element left out": (
        "written",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i < n - 1) {\n        const acc_t v"))
        ),
        r"float32: 1 of 133 elements of output still hold what was in memory before.*\[18, 6\] of \[19, 7\].* Have the kernel write",
    ),
    "writes into an input": (
        "inputs_kept",
        lambda: Mix(body=faulty.into_its_input),
        r"`w` is written into.*Tensor\(a!\) x",
    ),
    "writes into a gradient": (
        "inputs_kept",
        lambda: Mix(backward=faulty.into_its_gradient),
        "the gradient of an output is written into",
    ),
    "returns its input": ("inputs_kept", lambda: Mix(body=faulty.itself), "output 0 shares the memory of `x`"),
    "counts its calls": (
        "determinism",
        lambda: Mix(body=faulty.counting()),
        r"float32, run 2: \d+ of 133 elements of output differ, the first at .* without atomics",
    ),
    "a wrong factor": (
        "values",
        lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.001)),
        r"float32: output\[\d+, \d\] is .*, and the reference in float64 gives .*: off by .* eps of float32, 16 are allowed",
    ),
    "takes NaN for 0": (
        "special_values",
        lambda: Mix(body=faulty.without_nan),
        r"with nan as element 66 of `x`, output\[9, 3\] is 0.0, and the reference gives nan",
    ),
    "a wrong gradient": (
        "gradients",
        lambda: Mix(backward_body=faulty.wrong_gradient),
        r"gradient of w\[\d+, \d\] is .* Look at the backward's algebra",
    ),
    "a wrong gradient, and no reference": (
        "gradcheck",
        lambda: Mix(backward_body=faulty.wrong_gradient, reference=None),
        "Jacobian mismatch for output 0 with respect to input 1",
    ),
    "saves what it has computed": (
        "gradgradcheck",
        lambda: Mix(save=faulty.save_intermediates, backward=faulty.from_intermediates),
        "Jacobian mismatch for output . with respect to input .* save inputs rather than what was computed",
    ),
    "launches in its backward": (
        "gradgradcheck",
        lambda: Mix(backward=faulty.launched_in_backward),
        "Let the backward call operators, not kernels",
    ),
    "forgets a gradient wanted alone": (
        "subsets",
        lambda: Mix(backward=faulty.all_or_nothing),
        "gradients wanted by w alone: gradient of w is None, .* ctx.needs_input_grad",
    ),
    "takes every tensor for contiguous, and is told": (
        "strides",
        lambda: Mix(body=faulty.without_contiguous),
        r"transposed: ValueError: mix: `x` must be contiguous, .* Begin the body with `x = x.contiguous\(\)`",
    ),
    "takes every tensor for contiguous, and is not told": (
        "strides",
        lambda: Mix(body=faulty.strided_unseen()),
        r"transposed: output\[\d+, \d\] is .*, and of a contiguous copy it is",
    ),
    "takes every address for aligned": (
        "misaligned",
        lambda: Mix(
            body=changed(("acc_t v = acc_t(x[i]);", "acc_t v = (unsigned long long)x % 16 ? acc_t(2) : acc_t(x[i]);"))
        ),
        "one element behind a multiple of 16 bytes: output.* Look at the address before an access wider",
    ),
    "takes every gradient for contiguous": (
        "gradient_strides",
        lambda: Mix(backward_body=faulty.gradient_without_contiguous),
        r"gradients of stride 0: ValueError: mix_backward: `grad_y` must be contiguous.* `grad = grad.contiguous\(\)`",
    ),
    "a shape that nothing has": (
        "empties",
        lambda: Mix(body=faulty.rows_by_name, elementwise=False),
        r"no rows: RuntimeError: cannot reshape tensor of 0 elements.* reshape\(-1, ...\)",
    ),
    "one row is forgotten": ("sizes", lambda: Mix(body=faulty.one_row_otherwise), "float32, 1 rows: output"),
    "looks at a value": (
        "fakes",
        lambda: Mix(body=faulty.looks_at_values),
        r"on fake tensors: DataDependentOutputException.* no .item\(\)",
    ),
    "goes another way when compiled": (
        "compile_static",
        lambda: Mix(backward=faulty.otherwise_when_compiled),
        "compiled by aot_eager: gradient of x.*, and without torch.compile it is",
    ),
    "makes a number of a size": (
        "compile_dynamic",
        lambda: Mix(body=faulty.tied_to_a_size),
        r"compiled for 5 rows, and again for 11.* int\(x.shape\[0\]\)",
    ),
    "says that it is elementwise": (
        "vmap",
        lambda: Mix(
            body=faulty.upside_down, reference=faulty.reference_upside_down, backward=faulty.gradient_upside_down
        ),
        "batched, number 0: output.* Declare `elementwise=True` only where",
    ),
    "follows autocast in its body": (
        "autocast",
        lambda: Mix(body=faulty.in_autocast),
        "under autocast: TypeError: mix: `y` must have dtype float32 .* got bfloat16.* enabled=False",
    ),
    "a text that the compiler warns of": (
        "compiles",
        lambda: Mix(body=changed(("const acc_t v = ", "const int unused = 1; const acc_t v = "))),
        r"mix<float32> for sm_\d+: mix.cu\(10\): warning .*unused.* never referenced.*`python -m cupyops compile`",
    ),
    "keeps a buffer between calls": (
        "threads",
        lambda: Mix(body=faulty.one_buffer_for_all()),
        "in one of 4 threads: .* Keep no buffers",
    ),
}
# These faults show elsewhere first; the check that is run alone finds them, too.
ALONE: dict[str, tuple[Callable[[], Mix], str]] = {
    "opcheck": (
        lambda: Mix(body=faulty.itself),
        "test_schema failed with Argument x is not defined to alias output but was aliasing",
    ),
    "export": (lambda: Mix(body=faulty.looks_at_values), "Could not guard on data-dependent expression"),
    "torch_func": (lambda: Mix(backward=faulty.launched_in_backward), "Cannot access data pointer"),
}
# On a GPU alone.
PLANTED_ON_A_GPU: dict[str, tuple[str, Callable[[], Mix], str]] = {
    "a write past the end": (
        "guard_bands",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i <= n) {\n        const acc_t v"))
        ),
        "wrote outside its output `y`: element 133 of 133",
    ),
    "the default stream": (
        "side_stream",
        lambda: Mix(body=faulty.on_the_default_stream),
        "on a side stream: .* elements of output differ.* no default stream",
    ),
    "data of an earlier call": (
        "graph_replay",
        lambda: Mix(body=faulty.prefetched()),
        "replayed with new data: .* of output differ.* runs no Python",
    ),
    "a wrong factor": ("values", lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.001)), "off by"),
    "keeps a buffer between calls": ("threads", lambda: Mix(body=faulty.one_buffer_for_all()), "in one of 8 threads"),
}


# What the other lanes do not show; tracing and compiling take a GPU's time, and are of no GPU.
ON_A_GPU = ["guard_bands", "inputs_kept", "written", "determinism", "values", "gradients", "strides", "misaligned"]
ON_A_GPU += ["gradient_strides", "autocast", "side_stream", "threads", "second_device", "graph_replay"]


def samples(device: str = "cpu") -> list[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(19, 7, generator=generator).to(device) for _ in range(2))
    return [(x, w, 0.5), (w, x, 0.0)]


def failing(op: Operator, lane: str, checks: Any = None) -> dict[str, str]:
    """What fails, and its words."""
    report = check_op(op, samples("cuda" if lane == "cuda" else "cpu"), raises=False, lanes=[lane], checks=checks)
    return {row.check: f"{row.words} What to change: {row.change}" for row in report.failed}


def assert_found(found: dict[str, str], name: str, words: str) -> None:
    assert list(found) == [name], found
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found[name])


@pytest.mark.simulator
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_fails_the_check_that_is_for_it_and_no_other(fault: str) -> None:
    name, parts, words = PLANTED[fault]
    assert_found(failing(parts().operator(), "simulator"), name, words)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ALONE)
def test_a_check_that_stands_on_others_finds_their_faults_when_it_runs_alone(name: str) -> None:
    parts, words = ALONE[name]
    assert_found(failing(parts().operator(), "simulator", name), name, words)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", PLANTED_ON_A_GPU)
def test_a_fault_of_the_gpu_fails_the_check_that_is_for_it_and_no_other(fault: str) -> None:
    name, parts, words = PLANTED_ON_A_GPU[fault]
    # The sanitizer would find the first one on the CPU.
    assert_found(failing(parts().operator(), "cuda", ON_A_GPU), name, words)


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_an_operator_of_one_gpu_fails_on_the_second() -> None:
    found = failing(Mix(body=faulty.on_the_first_gpu).operator(), "cuda", "second_device")
    assert_found(found, "second_device", "cuda:1.* Use the tensors' device")


def test_faults_of_a_reference_are_found_without_a_kernel() -> None:
    other_dtype = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double())
    assert_found(
        failing(other_dtype.operator(), "reference"),
        "fakes",
        r"float32 on fake tensors \(of the body\), and torch.float64",
    )

    def wrong(x: Tensor, w: Tensor, factor: float) -> Tensor:
        return x + factor * x.detach() * w

    assert_found(failing(Mix(reference=wrong).operator(), "reference"), "gradcheck", "Jacobian mismatch")

    def lowered(x: Tensor, w: Tensor, factor: float) -> Tensor:
        one = torch.mm(torch.ones(1, 1), torch.ones(1, 1))
        return (x + factor * x * w).to(one.dtype) if one.dtype == torch.bfloat16 else x + factor * x * w

    words = "policy None: output is bfloat16|off by|has dtype torch.bfloat16|output"
    assert_found(failing(Mix(reference=lowered).operator(), "reference"), "autocast", words)


@pytest.mark.simulator
def test_samples_are_left_as_they_are_even_by_a_faulty_operator() -> None:
    x, w, factor = samples()[0]
    before = x.clone(), w.clone()
    check_op(Mix(body=faulty.into_its_input).operator(), (x, w, factor), raises=False, lanes=["simulator"])
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


@pytest.mark.simulator
def test_a_right_operator_passes_every_check_that_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    given = samples()
    before = [[x.clone() if isinstance(x, Tensor) else x for x in args] for args in given]
    report = check_op(Mix().operator(), given)
    assert not report.failed
    assert not report.skipped
    on_a_cpu = {c.name for c in CHECKS.values() if "simulator" in c.lanes}
    assert {row.check for row in report.passed if row.lane == "simulator"} == on_a_cpu
    assert set(CHECKS) - on_a_cpu == {"guard_bands", "side_stream", "second_device", "graph_replay"}
    assert capsys.readouterr().out == f"{report}\n"
    for args, kept in zip(given, before, strict=True):
        assert all(torch.equal(x, k) if isinstance(x, Tensor) else x == k for x, k in zip(args, kept, strict=True))


@pytest.mark.gpu
def test_a_right_operator_passes_every_check_on_a_gpu() -> None:
    """GELU, which has a time to keep to: a minute."""
    import autograd_bridge as bridge

    x = torch.randn(37, 19, device="cuda")
    report = check_op(bridge._gelu, [(x, "none"), (x, "tanh")])
    assert {row.check for row in report.skipped} <= {"second_device", "sanitizer"}
    assert len(report.rows) == len(CHECKS)


SHIPPED = pytest.mark.parametrize("name", ["gelu", "gelu_backward", "add2", "layer_norm", "add_layer_norm"])


@SHIPPED
@pytest.mark.parametrize(
    "lane",
    ["reference", pytest.param("simulator", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_the_shipped_operators_pass(name: str, lane: str) -> None:
    import autograd_bridge as bridge

    device = "cuda" if lane == "cuda" else "cpu"
    generator = torch.Generator().manual_seed(5)
    x, z, weight, bias = (torch.randn(s, generator=generator).to(device) for s in ((37, 19), (37, 19), (19,), (19,)))
    given: dict[str, list[tuple[Any, ...]]] = {
        "gelu": [(x, "none"), (x, "tanh")],
        "gelu_backward": [(z, x, "none")],
        "add2": [(x, z, 1), (x, weight, -0.5)],
        "layer_norm": [(x, weight, bias, [19], 1e-5), (x, None, None, [19], 1e-5)],
        "add_layer_norm": [(x, z, weight, bias, [19], 1e-5)],
    }
    # In the reference lane this is a check of the checks: PyTorch's own operators have to pass, too.
    # That their kernels compile cleanly is asked elsewhere, for every architecture.
    checks = ON_A_GPU if lane == "cuda" else [n for n in CHECKS if n != "compiles"]
    check_op(getattr(bridge, f"_{name}"), given[name], lanes=[lane], checks=checks)


# What is asked for, and what cannot run


def test_checks_can_be_chosen_by_name() -> None:
    op = Mix().operator()
    report = check_op(op, samples(), checks=["threads", "empties"], lanes=["reference"])
    assert [(row.check, row.lane, row.outcome) for row in report.rows] == [
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
        check_op(op, samples(), checks="fakes", lanes=["reference"])
    assert [row.check for row in caught.value.report.failed] == ["fakes"]
    assert isinstance(caught.value, AssertionError)


def test_what_cannot_run_is_skipped_by_name_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "missing", lambda: "there is no C++ compiler")
    report = check_op(Mix(reference=None).operator(), samples())
    assert {row.outcome for row in report.rows} == {"skipped"}
    assert {row.words for row in report.rows if row.lane == "simulator"} == {"there is no C++ compiler"}
    assert {row.words for row in report.rows if row.lane == "reference"} == {"the operator has no reference"}
    assert re.search(
        r"\nsanitizer, inputs_kept, .*, threads \(simulator\) skipped: there is no C\+\+ compiler\n", str(report)
    )


def test_the_reason_reaches_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix(reference=None).operator()
    with pytest.raises(pytest.skip.Exception, match="the operator has no reference"):
        check_op(op, samples(), checks="empties", lanes=["reference"], skip=pytest.skip)
    told: list[str] = []
    check_op(Mix().operator(), samples(), checks="empties", lanes=["reference"], skip=told.append)
    check_op(Mix().operator(), samples(), checks="guard_bands", lanes=["reference"], skip=told.append)
    assert told == ["no check of these lanes"]


def test_a_gpu_that_is_lost_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mix(reference=lambda x, w, factor: faulty.reference(x, w, factor).double()).operator()
    monkeypatch.setattr(
        check, "_lost", lambda subject: "not run, since the GPU is lost to this process: ILLEGAL_ADDRESS"
    )
    report = check_op(op, samples(), checks=["fakes", "opcheck", "threads"], lanes=["reference"], raises=False)
    assert [row.outcome for row in report.rows] == ["failed", "skipped", "skipped"]
    assert report.rows[2].words.endswith("ILLEGAL_ADDRESS")


@pytest.mark.simulator
def test_without_a_reference_low_dtypes_stand_beside_the_operator_in_float64() -> None:
    op = Mix(reference=None).operator()
    report = check_op(op, samples(), checks=["values", "gradients", "vmap", "special_values"], lanes=["simulator"])
    words = {row.check: row.words for row in report.rows}
    assert "beside the operator itself, since there is no reference, in float64: float32" in words["values"]
    assert "beside the operator itself" in words["gradients"]
    assert words["special_values"] == "the operator has no reference"


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["float32", "lower"])
def test_a_declared_policy_of_autocast_is_what_is_asked_for(policy: str) -> None:
    import autograd_bridge as bridge
    from cupyops.torch import references

    schema = f"faulty::gelu_{policy}(Tensor x, str approximate) -> Tensor"
    op = Operator(schema, bridge.Gelu, reference=references.gelu, autocast=policy)
    report = check_op(op, (torch.randn(19, 7), "none"), checks="autocast")
    assert [row.words for row in report.passed if row.lane == "simulator"] == [
        f"4 samples of float32, float16, bfloat16, float64, policy '{policy}'"
    ]
    op._autocast = {"cpu": "float32" if policy == "lower" else "lower"}  # it does one thing, and is said to do another
    op.call = op.body
    found = check_op(op, (torch.randn(19, 7), "none"), checks="autocast", lanes=["simulator"], raises=False).failed
    assert [row.check for row in found] == ["autocast"]


@pytest.mark.simulator
def test_dtypes_that_are_refused_are_told_and_those_asked_for_have_to_be_taken() -> None:
    op = Mix().operator()
    report = check_op(op, samples(), checks="values", lanes=["simulator"])
    assert report.rows[0].words.endswith("; refused: float16, bfloat16")
    with pytest.raises(CheckFailed, match="float16 is refused: TypeError: mix: `x` must have dtype float32 or float64"):
        check_op(op, samples(), checks="values", lanes=["simulator"], dtypes=[torch.float16])


@pytest.mark.simulator
def test_tolerance_lets_an_approximation_pass() -> None:
    op = Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.00001)).operator()
    assert "values" in failing(op, "simulator", "values")
    check_op(op, samples(), checks="values", lanes=["simulator"], tolerance=1e12)


@pytest.mark.simulator
def test_gradients_are_taken_by_what_requires_them() -> None:
    """x alone: the wrong gradient of w is nobody's business."""
    op = Mix(backward_body=faulty.wrong_gradient).operator()
    x, w, factor = samples()[0]
    check_op(op, (x.requires_grad_(), w, factor), checks=["gradients", "gradcheck"], lanes=["simulator"])
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
    report = check_op(Mix(backward=refused).operator(), samples(), checks=checks, lanes=["simulator"])
    assert [row.check for row in report.skipped] == ["gradients", "gradcheck", "gradgradcheck"]
    words = "the operator says that it has no gradient: RuntimeError: mix has no gradient: declare it with backward="
    assert {row.words for row in report.skipped} == {words}
    assert f"gradients, gradcheck, gradgradcheck (simulator) skipped: {words}" in str(report)
    report = check_op(Mix(backward=refused_again).operator(), samples(), checks=checks, lanes=["simulator"])
    assert [row.check for row in report.skipped] == ["gradgradcheck"]
    assert "the gradient says that it has none: RuntimeError: mix_backward has no gradient" in report.skipped[0].words


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
        op, (torch.randn(5),), checks=["values", "inputs_kept", "determinism", "gradcheck"], lanes=["simulator"]
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
    report = check_op(op, sample, raises=False, lanes=["simulator"], checks=checks)
    return {row.check: row.words for row in report.failed}


def test_every_check_has_a_fault_that_is_planted() -> None:
    planted = [name for name, _, _ in (*PLANTED.values(), *PLANTED_ON_A_GPU.values())]
    assert {*planted, *ALONE, "second_device"} == set(CHECKS)


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


def test_other_callables_and_lanes_are_refused() -> None:
    with pytest.raises(TypeError, match="`op` must be a cupyops.torch.Operator, or a function whose .* got randn"):
        check_op(torch.randn, samples())
    with pytest.raises(ValueError, match=r"`lanes` must be names of reference, simulator, cuda, got \['gpu'\]"):
        check_op(Mix().operator(), samples(), lanes=["gpu"])


def test_arguments_with_a_default_may_be_left_out() -> None:
    def body(x: Tensor, w: Tensor, factor: float = 0.5) -> Tensor:
        return faulty.body(x, w, factor)

    op = Mix(body=body, schema="(Tensor x, Tensor w, float factor=0.5) -> Tensor").operator()
    x, w, _ = samples()[0]
    assert check.samples_of(op, (x, w))[0][2] == 0.5
    assert check_op(op, (x, w), checks="gradcheck", lanes=["reference"]).passed
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
        report = check_op(op, sample, checks=["values", "empties", "strides", "fakes"], lanes=["simulator"])
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
    assert check_op(mix, samples(), checks="empties", lanes=["reference"]).passed


# Its own measure


def test_errors_are_counted_in_eps_and_kinds_have_to_agree() -> None:
    from cupyops.torch.check_compare import error_in_eps

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
