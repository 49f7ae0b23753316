"""Lists the examples: ``python -m examples``, or with an installed wheel ``python -m cupyops.examples``."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from .command import Parser, program, run_command


def examples() -> Iterator[tuple[str, str]]:
    """The name and the first line of the docstring of every example, without importing it."""
    folder = Path(__file__).parent
    files = (path for path in folder.rglob("*.py") if path != Path(__file__))
    named = {path: path.parent if path.name == "__main__.py" else path.with_suffix("") for path in files}
    for path, run in sorted(named.items(), key=lambda item: (len(item[1].parts), item[1])):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text:
            name = ".".join(run.relative_to(folder).parts)
            yield name, (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].replace("``", "")


def show() -> None:
    """Print the list."""
    listed = dict(examples())
    width = max(map(len, listed))
    for name, what in listed.items():
        print(f"  {name:<{width}}  {what}")
    print(f"\nRun one with: {program('NAME')}. The option --help lists the options of an example.")


def main(argv: Sequence[str] | None = None) -> int:
    """List the examples. Returns 0, or 2 if there is an argument: the command takes none."""
    Parser("", "Lists the examples.").parse_args(argv)
    return run_command("", show)


if __name__ == "__main__":
    raise SystemExit(main())
