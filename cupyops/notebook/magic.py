"""IPython's side of ``%%cu``: the magic, and the names that a cell defines."""

from collections.abc import Callable
from typing import Any

from .cell import operators_of, report_on
from .options import CellError, parse

__all__ = ["cu", "load"]


def cu(line: str, cell: str, scope: dict[str, Any], evaluate: Callable[[str], Any]) -> None:
    """Runs a cell: defines its operators in `scope`, and prints a line for each.

    Args:
        line: what follows ``%%cu``.
        cell: the other lines.
        scope: the names of the notebook.
        evaluate: returns the value of an expression in the notebook.

    Raises:
        CellError: the cell does not become an operator, or a check failed. The message points into the cell.
    """
    options = parse(line)
    if isinstance(options, str):
        print(options, end="")
        return
    operators = operators_of(options, cell, scope)
    for name, op in operators.items():
        scope[name] = op
        arguments, _, results = op.schema.partition("::")[2].partition(" -> ")
        gradient = "the gradient of its reference" if options.reference else "no gradient"
        print(
            f"{arguments} -> {results.strip('()')}; {gradient if op.backward is None else f'gradient: {name}_backward'}"
        )
    for op in operators.values():
        report_on(op, options, evaluate)


def load(shell: Any) -> None:
    """Defines ``%%cu`` in an IPython shell."""

    def magic(line: str, cell: str | None = None) -> None:
        if cell is None and not isinstance(parse(line), str):  # %cu --help
            raise CellError("%%cu is a cell magic: two percent signs, and CUDA C++ in the lines below")
        cu(line, cell or "", shell.user_ns, shell.ev)

    shell.register_magic_function(magic, "line_cell", "cu")
