"""Finds which arguments the functions of generated code write to, and which they may return.

The analysis follows names. It ignores the order of statements: a variable may hold the value of any of its assignments.
A call that it does not know writes to all memory that it gets a pointer to.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

import torch

__all__ = ["Effect", "Effects"]

# A parameter that a value may share memory with, and how: as a "tensor" (or its container), or a "pointer" to its
# elements.
_Roots = frozenset[tuple[str, str]]
_NONE: _Roots = frozenset()

_POINTERS = {"accessor", "const_data_ptr", "data", "data_ptr", "mutable_data_ptr"}
_POINTERS |= {"generic_packed_accessor", "packed_accessor", "packed_accessor32", "packed_accessor64"}
# C++ functions that may return their argument, in addition to those whose schemas say so.
_SAME = {"cpu", "cuda", "expect_contiguous", "index", "toType", "variable_data"}
_QUIET = {"at", "c10", "cupyops", "detail", "pybind11", "std", "torch"}  # namespaces whose words write to no memory


@dataclass(frozen=True)
class Effect:
    """The effects of a function on its arguments.

    Attributes:
        writes: the parameters whose memory it writes to.
        returned: the parameters that it may return, or return a view of.
    """

    writes: frozenset[str]
    returned: frozenset[str]


class Effects:
    """The effects of the functions of a module.

    Args:
        functions: the functions by name.
        written: returns for each parameter of a kernel whether the kernel writes to its memory; None for an unknown kernel.
    """

    def __init__(
        self, functions: Mapping[str, ast.FunctionDef], written: Callable[[str], tuple[bool, ...] | None]
    ) -> None:
        self.functions, self.written = functions, written
        self._found: dict[str, Effect] = {}

    def of(self, name: str) -> Effect:
        """Returns the effect of a function."""
        if name not in self._found:
            self._found[name] = Effect(frozenset(), frozenset())  # a recursive function asks again
            self._found[name] = _Walk(self, self.functions[name]).effect()
        return self._found[name]


class _Walk:
    """The analysis of one function, with the functions inside it."""

    def __init__(self, effects: Effects, function: ast.FunctionDef) -> None:
        self.effects, self.function = effects, function
        self.parameters = [a.arg for a in function.args.args]
        self.holds: dict[str, _Roots] = {p: frozenset({(p, "tensor")}) for p in self.parameters}
        self.nodes = list(ast.walk(function))
        self.inner = {n.name: n for n in self.nodes if isinstance(n, ast.FunctionDef) and n is not function}

    def effect(self) -> Effect:
        before: Any = None
        while before != self.holds:
            before = dict(self.holds)
            for node in self.nodes:
                self._assign(node)
        writes: set[tuple[str, str]] = set()
        for node in self.nodes:
            writes |= self._writes(node)
        returned = frozenset().union(*(self.roots(r.value) for r in returns_of(self.function)))
        return Effect(frozenset(p for p, _ in writes), frozenset(p for p, _ in returned))

    def _add(self, target: Any, roots: _Roots) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._add(element, roots)
            return
        while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
            target = target.value
        if isinstance(target, ast.Name) and roots:
            self.holds[target.id] = self.holds.get(target.id, _NONE) | roots

    def _assign(self, node: ast.AST) -> None:
        """Adds the values that an assignment, a loop or a call gives to variables."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._add(target, self.roots(node.value))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            self._add(node.target, self.roots(node.value))
        elif isinstance(node, ast.For):
            self._add(node.target, self.roots(node.iter))
        elif isinstance(node, ast.FunctionDef) and node is not self.function:
            arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            for argument, default in zip(arguments, node.args.defaults, strict=True):
                self._add(ast.Name(argument.arg), self.roots(default))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in self.inner:
                for argument, given in zip(self.inner[node.func.id].args.args, node.args, strict=False):
                    self._add(ast.Name(argument.arg), self.roots(given))
            elif isinstance(node.func, ast.Attribute) and self.roots(node.func.value) is not None:
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id not in _QUIET:  # v.push_back(x)
                    self._add(owner, self._all(node.args))

    def _all(self, nodes: Any) -> _Roots:
        return _NONE.union(*(self.roots(n) for n in nodes))

    def roots(self, node: Any) -> _Roots:
        """Returns the parameters with which the value of an expression may share memory."""
        if isinstance(node, ast.Name):
            return self.holds.get(node.id, _NONE)
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            return self.roots(node.value)
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._all(node.elts)
        if isinstance(node, ast.IfExp):
            return self.roots(node.body) | self.roots(node.orelse)
        if isinstance(node, ast.NamedExpr):
            return self.roots(node.value)
        if isinstance(node, ast.BinOp):  # a sum of tensors is a new tensor
            return frozenset(r for r in self._all((node.left, node.right)) if r[1] == "pointer")
        return self._called(node) if isinstance(node, ast.Call) else _NONE

    def _called(self, node: ast.Call) -> _Roots:
        name = _dotted(node.func)
        if name.startswith("at."):
            name = name.removeprefix("at.")
            if name in _POINTERS:
                return frozenset((p, "pointer") for p, _ in self._all(node.args[-1:]))
            given = node.args[:1] if name.endswith("_") else node.args
            return self._all(given) if name in _SAME or name.endswith("_") or _may_return_argument(name) else _NONE
        if name in self.inner:
            return self._all(r.value for r in returns_of(self.inner[name]))
        if name in self.effects.functions:
            returned = self.effects.of(name).returned
            return self._all(a for p, a in self._given(name, node) if p in returned)
        return self._all([node.func, *node.args])

    def _given(self, name: str, node: ast.Call) -> list[tuple[str, ast.expr]]:
        parameters = [a.arg for a in self.effects.functions[name].args.args]
        return [*zip(parameters, node.args, strict=False)]

    def _writes(self, node: ast.AST) -> _Roots:
        """Returns the memory that a statement or a call itself writes to."""
        if isinstance(node, ast.AugAssign):
            return frozenset(r for r in self.roots(node.target) if r[1] == "tensor")
        if isinstance(node, ast.Assign):
            return self._all(t.value for t in node.targets if isinstance(t, ast.Subscript))
        if not isinstance(node, ast.Call):
            return _NONE
        if isinstance(node.func, ast.Subscript) or _dotted(node.func).endswith(".cooperative()"):
            return self._launched(node)
        name = _dotted(node.func)
        if name.startswith("at."):
            if name.endswith("_out"):
                return self._all(node.args[:1])
            if name.endswith("_outf"):
                return self._all(node.args[-1:])
            return self._all(node.args[:1]) if name.endswith("_") and not name.endswith("__") else _NONE
        if name in self.effects.functions:
            writes = self.effects.of(name).writes
            return self._all(a for p, a in self._given(name, node) if p in writes)
        if name in self.inner or name.partition(".")[0] in _QUIET or name == "pointer_cast":
            return _NONE
        given = node.args[:1] if name.startswith(("cudaMemcpy", "cudaMemset")) else node.args
        return frozenset(r for r in self._all(given) if r[1] == "pointer" and isinstance(node.func, ast.Name))

    def _launched(self, node: ast.Call) -> _Roots:
        kernel = node.func
        while isinstance(kernel, (ast.Subscript, ast.Attribute, ast.Call)):
            if isinstance(kernel, ast.Subscript) and _dotted(kernel.value) == "kernels":
                break
            kernel = kernel.func if isinstance(kernel, ast.Call) else kernel.value
        name = (
            kernel.slice.value if isinstance(kernel, ast.Subscript) and isinstance(kernel.slice, ast.Constant) else ""
        )
        written = self.effects.written(str(name))
        pairs = zip_longest(node.args, written or (), fillvalue=True)
        return self._all(a for a, writes in pairs if writes and a is not True)


def returns_of(function: ast.FunctionDef) -> list[ast.Return]:
    """Returns the return statements with a value, without those of functions inside the function."""
    found: list[ast.Return] = []
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.expr)):
            nodes[:0] = ast.iter_child_nodes(node)
    return found


def _dotted(node: Any) -> str:
    """Returns a name with dots; ``""`` after another expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return f"{_dotted(node.func)}()" if isinstance(node, ast.Call) else ""


@cache
def _may_return_argument(name: str) -> bool:
    """Returns whether an operator of PyTorch may return its argument or a view of it."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return any(r.alias_info is not None and not r.alias_info.is_write for s in schemas for r in s.returns)
