"""Checkpoints of the examples, in one process."""

from argparse import Namespace
from pathlib import Path

import pytest
from torch import nn

from examples import run
from examples.checkpoints import Checkpoints


@pytest.mark.filterwarnings("ignore")
def test_the_newest_checkpoint_that_is_not_damaged_is_taken(tmp_path: Path) -> None:
    fabric = pytest.importorskip("lightning_fabric")  # not at the top: each process would import it to collect
    echoed: list[str] = []
    kept = Checkpoints(tmp_path, fabric.Fabric(accelerator="cpu", devices=1), echoed.append)
    assert kept.newest() is None
    for step in (8, 9, 10):
        kept.save(step, {"model": nn.Linear(2, 2), "step": step}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000009", "00000010"]
    path, values = kept.newest() or (None, {})
    assert (path, values["step"]) == (tmp_path / "00000010", 10)
    for file in path.iterdir() if path else ():
        file.write_bytes(b"")
    path, values = kept.newest() or (None, {})
    assert (path, values["step"]) == (tmp_path / "00000009", 9)
    assert len(echoed) == 1


@pytest.mark.parametrize(
    ("resume", "restarts", "launch", "goes_on"),
    [
        (True, 0, "another", True),
        (True, 1, "this", True),
        (False, 1, "this", True),
        (False, 1, "another", False),
        (False, 0, "this", False),
    ],
)
def test_a_run_goes_on_with_the_checkpoint_that_is_asked_for_or_is_of_its_launch(
    resume: bool, restarts: int, launch: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "processes", lambda: Namespace(restarts=restarts))
    made = object.__new__(run.Run)
    made.options, made.out, made.last, made.header = Namespace(resume=resume), tmp_path, None, {"launch": "this"}
    newest = tmp_path / "00000004", {"launch": launch}
    made.checkpoints = Namespace(newest=lambda: newest)
    compared: list[object] = []
    monkeypatch.setattr(run.Run, "compare", lambda self, *found: compared.append(found))
    made.find()
    assert (made.last, compared) == ((newest, [newest]) if goes_on else (None, []))
