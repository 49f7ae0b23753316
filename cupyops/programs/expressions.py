"""Parses small programs of assignments such as ``"s = 1 / (1 + exp(-x)); y = x * s"``.

Expressions are CUDA C++. Names that are read and never assigned are inputs. Names that are assigned and not read again
are results. All other names are temporaries. :mod:`cupyops.programs.elementwise` and :mod:`cupyops.programs.rows`
generate kernels from programs.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from cupyops.compile.standard import NUMBERS
from cupyops.compile.toolchain import of_c_library

from .kinds import KEEPING, kinds_of
from .tree import CONSTANTS, TYPES, ExpressionError, Node, bare, parsed, walk
from .words import CUDA_FUNCTIONS, NO_REDUCTIONS, OF_ROWS, RESERVED, WRITTEN, no_assignment, other_language

__all__ = [
    "ROUNDED",
    "Statement",
    "arithmetic",
    "calls",
    "check_operations",
    "inputs_of",
    "kernel_name",
    "names_in",
    "parse",
    "results_of",
    "with_names",
]

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.+?)\s*", re.DOTALL | re.ASCII)
_AT = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\[\s*([A-Za-z_]\w*)\s*\]")


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
        indices: names that may be in brackets, as ``t`` in ``x[t]``.

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
        try:
            read = names_in(match[2])
        except ExpressionError as error:
            raise ValueError(f"{where}: in `{piece.strip()}`: {error}") from None
        if reserved := RESERVED & {match[1], *read}:
            raise ValueError(f"{where}: in `{piece.strip()}`: `{min(reserved)}` is a reserved word, and can be no name")
        if any(s.name == match[1] for s in statements):
            raise ValueError(f"{where}: `{match[1]}` is assigned twice; give the second another name")
        if match[1] in read:
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
    names = (node.word for node in walk(parsed(expression)) if node.kind == "name")
    return list(dict.fromkeys(name for name in names if name not in CONSTANTS))


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


_INT_ARGUMENTS = frozenset(("ldexp", "scalbn", "scalbln", "jn", "yn", "powi"))  # functions of a number and an int


def arithmetic(
    expression: str,
    whole: Collection[str] = (),
    names: Callable[[str], str] = str,
    functions: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Returns the CUDA code of an expression, in which all arithmetic has the type ``acc_t``.

    In C++ the literal 0.5 is a double, and turns the arithmetic around it into double arithmetic. So do ``M_PI``, and
    ``sqrt(j)`` of a whole number. They are converted to ``acc_t``. Whole numbers that may not fit an int are computed in
    64 bits.

    >>> arithmetic("0.5 * fmax(x, 0) + 2 * x + M_PI")
    'acc_t(0.5) * fmax(x, acc_t(0)) + 2 * x + acc_t(M_PI)'
    >>> arithmetic("x * (j * j)", ["j"])
    'x * (static_cast<long long>(j) * j)'

    Args:
        expression: the expression.
        whole: names that are whole numbers.
        names: returns the name of a variable in the CUDA code.
        functions: the names of functions in the CUDA code that have others in the expression.
    """
    kinds = kinds_of(expression, whole)

    def around(node: Node, written: Sequence[str]) -> str:
        """Returns the text of a part, with its own parts as ``written``."""
        found, at = "", node.start
        for part, text in zip(node.parts, written, strict=True):
            found += expression[at : part.start] + text
            at = part.end
        return found + expression[at : node.end]

    def of(node: Node) -> str:
        if node.kind == "number":
            if isinstance(node.value, int):  # a hexadecimal number of 32 bits has no sign in C++
                return node.word if node.word.isdecimal() else str(node.value)
            number = node.word.replace("'", "")
            return number if kinds[node].base == "float" else f"acc_t({number.rstrip('lL')})"
        if node.kind == "name":
            if node.word in CONSTANTS:
                return f"acc_t({node.word})" if node.word in NUMBERS else node.word
            return names(node.word)
        parts = [of(part) for part in node.parts]
        of_parts = [kinds[part] for part in node.parts]
        if node.kind == "call":
            name = node.word.removeprefix("::").removeprefix("std::")
            if kinds[node].whole and name in KEEPING:
                wide = "static_cast<long long>" if kinds[node].wide else "int"
                parts = [f"{wide}({part})" for part in parts]
            else:
                known = name in CUDA_FUNCTIONS or (name.endswith("f") and name[:-1] in CUDA_FUNCTIONS)
                parts = [
                    f"acc_t({text})"
                    if name not in _INT_ARGUMENTS
                    and (
                        (kind.whole and (known or _literal(part))) or (kind.base == "float" and name in CUDA_FUNCTIONS)
                    )
                    else text
                    for text, kind, part in zip(parts, of_parts, node.parts, strict=True)
                ]
            written = around(node, parts)
            return functions[node.word] + written[len(node.word) :] if node.word in functions else written
        widened = kinds[node].wide and kinds[node].low is not None and node.word in ("+", "-", "*", "<<")
        if widened and not any(k.wide for k in (of_parts[:1] if node.word == "<<" else of_parts)):
            parts[0] = f"static_cast<long long>({parts[0]})"
        if node.kind == "binary":
            a, b = of_parts
            if node.word == "/" and not (a.floating or b.floating) and not (a.whole and b.whole):
                parts[1] = f"acc_t({parts[1]})"  # the function may return a whole number
            may_be_0 = b.low is None or b.high is None or b.low <= 0 <= b.high
            if (
                node.word == "%" and kinds[node].whole and may_be_0 and bare(node.parts[1]).word != "N"
            ):  # no row is empty
                return f"({parts[1]} == 0 ? 0 : {around(node, parts)})"
        return around(node, parts)

    return of(parsed(expression))


def _literal(node: Node) -> bool:
    return node.kind == "number" or (node.kind == "unary" and node.parts[0].kind == "number")


def calls(expression: str, functions: Collection[str]) -> Iterator[tuple[int, int, str, str]]:
    """Yields (start, end, function, argument) of each call of one of the functions with one argument, from left to
    right. Calls within such a call are left out.

    >>> list(calls("1 + sum(x * (y + 1))", ["sum"]))
    [(4, 20, 'sum', 'x * (y + 1)')]
    """
    at = 0
    for node in walk(parsed(expression)):
        if node.kind == "call" and node.word in functions and len(node.parts) == 1 and node.start >= at:
            at, argument = node.end, node.parts[0]
            yield node.start, node.end, node.word, expression[argument.start : argument.end]


def with_names(expression: str, places: Mapping[tuple[int, int], str]) -> str:
    """Returns an expression with names in place of some of its parts, given the start and the end of each."""
    for start, end in sorted(places, reverse=True):
        expression = expression[:start] + places[start, end] + expression[end:]
    return expression


REDUCTIONS = ("sum", "max", "min", "column_sum")
ROUNDED = "rounded"  # the function of row programs that rounds to the dtype of the rows


def check_operations(where: str, statements: Sequence[Statement], *, rows: bool, whole: Collection[str] = ()) -> None:
    """Raises for mistakes that the compiler would report less clearly, or would not report.

    The mistakes are functions of other languages, misspelt functions of CUDA C++, operators of whole numbers on floating
    numbers, and arithmetic of whole numbers that C++ rounds or that may not fit. The compiler reports all other mistakes.

    Args:
        where: the operator's name, for messages.
        statements: the program.
        rows: the program is a row program, which may reduce rows.
        whole: names that are whole numbers.

    Raises:
        ValueError: a statement has one of these mistakes.
    """
    for statement in statements:
        try:
            if words := _unknown_function(statement.expression, rows):
                raise ExpressionError(words)
            kinds_of(statement.expression, whole)
        except ExpressionError as error:
            raise ValueError(f"{where}: in `{statement}`: {error}") from None


def _unknown_function(expression: str, rows: bool) -> str:
    for node in walk(parsed(expression)):
        if node.kind != "call" or "::" in node.word or "<" in node.word:
            continue
        name, reduces = node.word, len(node.parts) == 1
        if name in NO_REDUCTIONS:
            return f"there is no {name}: a row is reduced by sum, max and min"
        if name in WRITTEN:
            return f"CUDA C++ has no {name}: it is {WRITTEN[name]}"
        if name in OF_ROWS or name in ("sum", "column_sum") or (name in REDUCTIONS and reduces):
            if not rows:
                return (
                    f"{name} reduces a row, and an element-wise program has no rows: declare the operator by row_reduce"
                )
            if name in OF_ROWS:
                return f"there is no {name}: it is {OF_ROWS[name]}"
            if not reduces:
                return f"{name} takes one argument"
            continue
        if name == ROUNDED and not rows:
            return f"{ROUNDED} is a function of row programs: declare the operator by row_reduce"
        if name in (ROUNDED, "sizeof", *CUDA_FUNCTIONS, *TYPES) or name.startswith("_"):
            continue
        if name.endswith("f") and name[:-1] in CUDA_FUNCTIONS:
            continue
        known = (*sorted(CUDA_FUNCTIONS), *WRITTEN, *((*REDUCTIONS, ROUNDED, *OF_ROWS) if rows else ()))
        if close := get_close_matches(name.lower(), known, n=1, cutoff=0.8):
            meant = {**WRITTEN, **OF_ROWS}.get(close[0])
            return f"CUDA C++ has no {name}; did you mean {close[0]!r}" + (f", which is {meant}?" if meant else "?")
    return ""


# Further names of the headers and of the source: what a compiler has refused as the name of a kernel.
_KNOWN = frozenset(
    ("main", "index", "select", "remove", "rename", "gamma", "daylight", "timezone", "std", "dim3", "each", "operand")
    + ("convert", "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize")
    + ("xor", "bitand", "bitor", "compl", "and_eq", "not_eq", "or_eq", "xor_eq")
)


def kernel_name(name: str) -> str:
    """Returns the name of an operator's kernel: the operator's name, with ``_`` appended if the compiler knows the name.

    The name of a function, a macro or a type of the headers, or a keyword, can be no kernel's: ``time``, ``EOF``, ``clock_t``,
    ``xor``.
    """
    known = name in CUDA_FUNCTIONS | RESERVED | _KNOWN or name.isupper() or name.endswith("_t")
    return f"{name}_" if known or of_c_library(name) else name
