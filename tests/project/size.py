"""Prints the lines of the repository by room, and the bytes of its pages: `make size`.

A line of code has a token that is neither a comment nor part of a docstring. Blank lines count nowhere. Every line of a
page that is not blank is prose.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
DRAWN = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def filled(text: str) -> int:
    """Returns the number of lines that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


def of_python(text: str) -> int:
    """Returns the lines of code of a Python file."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            code -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(bool(lines[number - 1].strip()) for number in code)


def of_cpp(text: str) -> int:
    """Returns the lines of code of a CUDA C++ or C++ file."""
    return filled(CPP.sub(lambda found: "" if found[0][0] == "/" else found[0], text))


KINDS: dict[str, Callable[[str], int]] = {
    ".py": of_python,
    **dict.fromkeys((".cu", ".cuh", ".cpp", ".h"), of_cpp),
    ".md": lambda text: 0,
}


def room(path: Path) -> str:
    """Returns the folder that a file is counted in: of the library, each package by itself."""
    parts = path.parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("cupyops",) else 1]) or "."


def pages() -> tuple[int, int, int]:
    """Returns the bytes of the pages in docs/: all, without what scripts draw from results, and also without tables."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    written = [DRAWN.sub("", text) for text in texts]
    prose = ["".join(line for line in text.splitlines(True) if not line.startswith("|")) for text in written]
    whole, without_results, without_tables = (
        sum(len(text.encode()) for text in kind) for kind in (texts, written, prose)
    )
    return whole, without_results, without_tables


def main() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in map(Path, listed.splitlines()):
        if path.suffix in KINDS and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            code = KINDS[path.suffix](text)
            for name in {room(path), "cupyops" if path.parts[0] == "cupyops" else room(path)}:
                rooms[name] = [x + y for x, y in zip(rooms[name], (1, code, filled(text) - code), strict=True)]
    print(f"{'room':24}{'files':>7}{'code':>9}{'words':>9}")
    for name, numbers in sorted(rooms.items()):
        print(f"{'  ' * name.count('/') + name:24}{numbers[0]:7}{numbers[1]:9}{numbers[2]:9}")
    total = [sum(n[i] for name, n in rooms.items() if "/" not in name) for i in range(3)]
    print(f"{'total':24}{total[0]:7}{total[1]:9}{total[2]:9}")
    sizes = [f"{size / 1000:.0f} kB" for size in pages()]
    print(f"pages of docs/: {sizes[0]}; without results {sizes[1]}; without tables, too, {sizes[2]}")


if __name__ == "__main__":
    main()
