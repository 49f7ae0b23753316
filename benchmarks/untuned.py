"""The table of the tutorial on row programs: Triton kernels at a length that they are tuned for, and at one that they are not.

::

    python -m benchmarks.untuned     # writes it into docs/tutorials/4_row_programs.md; needs no GPU
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import results_file
from .rows_report import operator_of, shown
from .table import between

__all__ = ["PAGE", "RESULTS", "main", "table", "text"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "rows-nvidia-h200.json"
PAGE = ROOT / "docs" / "tutorials" / "4_row_programs.md"
TUNED, OTHER = 4096, 4544  # a power of two, and a width of models that is none
OPERATORS = ("softmax", "rms_norm", "add_rms_norm", "cross_entropy")

Row = dict[str, Any]


def table(rows: Sequence[Row]) -> str:
    """A line for each operator and direction that both were measured in, at both lengths."""
    times = {
        (operator_of(row), row["direction"], row["shape"][-1], row["implementation"]): row
        for row in shown(rows)
        if row["implementation"] in ("ours", "liger")
    }
    lines = []
    for operator in OPERATORS:
        for direction in ("forward", "backward"):
            keys = [(operator, direction, n, name) for n in (TUNED, OTHER) for name in ("ours", "liger")]
            if all(key in times for key in keys):
                cells = [f"{100 * times[key]['share_of_copy']:.0f}% ({times[key]['microseconds']:.0f})" for key in keys]
                lines.append(f"| `{operator}` {direction} | {' | '.join(cells)} |")
    if not lines:
        return ""
    head = f"| % of copy (µs) | {TUNED}: program | {TUNED}: Triton | {OTHER}: program | {OTHER}: Triton |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *lines])


def text(path: Path = RESULTS) -> str:
    """The text between the markers of the page."""
    if not path.exists():
        return "Not measured yet.\n"
    document = results_file.load(path)
    found = table(document["rows"])
    machine = document["environment"]
    about = f"{machine['gpu']}, Triton {machine['triton']}, Liger {machine['liger']}, 2^28 elements in bfloat16:"
    return f"{about}\n\n{found}\n" if found else "Not measured yet.\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table into the page."""
    argparse.ArgumentParser("python -m benchmarks.untuned", description="Write the table into the page.").parse_args(
        argv
    )
    PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), text()), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
