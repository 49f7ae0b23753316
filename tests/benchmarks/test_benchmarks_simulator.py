"""The benchmark of the simulator's checks: its table, and one row measured on few elements."""

import shlex
from pathlib import Path

import pytest

from benchmarks import simulator
from benchmarks.simulator import Row


def test_the_table_has_the_calls_whose_checks_cost_most_and_least_and_the_geometric_mean() -> None:
    rows = [
        Row("`add2` one shape, forward", (8,), 2e-3, 1e-3),
        Row("`gelu` none, backward", (8,), 1e-3, 1e-3),
        Row("`gelu` none, forward", (4, 8), 1e-3, 2e-3),
    ]
    assert simulator.table(rows).splitlines()[2:] == [
        "| `gelu` none, forward | 4 x 8 | 1.0 | 2.0 | 2.00 |",
        "| `add2` one shape, forward | 8 | 2.0 | 1.0 | 0.50 |",
        "| geometric mean of 3 calls | | | | 1.00 |",
    ]


@pytest.mark.simulator
def test_the_command_measures_in_turns_and_writes_the_table_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- figures: begin -->\nold\n<!-- figures: end -->\n", encoding="utf-8")
    arguments = ["--ops", "gelu", "--elements", "2^10", "--repeats", "1", "--into", str(page)]
    assert simulator.main(arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert "| geometric mean of 6 calls |" in text
    assert f"`python -m benchmarks.simulator {shlex.join(arguments)}`" in text
    assert "old" not in text
