"""An operator in a graph of Inductor: what the generated code calls, and that it gives what eager mode gives."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.lowering
from torch import Tensor

import autograd_bridge as bridge
import cupyops
from cupyops.torch import Operator
from cupyops.torch.compiled import calls, private
from tests import preloaded
from tests.conftest import CUDA
from tests.support import alike

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@contextmanager
def no_cache() -> Iterator[None]:
    """Compiles graphs instead of loading them from disk; the output of the C++ compiler may be loaded."""
    import torch._functorch.config
    import torch._inductor.config

    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        yield


def codes_of(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of a call, and the code that Inductor generates in it."""
    from torch._inductor.utils import run_and_get_code

    with no_cache():
        found, codes = run_and_get_code(run)
    return found, codes


def code_of(run: Callable[[], Any]) -> str:
    """The first code that Inductor generates in a call, which ends there: no C++ is compiled."""
    from unittest import mock

    from torch._inductor.graph import GraphLowering

    class Enough(Exception):
        pass

    codes = []

    def stop(code: str) -> None:
        codes.append(code)
        raise Enough

    with (
        no_cache(),
        mock.patch.object(GraphLowering, "save_output_code", stop),
        pytest.raises(Exception, match="Enough"),
    ):
        run()
    return str(codes[0])


def targets_of(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The functions in the graph that Dynamo traces."""
    found = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return graph

    torch.compiler.reset()
    torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    return found


def operators_of(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The operators in the graph of the forward that AOTAutograd traces."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def compiler(graph: Any, inputs: Any) -> Any:
        found.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward))
    torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    return found


def lines_of(code: str, word: str) -> list[str]:
    """The lines of generated code with a word, without comments and assertions."""
    lines = (line.strip() for line in code.splitlines())
    return [line for line in lines if word in line and not line.startswith(("#", "assert"))]


def norm_of_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return bridge.layer_norm(bridge.gelu(x) * 2, x.shape[-1], weight, bias)


def operands(device: str, rows: int = 5, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    given = torch.randn(rows, 24), torch.randn(24), torch.randn(24)
    return [x.to(device, dtype).requires_grad_() for x in given]


def gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    for x in inputs:
        x.grad = None
    y = function(*inputs)
    (y * torch.arange(y.numel(), device=y.device).view(y.shape)).sum().backward()
    return [y.detach(), *(x.grad for x in inputs if x.grad is not None)]


def test_generated_code_calls_bodies_and_no_registered_operator(backend: str, device: str, kernels: bool) -> None:
    """Forward and backward, with the bits of the kernels in eager mode."""
    inputs = operands(device)
    compiled = torch.compile(norm_of_gelu, fullgraph=True)
    found, codes = codes_of(lambda: gradients(compiled, inputs))
    forward, backward = codes
    for code, names in ((forward, ("gelu", "layer_norm")), (backward, ("layer_norm_backward", "gelu_backward_"))):
        assert not lines_of(code, "torch.ops.cupyops")
        variables = {name: line.partition(" = ")[0] for name in names for line in lines_of(code, f"'cupyops::{name}'")}
        assert list(variables) == list(names)
        for variable in variables.values():
            assert [line for line in lines_of(code, f"{variable}(") if "cupyops_direct" not in line]
    for got, right in zip(found, gradients(norm_of_gelu, inputs), strict=True):
        torch.testing.assert_close(got, right)
        assert alike(got, right) or not kernels


def test_this_pytorch_has_all_private_parts() -> None:
    """Otherwise each program would print a warning for each missing part."""
    uses = [private.CHOSEN, private.DIRECT, private.INLINED, private.KEYS, private.RECOMPUTED, private.REWRITTEN]
    assert uses == list(private._NEEDED)
    assert all(map(private.has, uses))


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    private.has.cache_clear()
    yield
    private.has.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize(
    ("part", "words"), [("gone", ""), ("is_there", "x gone"), ("Graph", "nodes gone"), ("is_there.gone", "")]
)
def test_a_use_whose_part_is_gone_is_named_once(part: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is gone, a parameter, an attribute that a constructor sets, and a member."""

    class Graph:
        def __init__(self) -> None:
            self.nodes = ()

    monkeypatch.setattr(torch._inductor.lowering, "Graph", Graph, raising=False)
    monkeypatch.setattr(torch._inductor.lowering, "is_there", lambda x: x, raising=False)
    whole = [("torch._inductor.lowering", "is_there", "x"), ("torch._inductor.lowering", "Graph", "nodes")]
    monkeypatch.setitem(private._NEEDED, private.REWRITTEN, whole)
    assert private.has(private.REWRITTEN)
    private.has.cache_clear()
    monkeypatch.setitem(private._NEEDED, private.REWRITTEN, [*whole, ("torch._inductor.lowering", part, words)])
    with pytest.warns(UserWarning, match="lacks") as told:
        assert [private.has(private.REWRITTEN) for _ in range(2)] == [False, False]
    (warning,) = told
    lacks = f"PyTorch {torch.__version__} lacks torch._inductor.lowering.{part}, as cupyops calls it"
    assert (
        str(warning.message)
        == f"{lacks}, so that compiled graphs go without {private.REWRITTEN}. Their results are the same"
    )


@pytest.mark.usefixtures("_asked_anew")
def test_code_calls_the_registered_operator_if_inductor_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = _scale("plain_scale")
    monkeypatch.setitem(private._NEEDED, private.DIRECT, [("torch._inductor.lowering", "gone", "")])
    x = torch.randn(6)
    with pytest.warns(UserWarning, match="lowering.gone, .* go without direct calls of operators"):
        code = code_of(lambda: torch.compile(lambda x: scale(x, 2.0) + 1, fullgraph=True)(x))
    torch._dynamo.reset()
    torch.compile(lambda x: scale(x, 3.0) + 1, fullgraph=True)(x)  # warns no more
    assert lines_of(code, "torch.ops.tests.plain_scale")
    assert not lines_of(code, "cupyops")


def test_an_omitted_default_reaches_the_body() -> None:
    """PyTorch's graphs omit trailing arguments at their defaults, and a body takes all."""
    seen = []

    def body(x: Tensor, factor: float, shift: float) -> Tensor:
        seen.append((factor, shift))
        return torch.empty_like(x)

    op = Operator("tests::shifted(Tensor x, float factor, float shift=3.) -> Tensor", body, reference=_shifted)
    x = torch.randn(6)
    found, _ = codes_of(lambda: torch.compile(lambda x: torch.ops.tests.shifted(x, 2.0) * 1, fullgraph=True)(x))
    assert torch.equal(found, 2 * x + 3)
    assert set(seen) == {(2.0, 3.0)}
    assert op.name == "shifted"


def _shifted(x: Tensor, factor: float, shift: float) -> Tensor:
    return x * factor + shift


def _empty(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _scale(name: str, **options: Any) -> Operator:
    return Operator(f"tests::{name}(Tensor x, float factor) -> Tensor", _empty, reference=torch.mul, **options)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_symbolic_sizes_reach_the_body(device: str) -> None:
    compiled = torch.compile(norm_of_gelu, fullgraph=True, dynamic=True)
    given = [[x.detach() for x in operands(device, rows)] for rows in (3, 7)]
    found, (code,) = codes_of(lambda: [compiled(*inputs) for inputs in given])
    for y, inputs in zip(found, given, strict=True):
        torch.testing.assert_close(y, norm_of_gelu(*inputs))
    assert all(", False)" in line for line in lines_of(code, "= cupyops_direct(")), "no launches of a size are repeated"


def _sum_and_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return bridge.add_layer_norm(x, x, 24, weight, bias)


@pytest.mark.parametrize("batch", [1, 3])
def test_strides_of_a_contiguous_tensor_are_constants(batch: int) -> None:
    """Dynamo makes all strides of a tensor symbols if it comes with other strides than in the call before."""
    compiled = torch.compile(_sum_and_norm, fullgraph=True)
    x, parameters = torch.randn(batch, 24, 5).mT, (torch.randn(24), torch.randn(24))
    found, codes = codes_of(lambda: [compiled(given, *parameters) for given in (x, x.contiguous())])
    assert len(codes) == 2
    for code in codes:
        (line,) = lines_of(code, "= cupyops_direct(")
        assert ", True)" in line, "launches are repeated"
        assert lines_of(code, " = args") == ["arg0_1, arg1_1, arg2_1 = args"], "a symbol is an argument of the graph"
    for y, right in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(y, right)


def test_an_operator_that_is_declared_again_is_lowered_again() -> None:
    x = torch.randn(6)
    for reference in (torch.mul, torch.div):
        op = Operator("tests::again(Tensor x, float factor) -> Tensor", _empty, reference=reference)
        torch.compiler.reset()
        code = code_of(lambda op=op: torch.compile(lambda x: op(x, 2.0) * 1, fullgraph=True)(x))
        assert lines_of(code, "= cupyops_direct('tests::again'")
        assert torch.equal(calls.direct("tests::again", "cpu", {}, "", False)(x, 2.0), reference(x, 2.0))


def test_code_that_calls_an_unknown_operator_says_so() -> None:
    """Code from the cache on disk is loaded without the declaration."""
    with pytest.raises(
        RuntimeError, match="a compiled graph calls tests::nowhere, which is not declared: import the module"
    ):
        calls.direct("tests::nowhere", "cpu", {}, "f", True)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_an_operator_that_writes_to_its_argument(device: str) -> None:

    def fill(x: Tensor, value: float) -> None:
        x.fill_(value)

    filling = Operator("tests::filling(Tensor(a!) x, float value) -> ()", fill)

    def run(x: Tensor) -> Tensor:
        filling(x, 3.0)
        return x + 1

    x = torch.zeros(6, device=device)
    found, (code,) = codes_of(lambda: torch.compile(run, fullgraph=True)(x))
    assert lines_of(code, "'tests::filling'")
    assert not lines_of(code, "torch.ops.tests")
    assert torch.equal(x, torch.full_like(x, 3))
    assert torch.equal(found, torch.full_like(x, 4))


def test_results_count_as_aligned() -> None:
    """Inductor takes results of other custom operators to be unaligned, and then reads them without vectors."""
    op = _scale("aligned_scale")
    x = torch.randn(6)
    code = code_of(lambda: torch.compile(lambda x: op(x, 2.0) + 1, fullgraph=True)(x))
    assert lines_of(code, "cupyops_direct")
    assert "not aligned" not in code


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_many_threads_call_one_graph(device: str) -> None:
    inputs = [x.detach() for x in operands(device)]
    compiled = torch.compile(norm_of_gelu, fullgraph=True)
    right, found = norm_of_gelu(*inputs), []
    compiled(*inputs)
    threads = [threading.Thread(target=lambda: found.append(compiled(*inputs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(alike(y, right) for y in found)


def test_code_in_cpp_calls_the_registered_operator() -> None:
    from torch._inductor import config

    op = _scale("cpp_scale")
    x = torch.randn(6)
    with config.patch(cpp_wrapper=True):
        code = code_of(lambda: torch.compile(lambda x: op(x, 2.0) + 1, fullgraph=True)(x))
    assert "tests" in code
    assert "cupyops" not in code


def test_code_from_the_disk_finds_the_function() -> None:
    """Generated code of an earlier version has this text: PyTorch keeps such code, and runs it beside a later version."""
    scope: dict[str, Any] = {}
    text = "from cupyops.torch.compiled.calls import direct as cupyops_direct\n"
    exec(text + "cupyops_buf0 = cupyops_direct('cupyops::gelu', 'cpu', globals(), 'cupyops_buf0', True)", scope)
    x = torch.randn(6)
    assert torch.equal(scope["cupyops_buf0"](x, "none"), bridge.gelu(x))


# What the operator is in a graph -------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
def test_a_decomposed_operator_leaves_its_reference_in_the_graph(autocast: bool) -> None:
    op = _scale("decomposed_scale", compiled="decompose")
    x = torch.randn(6, requires_grad=True)
    with torch.autocast("cpu", enabled=autocast):
        found = operators_of(lambda x: op(x, 2.0), x)
        y, grad = gradients(torch.compile(lambda x: op(x, 2.0), fullgraph=True, backend="aot_eager"), [x])
    assert torch.ops.aten.mul.Tensor in found
    assert op.op not in found
    assert torch.equal(y, 2 * x.detach())
    assert torch.equal(grad, 2 * torch.arange(6.0))


@pytest.mark.gpu
def test_on_a_gpu_decomposed_operators_train_as_in_eager_mode() -> None:
    function = lambda x: bridge.linear(x, x[:8], x[0, :8])  # noqa: E731
    x = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        y = function(x)
        (grad,) = torch.autograd.grad(y.float().sum(), x)
        return y.detach(), grad

    found, codes = codes_of(lambda: run(torch.compile(function, fullgraph=True)))
    assert codes
    assert not any(lines_of(code, "cupyops") for code in codes)
    for got, right in zip(found, run(function), strict=True):
        torch.testing.assert_close(got, right, rtol=3e-2, atol=3e-1)


def test_a_graph_is_no_export_in_a_version_that_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before PyTorch 2.13, is_exporting() is True in every function that Dynamo traces, so that no operator asks it."""

    def is_exporting() -> bool:
        return sys._getframe(1).f_globals["__name__"].startswith("cupyops")

    monkeypatch.setattr(torch.compiler, "is_exporting", is_exporting)
    op = _scale("never_exported_scale", compiled="decompose")
    assert op.op not in operators_of(lambda x: op(x, 2.0), torch.randn(4, 8))


def test_linear_is_pytorchs_in_a_graph() -> None:
    """Inductor pads unaligned products, and fuses what follows a product."""
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(5, 8)
    found = operators_of(lambda x: bridge.linear(x, weight, weight[:, 0]), x)
    assert torch.ops.aten.addmm.default in found
    assert torch.ops.cupyops.linear.default not in found


def test_a_function_of_the_arguments_chooses() -> None:
    op = _scale("chosen_scale", compiled=lambda x, factor: "decompose" if factor > 1 and x.dim() == 1 else "kernel")
    cases = ((torch.randn(6), 2.0), (torch.randn(6), 0.5), (torch.randn(2, 3), 2.0))
    kept = [op.op in operators_of(lambda x, factor=factor: op(x, factor), x) for x, factor in cases]
    assert kept == [False, True, True]


def test_a_wrong_choice_is_named() -> None:
    with pytest.raises(ValueError, match=r"`compiled` must be 'kernel', 'decompose', 'auto' or a function.*'fused'"):
        _scale("wrong", compiled="fused")
    with pytest.raises(ValueError, match=r"`reference` must be given, since compiled='decompose'"):
        Operator("tests::bare(Tensor x) -> Tensor", torch.empty_like, compiled="decompose")
    op = _scale("wrongly_chosen", compiled=lambda x, factor: "reference")
    with pytest.raises(
        Exception, match="wrongly_chosen: `compiled` must return 'kernel', 'decompose' or 'auto', got 'reference'"
    ):
        torch.compile(lambda x: op(x, 2.0), fullgraph=True, backend="eager")(torch.randn(6))


def test_export_keeps_an_operator_that_is_decomposed_elsewhere() -> None:
    op = _scale("exported_scale", compiled="decompose")

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return op(x, 2.0)

    for strict in (False, True):
        program = torch.export.export(Module(), (torch.randn(6),), strict=strict)
        assert op.op in [n.target for n in program.graph.nodes]


def test_the_simulator_runs_the_body_of_an_operator_that_is_decomposed_elsewhere() -> None:
    def body(x: Tensor, factor: float) -> Tensor:
        return torch.full_like(x, 7)

    schema = "tests::simulated_scale(Tensor x, float factor) -> Tensor"
    op = Operator(schema, body, reference=torch.mul, compiled="decompose")
    x = torch.randn(6)
    compiled = torch.compile(lambda x: op(x, 2.0), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), 2 * x)
    with cupyops.simulate():
        assert torch.equal(compiled(x), torch.full_like(x, 7))
    assert torch.equal(compiled(x), 2 * x)


@pytest.mark.thorough
def test_graphs_on_disk_are_of_one_reference_with_its_gradient_and_of_one_policy_of_autocast() -> None:
    """AOTAutograd's cache takes Dynamo's graph as the key."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    x = torch.arange(1.0, 7.0)

    def found(lower: bool = True, **declared: Any) -> Tensor:
        op = Operator("tests::cached_scale(Tensor x, float factor) -> Tensor y", lambda x, f: x * f, **declared)
        torch.compiler.reset()
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            y: Tensor = torch.compile(lambda x: op(x, 3.0), fullgraph=True)(x)
        return y

    with fresh_cache():
        assert torch.equal(found(reference=torch.mul, compiled="decompose"), 3 * x)
        assert torch.equal(found(reference=torch.add, compiled="decompose"), 3 + x)
        assert found(reference=torch.mul).dtype == torch.float32
        assert found(reference=torch.mul, autocast="lower").dtype == torch.bfloat16
        x.requires_grad_()
        for reference, wanted in ((torch.mul, 3 + 0 * x), (lambda x, factor: x * x * factor, 6 * x)):
            (grad,) = torch.autograd.grad(found(lower=False, reference=reference).sum(), x)
            assert torch.equal(grad, wanted)
        x = x.detach()
        counters.clear()
        for _ in range(2):
            torch.compiler.reset()
            torch.compile(bridge.gelu, fullgraph=True)(x)
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        # An operator of a user has another name after each declaration, unless it has a version.
        x.requires_grad_()
        for version, hits in ((None, 0), (None, 0), ("1", 0), ("1", 1), ("2", 0)):
            counters.clear()
            y = found(lower=False, reference=torch.mul, version=version)
            torch.autograd.grad(y.sum(), x)  # the backward's compilation saves the graph
            assert counters["aot_autograd"]["autograd_cache_hit"] == hits, version
        x = x.detach()
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.compiler.reset()
            weight = torch.ones(6, 6)
            with torch.autocast("cpu", dtype):
                assert torch.compile(bridge.linear, fullgraph=True)(x, weight).dtype == dtype


def test_importing_loads_no_part_of_inductor() -> None:
    found = "sorted(m for m in sys.modules if m.startswith(('torch._inductor', 'torch._dynamo')))"
    text = (
        f"import sys, torch; before = {found}; import autograd_bridge, cupyops.torch; assert {found} == before, {found}"
    )
    done = preloaded.run(["-c", text], cwd=ROOT)
    assert not done.returncode, done.stderr
