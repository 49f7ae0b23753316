"""Additions before this project's norms in graphs of Inductor: one operator computes both, wherever the addition stands."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autograd_bridge as bridge
from cupyops.torch import Fusions
from cupyops.torch.compiled import graphs
from cupyops.torch.fusions.norms import fuse_own_norms
from tests.models.calls import in_graph
from tests.models.test_compiled import codes_of, operators_of
from tests.models.test_compiled_fusions import close, trained

N = 8
NORMS: dict[str, Callable[[], nn.Module]] = {
    "add_layer_norm": lambda: bridge.LayerNorm(N),
    "add_rms_norm": lambda: bridge.RMSNorm(N, eps=1e-3),
    "add_rms_norm_without_weight": lambda: bridge.RMSNorm(N, eps=1e-3, elementwise_affine=False),
}


class Blocks(nn.Module):
    """The addition of one block stands before the norm of the next, in another module."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(norm(), nn.Linear(N, N)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(graphs, "_FUNCTIONS", [partial(fuse_own_norms, devices=("cpu", "cuda"))])


def called(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The operators of this project in the graph of a function, after the rewriting."""
    found: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        fuse_own_norms(graph, ("cpu",))
        found.extend(in_graph(graph))
        return graph

    torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NORMS)
def test_inductor_calls_one_operator_for_an_addition_and_the_norm_of_another_module(name: str) -> None:
    model = Blocks(NORMS[name])
    x = torch.randn(3, 5, N)
    right = trained(model, model, x)
    found, codes = codes_of(lambda: trained(torch.compile(model), model, x))
    close(found, right, 1e-5)
    norm = name.removeprefix("add_")
    calls = [line.split("'")[1] for line in codes[0].splitlines() if "= cupyops_direct(" in line]
    assert calls == [f"cupyops::{norm}", f"cupyops::{name}", f"cupyops::{name}"]


def test_a_sum_that_is_used_before_its_norm_is_computed_once() -> None:
    norm = bridge.LayerNorm(N)

    def run(x: Tensor, residual: Tensor) -> Tensor:
        s = x + residual
        twice = s * 2
        return norm(s) + twice + s

    x, residual = torch.randn(4, N), torch.randn(4, N)
    assert called(run, x, residual) == ["add_layer_norm"]
    torch.testing.assert_close(torch.compile(run)(x, residual), run(x, residual))


@pytest.mark.parametrize("name", NORMS)
def test_what_must_stay_apart_stays(name: str) -> None:
    norm, own = NORMS[name](), name.removeprefix("add_")
    x = torch.randn(4, 4, N)
    assert called(lambda x: norm(x + x[0]), x) == [own]  # it broadcasts
    assert called(lambda x: norm(x + 1), x) == [own]
    assert called(lambda x: norm(torch.add(x, x, alpha=2)), x) == [own]
    assert called(lambda x, y: norm((x + y.transpose(0, 1)).contiguous()), x, x) == [own]
    assert called(lambda x, y: norm(x + y.transpose(0, 1)), x, x) == [own]  # the operator would copy a term


def test_tensors_of_other_devices_stay_apart() -> None:
    norm = bridge.LayerNorm(N)

    def backend(graph: Any, _: Any) -> Any:
        before = str(graph.graph)
        fuse_own_norms(graph)
        assert str(graph.graph) == before
        return graph

    torch.compile(lambda x: norm(x + x.sin()), fullgraph=True, backend=backend)(torch.randn(4, N))


def test_the_norm_has_the_dtype_that_it_had() -> None:
    norm = bridge.LayerNorm(N).bfloat16()

    def run(x: Tensor) -> Tensor:
        y: Tensor = bridge.layer_norm(x + x, (N,), norm.weight, norm.bias, dtype=torch.float32)
        return y

    x = torch.randn(4, N, dtype=torch.bfloat16)
    assert called(run, x) == ["add_layer_norm"]
    found = torch.compile(run)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, run(x))


def test_the_backend_fusions_finds_them_and_says_so() -> None:
    model = Blocks(NORMS["add_layer_norm"])
    fusions = Fusions(devices=["cpu"], backend="eager")
    torch.compile(model, backend=fusions)(torch.randn(3, N))
    assert [site.fusion for site in fusions.sites] == ["add_layer_norm"] * 2
    assert torch.ops.cupyops.layer_norm.default in operators_of(model, torch.randn(3, N))


def test_another_version_of_pytorch_keeps_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as inductor

    def passes(graph: Any) -> Any:
        return graph

    monkeypatch.setattr(inductor, "_recursive_pre_grad_passes", passes)
    monkeypatch.setattr(graphs, "has", lambda _: False)
    graphs.prepare()
    assert inductor._recursive_pre_grad_passes is passes
    monkeypatch.setattr(graphs, "has", lambda _: True)
    graphs.prepare()
    once = inductor._recursive_pre_grad_passes
    graphs.prepare()
    assert once is inductor._recursive_pre_grad_passes is not passes


def test_the_first_graph_of_a_process_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch imports Inductor when a graph that it traced is to be compiled, which is after the operators were traced."""
    (tmp_path / "late_inductor.py").write_text("def _recursive_pre_grad_passes(graph): return graph")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(graphs, "_MODULE", "late_inductor")
    graphs.prepare()
    assert "late_inductor" not in sys.modules  # nothing is compiled
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        graphs.prepare()
    assert hasattr(sys.modules.pop("late_inductor")._recursive_pre_grad_passes, "cupyops")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_on_a_gpu_models_train_as_they_did(name: str, autocast: bool, mode: str) -> None:
    model = Blocks(NORMS[name]).cuda()
    x = torch.randn(3, 5, N, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        right = trained(model, model, x)
        compiled = torch.compile(model, mode=mode)
        for _ in range(3):
            found = trained(compiled, model, x)
    close(found, right, 3e-2 if autocast else 1e-4)
