"""Runs the notebooks of this folder from top to bottom, and keeps their outputs: ``python -m notebooks``.

Operators run on a GPU if there is one, else in the simulator. The packages are those of the extra ``notebooks``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def executed(path: Path) -> Any:
    """The notebook with the outputs of a new run.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed that is not there to fail.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of day
        outputs: list[Any] = []
        for output in cell.get("outputs", []):  # what a cell prints arrives in one piece or in several
            if outputs and output.output_type == "stream" and outputs[-1].get("name") == output.name:
                outputs[-1].text += output.text
            else:
                outputs.append(output)
        if cell.cell_type == "code":
            cell.outputs = outputs
    return notebook


def main(argv: Sequence[str] | None = None) -> None:
    """Run each notebook, and write it."""
    argparse.ArgumentParser("python -m notebooks", description="Run each notebook, and keep its outputs.").parse_args(
        argv
    )
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        print(path)
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
