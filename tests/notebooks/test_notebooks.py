"""The notebooks run from top to bottom, and keep the outputs of such a run."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops.compile import toolchain
from notebooks.__main__ import FOLDER, executed

nbformat = pytest.importorskip("nbformat", reason="the extra notebooks is not installed")
pytest.importorskip("nbclient", reason="the extra notebooks is not installed")
pytest.importorskip("ipykernel", reason="the extra notebooks is not installed")
pytestmark = [
    pytest.mark.simulator,
    # The packages of Jupyter warn of each other, not of this project.
    pytest.mark.filterwarnings("ignore"),
]


def told(notebook: Any) -> list[str]:
    """The kinds and the words of the outputs of each cell, without what depends on the machine."""
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        words = [o.get("text") or "\n".join(o.get("traceback", [])) or str(sorted(o.get("data", {}))) for o in outputs]
        words = [re.sub(r"\s*\d+\.\d s|\d[\d,.]+|NVRTC.*?,|\x1b\[[\d;]*m", "", text) for text in words]
        found.append("".join(words))  # a cell's prints arrive in one piece or in several
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_keeps_its_outputs(path: Path) -> None:
    committed, new = nbformat.read(path, as_version=4), executed(path)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code if "%%cu" in cell.source or "check_op(" in cell.source)
    if toolchain.has_nvrtc() and not torch.cuda.is_available():  # the committed outputs are of such a machine
        assert told(new) == told(committed), "run python -m notebooks"
    for cell in new.cells:
        errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
        assert bool(errors) == ("raises-exception" in cell.metadata.get("tags", []))
        for error in errors:
            assert "cell:7: error" in "\n".join(error.traceback)
