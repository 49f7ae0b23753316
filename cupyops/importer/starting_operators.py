"""Writes the operators of a starting file: a declaration for each function that Python calls."""

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from .casters import REQUIRED, Signature, schema_of
from .effects import Effect, returns_of

__all__ = ["Called", "comment", "operators", "wrapped"]

_TENSOR = "at::Tensor"
_WORDS = {
    way: re.compile(rf"(?:^|_)(?:{words})(?=_|$)")
    for way, words in (("forward", "forward|fwd"), ("backward", "backward|bwd|grad"))
}
# Names of the gradient of the only result.
_GRADIENT = {
    "d_out",
    "d_output",
    "dout",
    "doutput",
    "dy",
    "grad",
    "grad_out",
    "grad_output",
    "gradient",
    "grad_y",
    "gy",
}


@dataclass(frozen=True)
class Called:
    """A function that Python calls.

    Attributes:
        name: the name in Python.
        function: its text.
        signature: its C++ types.
        defaults: the defaults in Python by the place of the parameter.
        effect: the effects on its arguments.
        untranslated: why it has no whole translation, or ``""``.
    """

    name: str
    function: ast.FunctionDef
    signature: Signature
    defaults: dict[int, Any]
    effect: Effect
    untranslated: str = ""

    @property
    def parameters(self) -> list[str]:
        """The names of C++; those of the text if Python cannot have them."""
        given = [a.arg for a in self.function.args.args]
        proper = (p.name if p.name.isidentifier() and not iskeyword(p.name) else "" for p in self.signature.parameters)
        return [name or own for name, own in zip(proper, given, strict=True)]

    def named(self, parameters: Collection[str]) -> set[str]:
        """Returns the names of C++ of parameters of the text."""
        return {n for n, a in zip(self.parameters, self.function.args.args, strict=True) if a.arg in parameters}


class _NoOperatorError(Exception):
    """A function is not an operator, for the reason in the message."""


class _Operator:
    """The operator of a function.

    Raises:
        _NoOperatorError: there is none.
    """

    def __init__(self, called: Called) -> None:
        if called.untranslated:
            raise _NoOperatorError(f"it has no whole translation ({called.untranslated})")
        self.called, names = called, called.parameters
        self.kinds = [
            p.type[1] if isinstance(p.type, tuple) and p.type[0] == "&" else p.type for p in called.signature.parameters
        ]
        self.types = dict(zip(names, map(schema_of, self.kinds), strict=True))
        if odd := [n for n, t in self.types.items() if not t or t.startswith(("Tensor[", "Tensor?[", "("))]:
            raise _NoOperatorError(f"no operator takes {', '.join(odd)}")
        self.tensors = [n for n, t in self.types.items() if t.startswith("Tensor")]
        self.others = [n for n in names if n not in self.tensors]
        self.written = [n for n in self.tensors if n in called.named(called.effect.writes)]
        self.results = self._results()
        if not self.tensors:
            raise _NoOperatorError("it has no tensor")
        if self.results is None and not self.written:
            raise _NoOperatorError("it returns nothing, and writes to none of its arguments that are known")
        if self.results is not None and self.written:
            raise _NoOperatorError(f"it returns tensors, and also writes to {', '.join(self.written)}")
        if returned := sorted(called.named(called.effect.returned) & {*self.tensors}):
            raise _NoOperatorError(f"it may return {returned[0]}, which is an argument, or a view of it")
        self.gradient: list[str] = []
        self.backward = ""

    def _results(self) -> list[str] | None:
        """Returns the names of the results, ``""`` for one without a name; None if the function returns nothing."""
        kind = self.called.signature.returns
        if kind is None or kind == "void":
            return None
        values = [r.value for r in returns_of(self.called.function)]
        if kind == _TENSOR:
            found = [[_name(v)] for v in values]
        elif isinstance(kind, tuple) and kind[0] in ("std::tuple", "std::pair") and {*kind[1:]} == {_TENSOR}:
            count = len(kind) - 1
            found = [_elements(v)[-count:] or [""] * count for v in values]
        elif kind == ("std::vector", _TENSOR):
            found = [_elements(v) or [] for v in values]
            if not all(found) or len({*map(len, found)}) != 1:
                raise _NoOperatorError("the number of tensors that it returns is not known")
        else:
            raise _NoOperatorError(f"it returns {kind[0] if isinstance(kind, tuple) else kind}, which is not a tensor")
        last = found[-1] if found else [""]
        proper = all(n and last.count(n) == 1 and n not in self.types for n in last)
        return last if proper else [""] * len(last)

    @property
    def result_names(self) -> list[str]:
        """The names by which a gradient knows the results."""
        results = self.results or []
        return [n or ("out" if len(results) == 1 else f"out{i}") for i, n in enumerate(results)]

    def call(self, given: Sequence[str]) -> str:
        """Returns a call of the function with the values of its parameters, which it converts to their C++ types."""
        converted = []
        for text, kind, p in zip(given, self.kinds, self.called.signature.parameters, strict=True):
            maybe = isinstance(kind, tuple) and kind[0] == "std::optional"
            kind = kind[1] if maybe else kind
            whole, text = text, f"float32({text})" if repr(kind) == "float32" else text
            if schema_of(kind).endswith("[]"):
                text = f"std.vector({kind[1]!r}, {text})"
            text = f"None if {whole} is None else {text}" if maybe and text != whole else text
            converted.append(f"Variable({text})" if isinstance(p.type, tuple) and p.type[0] == "&" else text)
        call = f"{self.called.function.name}({', '.join(converted)})"
        if self.called.signature.returns != ("std::vector", _TENSOR):
            return call
        return f"{call}[0]" if len(self.results or ()) == 1 else f"tuple({call})"

    def _body(self) -> str:
        """Returns the body: the function itself, if it takes and returns what the operator does."""
        order, name = ", ".join([*self.tensors, *self.others]), self.called.function.name
        call = self.call(self.called.parameters)
        return name if call == f"{name}({order})" else f"lambda {order}: {call}"

    def lines(self, space: str) -> list[str]:
        """Returns the declaration."""
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        order, defaults = [*self.tensors, *self.others], self._defaults()
        arguments = []
        for n in order:
            kind = f"Tensor({next(letters)}!)" if n in self.written else self.types[n]
            arguments.append(f"{kind} {n}{defaults.get(n, '')}")
        results = [f"Tensor {n}".strip() for n in self.results or ()]
        shown = results[0] if len(results) == 1 else f"({', '.join(results)})"
        head = f"{space}::{self.called.name}("
        further = [f"backward={self.backward}"] if self.backward else []
        if self.backward and self.gradient != self.tensors:
            further.append(f"wrt=({', '.join(map(repr, self.gradient))},)".replace("'", '"'))
        schema = f"{head}{', '.join(arguments)}) -> {shown}"
        line = f'{self.called.name}_op = Operator("{schema}", {", ".join([self._body(), *further])})'
        if len(line) <= 120:
            return [line]
        pieces = re.findall(r".{1,108}(?:(?<=, )|(?<=-> )|$)", schema)
        given = [*(f'"{piece}"' for piece in pieces[:-1]), f'"{pieces[-1]}",']
        given += [text for part in (self._body(), *further) for text in wrapped(f"    {part},")]
        return [f"{self.called.name}_op = Operator(", *(f"    {g.strip()}" if g[:8].strip() else g for g in given), ")"]

    def _defaults(self) -> dict[str, str]:
        """Returns the defaults of the last arguments, in the form of a schema."""
        found: dict[str, str] = {}
        for n in reversed(self.others):
            value = self.called.defaults.get(self.called.parameters.index(n), REQUIRED)
            if not isinstance(value, (bool, int, float, str, type(None))):
                break
            found[n] = f'="{value}"' if isinstance(value, str) else f"={value}"
        return found


def operators(space: str, functions: Sequence[Called]) -> list[str]:
    """Returns the lines that declare the operators, and comments that say why other functions are not operators.

    Args:
        space: the namespace.
        functions: the functions that Python calls.
    """
    found: dict[str, _Operator] = {}
    refused: dict[str, str] = {}
    for f in functions:
        try:
            found[f.name] = _Operator(f)
        except _NoOperatorError as reason:
            refused[f.name] = str(reason)
    lines: list[str] = []
    for forward, backward in _pairs([f.name for f in functions]):
        if forward in found and backward in found:
            lines += _paired(found[forward], found[backward])
    for f in functions:
        if f.name in found:
            lines += found[f.name].lines(space)
        else:
            lines += comment(f"{f.name} is a function and no operator: {refused[f.name]}.")
    return lines


# Forward and backward


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the names of a forward and of its backward: ``f`` or ``f_forward``, and ``f_backward`` or ``f_grad``."""
    for backward in names:
        key, count = _WORDS["backward"].subn("", backward)
        if count:
            others = [n for n in names if not _WORDS["backward"].search(n)]
            others.sort(key=lambda n: not _WORDS["forward"].search(n))
            yield from [(n, backward) for n in others if _WORDS["forward"].sub("", n).strip("_") == key.strip("_")][:1]


def _paired(forward: _Operator, backward: _Operator) -> list[str]:
    """Makes one operator the gradient of another if its parameters have the names of gradients, inputs and results.

    Returns the lines of the function between them, or a comment that says why there is none.
    """
    inputs, results = [*forward.tensors, *forward.others], forward.result_names
    of_results = {name: r for r in results for name in (f"grad_{r}", f"{r}_grad", f"d_{r}", f"d{r}")}
    if len(results) == 1:
        of_results |= {name: results[0] for name in _GRADIENT if name not in inputs}
    name = f"{forward.called.name}_gradient"
    none = f"{backward.called.name}_op is not the gradient of {forward.called.name}_op: "
    parameters: list[str] = []
    given: list[str] = []
    for p in backward.called.parameters:
        if p in inputs or p in results:
            parameters.append(p)
            given.append(p)
        elif p in of_results:
            parameters.append(f"grad_{of_results[p]}")
            given.append(f"{parameters[-1]}.contiguous()")  # the gradient of a sum has strides of 0
        else:
            return comment(f"{none}no input and no result of {forward.called.name} has the name of its parameter {p}.")
        tensor = p in backward.tensors
        if tensor != (parameters[-1] not in forward.others):
            return comment(f"{none}{p} is a tensor in one of them alone.")
    if forward.written or backward.written:
        return comment(f"{none}it writes to {(forward.written or backward.written)[0]}.")
    found = backward.results or []
    wanted = {x: (f"grad_{x}", f"{x}_grad", f"d_{x}", f"d{x}") for x in forward.tensors}
    places = {x: next((i for i, r in enumerate(found) if r in names), None) for x, names in wanted.items()}
    named = {x: i for x, i in places.items() if i is not None}
    if not named and len(found) == len(forward.tensors):
        named = {x: i for i, x in enumerate(forward.tensors)}
    if not named:
        return comment(f"{none}the names of its results do not say of which input they are the gradient.")
    forward.gradient, forward.backward = [*named], name
    order = sorted(parameters, key=lambda p: p in forward.others)
    call = backward.call(given)
    lines = ["", "", f"def {name}({', '.join(order)}):"]
    if [*named.values()] == [*range(len(found))]:
        lines.append(f"    return {call}")
    else:
        lines += [f"    found = {call}", f"    return {', '.join(f'found[{i}]' for i in named.values())}"]
    return [*(text for line in lines for text in wrapped(line)), "", ""]


# Texts


def _name(value: Any) -> str:
    """Returns the variable that an expression is, or ``""``."""
    if isinstance(value, ast.Attribute) and value.attr == "value":
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _elements(value: Any) -> list[str]:
    """Returns the variables of a list or a tuple that an expression makes, ``""`` for each other element."""
    if isinstance(value, ast.Call):
        if value.args and isinstance(value.args[-1], (ast.List, ast.Tuple)):
            value = value.args[-1]
        elif not ast.unparse(value.func).endswith(("tuple", "pair")):
            return []
    elements = value.args if isinstance(value, ast.Call) else getattr(value, "elts", [])
    return [_name(e) for e in elements]


def comment(text: str) -> list[str]:
    """Returns a text as lines of a comment."""
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def wrapped(line: str) -> list[str]:
    """Returns a line of code, with the arguments of its last bracket on lines of their own if it is long."""
    if len(line) <= 120 or line.lstrip().startswith(("#", '"')):
        return [line]
    tail = next((t for t in ("):", "),", ")") if line.endswith(t)), "")
    closing = len(line) - len(tail)
    opening = _opening(line, closing)
    if not tail or opening < 0:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    parts, start, depth, quote = [], opening + 1, 0, ""
    for i in range(opening + 1, closing):
        c = line[i]
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        else:
            depth += (c in "([{") - (c in ")]}")
            if c == "," and not depth:
                parts.append(line[start:i].strip())
                start = i + 1
    parts.append(line[start:closing].strip())
    inner = [text for part in parts if part for text in wrapped(f"{indent}    {part},")]
    joined = f"{indent}    {', '.join(p for p in parts if p)}"
    return [line[: opening + 1], *([joined] if len(joined) <= 120 else inner), f"{indent}{tail}"]


def _opening(line: str, closing: int) -> int:
    """Returns the place of the bracket whose partner is at `closing`; -1 if there is none."""
    opened: list[int] = []
    quote = ""
    for i, c in enumerate(line[:closing]):
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            opened.append(i)
        elif c in ")]}" and opened:
            opened.pop()
    return opened[-1] if opened else -1
