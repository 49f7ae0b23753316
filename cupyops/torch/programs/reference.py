"""Translates programs in CUDA C++ to functions in plain PyTorch, for derivatives.

PyTorch differentiates the translation of a backward program for second derivatives, if the forward has no reference
that fits. It differentiates the translation of a forward program in forward mode, if the operator has no reference. A
program is not translated if one of its expressions has no counterpart in PyTorch.
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.programs.elementwise import Program
from cupyops.programs.expressions import ROUNDED, Statement, calls
from cupyops.programs.kinds import KEEPING, joined, kinds_of
from cupyops.programs.rows import RowProgram
from cupyops.programs.tree import CONSTANTS, Node, bare, parsed, walk
from cupyops.torch.scale.distributed import with_whole_rows

__all__ = ["elementwise_reference", "row_reference"]

_REAL = ("acc_t", "float", "double")
_ALIKE = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf", "erfc", "lgamma"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "abs"),
)
# PyTorch's functions by the number of arguments and the CUDA C++ name. Most names are those of PyTorch.
_FUNCTIONS: Mapping[int, Mapping[str, Callable[..., Any]]] = {
    1: {name: getattr(torch, name) for name in _ALIKE} | {"fabs": torch.abs},
    2: {name: getattr(torch, name) for name in ("fmax", "fmin", "pow", "atan2", "hypot", "fmod", "copysign")}
    | {"max": torch.fmax, "min": torch.fmin},
    3: {"fma": lambda a, b, c: a * b + c},
}
_MOST_INDEX = 2**31 - 1  # an index of a kernel is an int


@dataclass
class _Place:
    """The values of the names in an expression.

    Attributes:
        values: Python numbers and tensors, by name. Tensors have the dtype of the arithmetic; indices are integer
            tensors.
        like: a tensor of the arithmetic's dtype and of the inputs' device.
        reduce: the functions ``sum``, ``max`` and ``min`` over a row, by name; empty for elementwise programs.
        rows: the dtype of the rows, to which ``rounded`` rounds; None for elementwise programs.
    """

    values: dict[str, Any]
    like: Tensor
    reduce: Mapping[str, Callable[[Any], Tensor]]
    rows: torch.dtype | None = None

    def tensor(self, value: Any, base: str = "acc") -> Tensor:
        """Returns the value as a tensor of a type of the kernel: ``"acc"``, ``"float"`` or ``"double"``."""
        dtype = {"acc": self.like.dtype, "float": torch.float32, "double": torch.float64}[base]
        if isinstance(value, Tensor):
            return value if value.dtype == dtype else value.to(dtype)
        if isinstance(value, float):  # rounded, and infinite beyond the range of the dtype
            return self.like.new_full((), value, dtype=torch.float64).to(dtype)
        return self.like.new_full((), value, dtype=dtype)

    def whole(self, value: Any) -> Any:
        """Returns a whole number, with bool converted to 0 or 1, since comparisons are numbers in CUDA C++."""
        if isinstance(value, Tensor):
            return value.long()
        return int(value) if isinstance(value, bool) else value


class _Expression:
    """A parsed expression. ``of(place)`` evaluates the expression with the values of a :class:`_Place`.

    Raises:
        _NoCounterpart: a part has no counterpart in PyTorch.
    """

    def __init__(self, expression: str, whole: Collection[str]) -> None:
        self._tree, self._kinds = parsed(expression), kinds_of(expression, whole)
        for node in walk(self._tree):
            if not self._translated(node):
                raise _NoCounterpart(expression)

    def _translated(self, node: Node) -> bool:
        if node.kind == "call":
            known = (*_FUNCTIONS.get(len(node.parts), {}), *(("sum", ROUNDED) if len(node.parts) == 1 else ()))
            return node.word in known or (node.word in ("max", "min") and len(node.parts) == 1)
        return node.kind != "member" and (node.kind != "cast" or node.word in (*_REAL, "bool"))

    def of(self, place: _Place) -> Any:
        return self._of(self._tree, place)

    def _of(self, node: Node, place: _Place) -> Any:
        kind = self._kinds[node]
        if node.kind in ("number", "name"):
            value = node.value
            if node.kind == "name":
                value = CONSTANTS[node.word] if node.word in CONSTANTS else place.values[node.word]
            return place.whole(value) if kind.whole else place.tensor(value, kind.base)
        if node.kind == "index":
            return _element_at(place.values[node.word], place.values[node.parts[1].word])
        if node.kind == "conditional":
            return self._choice(node, place)
        parts = [self._of(part, place) for part in node.parts]
        if node.kind == "parentheses":
            return parts[0]
        if node.kind == "cast":
            return parts[0] != 0 if node.word == "bool" else place.tensor(parts[0], kind.base)
        if node.kind == "call":
            return self._call(node, parts, place)
        if node.word == "!":
            return parts[0] == 0
        if node.word in ("&&", "||"):
            return _LOGICAL[node.word](parts[0] != 0, parts[1] != 0)
        if kind.constant is not None:  # a quotient without a remainder
            return kind.constant
        operands = self._alike(node.parts, parts, place)
        return _SIGNS[node.word](*operands) if node.kind == "unary" else _OPERATIONS[node.word](*operands)

    def _alike(self, nodes: Sequence[Node], values: Sequence[Any], place: _Place) -> list[Any]:
        """Returns the operands of an operator in their common type. A whole number that is not a tensor takes that of the
        other operand."""
        base = joined([self._kinds[node] for node in nodes]).base
        if base == "whole":
            return [place.whole(value) for value in values]
        return [place.tensor(v, base) if isinstance(v, Tensor) else place.whole(v) for v in values]

    def _choice(self, node: Node, place: _Place) -> Any:
        base = self._kinds[node].base
        convert = place.whole if base == "whole" else lambda value: place.tensor(value, base)
        condition = self._of(node.parts[0], place)
        if not isinstance(condition, Tensor):
            return convert(self._of(node.parts[1 if condition else 2], place))
        return torch.where(condition != 0, *(convert(self._of(part, place)) for part in node.parts[1:]))

    def _call(self, node: Node, values: Sequence[Any], place: _Place) -> Any:
        name, count = node.word, len(values)
        if count == 1 and name in ("sum", "max", "min"):
            return place.reduce[name](values[0])
        if count == 1 and name == ROUNDED:
            return place.tensor(place.tensor(values[0]).to(place.rows))
        if self._kinds[node].whole and name in KEEPING:
            return _KEEPING[name](*map(place.whole, values))
        base = "double" if any(self._kinds[part].base == "double" for part in node.parts) else "acc"
        return _FUNCTIONS[count][name](*(place.tensor(value, base) for value in values))


class _NoCounterpart(Exception):
    """An expression has no counterpart in PyTorch."""


def _element_at(x: Tensor, index: Tensor) -> Tensor:
    """Returns x[index] of each row, 0 for an index outside the row. ``index`` has a last dimension of 1."""
    n = x.shape[-1]
    found = x.expand(*index.shape[:-1], n).gather(-1, index.clamp(0, n - 1))
    return torch.where((index >= 0) & (index < n), found, 0)


def _remainder(a: Any, b: Any) -> Any:
    """Returns the remainder of whole numbers with the sign of a, as in C++; 0 if b is 0, as in the kernel."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return 0 if b == 0 else abs(a) % abs(b) * (1 if a >= 0 else -1)
    a, b = (
        x if isinstance(x, Tensor) else torch.tensor(x, device=(a if isinstance(a, Tensor) else b).device)
        for x in (a, b)
    )
    return torch.where(b == 0, 0, torch.fmod(a, torch.where(b == 0, 1, b)))


def _extreme(of_tensors: Callable[[Tensor, Any], Tensor], of_numbers: Callable[[int, int], int]) -> Callable[..., Any]:
    def extreme(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            return of_numbers(a, b)
        x, y = (a, b) if isinstance(a, Tensor) else (b, a)
        return of_tensors(x, y)

    return extreme


_KEEPING: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": _extreme(lambda x, y: torch.clamp(x, max=y), min),
    "max": _extreme(lambda x, y: torch.clamp(x, min=y), max),
}
_SIGNS: Mapping[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_LOGICAL: Mapping[str, Callable[[Any, Any], Any]] = {"&&": operator.and_, "||": operator.or_}
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: torch.div(
        a if isinstance(a, Tensor) else b.new_full((), a), b
    ),  # PyTorch computes 3 / b as 3 * (1 / b), so both operands are tensors
    "%": _remainder,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def _parsed(statements: Sequence[Statement], whole: Collection[str] = ()) -> list[tuple[str, _Expression]] | None:
    try:
        return [(s.name, _Expression(s.expression, whole)) for s in statements]
    except _NoCounterpart:
        return None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def elementwise_reference(program: Program, promoted: Callable[[Sequence[Tensor]], torch.dtype]) -> Any:
    """Returns a function in plain PyTorch that computes an elementwise program.

    The arguments of the function are the tensors, the scalars and, optionally, a bool for each result. A result whose
    bool is False is an empty tensor. Returns None if an expression has no counterpart in PyTorch.

    Args:
        program: the program.
        promoted: returns the dtype of the results, given the tensors.
    """
    statements = _parsed(program.statements)
    if statements is None:
        return None
    count = len(program.inputs)

    def reference(*args: Any) -> Any:
        tensors, scalars = args[:count], args[count : count + len(program.scalars)]
        dtype = promoted(tensors)
        tensors = torch.broadcast_tensors(*(x.to(dtype).to(_wide(dtype)) for x in tensors))
        place = _Place(
            {**dict(zip(program.inputs, tensors, strict=True)), **_named(program.scalars, scalars)}, tensors[0], {}
        )
        for name, expression in statements:
            place.values[name] = place.tensor(expression.of(place))
        found = tuple(
            place.values[y].expand(tensors[0].shape).to(dtype).clone()
            if wanted
            else tensors[0].new_empty(0, dtype=dtype)
            for y, wanted in zip(program.results, _wanted(program, count, args), strict=True)
        )
        return found if len(found) > 1 else found[0]

    return reference


def _wanted(program: Program | RowProgram, tensors: int, args: Sequence[Any]) -> Sequence[bool]:
    """Returns the bools of the results, which are the arguments after the tensors and the scalars; by default all
    True."""
    return args[tensors + len(program.scalars) :] or (True,) * len(program.results)


def _named(names: Sequence[str], numbers: Sequence[Any]) -> dict[str, Any]:
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


def row_reference(
    program: RowProgram, kinds: Sequence[str], dtype_of: Callable[[int, Sequence[Tensor]], torch.dtype]
) -> Any:
    """Returns a function in plain PyTorch that computes a row program. Arguments and results follow
    :func:`elementwise_reference`.

    Args:
        program: the program.
        kinds: the kind of each result: ``"element"``, ``"row"`` or ``"column"``.
        dtype_of: returns the dtype of a result, given the result's position and the tensors.
    """
    summed = [bare(parsed(s.expression)).word == "column_sum" for s in program.statements]
    statements = _parsed([_within_column_sum(s) for s in program.statements], program.whole)
    if statements is None:
        return None
    names = program.inputs

    def reference(*args: Any) -> Any:
        tensors = args[: len(names)]
        scalars = args[len(names) : len(names) + len(program.scalars)]
        x = tensors[names.index(program.lead)]
        shape, wide = x.shape, _wide(x.dtype)
        values = {
            name: t.unsqueeze(-1).clamp(-_MOST_INDEX, _MOST_INDEX) if name in program.indices
            else (t.unsqueeze(-1) if name in program.rows else t).to(wide)
            for name, t in zip(names, tensors, strict=True)
        }  # fmt: skip
        of_sample = (shape[0], *(1,) * (len(shape) - 2), shape[-1])
        values |= {name: values[name].view(of_sample) for name in program.samples if name in names}
        values |= {**_named(program.scalars, scalars), "N": shape[-1], "j": torch.arange(shape[-1], device=x.device)}
        like = values[program.lead]

        def whole(value: Any) -> Tensor:
            return place.tensor(value).expand(shape)

        place = _Place(
            values,
            like,
            {
                "sum": lambda v: whole(v).sum(-1, keepdim=True),
                "max": lambda v: with_whole_rows(whole(v)).amax(-1, keepdim=True),
                "min": lambda v: with_whole_rows(whole(v)).amin(-1, keepdim=True),
            },
            x.dtype,
        )
        for (name, expression), over_rows in zip(statements, summed, strict=True):
            value = place.tensor(expression.of(place))
            if over_rows:
                apart = shape[:1] if program.of_samples(name) else ()
                value = whole(value).reshape(*apart, math.prod(shape[len(apart) : -1]), shape[-1]).sum(-2)
            place.values[name] = value
        found = []
        wants = _wanted(program, len(names), args)
        for i, (name, kind, wanted) in enumerate(zip(program.results, kinds, wants, strict=True)):
            value = place.values[name]
            if not wanted:
                found.append(x.new_empty(0))
                continue
            if kind == "element":
                value = value.expand(shape)
            elif kind == "row":
                value = value.expand(*shape[:-1], 1).squeeze(-1)
            found.append(value.to(dtype_of(i, tensors)).clone())
        return tuple(found) if len(found) > 1 else found[0]

    return reference


def _within_column_sum(statement: Statement) -> Statement:
    """Returns the statement with the argument of column_sum as its expression, or the statement itself."""
    for _, _, _, argument in calls(statement.expression, ("column_sum",)):
        return Statement(statement.name, argument)
    return statement
