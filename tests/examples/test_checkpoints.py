"""Checkpoints of the examples, in one process."""

from pathlib import Path

import pytest
from torch import nn

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
