"""Exported programs of the public functions and modules take every batch size: no body compares a size that may be a symbol."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._guards import TracingContext
from torch.export import Dim
from torch.utils import _pytree as pytree

import cupyops
from cupyops.torch import elementwise, optimize, row_reduce
from tests.cases import FAMILIES
from tests.cases.data import ROW, Called, Model, model_of

PRODUCT = elementwise("y = x * w + 1", backward="grad_x = grad_y * w; grad_w = grad_y * x")
SUMS = row_reduce("y = sum(x * x)", backward="grad_x = 2 * grad_y * x")
MODELS = {name: model for data in FAMILIES.values() for name, model in data.models.items()} | {
    "a program of elements": model_of(lambda x, w: PRODUCT(x, w), ROW, ROW),
    "a program of rows": model_of(lambda x: SUMS(x), ROW),
}
EACH = pytest.mark.parametrize("name", MODELS)
# Sizes that PyTorch would make constant, and another.
SIZES = (0, 1, 2, 7)


def _inputs(model: Model, size: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """The arguments of a model, with a batch of a size."""

    def one(x: Any) -> Any:
        shape = list(x if isinstance(x, tuple) else x.shape)
        shape[model.batch] = size
        return torch.randn(shape).to(dtype) if isinstance(x, tuple) else x.new_zeros(shape)

    def each(x: Any) -> Any:
        state = isinstance(x, tuple) and isinstance(x[0], tuple)
        return tuple(map(each, x)) if state else one(x)

    return tuple(map(each, model.args))


def _shapes(model: Model, args: tuple[Any, ...]) -> Any:
    """The dynamic shapes of the arguments, whose batch has a name with no limits."""
    named = pytree.tree_map(lambda _: {model.batch: Dim("batch")}, args)
    return (named,) if isinstance(model.module, Called) else named


def _assert_every_size(program: Any, model: Model, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    for size in SIZES:
        args = _inputs(model, size, dtype)
        with torch.no_grad():
            torch.testing.assert_close(program(*args), module(*args), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.sample(20)
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_exported_program_takes_every_batch(name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]
    module, args = copy.deepcopy(model.module).to(dtype), _inputs(model, 4, dtype)
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=_shapes(model, args), strict=False)
    if dtype is torch.float32:
        _assert_every_size(program.module(), model, module)


@pytest.mark.sample(8)
@EACH
def test_a_compiled_step_has_no_guard_on_the_batch(name: str) -> None:
    """A guard that a larger batch fails would compile again; an export of the step would refuse it."""
    torch.compiler.reset()
    model, guards = MODELS[name], []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled = aot_eager(graph, inputs)  # traces the backward, too
        guards.extend(guard.expr for guard in TracingContext.get().fake_mode.shape_env.guards)
        return compiled

    args = _inputs(model, 6, torch.float32)
    for x in pytree.tree_leaves(args):
        torch._dynamo.mark_dynamic(x, model.batch)
        x.requires_grad_(x.is_floating_point())
    results = pytree.tree_leaves(torch.compile(model.module, fullgraph=True, backend=backend)(*args))
    torch.autograd.backward([y.sum() for y in results if y.requires_grad])
    assert not [g for g in guards if not g.subs(dict.fromkeys(g.free_symbols, 2**40))]


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "backend", ["reference", pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True
)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "LLTMLayers"])
def test_a_graph_of_jit_trace_takes_every_batch(name: str, device: str) -> None:
    """It has PyTorch's operations or the operator, and no memory that a launch would have written."""
    model = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and each size in a condition is a warning
        traced = torch.jit.trace(
            model.module, _inputs(model, 4, torch.float32)
        )  # compares with a trace without gradients
    args = _inputs(model, 7, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(traced(*args), model.module(*args), rtol=1e-4, atol=1e-5)


class Layers(nn.Module):
    """Layers that :func:`optimize` exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU("tanh"))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def _optimized() -> Model:
    module = Layers().eval()
    optimize(module)
    return Model(module, (ROW,))


@pytest.mark.parametrize("name", ["GELU", "LinearGELU", "optimized"])
def test_a_strict_export_takes_every_batch(name: str) -> None:
    model = MODELS.get(name) or _optimized()
    args = _inputs(model, 4, torch.float32)
    program = torch.export.export(model.module, args, dynamic_shapes=({0: Dim("batch")},), strict=True)
    _assert_every_size(program.module(), model, model.module)


@pytest.mark.parametrize("name", ["GELU tanh", "LinearGELU"])
def test_an_onnx_model_takes_every_batch(name: str, tmp_path: Path) -> None:
    onnx_support = pytest.importorskip("tests.onnx.onnx_support")
    model, path = MODELS[name], tmp_path / "m.onnx"
    args = _inputs(model, 4, torch.float32)
    cupyops.torch.export_onnx(model.module.eval(), args, path, dynamic_shapes=({0: Dim("batch")},))
    _assert_every_size(lambda x: onnx_support.run(path, x)[0], model, model.module)


@pytest.mark.thorough
def test_an_ahead_of_time_package_takes_every_batch(tmp_path: Path) -> None:
    model = MODELS["LinearGELU"]
    args = _inputs(model, 4, torch.float32)
    with torch.no_grad():
        program = torch.export.export(model.module, args, dynamic_shapes=({0: Dim("batch")},))
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2"))
    _assert_every_size(torch._inductor.aoti_load_package(path), model, model.module)
