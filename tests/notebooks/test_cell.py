"""%%cu: operators from cells of CUDA C++, and errors that point into the cell."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cupyops
from cupyops import Kernel, Rows, Threads
from cupyops.compile import toolchain
from cupyops.notebook.derived import Derived
from cupyops.notebook.magic import cu
from cupyops.notebook.options import CellError

FORWARD = """extern "C" __global__ void softclip(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t limit, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = scalar_t(limit * acc_t(x[i]) / (limit + fabs(acc_t(x[i]))));
}
"""
BACKWARD = """extern "C" __global__ void softclip_backward(
    const scalar_t* grad_y,  // (n)
    const scalar_t* x,       // (n)
    scalar_t* grad_x,        // (n)
    acc_t limit, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const acc_t d = limit / (limit + fabs(acc_t(x[i])));
    grad_x[i] = scalar_t(acc_t(grad_y[i]) * d * d);
}
"""
needs_nvrtc = pytest.mark.skipif(not toolchain.has_nvrtc(), reason="needs NVRTC")


def reference(x: Tensor, limit: float) -> Tensor:
    return limit * x / (limit + x.abs())


def run(line: str, cell: str, **scope: Any) -> dict[str, Any]:
    """The names of a notebook after a cell."""
    cu(line, cell, scope, lambda text: eval(text, scope))
    return scope


# What a cell becomes --------------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_kernels_become_an_operator_with_its_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    softclip = run("", FORWARD + BACKWARD)["softclip"]
    said = "softclip(Tensor x, float limit) -> Tensor y; gradient: softclip_backward\n"
    assert capsys.readouterr().out == said
    x = torch.randn(3, 5, requires_grad=True)
    y = softclip(x, 2.0)
    torch.testing.assert_close(y, reference(x, 2.0))
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(found, (2 / (2 + x.detach().abs())) ** 2)


BLEND = """extern "C" __global__ void blend(
    const float* a,  // (n)
    const float* b,  // (n)
    float* y,        // (n)
    int n) {
    if (threadIdx.x < n) y[threadIdx.x] = 2 * a[threadIdx.x] + 3 * b[threadIdx.x];
}
extern "C" __global__ void blend_backward(
    const float* grad_y,  // (n)
    float* grad_a,        // (n)
    float* grad_b,        // (n)
    int n) {
    if (threadIdx.x < n) grad_a[threadIdx.x] = 2 * grad_y[threadIdx.x], grad_b[threadIdx.x] = 3 * grad_y[threadIdx.x];
}
"""


@pytest.mark.simulator
def test_each_gradient_of_several_is_that_of_its_input() -> None:
    blend = run("", BLEND)["blend"]
    a, b = (torch.randn(5, requires_grad=True) for _ in range(2))
    grads = torch.autograd.grad(blend(a, b).sum(), (a, b))
    assert [g.tolist() for g in grads] == [[2.0] * 5, [3.0] * 5]


@needs_nvrtc
def test_a_cell_run_again_replaces_the_operator_under_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    scope = run("clip --reference f", FORWARD, f=reference)
    first = scope["clip"]
    assert "clip(Tensor x, float limit) -> Tensor y; the gradient of its reference" in capsys.readouterr().out
    cu("clip", FORWARD, scope, eval)
    assert scope["clip"] is not first
    assert scope["clip"].reference is None
    assert "no gradient" in capsys.readouterr().out


@needs_nvrtc
def test_each_kernel_without_a_partner_is_an_operator() -> None:
    scope = run("", FORWARD + FORWARD.replace("softclip", "other"))
    assert [name for name, value in scope.items() if not name.startswith("__")] == ["softclip", "other"]


PARAMETERS = """extern "C" __global__ void k(
    const scalar_t* x,       // (M, N)
    const float* weight,     // (N) or null
    acc_t* sums,             // (M)
    scalar_t* turned,        // (N, M)
    int* counts,             // (M, 2)
    long long M, acc_t eps, int steps, long long N, bool flag) {}
"""


def test_results_have_the_shapes_and_dtypes_of_the_declaration() -> None:
    body = Derived(Kernel(PARAMETERS, "k", Rows("M")))
    assert body.schema == (
        "(Tensor x, Tensor? weight, float eps, int steps, bool flag) -> (Tensor sums, Tensor turned, Tensor counts)"
    )
    x = torch.empty(2, 3, 5, dtype=torch.bfloat16, device="meta").transpose(0, 1)
    sums, turned, counts = body(x, None, 1e-5, 3, True)
    assert (sums.shape, sums.dtype) == ((3, 2), torch.float32)  # the leading dimensions of x are one name
    assert (turned.shape, turned.dtype) == ((5, 6), torch.bfloat16)
    assert (counts.shape, counts.dtype) == ((6, 2), torch.int32)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("acc_t* sums,             // (M)", "acc_t* sums,", "k: `sums` must have a shape comment, such as // (n)"),
        ("(N, M)", "(N, M) or null", "no `or null`, since the operator allocates it, got `or null`"),
        ("const scalar_t* x,       // (M, N)", "const scalar_t* x,", "k: no shape of an input gives M;"),
        ("int steps", "Int64s<3> steps", "k: declare the operator in Python: a cell gives `steps` no value"),
        ("const ", "", "k: an operator needs an input (const T*) and a result (T*)"),
    ],
)
def test_a_declaration_that_is_no_operator_is_refused(right: str, wrong: str, words: str) -> None:
    text = PARAMETERS.replace(right, wrong).replace(" or null", "" if right == "const " else " or null")
    with pytest.raises(TypeError) as error:
        Derived(Kernel(text, "k", Rows("M")))
    assert words in str(error.value)


def test_an_input_of_too_few_dimensions_is_named() -> None:
    body = Derived(Kernel(PARAMETERS, "k", Rows("M")))
    with pytest.raises(ValueError, match=r"k: `x` must have the dimensions \(M, N\), got \(5,\)"):
        body(torch.empty(5, device="meta"), None, 1e-5, 3, True)


def test_a_result_whose_type_no_input_has_is_named() -> None:
    text = PARAMETERS.replace("const scalar_t* x", "const float* x").replace("acc_t* sums", "float* sums")
    body = Derived(Kernel(text.replace("acc_t eps", "float eps"), "k", Rows("M")))
    with pytest.raises(TypeError, match="k: `turned` must have the type of an input, or a type of C, got scalar_t"):
        body(torch.empty(2, 5, device="meta"), None, 1e-5, 3, True)


# Errors ---------------------------------------------------------------------------------------------------------------


def failing(line: str, cell: str, **scope: Any) -> str:
    with pytest.raises(CellError) as error:
        run(line, cell, **scope)
    assert error.value._render_traceback_() == str(error.value).splitlines()
    return str(error.value)


@needs_nvrtc
def test_an_error_of_the_compiler_is_at_the_line_of_the_cell() -> None:
    said = failing("", FORWARD.replace("fabs", "fabz"))
    assert '\ncell:7: error: identifier "fabz" is undefined\n' in said  # line 1 is %%cu
    assert "\n      if (i < n) y[i] = scalar_t(limit * acc_t(x[i]) / (limit + fabz(acc_t(x[i]))));" in said


@pytest.mark.simulator
def test_without_nvrtc_the_simulators_compiler_finds_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "has_nvrtc", lambda: False)
    said = failing("", FORWARD.replace("fabs", "fabz"))
    assert "cell:7:" in said
    assert "fabz" in said


@pytest.mark.parametrize(
    ("line", "cell", "words"),
    [
        ("", "int x;", '%%cu: the cell has no kernel: declare extern "C" __global__ void NAME(...)'),
        ("--threads m", FORWARD, "%%cu: softclip has the sizes n, and no m"),
        ("--rows n,n", FORWARD, "%%cu: --rows takes one size, and --block one number with it"),
        ("--rows n --block 32,8", FORWARD, "%%cu: --rows takes one size"),
        ("--threads n,n,n,n", FORWARD, "%%cu: --threads takes one to three sizes, got n, n, n, n"),
        ("--block many", FORWARD, "%%cu: --block must be whole numbers, got 'many'"),
        ("--block 4096", FORWARD, "softclip: a block of 4096 x 1 x 1 threads: CUDA has at most 1024"),
        ("--constants A=x", FORWARD, "%%cu: --constants A must be whole numbers, got 'x'"),
        (
            "",
            FORWARD.replace("// (n)", ""),
            "%%cu: say how many threads softclip needs, by --threads or --rows: no shape",
        ),
        ("", PARAMETERS, "%%cu: say how many threads k needs, by --threads or --rows: its sizes are M, N"),
        ("--thread n", FORWARD, "%%cu: unrecognized arguments: --thread; %cu --help lists the options"),
        ("--threads n --rows n", FORWARD, "%%cu: argument --rows: not allowed with argument --threads"),
        ("'", FORWARD, "%%cu: No closing quotation in: '"),
        ("--reference f", FORWARD, "%%cu: --reference: the notebook has no function f, got None"),
        (
            "a",
            FORWARD + FORWARD.replace("softclip", "other"),
            "%%cu: leave out a: the cell has the operators softclip,",
        ),
        ("a-b", FORWARD, "%%cu: the name of the operator must be an identifier, got 'a-b'"),
    ],
)
def test_a_mistake_is_one_line(line: str, cell: str, words: str) -> None:
    said = failing(line, cell)
    assert words in said
    assert "\n" not in said


@needs_nvrtc
def test_a_backward_that_computes_no_gradient_is_refused() -> None:
    said = failing("", FORWARD + BACKWARD.replace("grad_x", "dx"))
    assert said == "softclip_backward: its results must be gradients (grad_x), got dx"


# Reports --------------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_explain_prints_the_compilers_report_and_cupyops_explain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []

    def explain(op: Callable[..., Any], *args: Any) -> str:
        calls.append((op, *args))
        return "a table"

    monkeypatch.setattr(cupyops, "explain", explain, raising=False)
    scope = run("--explain --inputs 'torch.ones(3), 2.0'", FORWARD + BACKWARD, torch=torch)
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines[1:3], ("softclip", "softclip_backward"), strict=True):
        assert line.startswith(f"{name}<float32>, sm_90: ")
        assert " registers, 0 bytes spilled, " in line
    assert lines[3:] == ["a table"]
    ((op, x, limit),) = calls
    assert op is scope["softclip"]
    assert (x.tolist(), limit) == ([1, 1, 1], 2.0)
    monkeypatch.delattr(cupyops, "explain")
    run("--explain", FORWARD)
    assert "sm_90" in capsys.readouterr().out


@pytest.mark.simulator
def test_a_failed_check_is_an_error_with_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--reference f --check returned,values"
    run(line, FORWARD, f=reference)
    said = capsys.readouterr().out
    assert "3 passed, 0 failed" in said
    said = failing(line, FORWARD, f=lambda x, limit: x + limit)
    assert "values (simulator) failed" in said
    assert "1 failed" in said


@needs_nvrtc
def test_inputs_that_cannot_be_drawn_or_evaluated_are_named() -> None:
    assert "--inputs 'y': NameError: name 'y' is not defined" in failing("--check --inputs y", FORWARD)
    lacking = "%%cu: `x` of softclip cannot be drawn: give --inputs 'EXPRESSION, ...'"
    assert failing("--check", FORWARD.replace("scalar_t", "int").replace("acc_t", "float")) == lacking


# IPython --------------------------------------------------------------------------------------------------------------


class Shell:
    """As much of IPython as the extension asks."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Callable[..., None]] = {}

    def ev(self, expression: str) -> Any:
        return eval(expression, self.user_ns)

    def register_magic_function(self, function: Callable[..., None], kind: str, name: str) -> None:
        assert kind == "line_cell"
        self.magics[name] = function


@needs_nvrtc
def test_the_extension_defines_the_magic(capsys: pytest.CaptureFixture[str]) -> None:
    cupyops.load_ipython_extension(shell := Shell())
    shell.magics["cu"]("", FORWARD)
    assert list(shell.user_ns) == ["softclip"]
    with pytest.raises(CellError, match="%%cu is a cell magic: two percent signs"):
        shell.magics["cu"]("")
    capsys.readouterr()
    shell.magics["cu"]("--help")
    assert "--reference FUNCTION" in capsys.readouterr().out


def test_policies_are_those_of_the_options() -> None:
    from cupyops.notebook.options import geometry_of, parse

    def policy(line: str, *sizes: str) -> Any:
        options = parse(line)
        assert not isinstance(options, str)
        return geometry_of(options, "k", list(sizes))

    assert policy("", "n") == Threads("n", block=256)
    assert policy("--threads N,M", "M", "N") == Threads("N", "M", block=(32, 8))
    assert policy("--threads N,M --block 16,16", "M", "N") == Threads("N", "M", block=(16, 16))
    assert policy("--rows M --block 128", "M", "N") == Rows("M", 128)
    assert policy("--elementwise n", "n") == cupyops.Elementwise("n")
    assert policy("--grid-stride n", "n") == cupyops.GridStride("n")
