"""Lists the examples: ``python -m examples``, or with an installed wheel ``python -m cupyops.examples``."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from .command import PACKAGE, Parser


def examples() -> Iterator[tuple[str, str]]:
    """(name, first line of the docstring) of every file that can be run; no file is imported."""
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py"), key=lambda p: (len(p.parts), p)):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text and path.name != "__main__.py":
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            yield name, (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the list; 0."""
    Parser("", "Lists the examples.").parse_args(argv)
    listed = dict(examples())
    width = max(map(len, listed))
    for name, what in listed.items():
        print(f"  {name:<{width}}  {what}")
    print(f"\nRun one with: python -m {PACKAGE}.NAME. The option --help lists the options of an example.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
