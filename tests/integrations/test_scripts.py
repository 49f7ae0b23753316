"""`python -m cupyops optimize` and `optimizing`: models of programs that do not know of this package."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from cupyops.__main__ import main
from cupyops.integrations.scripts import optimizing
from cupyops.torch import OptimizeReport
from cupyops.torch.models.classes import is_optimised

SCRIPT = """
import sys
import torch
from helper import width  # beside the script
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before the first call
x = torch.randn(16, 8)
for _ in range(3):
    optimizer.zero_grad()
    loss = nn.MSELoss()(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}", *sys.argv[1:])
torch.save(model, sys.argv[1])
"""


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32))


def places(models: list[OptimizeReport]) -> list[int]:
    return [len(report.replaced) for report in models]


def test_a_script_trains_the_model_of_its_earlier_optimizer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "helper.py").write_text("width = 32\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    losses = []
    for command in (["run"], ["optimize"], ["optimize", "--report"]):
        assert main([*command, str(script), str(tmp_path / "model.pt"), "--flag"]) == 0
        losses.append(capfd.readouterr())
    plain, short, full = losses
    assert plain.out == short.out == full.out
    assert plain.out.endswith(" --flag\n")
    assert short.err == "optimize(Sequential): 3 places call cupyops, 0 are left alone\n"
    assert "linear_gelu: 1 x 0, 1: (the model)" in full.err
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    assert not any(is_optimised(type(m)) for m in saved.modules())
    assert "__call__" in vars(nn.Module)
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_a_module_of_a_package_runs_as_by_python_m(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trains"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("width = 32\n")
    (package / "first.py").write_text(
        SCRIPT.replace("from helper", "from .helper") + "print(sys.argv[0], __package__)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m cupyops` does
    for command in ("run", "optimize"):
        assert main([command, "-m", "trains.first", str(tmp_path / "model.pt"), "-m"]) == 0
        out = capfd.readouterr()
        assert out.out.endswith(f" -m\n{package / 'first.py'} trains\n")
    assert out.err == "optimize(Sequential): 3 places call cupyops, 0 are left alone\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (["absent.py"], "absent.py: no such file"),
        (["-m", "absent.train"], "absent.train: no such module"),
        (["-m", "absent"], "absent: no such module"),
        (["-m", ".train"], ".train: no such module"),
    ],
)
def test_a_program_that_is_not_there_is_an_error(
    program: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["optimize", *program])
    assert message in capfd.readouterr().err


def test_what_a_package_lacks_is_not_taken_for_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import absent")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent'"):
        main(["optimize", "-m", "lacking.train"])


def test_each_model_is_optimized_once_before_its_first_call() -> None:
    found: list[OptimizeReport] = []
    first, second, loss = a_model(), a_model(), nn.MSELoss()
    ran: list[bool] = []
    first[1].register_forward_hook(lambda *_: ran.append(is_optimised(type(first[1]))))
    with optimizing(found.append):
        for _ in range(2):
            loss(first(torch.randn(4, 8)), second(torch.randn(4, 8)))
    assert places(found) == [3, 3, 0]
    assert ran == [True, True]
    third = a_model()
    third(torch.randn(4, 8))
    assert not is_optimised(type(third[1])), "the block has ended"


def test_inner_modules_take_the_path_without_hooks() -> None:
    inside: list[object] = []

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = a_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(nn.Module.__call__)
            return self.inner(x)

    found: list[OptimizeReport] = []
    model = Outer()
    with optimizing(found.append):
        model(torch.randn(4, 8))
        model.inner(torch.randn(4, 8))  # later called directly: it is already optimized
    assert inside == [nn.Module._wrapped_call_impl]
    assert places(found) == [3, 0]


def test_a_call_that_raises_leaves_later_models_optimized() -> None:
    found: list[OptimizeReport] = []
    with optimizing(found.append):
        with pytest.raises(RuntimeError):
            a_model()(torch.randn(4, 7))
        a_model()(torch.randn(4, 8))
    assert places(found) == [3, 3]
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_a_call_that_outlives_the_block_leaves_pytorchs_own() -> None:
    started, go = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self) -> None:
            started.set()
            go.wait(10)

    with optimizing():
        thread = threading.Thread(target=Waits())
        thread.start()
        started.wait(10)
    go.set()
    thread.join()
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


@pytest.mark.parametrize("how", ["torch.compile", "in place"])
def test_a_compiled_model_is_optimized_before_it_is_traced(how: str) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph.code)
        return graph

    found: list[OptimizeReport] = []
    model = a_model()
    right = model(x := torch.randn(4, 8))
    called: nn.Module = model
    if how == "torch.compile":
        called = torch.compile(model, backend=backend, fullgraph=True)  # type: ignore[assignment]
    else:
        model.compile(backend=backend, fullgraph=True)
    with optimizing(found.append):
        torch.testing.assert_close(called(x), right)
        torch.testing.assert_close(called(x), right)
    assert places(found) == [3]
    assert len(graphs) == 1
    assert "linear_gelu" in graphs[0]


def test_a_compiled_function_runs_its_models_as_they_are() -> None:
    model, x = a_model(), torch.randn(4, 8)
    right = model(x)
    step = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    with optimizing():
        torch.testing.assert_close(step(x), right.sum())


def test_a_scripted_model_runs_as_it_is() -> None:
    found: list[OptimizeReport] = []
    scripted, x = torch.jit.script(model := a_model()), torch.randn(4, 8)
    with optimizing(found.append):
        torch.testing.assert_close(scripted(x), model(x))
    assert places(found) == [3]
