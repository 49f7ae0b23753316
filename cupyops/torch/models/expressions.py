"""What the names and attributes of a method hold, and which statements read its variables: the ground of the files that find
one pattern each."""

import ast
import functools
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import nn

from .recognise import Form, gelu_candidate, gelu_form
from .single_calls import GeluCall, as_operator, known_function
from .source import parsed
from .syntax import (
    TRIES,
    Path,
    approximate_of,
    in_order,
    last_reads,
    only_argument,
    path_of,
    read_by_losses,
    reads_of,
    reads_only,
    returned_call,
    single_target,
    stored_names,
    unpacked_names,
)

__all__ = ["PREFIX", "Change", "Expressions", "Parent", "own_gelu", "owner_of"]

PREFIX = "cupyops_"  # of the names that are added to a rewritten method
_HOLDERS = (ModuleType, type)


class Change(NamedTuple):
    """A change of a method.

    Attributes:
        operator: the operator that is called.
        text: the calls that the operator replaces, as the method has them.
        reason: why a call was left, with an empty operator.
    """

    operator: str
    text: str
    reason: str = ""


Parent = tuple[str, Callable[..., Any]]


def owner_of(function: FunctionType) -> str | None:
    """Returns the name of a method's first parameter; None if the method assigns to the name."""
    code, tree = function.__code__, parsed(function)
    if not code.co_argcount:
        return None
    name = code.co_varnames[0]
    return None if name in stored_names(tree) else name


class Expressions:
    """Records the values of a method's names and attributes, and returns the calls that compute its expressions."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        function: FunctionType,
        kinds: Mapping[Path, str],
        parent: Parent | None,
        fuse: bool,
        lazy: bool,
        head: bool,
    ) -> None:
        code = function.__code__
        self.kinds, self.parent, self.fuse = kinds, parent if function.__name__ == "forward" else None, fuse
        self.globals, self.owner = function.__globals__, owner_of(function)
        self.local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *stored_names(tree)}
        # Names that only this function's own statements read and write.
        self.private = {*code.co_varnames} - {*code.co_cellvars}
        self.loads, self.last_reads = reads_of(tree), last_reads(tree)
        self.unpacked = unpacked_names(tree)
        # A handler could read a variable that the rewritten statement did not assign.
        self.plain = not any(isinstance(n, TRIES) for n in ast.walk(tree)) and "locals" not in code.co_names
        self.of_losses = read_by_losses(tree) if lazy else set()
        self.returned = returned_call(tree) if head and function.__name__ == "forward" else None
        self.values: dict[str, Any] = {}
        self.changes: list[Change] = []
        self.left: list[Change] = []

    # The target of a call

    def kind(self, node: ast.AST) -> str | None:
        """Returns what an expression ``self.a.b`` holds, or None."""
        return self.kinds.get(path_of(node, self.owner))

    def named(self, node: ast.AST) -> Any:
        """Returns the function that an expression of global names is, ``F.gelu`` or ``nn.LayerNorm.forward``, or None."""
        if isinstance(node, ast.Name):
            return None if node.id in self.local else self.globals.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(holder := self.named(node.value), _HOLDERS):
            return getattr(holder, node.attr, None)
        return None

    def called(self, node: ast.AST, kind: str) -> ast.expr | None:
        """Returns the argument of a call of an optimised module with one argument, or None."""
        return only_argument(node) if isinstance(node, ast.Call) and self.kind(node.func) == kind else None

    def normalised(self, node: ast.AST) -> tuple[ast.expr | None, str]:
        """Returns the argument of a call of an optimised norm with one argument, or None, and the norm's operator."""
        if not isinstance(node, ast.Call):
            return None, ""
        norm = (self.kind(node.func) or "").removeprefix("plain_")
        return (only_argument(node), norm) if norm in ("layer_norm", "rms_norm") else (None, "")

    def activation(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """Returns the argument of a call of GELU, and the expression of the callee; None for another call."""
        if not isinstance(node, ast.Call):
            return None
        kind = self.kind(node.func)
        if kind in ("gelu", "function") and (x := only_argument(node)) is not None:
            return x, node.func if kind == "gelu" else self.helper(as_operator, node.func)
        function = self.named(node.func)
        if function is F.gelu and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            if not node.keywords:
                return node.args[0], self.constant("gelu", as_operator(F.gelu))
            if len(node.keywords) == 1 and (form := approximate_of(node.keywords[0])):
                return node.args[0], self.constant(f"gelu_{form}", _with_form(form))
        elif (
            function is not None and (x := only_argument(node)) is not None and (call := own_gelu(function)) is not None
        ):
            return x, self.constant(getattr(function, "__name__", "module"), call)
        return None

    def factors(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """Returns the factors of a product of tensors that may have one shape, or None. A number and an attribute of the
        object, such as a scale of the channels, have another."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            return None
        both = node.left, node.right
        return None if any(isinstance(f, ast.Constant) or path_of(f, self.owner) for f in both) else both

    def is_fresh(self, node: ast.expr) -> bool:
        """Returns whether an expression makes a tensor that nothing else holds: the result of a linear layer."""
        return isinstance(node, ast.Call) and self.called(node, "linear") is not None

    # The reader of a variable

    def is_dead(self, name: str, statement: ast.stmt) -> bool:
        """Returns whether a statement is the only reader of the value of a variable: it reads the variable once, and then the
        variable has no other reader, or another value, or the method ends."""
        if name not in self.private or reads_of(statement)[name] != 1:
            return False
        end = statement.end_lineno, statement.end_col_offset
        if self.loads[name] == 1 or self.last_reads[name] < end:
            return True
        return single_target(statement) == name or isinstance(statement, ast.Return)

    def reader(
        self, name: str, rest: list[ast.stmt], matches: Callable[[ast.AST], bool], fresh: bool = False
    ) -> tuple[ast.stmt, Any] | None:
        """Returns the statement that reads a variable, and the expression in it that matches; None if something else may read
        the variable, or may change a tensor before.

        Args:
            name: the variable.
            rest: the statements after the assignment to it.
            matches: whether an expression is the one that is sought.
            fresh: whether nothing else can change the tensors that matter.
        """
        for statement in rest:
            value = getattr(statement, "value", None)
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) or value is None:
                return None
            if name in stored_names(value):
                return None
            for node in in_order(value):
                if matches(node):
                    return (statement, node) if self.is_dead(name, statement) else None
                if not fresh and not reads_only(node):
                    return None
            if reads_of(statement)[name] or name in stored_names(statement):
                return None
        return None

    def deferred(self, first: Any, name: str, called: ast.expr, x: ast.expr) -> ast.Starred:
        """Stores ``(called, x)`` in the variable of a call, and returns the two as arguments."""
        first.value = ast.copy_location(ast.Tuple([called, x], ast.Load()), first.value)
        return ast.Starred(ast.Name(name, ast.Load()), ast.Load())

    # New expressions

    def constant(self, name: str, value: Any) -> ast.Name:
        name = PREFIX + name
        while self.values.setdefault(name, value) is not value:
            name += "_"
        return ast.Name(name, ast.Load())

    def helper(self, function: Callable[..., Any], *args: ast.expr) -> ast.Call:
        return ast.Call(self.constant(function.__name__, function), list(args), [])

    def change(self, operator: str, old: ast.AST, new: ast.expr) -> ast.expr:
        self.changes.append(Change(operator, ast.unparse(old)))
        return ast.copy_location(new, old)


# Functions of a model's own ------------------------------------------------------------------------------------------


@functools.cache
def _with_form(approximate: str) -> GeluCall:
    form = Form(approximate, True)
    return GeluCall(form, lambda x: F.gelu(x, approximate=approximate))


def own_gelu(function: Any) -> GeluCall | None:
    """Returns the call of GELU for a function that computes GELU and is named for it, or for a module that is not part of
    the model; None for every other object."""
    if function is F.gelu:
        return as_operator(function)
    if isinstance(function, nn.Module):
        call = functools.partial(type(function).forward, function) if gelu_candidate(function) else None
    else:
        named = isinstance(function, FunctionType) and "gelu" in function.__name__.lower()
        call = function if named else None
    if call is None:
        return None
    if isinstance(known := as_operator(function), GeluCall):
        return known
    form, _ = gelu_form(call)
    return None if form is None else known_function(function, form)
