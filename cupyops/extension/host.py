"""The host half of an extension as Python: functions of tensors that allocate, launch and return."""

import ast
import operator
import re
from collections.abc import Mapping, Sequence

from .expressions import NotTranslated, expression, parts, python_name
from .reading import WORD, Piece, pairs_of, without_comments
from .records import Argument, HostFunction
from .statements import Body

__all__ = ["constants_of", "host_functions", "whole"]

_TENSOR = re.compile(r"(?:(?:torch|at)\s*::\s*)?Tensor")
_OPTIONAL = re.compile(r"(?:c10|std|at|torch)\s*::\s*optional\s*<\s*(?:(?:torch|at)\s*::\s*)?Tensor\s*>")
_INTEGERS = frozenset(
    ("int", "long", "unsigned", "short", "int64_t", "int32_t", "size_t", "uint32_t", "uint64_t", "uint")
)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def host_functions(text: str, pieces: Sequence[Piece]) -> list[HostFunction]:
    """Returns the functions of the host that launch kernels, and those that they call, in the order of the text."""
    plain = without_comments(text)
    found: dict[str, HostFunction] = {}
    for piece in pieces:
        head = plain[piece.start : piece.head]
        if piece.kind != "function" or re.search(r"__(?:global|device)__|PYBIND11|TORCH_LIBRARY", head):
            continue
        if plain[piece.head : piece.head + 1] == "{" and (function := _function(head, plain[piece.head : piece.end])):
            function.words = piece.words
            found.setdefault(function.name, function)
    wanted = [f.name for f in found.values() if f.launches]
    kept: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept.add(name)
            wanted += [n for n in found[name].words if n in found and n != name]
    return [f for f in found.values() if f.name in kept]


def constants_of(text: str, pieces: Sequence[Piece]) -> dict[str, str]:
    """Returns the macros and constants of numbers at file scope, in Python."""
    found: dict[str, str] = {}
    for piece in pieces:
        body = ""
        if piece.directive is not None and piece.directive.name == "define":
            match = re.fullmatch(r"(\w+)\s+(.+)", piece.directive.rest, re.DOTALL)
            name, body = (match[1], match[2]) if match else ("", "")
        elif piece.kind == "name":
            match = re.fullmatch(
                r"(?:static\s+|inline\s+|constexpr\s+|const\s+)+(?:unsigned\s+)?\w+\s+(\w+)\s*=([^;{]+);",
                text[piece.start : piece.end],
            )
            name, body = (match[1], match[2]) if match else ("", "")
        if body:
            try:
                value = expression(body)
            except NotTranslated:
                continue
            if set(WORD.findall(value)) <= set(found):
                found[name] = value
    return found


def whole(text: str, known: Mapping[str, str], depth: int = 0) -> int | None:
    """Returns the value of an expression in Python of integers and known names, or None."""

    def of(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and (value := whole(known[node.id], known, depth + 1)) is not None:
            return value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp):
            return int(_OPERATORS[type(node.op)](of(node.left), of(node.right)))
        raise ValueError(text)

    try:
        return of(ast.parse(text.strip(), mode="eval").body) if depth < 8 else None
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, OverflowError):
        return None


def _function(head: str, body: str) -> HostFunction | None:
    head = re.sub(r"\btemplate\s*<[^{]*?>\s*(?=[\w:])", "", head, count=1)
    found = re.match(r"\s*(?P<returns>[\w\s:<>,*&]*?)\b(?P<name>[A-Za-z_]\w*)\s*\(", head)
    closing = pairs_of(head).get(found.end() - 1) if found else None
    if found is None or closing is None:
        return None
    arguments = [_argument(part) for part in parts(head[found.end() : closing]) if part != "void"]
    returns = re.sub(r"\b(?:static|inline|extern|TORCH_API|C10_EXPORT)\b|\"C\"", "", found["returns"])
    function = HostFunction(found["name"], arguments, " ".join(returns.split()))
    Body(function, body[1:-1]).write()
    return function


def _argument(part: str) -> Argument:
    part, _, default = part.partition("=")
    name = (WORD.findall(part) or [""])[-1]
    declared = part[: part.rstrip().rfind(name)] if name else part
    const = re.search(r"\bconst\b", declared) is not None
    base = " ".join(re.sub(r"\bconst\b|&|__restrict__|\b__restrict\b", " ", declared).split())
    words = base.split()
    kind = ""
    if _OPTIONAL.fullmatch(base):
        kind = "Tensor?"
    elif _TENSOR.fullmatch(base) or base.endswith("*"):
        kind = "Tensor"
    elif words and set(words) <= _INTEGERS:
        kind = "int"
    elif listed := re.fullmatch(r"std\s*::\s*vector\s*<\s*([\w:]+)\s*>|(?:c10|at)\s*::\s*(IntArrayRef)", base):
        kind = "int[]" if listed[2] or listed[1] in _INTEGERS else "float[]" if listed[1] in ("float", "double") else ""
    elif base in ("float", "double"):
        kind = "float"
    elif base == "bool":
        kind = "bool"
    try:
        value = expression(default) if default.strip() else None
    except NotTranslated:
        value = None
    return Argument(python_name(name), kind, const, value)
