"""Translates programs in CUDA C++ to functions in plain PyTorch, for derivatives.

PyTorch differentiates the translation of a backward program for second derivatives, if the forward has no reference
that fits. It differentiates the translation of a forward program in forward mode, if the operator has no reference. A
program is not translated if one of its expressions has no counterpart in PyTorch.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.compile.standard import NUMBERS
from cupyops.programs.elementwise import Program
from cupyops.programs.expressions import ROUNDED, Statement
from cupyops.programs.rows import RowProgram
from cupyops.torch.scale.distributed import with_whole_rows

__all__ = ["elementwise_reference", "row_reference"]

_TOKEN = re.compile(
    r"\s*(?:(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)[fFlL]?|(?P<int>\d+)[uUlL]*(?![\w.])"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[<>=!]=|[-+*/%<>!?:(),\[\]]))"
)
_BINARY: Sequence[Sequence[str]] = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))
_TYPES = frozenset(("acc_t", "float", "double"))
_CONSTANTS = {"INFINITY": float("inf"), "NAN": float("nan"), "true": True, "false": False, **NUMBERS}
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


class _NoCounterpart(Exception):
    """An expression has no counterpart in PyTorch."""


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

    def tensor(self, value: Any) -> Tensor:
        """Returns the value as a tensor of the arithmetic's dtype."""
        if isinstance(value, Tensor):
            return value if value.dtype == self.like.dtype else value.to(self.like.dtype)
        return self.like.new_full((), value)


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _NoCounterpart(expression)
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


class _Expression:
    """A parsed expression. ``of(place)`` evaluates the expression with the values of a :class:`_Place`."""

    def __init__(self, expression: str) -> None:
        self._expression, self._tokens, self._at = expression, _tokens(expression), 0
        self.of = self._conditional()
        if self._at < len(self._tokens):
            raise _NoCounterpart(expression)

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, sign: str) -> bool:
        taken = self._next() == ("sign", sign)
        self._at += taken
        return taken

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise _NoCounterpart(self._expression)

    def _conditional(self) -> Callable[[_Place], Any]:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        first = self._conditional()
        self._need(":")
        second = self._conditional()

        def choose(place: _Place) -> Any:
            chosen = condition(place)
            if not isinstance(chosen, Tensor):
                return (first if chosen else second)(place)
            return torch.where(chosen != 0, place.tensor(first(place)), place.tensor(second(place)))

        return choose

    def _binary(self, level: int) -> Callable[[_Place], Any]:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while (sign := self._next()[1]) in _BINARY[level] and self._next()[0] == "sign":
            self._at += 1
            left = _joined(sign, left, self._binary(level + 1))
        return left

    def _unary(self) -> Callable[[_Place], Any]:
        for sign, apply in (("-", lambda v: -v), ("+", lambda v: v), ("!", lambda v: v == 0)):
            if self._take(sign):
                inner = self._unary()
                return lambda place, inner=inner, apply=apply: apply(_number(place, inner(place)))  # type: ignore[misc]
        return self._primary()

    def _primary(self) -> Callable[[_Place], Any]:
        kind, text = self._next()
        self._at += 1
        if kind in ("float", "int"):
            number = float(text) if kind == "float" else int(text)
            return lambda place: number
        if kind == "sign" and text == "(":
            if self._next()[1] in _TYPES and self._tokens[self._at + 1 : self._at + 2] == [("sign", ")")]:
                self._at += 2
                cast = self._unary()
                return lambda place: place.tensor(cast(place))
            inner = self._conditional()
            self._need(")")
            return inner
        if kind != "word":
            raise _NoCounterpart(self._expression)
        if self._take("("):
            return self._call(text)
        if self._take("["):
            index = self._next()[1]
            self._at += 1
            self._need("]")
            return lambda place: _element_at(place.values[text], place.values[index])
        return lambda place: _CONSTANTS[text] if text in _CONSTANTS else place.values[text]

    def _call(self, name: str) -> Callable[[_Place], Any]:
        arguments = [self._conditional()]
        while self._take(","):
            arguments.append(self._conditional())
        self._need(")")
        count = len(arguments)
        if count == 1 and name in _TYPES:
            return lambda place: place.tensor(arguments[0](place))
        if count == 1 and name in ("sum", "max", "min"):
            return lambda place: place.reduce[name](arguments[0](place))
        if count == 1 and name == ROUNDED:
            return lambda place: place.tensor(place.tensor(arguments[0](place)).to(place.rows))
        function = _FUNCTIONS.get(count, {}).get(name)
        if function is None:
            raise _NoCounterpart(self._expression)
        return lambda place: function(*(place.tensor(argument(place)) for argument in arguments))


def _number(place: _Place, value: Any) -> Any:
    """Returns the value with bool converted to a number, 0 or 1, since comparisons are numbers in CUDA C++."""
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        return place.tensor(value)
    return int(value) if isinstance(value, bool) else value


def _element_at(x: Tensor, index: Tensor) -> Tensor:
    """Returns x[index] of each row, 0 for an index outside the row. ``index`` has a last dimension of 1."""
    n = x.shape[-1]
    found = x.expand(*index.shape[:-1], n).gather(-1, index.clamp(0, n - 1))
    return torch.where((index >= 0) & (index < n), found, 0)


def _divided(a: Any, b: Any) -> Any:
    if any(isinstance(v, float) or (isinstance(v, Tensor) and v.is_floating_point()) for v in (a, b)):
        return a / b
    return torch.div(a, b, rounding_mode="trunc") if isinstance(a, Tensor) or isinstance(b, Tensor) else int(a / b)


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda a, b: torch.fmod(a, b) if isinstance(a, Tensor) else math.fmod(a, b),
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda a, b: (a != 0) & (b != 0),
    "||": lambda a, b: (a != 0) | (b != 0),
}


def _joined(sign: str, left: Callable[[_Place], Any], right: Callable[[_Place], Any]) -> Callable[[_Place], Any]:
    operation = _OPERATIONS[sign]
    return lambda place: operation(_number(place, left(place)), _number(place, right(place)))


def _parsed(statements: Sequence[Statement]) -> list[tuple[str, _Expression]] | None:
    try:
        return [(s.name, _Expression(s.expression)) for s in statements]
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
    column_sum = re.compile(r"\s*column_sum\s*\((.*)\)\s*", re.DOTALL)
    inner = [column_sum.fullmatch(s.expression) for s in program.statements]
    statements = _parsed(
        [Statement(s.name, s.expression if m is None else m[1]) for s, m in zip(program.statements, inner, strict=True)]
    )
    if statements is None:
        return None
    names = program.inputs
    by_row = {*program.rows, *program.indices}

    def reference(*args: Any) -> Any:
        tensors = args[: len(names)]
        scalars = args[len(names) : len(names) + len(program.scalars)]
        x = tensors[names.index(program.lead)]
        shape, wide = x.shape, _wide(x.dtype)
        values = {
            name: (t.unsqueeze(-1) if name in by_row else t) if name in program.indices
            else (t.unsqueeze(-1) if name in by_row else t).to(wide)
            for name, t in zip(names, tensors, strict=True)
        }  # fmt: skip
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
        for (name, expression), summed in zip(statements, inner, strict=True):
            value = place.tensor(expression.of(place))
            place.values[name] = value if summed is None else whole(value).reshape(-1, shape[-1]).sum(0)
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
