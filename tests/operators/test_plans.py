"""Plans, by which a text is cut, and what the operators come to in lines."""

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

import pytest

import cupyops
from cupyops import Rows
from cupyops.tiling.config import CLUSTERS_SINCE, Plan

TEXT = """
#ifndef EACH
#define EACH 1
#endif
extern "C" __global__ void copy(const scalar_t* x, scalar_t* y, long long M) {
    extern __shared__ scalar_t kept[];
    for (int i = 0; i < EACH * WIDTH; ++i) y[blockIdx.x + i] = x[blockIdx.x + i];
}
"""


@dataclass(frozen=True)
class Cut(Plan):
    launch_only = frozenset({"block", "cluster", "shared"})

    block: int
    width: int
    each: int = 1
    cluster: int = 1
    shared: int = 0

    @property
    def geometry(self) -> Rows:
        return Rows("M", self.block, blocks_per_row=self.cluster)


def test_fields_are_macros_where_they_differ_from_their_defaults() -> None:
    assert Cut(64, 3).constants == {"WIDTH": 3}
    assert Cut(64, 3, 2, shared=128).constants == {"WIDTH": 3, "EACH": 2}


def test_a_plan_makes_the_kernel() -> None:
    kernel = Cut(64, 3, cluster=2, shared=128).kernel(TEXT, "copy", {"scalar_t": "float32"}, constants={"MORE": 1})
    assert kernel.constants == {"BLOCK_THREADS": 64, "CLUSTER": 2, "WIDTH": 3, "MORE": 1}
    assert (kernel.hardware.shared, kernel.hardware.since) == (128, CLUSTERS_SINCE)
    assert list(kernel.type_choices()) == [{"scalar_t": "float32"}]
    plain = Cut(64, 3).kernel(TEXT, "copy", dtypes=("float32", "float64"), since=70)
    assert (plain.hardware.since, plain.hardware.shared, len(list(plain.type_choices()))) == (70, 0, 2)


# What is particular to the shipped operators, and how many of them each file has.
OPERATORS = {
    "add2": 1,
    "gelu": 2,
    "layer_norm": 4,
    "linear": 2,
    "linear_gelu": 2,
    "linear_gelu_sm90": 0,
    "lltm": 2,
    "lltm_sequence": 2,
}
MOST_LINES = 80


def lines_of_code(path: Path) -> int:
    """Lines that hold more than a comment or a docstring."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            lines.update(range(token.start[0], token.end[0] + 1) if token.string else ())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_lines_are_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""Two\nlines."""\n\n# a comment\nx = (\n    1\n)\n\n\ndef f():\n    """One."""\n    return x\n')
    assert lines_of_code(path) == 5


def test_an_operator_takes_few_lines() -> None:
    """Its checks, bodies and geometry, on average; what grows beyond belongs into a mechanism that others can use."""
    folder = Path(cupyops.__file__).parent
    count = {p.name: lines_of_code(p) for stem in OPERATORS for p in folder.glob(f"{stem}*.py")}
    assert sum(count.values()) <= MOST_LINES * sum(OPERATORS.values()), count


@pytest.mark.parametrize("stem", OPERATORS)
def test_each_is_there(stem: str) -> None:
    assert (Path(cupyops.__file__).parent / f"{stem}.py").exists()
