"""Ten CUDA C++ texts with a hole: judges an answer to the puzzle NUMBER. Without a number, lists the puzzles."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..command import Parser, UserError, naming, run_command

TEXTS = sorted(Path(__file__).parent.glob("*.cu"))


def first_line(text: Path) -> str:
    return text.read_text(encoding="utf-8").partition("\n")[0].removeprefix("// ")


def solve(number: int, file: Path) -> int:
    """Writes the puzzle to `file` if the file does not exist, and judges the text in `file`."""
    from .judge import PUZZLES, judge, operator_of

    puzzle = PUZZLES[number - 1]
    if not file.exists():
        with naming(file):
            file.write_text(puzzle.text.read_text(encoding="utf-8"), encoding="utf-8")
        print(f"Wrote {file}. Replace its line YOUR CODE, and run this command again.\n")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is no text in UTF-8") from None
    try:
        answer = operator_of(puzzle, text, str(file))
    except (TypeError, ValueError) as error:  # the declaration is no longer that of the puzzle
        raise UserError(f"{file}: {error}") from None
    report = judge(puzzle, answer)
    if report.passed and not report.failed:
        print(f"Puzzle {number} is solved.")
        return 0
    if report.failed:
        print(f"Puzzle {number} is not solved yet: edit {file}. docs/puzzles.md has the question and an answer.")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("puzzles", __doc__)
    parser.add_argument("number", nargs="?", type=int, choices=range(1, len(TEXTS) + 1), metavar="NUMBER")
    help_of_file = "the answer; written with the hole if it is not there (default: puzzle_NN.cu)"
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=help_of_file)
    options = parser.parse_args(argv)
    if options.number is None:
        print("\n".join(f"{number:2}  {first_line(text)}" for number, text in enumerate(TEXTS, 1)))
        return 0
    file = options.file or Path(f"puzzle_{options.number:02}.cu")
    return run_command("puzzles", lambda: solve(options.number, file))


if __name__ == "__main__":
    sys.exit(main())
