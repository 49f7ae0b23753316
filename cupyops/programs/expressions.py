"""Parses small programs of assignments such as ``"s = 1 / (1 + exp(-x)); y = x * s"``.

Expressions are CUDA C++. Names that are read and never assigned are inputs. Names that are assigned and not read again
are results. All other names are temporaries. :mod:`cupyops.programs.elementwise` and :mod:`cupyops.programs.rows`
generate kernels from programs.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from cupyops.compile.standard import NUMBERS

from .words import CUDA_FUNCTIONS, NO_REDUCTIONS, OF_ROWS, RESERVED, WRITTEN, no_assignment, other_language

__all__ = [
    "ROUNDED",
    "Statement",
    "arithmetic",
    "check_operations",
    "inputs_of",
    "kernel_name",
    "names_in",
    "parse",
    "results_of",
]

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.+?)\s*", re.DOTALL)
_AT = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\[\s*([A-Za-z_]\w*)\s*\]")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# Words of an expression that are not variables.
_KNOWN = frozenset(
    (
        "INFINITY",
        "NAN",
        "true",
        "false",
        "float",
        "double",
        "int",
        "unsigned",
        "long",
        "bool",
        "acc_t",
        "scalar_t",
        "const",
        *NUMBERS,
    )
)


@dataclass(frozen=True)
class Statement:
    """An assignment ``name = expression``."""

    name: str
    expression: str

    def __str__(self) -> str:
        return f"{self.name} = {self.expression}"


def parse(program: str, where: str, indices: Collection[str] = ()) -> list[Statement]:
    """Returns the assignments of a program. An assignment ends at ``;`` or at the end of its line.

    Args:
        program: the program.
        where: the operator's name, for messages.
        indices: names that may stand in brackets, as ``t`` in ``x[t]``.

    Raises:
        ValueError: a statement is not an assignment, a name is assigned twice, or the program is empty.
    """
    statements: list[Statement] = []
    if floored := re.search(r"//[ \t]*\d+[ \t]*(?=[;\n]|$)", program):
        words = f"`{floored[0].strip()}` is a comment in CUDA C++: write floor(a / b)"
        raise ValueError(f"{where}: in `{program.strip()}`: {words}")
    for piece in re.split(r"[;\n]", re.sub(r"/\*.*?\*/|//[^\n]*", " ", program, flags=re.DOTALL)):
        if not piece.strip():
            continue
        if words := other_language(_AT.sub(lambda m: m[1] if m[2] in indices else m[0], piece)):
            raise ValueError(f"{where}: in `{piece.strip()}`: {words}")
        match = _ASSIGNMENT.fullmatch(piece)
        if match is None:
            got = f"{piece.strip()!r}{no_assignment(piece)}"
            raise ValueError(f"{where}: expected assignments such as `y = x * x`, got {got}")
        if re.search(r"[-+*/%<>=&|^?:,!~]$", match[2]):
            raise ValueError(
                f"{where}: `{piece.strip()}` ends within an expression; a statement ends with its line or at a ;"
            )
        if not _paired(match[2]):
            raise ValueError(f"{where}: the parentheses of `{piece.strip()}` do not pair")
        if re.search(r"(?<![=<>!])=(?!=)", match[2]):
            words = f"expected assignments such as `y = x * x`, got {piece.strip()!r}; a statement assigns one name"
            raise ValueError(f"{where}: {words}")
        if reserved := RESERVED & {match[1], *names_in(match[2])}:
            raise ValueError(f"{where}: in `{piece.strip()}`: `{min(reserved)}` is a reserved word, and can be no name")
        if any(s.name == match[1] for s in statements):
            raise ValueError(f"{where}: `{match[1]}` is assigned twice; give the second another name")
        if match[1] in names_in(match[2]):
            raise ValueError(f"{where}: `{piece.strip()}` reads what it assigns; give the result another name")
        statements.append(Statement(match[1], match[2]))
    if not statements:
        raise ValueError(f"{where}: expected assignments such as `y = x * x`, got {program!r}")
    return statements


def _paired(expression: str) -> bool:
    depth = 0
    for character in expression:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def names_in(expression: str) -> list[str]:
    """Returns the variables that an expression reads, in order. Functions are not variables.

    >>> names_in("x * exp(-0.5f * x) + 1e-3 * scale")
    ['x', 'scale']
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(expression):
        if match[0] not in _KNOWN and not re.match(r"\s*(\(|::)", expression[match.end() :]):
            found[match[0]] = None
    return list(found)


def inputs_of(statements: Sequence[Statement], known: Collection[str] = ()) -> list[str]:
    """Returns the names that a program reads before a statement assigns them, in order, without those in ``known``.

    >>> inputs_of(parse("s = a * b; y = s + c * limit", "example"), known=["limit"])
    ['a', 'b', 'c']
    """
    assigned, found = set(known), dict[str, None]()
    for statement in statements:
        found |= {name: None for name in names_in(statement.expression) if name not in assigned}
        assigned.add(statement.name)
    return list(found)


def results_of(statements: Sequence[Statement]) -> list[str]:
    """Returns the names that are assigned and not read again.

    >>> results_of(parse("s = a + b; y = s * s; z = a - b", "example"))
    ['y', 'z']
    """
    read = {name for statement in statements for name in names_in(statement.expression)}
    return [statement.name for statement in statements if statement.name not in read]


_DECIMAL = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])")
_NUMBER = re.compile(rf"(?<![\w.:])({'|'.join(NUMBERS)})(?!\w)")
_INTEGER_ARGUMENT = re.compile(r"(?<=[(,])(\s*)(-?\d+)(\s*)(?=[,)])")


def arithmetic(expression: str) -> str:
    """Returns the expression with its literals, and C's names of numbers, converted to ``acc_t``.

    In C++ the literal 0.5 is a double, and turns the arithmetic around it into double arithmetic. So does ``M_PI``.

    >>> arithmetic("0.5 * fmax(x, 0) + 2 * x + M_PI")
    'acc_t(0.5) * fmax(x, acc_t(0)) + 2 * x + acc_t(M_PI)'
    """
    expression = _DECIMAL.sub(lambda m: f"acc_t({m[0]})", expression)
    expression = _NUMBER.sub(r"acc_t(\1)", expression)
    return _INTEGER_ARGUMENT.sub(r"\1acc_t(\2)\3", expression)


def calls(expression: str, functions: Collection[str]) -> Iterator[tuple[int, int, str, str]]:
    """Yields (start, end, function, argument) of each call of one of the functions with one argument, from left to
    right.

    >>> list(calls("1 + sum(x * (y + 1))", ["sum"]))
    [(4, 20, 'sum', 'x * (y + 1)')]
    """
    at = 0
    for match in re.finditer(r"(?<![\w.])([A-Za-z_]\w*)\s*\(", expression):
        if match.start() < at or match[1] not in functions:
            continue
        depth, commas, end = 1, 0, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            commas += expression[end] == "," and depth == 1
            end += 1
        if commas == 0:
            at = end
            yield match.start(), end, match[1], expression[match.end() : end - 1].strip()


REDUCTIONS = ("sum", "max", "min", "column_sum")
ROUNDED = "rounded"  # the function of row programs that rounds to the dtype of the rows
# Names of types. An expression may call a type like a function: float(x).
_TYPES = frozenset(
    (
        "float",
        "double",
        "int",
        "unsigned",
        "long",
        "short",
        "char",
        "bool",
        "size_t",
        "uint",
        "acc_t",
        "scalar_t",
        "sizeof",
    )
)
# Functions that return whole numbers, or that take them.
_WHOLE = frozenset(
    ("lrint", "llrint", "lround", "llround", "ilogb", "isnan", "isinf", "isfinite", "signbit", "min", "max", "abs")
)


def check_operations(where: str, statements: Sequence[Statement], *, rows: bool, whole: Collection[str] = ()) -> None:
    """Raises for mistakes that the compiler would report less clearly, or would not report.

    The mistakes are functions of other languages, misspelt functions of CUDA C++, and the operators ``^`` and ``%`` on
    floating numbers. The compiler reports all other mistakes.

    Args:
        where: the operator's name, for messages.
        statements: the program.
        rows: the program is a row program, which may reduce rows.
        whole: names that are whole numbers.

    Raises:
        ValueError: a statement has one of these mistakes.
    """
    for statement in statements:
        expression = statement.expression
        words = _unknown_function(expression, rows) or _whole_operator(expression, whole) or _whole_quotient(expression)
        if words:
            raise ValueError(f"{where}: in `{statement}`: {words}")


def _unknown_function(expression: str, rows: bool) -> str:
    reduced = {name for _, _, name, _ in calls(expression, (*REDUCTIONS, *OF_ROWS))}
    for match in re.finditer(r"(?<![\w.:])([A-Za-z_]\w*)\s*\(", expression):
        name = match[1]
        if name in NO_REDUCTIONS:
            return f"there is no {name}: a row is reduced by sum, max and min"
        if name in WRITTEN:
            return f"CUDA C++ has no {name}: it is {WRITTEN[name]}"
        if name in OF_ROWS or name in ("sum", "column_sum") or (name in REDUCTIONS and name in reduced):
            if not rows:
                return (
                    f"{name} reduces a row, and an element-wise program has no rows: declare the operator by row_reduce"
                )
            if name in OF_ROWS:
                return f"there is no {name}: it is {OF_ROWS[name]}"
            if name in ("sum", "column_sum") and name not in reduced:
                return f"{name} takes one argument"
            continue
        if name == ROUNDED and not rows:
            return f"{ROUNDED} is a function of row programs: declare the operator by row_reduce"
        if name in (ROUNDED, *CUDA_FUNCTIONS, *_TYPES) or name.startswith("_"):
            continue
        if name.endswith("f") and name[:-1] in CUDA_FUNCTIONS:
            continue
        known = (*sorted(CUDA_FUNCTIONS), *WRITTEN, *((*REDUCTIONS, ROUNDED, *OF_ROWS) if rows else ()))
        if close := get_close_matches(name.lower(), known, n=1, cutoff=0.8):
            meant = {**WRITTEN, **OF_ROWS}.get(close[0])
            return f"CUDA C++ has no {name}; did you mean {close[0]!r}" + (f", which is {meant}?" if meant else "?")
    return ""


def _whole_operator(expression: str, whole: Collection[str]) -> str:
    """Returns a message that says what to write for ``^`` or ``%`` on floating numbers, or ""."""
    for match in re.finditer(r"(\w+|\))\s*([\^%])\s*(\w*)", expression):
        left, sign, right = match.groups()
        operands = [left, right] if left != ")" else [_function_before(expression, match.start()), right]
        if any(re.match(r"[A-Za-z_]", x) and x not in whole and x not in _WHOLE and x not in _TYPES for x in operands):
            a, b = left if left != ")" else "a", right or "b"
            if sign == "%":
                return f"% is of whole numbers in CUDA C++: write fmod({a}, {b})"
            product = f"{a} * {a}, or " if b == "2" else ""
            return f"^ is exclusive or in CUDA C++, of whole numbers alone: write {product}pow({a}, {b})"
    return ""


def _whole_quotient(expression: str) -> str:
    """Returns a message about a quotient of two whole numbers that C++ rounds to zero, as in ``pow(x, 1 / 3)``, or ""."""
    for match in re.finditer(r"(?<![\w.])(\d+)\s*/\s*(\d+)(?![\w.])", expression):
        before = expression[: match.start()].rstrip()[-1:]
        if before not in ("*", "/", "%") and int(match[2]) and int(match[1]) % int(match[2]):
            whole = int(match[1]) // int(match[2])
            return f"{match[0]} is {whole} in CUDA C++, a division of whole numbers: write {match[1]}.0 / {match[2]}"
    return ""


def _function_before(expression: str, end: int) -> str:
    """Returns the name of the function whose call closes at ``end``. For parentheses that are no call, returns the
    first name in them, or ""."""
    depth, at = 0, end
    while at >= 0:
        depth += {")": 1, "(": -1}.get(expression[at], 0)
        if depth == 0:
            break
        at -= 1
    called = re.search(r"([A-Za-z_]\w*)\s*$", expression[:at])
    inside = expression[at + 1 : end]
    if called:
        return called[1]
    # Comparisons and casts may give whole numbers. Any other expression in parentheses is floating if its names are.
    return "" if re.search(r"[<>=!&|(]", inside) else next(iter(names_in(inside)), "")


def kernel_name(name: str) -> str:
    """Returns the name of an operator's kernel: the operator's name, with ``_`` appended if CUDA has a function of this
    name."""
    return f"{name}_" if name in CUDA_FUNCTIONS else name
