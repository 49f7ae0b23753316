"""Calls on few elements in optimised models: PyTorch's functions compute them in eager mode on a GPU, and there alone."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cupyops.torch import optimize
from cupyops.torch.models import small

from .calls import Calls, in_graph
from .stand_ins import (
    WIDTH,
    Conv1D,
    FastGELU,
    Functions,
    GatedFunction,
    HeldGELU,
    NewGELU,
    NoWeightLayerNorm,
    OneMoreRMSNorm,
    OwnFunction,
    PreNorm,
    RootNorm,
)

pytestmark = pytest.mark.usefixtures("one_thread")
LEAST = 7 * WIDTH
FEW, MANY = (6, WIDTH), (7, WIDTH)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors that claim to be on a GPU. PyTorch's dispatcher still computes on the CPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(small, "LEAST_ELEMENTS", LEAST)


def called(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Calls]:
    """The result for random numbers, and the calls of operators."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    with Calls() as calls, torch.no_grad():
        return module(x), calls


# A module, the operator that computes many elements, and whether few elements are one call of PyTorch's.
MODULES: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "layer norm": (lambda: nn.LayerNorm(WIDTH), "layer_norm", "aten.native_layer_norm"),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), "rms_norm", ""),
    "gelu": (lambda: nn.GELU("tanh"), "gelu", "aten.gelu"),
    "formula of gelu": (NewGELU, "gelu", "aten.gelu"),
    "digits of gelu": (FastGELU, "gelu", "aten.gelu"),
    "held gelu": (HeldGELU, "gelu", "aten.gelu"),
    "formula of rms norm": (lambda: RootNorm(WIDTH), "rms_norm", ""),
    "layer norm without weight": (NoWeightLayerNorm, "layer_norm", "aten.native_layer_norm"),
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_takes_pytorch_s_function_below_the_limit_and_the_operator_from_there(name: str) -> None:
    make, operator, theirs = MODULES[name]
    module = make()
    plain = copy.deepcopy(module)
    optimize(module)
    few, calls = called(module, FEW)
    torch.testing.assert_close(few, called(plain, FEW)[0])
    assert not calls.ours
    if theirs:
        assert dict(calls.all) == {theirs: 1}
    many, calls = called(module, MANY)
    torch.testing.assert_close(many, called(plain, MANY)[0])
    assert dict(calls.ours) == {operator: 1}


@pytest.mark.usefixtures("on_gpu")
def test_a_formula_of_rms_norm_is_one_call_of_pytorch_s() -> None:
    """Few elements take the host's time: a call for each operation of the formula would take more than the operator."""
    module = RootNorm(WIDTH)
    optimize(module)
    assert called(module, FEW)[1].all == called(nn.RMSNorm(WIDTH, eps=1e-6), FEW)[1].all


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [FEW, MANY])
def test_a_scale_of_one_more_keeps_the_dtype_of_few_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The scale 1 + weight is float32, and PyTorch has no kernel for 16-bit rows with a float32 weight: it warns, and
    computes in elementary operations."""
    module = OneMoreRMSNorm(WIDTH).to(dtype)
    wanted = called(module, shape, dtype)[0]
    optimize(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, calls = called(module, shape, dtype)
    assert dict(calls.ours) == {"rms_norm": 1}
    assert y.dtype is dtype
    torch.testing.assert_close(y, wanted)


@pytest.mark.usefixtures("on_gpu")
def test_calls_of_functions_take_pytorch_s_below_the_limit() -> None:
    """F.gelu, F.layer_norm, F.rms_norm, and a function of the model's own."""
    module = nn.Sequential(Functions(), OwnFunction())
    plain = copy.deepcopy(module)
    optimize(module, fuse=False)
    few, calls = called(module, FEW)
    torch.testing.assert_close(few, called(plain, FEW)[0])
    # OwnFunction's GELU has twice as many elements as its argument.
    assert dict(calls.ours) == {"gelu": 1}
    assert calls.counts["aten.gelu"] == 3
    assert calls.counts["aten.native_layer_norm"] == 1
    many, calls = called(module, MANY)
    torch.testing.assert_close(many, called(plain, MANY)[0])
    assert dict(calls.ours) == {"gelu": 4, "layer_norm": 1, "rms_norm": 1}


@pytest.mark.usefixtures("on_gpu")
def test_an_addition_and_its_norm_are_pytorch_s_below_the_limit() -> None:
    module = PreNorm()
    plain = copy.deepcopy(module)
    optimize(module)
    few, calls = called(module, FEW)
    torch.testing.assert_close(few, called(plain, FEW)[0])
    assert dict(calls.ours) == {"linear_gelu": 1}
    assert calls.counts["aten.native_layer_norm"] == 2
    many, calls = called(module, MANY)
    torch.testing.assert_close(many, called(plain, MANY)[0])
    assert dict(calls.ours) == {"layer_norm": 1, "add_layer_norm": 1, "linear_gelu": 1}


@pytest.mark.usefixtures("on_gpu")
def test_an_activation_and_its_product_are_pytorch_s_below_the_limit() -> None:
    module = GatedFunction()
    plain = copy.deepcopy(module)
    optimize(module)
    few, calls = called(module, (3, WIDTH))
    torch.testing.assert_close(few, called(plain, (3, WIDTH))[0])
    assert not calls.ours
    many, calls = called(module, MANY)
    torch.testing.assert_close(many, called(plain, MANY)[0])
    assert dict(calls.ours) == {"swiglu_of_halves": 1, "reglu": 1}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("rows", "ours"), [(16, True), (17, False), (19, False), (20, True)])
def test_a_linear_layer_and_gelu_are_two_calls_between_few_rows_and_the_limit(
    rows: int, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 16 and fewer have kernels of this project."""
    monkeypatch.setattr(small, "LEAST_ELEMENTS", 80 * WIDTH)
    module = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU())
    plain = copy.deepcopy(module)
    optimize(module)
    found, calls = called(module, (rows, WIDTH))
    torch.testing.assert_close(found, called(plain, (rows, WIDTH))[0])
    assert dict(calls.ours) == ({"linear_gelu": 1} if ours else {})


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("make", [lambda: nn.Linear(1024, 513), lambda: Conv1D(513, 1024)])
@pytest.mark.parametrize(("rows", "ours"), [(6, False), (7, True)])
def test_a_padded_product_is_pytorch_s_below_its_own_limit(
    make: Callable[[], nn.Module], rows: int, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "LEAST_PADDED", 7 * 1024 * 513)
    module = make()
    plain = copy.deepcopy(module)
    optimize(module)
    found, calls = called(module, (rows, 1024))
    torch.testing.assert_close(found, called(plain, (rows, 1024))[0])
    assert dict(calls.ours) == ({"linear": 1} if ours else {})


@pytest.mark.usefixtures("on_gpu")
def test_few_elements_have_the_gradients_of_the_module() -> None:
    module = nn.Sequential(nn.LayerNorm(WIDTH), NewGELU(), RootNorm(WIDTH))
    plain = copy.deepcopy(module)
    optimize(module)
    x = torch.randn(FEW, requires_grad=True)
    found, wanted = (torch.autograd.grad(m(x).square().sum(), [x, *m.parameters()]) for m in (module, plain))
    torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("on_gpu")
def test_a_captured_call_takes_the_path_of_the_calls_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that a capture calls first loads its kernel, which CUDA forbids during a capture."""
    module = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU())
    optimize(module)
    before = called(module, FEW)[1].all
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert called(module, FEW)[1].all == before


def test_a_call_on_a_cpu_is_never_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator runs the kernels of small tensors."""
    monkeypatch.setattr(small, "LEAST_ELEMENTS", 2**62)
    module = PreNorm()
    optimize(module)
    assert dict(called(module, FEW)[1].ours) == {"layer_norm": 1, "add_layer_norm": 1, "linear_gelu": 1}


def test_a_compiled_model_has_one_graph_for_sizes_on_both_sides_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition on the number of elements would be a guard, and compile the model again."""
    monkeypatch.setattr(small, "LEAST_ELEMENTS", LEAST)
    module, graphs = nn.Sequential(PreNorm(), NewGELU(), Functions(), RootNorm(WIDTH)), []
    plain = copy.deepcopy(module)
    optimize(module)

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    for rows in (2, 6, 7, 70):
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(compiled(x), plain(x))
    (graph,) = graphs
    assert set(in_graph(graph)) == {"layer_norm", "add_layer_norm", "linear_gelu", "gelu", "rms_norm"}


@pytest.mark.gpu
def test_on_a_gpu_few_elements_are_pytorch_s_bits_and_launch_none_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cupyops.launch.recording import recorded

    monkeypatch.setattr(small, "LEAST_ELEMENTS", LEAST)
    module = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU(), nn.RMSNorm(WIDTH)).cuda()
    plain = copy.deepcopy(module)
    optimize(module)
    few, many = (torch.randn(shape, device="cuda") for shape in (FEW, MANY))
    with recorded() as launches:
        y = module(few)
    assert launches == []
    assert torch.equal(y, plain(few))
    with recorded() as launches:
        y = module(many)
    assert len(launches) == 3
    torch.testing.assert_close(y, plain(many))


@pytest.mark.gpu
def test_on_a_gpu_a_capture_of_few_elements_replays_with_new_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "LEAST_ELEMENTS", LEAST)
    module = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU("tanh"), nn.RMSNorm(WIDTH)).cuda()
    plain = copy.deepcopy(module)
    optimize(module)
    x, graph = torch.randn(FEW, device="cuda"), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        module(x)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph), torch.no_grad():
        y = module(x)
    x.copy_(torch.randn(FEW, device="cuda"))
    graph.replay()
    assert torch.equal(y, F.rms_norm(F.gelu(plain[0](x), approximate="tanh"), (WIDTH,), plain[2].weight))


class Skipping(nn.Module):
    """Draws a number in each pass through a loop, as layer drop does: Dynamo cannot compile the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.GELU()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand([]) >= 0:
                x = F.gelu(layer(x))
        return self.act(self.norm(x))  # type: ignore[no-any-return]


def test_dynamo_compiles_no_function_of_its_own_where_it_cannot_compile_the_model() -> None:
    """A graph of one operator takes more of the host's time than the operator, so PyTorch's functions are not graphs, either."""
    model, x = Skipping(), torch.randn(FEW)
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(len(inputs))
        return graph

    with torch.no_grad():
        wanted = model(x)
        report = optimize(model)
        assert len(report.replaced) > 1, report
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), wanted)
    assert not graphs


class Stack(nn.Module):
    """Layers that are fused, one like the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PreNorm() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _guards(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> str:
    """The guards of the compiled model, a line for each."""
    from torch._dynamo import guards

    found: list[Any] = []
    make = guards.CheckFunctionManager.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(guards.CheckFunctionManager, "__init__", made)
    torch.compiler.reset()
    torch.compile(model, backend="eager")(torch.randn(FEW))
    assert len(found) == 1
    return str(found[0].guard_manager)


def test_a_compiled_layer_adds_no_guard_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python evaluates a guard that two modules have the same class, C++ one that a module has a class."""
    counts = []
    for count in (2, 6):
        model = Stack(count)
        assert {"linear_gelu", "add_layer_norm"} <= {entry.operator for entry in optimize(model).replaced}
        lines = _guards(model, monkeypatch).splitlines()
        counts.append(sum("LAMBDA_GUARD" in line for line in lines))
    assert counts[0] == counts[1]
