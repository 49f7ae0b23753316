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
