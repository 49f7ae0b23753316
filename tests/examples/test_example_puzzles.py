"""The puzzles: every hole fails with a message that helps, every answer of docs/puzzles.md passes."""

import re
from pathlib import Path

import pytest

from examples.puzzles.__main__ import main
from examples.puzzles.judge import PUZZLES, Puzzle, judge, operator_of

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "puzzles.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
HOLE = re.compile(r"^ *// YOUR CODE: .*\n", re.MULTILINE)
# The judge's message for a hole: nothing is written, a part of the sum, or zeros.
SAYS = {
    "01_double": "elements of output still hold what was in memory before",
    "02_stride": "elements of output still hold what was in memory before",
    "03_outer": "elements of output still hold what was in memory before",
    "04_reverse": "elements of output still hold what was in memory before",
    "05_row_sum": "and the reference in float64 gives",
    "06_warp_sum": "and the reference in float64 gives",
    "07_scan": "and the reference in float64 gives",
    "08_transpose": "elements of output still hold what was in memory before",
    "09_product": "is 0.0, and the reference in float64 gives",
    "10_tensor_cores": "is 0.0, and the reference in float64 gives",
}


@pytest.mark.simulator
@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
def test_a_hole_fails_with_a_message_that_helps(puzzle: Puzzle) -> None:
    report = judge(puzzle, operator_of(puzzle, puzzle.text.read_text(encoding="utf-8"), puzzle.text.name))
    (row,) = report.failed
    assert row.check in ("written", "values")
    assert SAYS[puzzle.name] in row.words
    assert row.change


@pytest.mark.simulator
@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
def test_the_answer_of_the_page_passes(puzzle: Puzzle) -> None:
    answer = re.findall(r"```cpp\n(.*?)```", SECTIONS[PUZZLES.index(puzzle)], re.DOTALL)[0]
    text = HOLE.sub(lambda _: answer, puzzle.text.read_text(encoding="utf-8"))
    report = judge(puzzle, operator_of(puzzle, text, puzzle.text.name))
    assert len(report.passed) == 3, str(report)


@pytest.mark.simulator
def test_a_missing_barrier_is_told_with_its_line() -> None:
    puzzle = PUZZLES[3]
    attempt = "    tile[threadIdx.x] = x[at];\n    y[at] = tile[63 - threadIdx.x];\n"
    text = HOLE.sub(lambda _: attempt, puzzle.text.read_text(encoding="utf-8"))
    (row,) = judge(puzzle, operator_of(puzzle, text, "mine.cu")).failed
    assert row.check == "sanitizer"
    assert "reads shared memory that nobody has written: element 63 of `tile`, which has 64 at mine.cu:9" in row.words


def test_without_a_number_the_command_lists_the_puzzles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0] == " 1  y = 2·x, a thread for each element."


@pytest.mark.simulator
def test_the_command_writes_the_puzzle_judges_it_and_keeps_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["1"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Wrote puzzle_01.cu. Replace its line YOUR CODE, and run this command again.\n")
    assert said.endswith(
        "Puzzle 1 is not solved yet: edit puzzle_01.cu. docs/puzzles.md has the question and an answer.\n"
    )
    file = tmp_path / "puzzle_01.cu"
    answer = "    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n    if (i < n) y[i] = x[i] + x[i];\n"
    solved = HOLE.sub(answer, file.read_text(encoding="utf-8"))
    file.write_text(solved, encoding="utf-8")
    assert main(["1"]) == 0
    assert capsys.readouterr().out.endswith("Puzzle 1 is solved.\n")
    assert file.read_text(encoding="utf-8") == solved


def test_a_text_without_the_kernel_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("// nothing")
    assert main(["2", str(file)]) == 2
    err = capsys.readouterr().err
    assert (
        err == f"python -m examples.puzzles: error: {file}: no __global__ function 'puzzle' in the text; it has none\n"
    )


@pytest.mark.parametrize("wrong", ["0", "11", "one"])
def test_a_wrong_number_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([wrong])
    assert capsys.readouterr().err.count("\n") == 1
