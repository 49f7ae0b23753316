"""The choice between an operator's kernel and the operations of its reference, for each graph that Inductor compiles.

On a CPU nothing is measured, and the bytes decide that Inductor counts. A stand-in for a GPU has times of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.lowering
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import autograd_bridge as bridge
from cupyops import simulate, tuning
from cupyops.torch import Operator
from cupyops.torch.compiled import choices, regions
from cupyops.torch.compiled.common import name_of
from cupyops.tuning import records

from .test_compiled import codes_of, gradients, lines_of


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYOPS_CHOICES")
    monkeypatch.setattr(choices, "_LEAST", {})
    torch.compiler.reset()


def calls_of(function: Callable[..., Any], *inputs: Tensor, dynamic: bool | None = None) -> list[list[str]]:
    """The operators that the code of each graph calls, forward and backward."""
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    trained = any(x.requires_grad for x in inputs)
    _, codes = codes_of(lambda: gradients(compiled, list(inputs)) if trained else compiled(*inputs))
    return [[line.split("'")[1] for line in lines_of(code, "= cupyops_direct(")] for code in codes]


def norm_gelu_add(x: Tensor, weight: Tensor) -> Tensor:
    return bridge.gelu(bridge.rms_norm(x, x.shape[-1], weight)) + x


def operands(dtype: torch.dtype = torch.bfloat16, gradient: bool = False) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(*n, dtype=dtype, requires_grad=gradient) for n in ((32, 256), (256,)))  # type: ignore[return-value]


def test_operators_beside_others_become_their_references_operations() -> None:
    x, weight = operands()
    assert calls_of(norm_gelu_add, x, weight) == [[]]
    torch.testing.assert_close(torch.compile(norm_gelu_add)(x, weight), norm_gelu_add(x, weight), rtol=2e-2, atol=2e-2)


def test_the_operations_of_a_reference_are_matched_with_those_beside_them() -> None:
    """Inductor scales the distance to the maximum, where a softmax of scaled elements is in its own operations."""

    def scaled(softmax: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: softmax(x * 0.5, -1) * 2 + x

    def loops(function: Callable[..., Any]) -> list[str]:
        _, (code,) = codes_of(lambda: torch.compile(function, fullgraph=True)(operands(torch.float32)[0]))
        return [line.strip() for line in code.splitlines() if line.strip().startswith("auto tmp")]

    assert loops(scaled(bridge.softmax)) == loops(scaled(torch.softmax))


def test_an_operator_alone_stays_a_kernel() -> None:
    """Its reference reads and writes as many bytes."""
    assert calls_of(lambda x: bridge.softmax(x, -1), operands()[0]) == [["cupyops::softmax"]]


def test_the_switch_keeps_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CHOICES", "0")
    assert calls_of(norm_gelu_add, *operands()) == [["cupyops::rms_norm", "cupyops::gelu_"]]


def test_in_float32_gelu_stays_a_kernel() -> None:
    """PyTorch's form cancels for negative x."""
    assert calls_of(lambda x: bridge.gelu(x + 1) * 2, operands(torch.float32)[0]) == [["cupyops::gelu_"]]
    assert calls_of(lambda x: bridge.gelu(x + 1) * 2, operands(torch.bfloat16)[0]) == [[]]


def test_forward_and_backward_have_choices_of_their_own() -> None:
    inputs = operands(gradient=True)
    forward, backward = calls_of(norm_gelu_add, *inputs)
    assert forward == []
    assert "cupyops::gelu_backward" not in backward
    found = gradients(torch.compile(norm_gelu_add, fullgraph=True), list(inputs))
    for got, right in zip(found, gradients(norm_gelu_add, list(inputs)), strict=True):
        assert (got - right).abs().max() <= 0.01 * right.abs().max()


def test_no_choice_changes_what_the_forward_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    for setting in ("0", "1"):
        monkeypatch.setenv("CUPYOPS_CHOICES", setting)
        torch.compiler.reset()
        found: list[tuple[Any, ...]] = []

        def keep(x: Tensor, found: list[tuple[Any, ...]] = found) -> Tensor:
            found.append((x.shape, x.stride(), x.dtype))
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            torch.compile(norm_gelu_add, fullgraph=True)(*operands(gradient=True))
        saved.append(sorted(found, key=str))
    assert saved[0] == saved[1]
    assert saved[0]


def test_a_choice_holds_for_dynamic_sizes() -> None:
    compiled = torch.compile(norm_gelu_add, fullgraph=True, dynamic=True)
    _, codes = codes_of(lambda: compiled(*operands()))
    assert not lines_of(codes[0], "cupyops_direct(")
    x = torch.randn(7, 256, dtype=torch.bfloat16)
    weight = torch.randn(256, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(x, weight), norm_gelu_add(x, weight), rtol=2e-2, atol=2e-2)


def test_in_the_simulator_graphs_call_kernels() -> None:
    op = operator("simulated", lambda x: x * 2)
    with simulate():
        assert calls_of(lambda x: op(x) + 1, operands()[0]) == [["choices::simulated"]]


# What may be chosen ---------------------------------------------------------------------------------------------------


ONE: dict[str, Callable[..., Any]] = {
    "gelu": bridge.gelu,
    "layer_norm": lambda x: bridge.layer_norm(x, 16, x[0, 0], x[0, 1]),
    "rms_norm": lambda x: bridge.rms_norm(x, 16, x[0, 0]),
    "add_layer_norm": lambda x: bridge.add_layer_norm(x, x, 16, x[0, 0], x[0, 1]),
    "add_rms_norm": lambda x: bridge.add_rms_norm(x, x, 16, x[0, 0]),
    "add_rms_norm_without_weight": lambda x: bridge.add_rms_norm(x, x, 16),
    "softmax": lambda x: bridge.softmax(x, -1),
    "log_softmax": lambda x: bridge.log_softmax(x, -1),
    "swiglu": lambda x: bridge.swiglu(x, x),
    "geglu": lambda x: bridge.geglu(x, x),
    "reglu": lambda x: bridge.reglu(x, x),
    "rotary_embedding": lambda x: bridge.rotary_embedding(x, x.detach(), x.detach()),
    "rotary_embedding, interleaved": lambda x: bridge.rotary_embedding(x, x.detach(), x.detach(), interleaved=True),
}


@pytest.mark.parametrize("name", ONE)
def test_every_shipped_choice_has_operations_in_both_directions(name: str) -> None:
    def train(x: Tensor) -> Any:
        found = ONE[name](x)
        results = found if isinstance(found, tuple) else (found,)
        return torch.autograd.grad(results, x, [torch.ones_like(y) for y in results])

    x = torch.ones(2, 3, 16, dtype=torch.bfloat16, requires_grad=True)
    nodes = make_fx(train, tracing_mode="fake")(x).graph.nodes
    offered = [n for n in nodes if choices._reference_of(n) is not None]
    assert len(offered) == 2
    assert [name_of(n) for n in offered if choices._steps_of(n, {}) is None] == []


def operator(name: str, reference: Callable[..., Any], compiled: Any = "auto", **options: Any) -> Operator:
    options = {"fake": lambda x: torch.empty_like(x), **options}
    return Operator(
        f"choices::{name}(Tensor x) -> Tensor y", torch.clone, reference=reference, compiled=compiled, **options
    )


@pytest.mark.parametrize("compiled", ["kernel", lambda x: "kernel", lambda x: "auto" if x.dim() == 3 else "kernel"])
def test_an_explicit_kernel_stays(compiled: Any) -> None:
    op = operator("explicit", torch.clone, compiled)
    assert calls_of(lambda x: op(x + 1) * 2, operands()[0]) == [["choices::explicit"]]


def test_a_function_may_leave_the_choice() -> None:
    op = operator("left", torch.clone, lambda x: "auto")
    assert calls_of(lambda x: op(x + 1) * 2, operands()[0]) == [[]]


@pytest.mark.parametrize(
    "reference", [lambda x: x * float(x.sum()), lambda x: x.float(), lambda x: x[:2], lambda x: (x, x)]
)
def test_a_reference_that_no_graph_can_have_is_left_out(reference: Callable[..., Any]) -> None:
    """It reads a value, or its result has another dtype or shape than the operator's."""
    op = operator("unlike", reference)
    module = graph_of(lambda x: op.op(x + 1) * 2, operands()[0])
    choices.choose(module)
    assert [name_of(n) for n in module.graph.nodes if name_of(n).startswith("choices")] == ["choices::unlike"]


def test_a_region_that_fails_keeps_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no codegen")

    monkeypatch.setattr(choices._Trial, "_bytes", fail)
    with pytest.warns(UserWarning, match=r"no choice for cupyops::rms_norm, cupyops::gelu .* RuntimeError: no codegen"):
        found = calls_of(norm_gelu_add, *operands())
    assert found == [["cupyops::rms_norm", "cupyops::gelu_"]]


# Regions --------------------------------------------------------------------------------------------------------------


def graph_of(function: Callable[..., Any], *inputs: Any) -> GraphModule:
    from torch._inductor.decomposition import select_decomp_table

    with torch.no_grad():
        return make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)


def test_a_region_ends_at_products_and_no_way_comes_back() -> None:
    softmax = torch.ops.cupyops.softmax.default

    def block(x: Tensor, w: Tensor) -> Tensor:
        x = x + softmax(x) @ w
        return x * 2 + softmax(x) @ w

    bridge.softmax(torch.ones(2), -1)
    graph = graph_of(block, torch.randn(8, 8), torch.randn(8, 8)).graph
    operators = [n for n in graph.nodes if name_of(n) == "cupyops::softmax"]
    first, second = regions.regions(graph, dict.fromkeys(operators).keys())
    assert [len(first.nodes), [str(n.target) for n in second.nodes]] == [
        1,
        ["aten.add.Tensor", "aten.mul.Tensor", "cupyops.softmax.default"],
    ]
    assert [str(n.target) for n in second.results] == ["aten.mul.Tensor", "cupyops.softmax.default"]


def test_with_max_autotune_a_region_begins_with_its_product() -> None:
    """Inductor may compute what follows in the kernel of the product."""
    from torch._inductor import config

    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.cupyops.softmax.default(torch.relu(x) @ w) * 2

    bridge.softmax(torch.ones(2), -1)
    graph = graph_of(block, torch.randn(8, 8), torch.randn(8, 8)).graph
    operators = dict.fromkeys(n for n in graph.nodes if name_of(n) == "cupyops::softmax").keys()
    counts = []
    for tuned in (False, True):
        with config.patch(max_autotune_gemm=tuned):
            (region,) = regions.regions(graph, operators)
        counts.append([str(n.target) for n in region.nodes])
    assert counts[0] == ["cupyops.softmax.default", "aten.mul.Tensor"]
    assert counts[1] == ["aten.mm.default", *counts[0]]


def test_equal_calls_of_layers_are_traced_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, counted = [], []
    steps, counts = choices._traced_steps, choices._Trial._bytes
    monkeypatch.setattr(choices, "_traced_steps", lambda *args: traced.append(args) or steps(*args))
    monkeypatch.setattr(choices._Trial, "_bytes", lambda *args: counted.append(args) or counts(*args))

    def layers(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x @ torch.ops.cupyops.softmax.default(x + 1)
        return x

    bridge.softmax(torch.ones(2), -1)
    assert kept(graph_of(layers, torch.randn(8, 8))) == []
    assert len(traced) == len(counted) == 1


def test_the_operations_of_a_call_read_its_own_arguments() -> None:
    """The first call has one tensor twice, and the second two."""
    op = torch.ops.cupyops.add_layer_norm.default
    rest = None, None, [8], 1e-5
    bridge.add_layer_norm(torch.ones(2, 8), torch.ones(2, 8), 8)

    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return op(x, x, *rest)[1] * 2, op(x, y, *rest)[1] * 2

    x, y = torch.randn(2, 8), torch.randn(2, 8)
    graph = graph_of(twice, x, y)
    assert kept(graph) == []
    for got, right in zip(graph(x, y), (4 * x, (x + y) * 2), strict=True):
        torch.testing.assert_close(got, right)


def test_expanded_and_empty_tensors_are_filled() -> None:
    for x in (
        torch.empty(3, 1).expand(3, 5),
        torch.empty(0, 4),
        torch.empty(5, 3).mT,
        torch.empty(2, dtype=torch.bool),
    ):
        found = choices._random(x)
        assert (found.shape, found.stride(), found.dtype) == (x.shape, x.stride(), x.dtype)


# Measurements ---------------------------------------------------------------------------------------------------------


class Gpu:
    """A GPU with given times: those of the forms, by their names; of other forms a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: dict[str, float], memory: bool = True) -> None:
        self.measured: list[str] = []
        real = choices._Trial.__init__

        def with_gpu(trial: Any, region: Any) -> None:
            real(trial, region)
            trial.gpu = "a GPU"

        def microseconds(trial: Any, forms: Sequence[Any], values: Sequence[Any]) -> dict[Any, float]:
            if not memory:
                raise torch.OutOfMemoryError
            self.measured += map(choices._name, forms)
            return {form: times.get(choices._name(form), 1e6) for form in forms}

        monkeypatch.setattr(choices._Trial, "__init__", with_gpu)
        monkeypatch.setattr(choices._Trial, "_microseconds", microseconds)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUPYOPS_TUNE", "1")
    monkeypatch.setattr(records, "_own", {})
    monkeypatch.setattr(records, "_loaded", {})


def kept(module: GraphModule) -> list[str]:
    from torch._inductor.debug import DebugContext
    from torch._inductor.virtualized import V

    with V.set_debug_handler(DebugContext()):
        choices.choose(module)
    return [name for n in module.graph.nodes if (name := name_of(n)).startswith("cupyops")]


def both() -> GraphModule:
    x, weight = operands()
    ops = torch.ops.cupyops
    bridge.gelu(bridge.rms_norm(x, 256, weight))
    return graph_of(lambda x, w: ops.gelu.default(ops.rms_norm.default(x, w, 1e-6), "none") + x, x, weight)


@pytest.mark.usefixtures("cache")
def test_the_fastest_form_is_chosen_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, {"kernels": 5.0, "0 1": 4.0, "1": 3.0, "0": 6.0})
    assert kept(both()) == ["cupyops::rms_norm"]
    assert sorted(set(gpu.measured)) == ["0", "0 1", "1", "kernels"]
    gpu.measured.clear()
    records._own.clear()  # as in another process
    assert kept(both()) == ["cupyops::rms_norm"]
    assert not gpu.measured


@pytest.mark.usefixtures("cache")
def test_a_shipped_choice_holds_without_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    gpu = Gpu(monkeypatch, {"0": 1.0})
    assert kept(both()) == ["cupyops::gelu"]
    assert tuning.save(tmp_path / "choices.json") == 1
    records._own.clear()
    monkeypatch.setenv("CUPYOPS_TUNE", "0")
    gpu.measured.clear()
    assert kept(both()) == []  # the bytes decide
    tuning.load(tmp_path / "choices.json")
    assert kept(both()) == ["cupyops::gelu"]
    assert not gpu.measured


@pytest.mark.usefixtures("cache")
def test_without_memory_for_the_trial_the_bytes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpu(monkeypatch, {"kernels": 1.0}, memory=False)
    assert kept(both()) == []


@pytest.mark.usefixtures("cache")
def test_deterministic_programs_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, {"kernels": 1.0})
    assert kept(both()) == ["cupyops::rms_norm", "cupyops::gelu"]
    gpu.measured.clear()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert kept(both()) == []
    assert not gpu.measured


def test_graphs_on_disk_know_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for setting in ("0", "1"):
        for tune in ("0", "1"):
            monkeypatch.setenv("CUPYOPS_CHOICES", setting)
            monkeypatch.setenv("CUPYOPS_TUNE", tune)
            found.add(choices.setting())
    assert len(found) == 4


@pytest.mark.gpu
def test_on_a_gpu_forms_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "get", lambda key: None)
    found: list[Any] = []
    monkeypatch.setattr(records, "put", lambda key, record: found.append(record))
    x, weight = (torch.randn(*n, device="cuda", dtype=torch.bfloat16) for n in ((4096, 1024), (1024,)))
    calls_of(norm_gelu_add, x, weight)
    (record,) = found
    assert record.kernel == "cupyops::rms_norm, cupyops::gelu"
    assert all(0 < time < 1e5 for time in record.microseconds.values())
    assert {"kernels", "0 1"} <= record.microseconds.keys()
