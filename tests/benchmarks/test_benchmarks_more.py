"""Further models: their table, Liger's functions in place and back, and the bytes that compiled models save."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import more, saved
from benchmarks.models.steps import patched
from benchmarks.models.workers import Case, Worker, measured

RESULTS = Path(__file__).parents[2] / "benchmarks/results/more-nvidia-h200.json"


def test_every_case_has_a_model() -> None:
    models = {m.name for m in more.MODELS}
    assert {case.model for case in more.CASES} <= models


def test_the_table_of_the_file_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert more.main(["--from", str(RESULTS)]) == 0
    page = (Path(__file__).parents[2] / "docs/benchmarks_models.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page


def test_functions_of_liger_are_in_place_during_a_step_alone() -> None:
    file = SimpleNamespace(rotary="PyTorch's")
    with pytest.raises(KeyError), patched([(file, "rotary", "Liger's")]):
        assert file.rotary == "Liger's"
        raise KeyError
    assert file.rotary == "PyTorch's"


@pytest.mark.thorough
def test_a_worker_measures_further_variants() -> None:
    worker = Worker("tiny", "cpu", "tests.benchmarks.tiny_zoo")
    ((_, _, found),) = measured([(worker, Case(4, "eager", ("torch", "lazy", "measured"), 2))])
    worker.close()
    assert not isinstance(found, str)
    assert set(found) == {"torch", "lazy", "measured"}
    assert found["torch"]["loss"] == pytest.approx(found["measured"]["loss"], rel=0.05)


class Wide(nn.Module):
    """A layer whose activation the backward reads, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.fc(x).sigmoid().view(2, -1, 32))
        return y


def test_saved_tensors_are_counted_once_and_without_inputs_and_parameters() -> None:
    found = saved.saved(saved.Step(Wide(), "", False), torch.randn(6, 8))
    # The activation, and the result, whose square is the loss. PyTorch's graph saves no view beside the activation.
    assert found == Counter({("float32", (6, 32)): 1, ("float32", (6, 8)): 1})
    assert saved.nbytes(found) == 4 * 6 * (32 + 8)
    assert saved.nbytes(Counter({("bfloat16", (6, 1)): 2})) == 2 * 4 * 6
