"""Replaces single expressions in a method by calls of operators that compute them (:mod:`.fused`)."""

import ast
import functools
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import nn

from cupyops.torch.ops.gated import GATES

from . import fused
from .leaves import unit_of
from .recognise import gelu_candidate, gelu_form, modulation_form
from .source import parsed
from .syntax import (
    TRIES,
    Path,
    approximate_of,
    calls_nothing,
    is_name,
    last_reads,
    only_argument,
    path_of,
    read_by_losses,
    reads_of,
    returned_call,
    root_of,
    stored_names,
    unpacked_names,
    widened,
)

__all__ = ["PREFIX", "Change", "Expressions", "Parent", "own_gelu", "owner_of"]

PREFIX = "cupyops_"  # of the names that are added to a rewritten method
_HOLDERS = (ModuleType, type)
_UNITS = {unit.__name__ for unit in GATES.values()}


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
            return x, node.func if kind == "gelu" else self.helper(fused.as_operator, node.func)
        function = self.named(node.func)
        if function is F.gelu and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            if not node.keywords:
                return node.args[0], self.constant("gelu", fused.as_operator(F.gelu))
            if len(node.keywords) == 1 and (form := approximate_of(node.keywords[0])):
                return node.args[0], self.constant(f"gelu_{form}", _with_form(form))
        elif (
            function is not None and (x := only_argument(node)) is not None and (call := own_gelu(function)) is not None
        ):
            return x, self.constant(getattr(function, "__name__", "module"), call)
        return None

    def gate(self, node: ast.AST) -> tuple[ast.expr, ast.expr, str] | None:
        """Returns the argument of a call of an activation with a gated unit, the expression of the callee, and the name
        of the unit; None for another call."""
        if not isinstance(node, ast.Call):
            return None
        if (found := self.activation(node)) is not None:
            return *found, "geglu"
        if (g := only_argument(node)) is None:
            return None
        if (kind := self.kind(node.func)) in _UNITS:
            return g, node.func, kind
        function = self.named(node.func)
        unit = None if function is None or isinstance(function, nn.Module) else unit_of(function)
        return None if unit is None else (g, node.func, unit.__name__)

    def factors(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """Returns the factors of a product of tensors that may have one shape, or None. A number and an attribute of the
        object, such as a scale of the channels, have another."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            return None
        both = node.left, node.right
        return None if any(isinstance(f, ast.Constant) or path_of(f, self.owner) for f in both) else both

    def gated(self, node: ast.AST) -> ast.expr | None:
        """Returns the call that computes ``act(g) * u`` or ``u * act(g)``, or None."""
        if (factors := self.factors(node)) is None:
            return None
        for (of_gate, u), before in ((factors, True), (factors[::-1], False)):
            if (found := self.gate(of_gate)) is None:
                continue
            g, act, unit = found
            if not before:
                return self.change(unit, node, self.helper(fused.gated_after, u, act, g))
            # u is evaluated before the activation now, and must not change g.
            if calls_nothing(u) or self.is_fresh(g):
                return self.change(unit, node, self.helper(fused.gated, act, g, u))
        return None

    def modulation(self, node: ast.AST) -> tuple[ast.expr, ast.expr, ast.expr] | None:
        """Returns n, scale and shift of an expression ``n * (1 + scale) + shift``, or None. The evaluation of scale and shift
        changes no tensor."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            return None
        n, more = self.factors(node.left) or (None, None)
        if n is None or not (isinstance(more, ast.BinOp) and isinstance(more.op, ast.Add)):
            return None
        for one, scale in ((more.left, more.right), (more.right, more.left)):
            if isinstance(one, ast.Constant) and one.value == 1 and calls_nothing(scale) and calls_nothing(node.right):
                return n, scale, node.right
        return None

    def modulated_norm(self, node: ast.AST) -> ast.expr | None:
        """Returns n of ``n * (1 + scale) + shift`` and of ``modulate(n, shift, scale)``, or None."""
        if isinstance(node, ast.Call):
            return node.args[0] if self.modulation_function(node) is not None else None
        found = self.modulation(node)
        return None if found is None else found[0]

    def modulation_function(self, node: ast.Call) -> FunctionType | None:
        """Returns the function of a call ``modulate(x, shift, scale)`` whose last arguments change no tensor, or None."""
        function = self.named(node.func)
        if not isinstance(function, FunctionType) or len(node.args) != 3 or node.keywords:
            return None
        fits = all(map(calls_nothing, node.args[1:])) and own_modulation(function) is not None
        return function if fits else None

    def modulating(self, node: Any) -> tuple[ast.expr, ast.expr, ast.expr]:
        """Returns the expression of the function that computes a gated sum and its modulation, and the two tensors of an
        expression that :meth:`modulated_norm` knows."""
        if not isinstance(node, ast.Call):
            _, scale, shift = self.modulation(node)  # type: ignore[misc]
            return self.constant("modulated", fused.plus_gated_then_modulation), scale, shift
        function: Any = self.modulation_function(node)
        _, call = own_modulation(function)  # type: ignore[misc]
        return self.constant(f"gated_{function.__name__}", call), node.args[1], node.args[2]

    def modulate(self, node: ast.Call) -> ast.expr | None:
        """Returns the replacement of ``modulate`` in ``modulate(self.norm(x), shift, scale)``, with the norm as its
        first argument, or None."""
        x = node.args[0] if node.args else node
        if not (isinstance(x, ast.Call) and self.called(x, "plain_layer_norm")):
            return None
        if (function := self.modulation_function(node)) is None:
            return None
        call, _ = own_modulation(function)  # type: ignore[misc]
        return self.constant(function.__name__, call)

    def modulated(self, node: ast.BinOp) -> ast.expr | None:
        """Returns the call that computes ``self.norm(x) * (1 + scale) + shift``, or None."""
        call, scale, shift = self.modulation(node) or (node, node, node)
        if not isinstance(call, ast.Call) or (x := self.called(call, "plain_layer_norm")) is None:
            return None
        new = self.helper(fused.norm_then_modulation, call.func, x, scale, shift)
        return self.change("adaptive_layer_norm", node, new)

    def gated_sum(self, node: ast.AST) -> tuple[Callable[..., Any], list[ast.expr], ast.expr, ast.expr] | None:
        """Returns the function that computes ``residual + gate * x`` or ``gate * x + residual``, its arguments in the order
        of their evaluation, and the residual and the product, or None.

        A gate is one of several results of a call, as scale, shift and gate of a condition are. Which factor is the gate, the
        shapes decide in the call.
        """
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            return None
        for residual, product, before in ((node.left, node.right, True), (node.right, node.left, False)):
            factors = self.factors(product)
            if factors is None or not any(root_of(f) in self.unpacked and calls_nothing(f) for f in factors):
                continue
            if (
                path_of(residual, self.owner)
                or root_of(widened(residual) or residual) not in self.local - self.unpacked
            ):
                continue
            if before:
                return fused.plus_gated, [residual, *factors], residual, product
            return fused.gated_plus, [*factors, residual], residual, product
        return None

    def gated_add(self, node: ast.BinOp) -> ast.expr | None:
        """Returns the call that computes ``residual + gate * x``, or None."""
        if (found := self.gated_sum(node)) is None:
            return None
        function, operands, *_ = found
        return self.change("gated_add", node, self.helper(function, *operands))

    def narrowed(self, node: ast.Call) -> ast.expr | None:
        """Returns the call that computes ``(h.float() + gate * x).type_as(h)`` or ``(self.norm(h.float()) * (1 + scale) +
        shift).type_as(h)``, or None."""
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "type_as"):
            return None
        h, value = only_argument(node), node.func.value
        if not (isinstance(h, ast.Name) and h.id in self.private):
            return None

        def is_h(x: ast.AST | None) -> bool:
            return x is not None and is_name(widened(x), h.id)

        call, scale, shift = self.modulation(value) or (value, value, value)
        if isinstance(call, ast.Call) and is_h(self.called(call, "plain_layer_norm")):
            new = self.helper(fused.norm_then_modulation_as, call.func, h, scale, shift)
            return self.change("adaptive_layer_norm", node, new)
        if (found := self.gated_sum(value)) is None or found[0] is not fused.plus_gated or not is_h(found[2]):
            return None
        _, a, b = found[1]
        # Not as a float32 tensor in memory: the operator reads 16 bits and computes in float32.
        wide = [widened(f) for f in (a, b)]
        given = [w or f for w, f in zip(wide, (a, b), strict=True)]
        flags = [ast.Constant(w is not None) for w in wide]
        return self.change("gated_add", node, self.helper(fused.plus_gated_as, h, *given, *flags))

    def is_fresh(self, node: ast.expr) -> bool:
        """Returns whether an expression makes a tensor that nothing else holds: the result of a linear layer."""
        return isinstance(node, ast.Call) and self.called(node, "linear") is not None

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
def own_modulation(function: FunctionType) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Returns the functions :func:`.fused.modulation_by` and :func:`.fused.plus_gated_then_modulation_by` of a function
    (x, shift, scale) that computes x·(1 + scale) + shift, or None."""
    found = modulation_form(function)
    if found is None:
        return None
    return fused.modulation_by(function, *found), fused.plus_gated_then_modulation_by(function, *found)


@functools.cache
def _with_form(approximate: str) -> fused.GeluCall:
    form = fused.Form(approximate, True)
    return fused.GeluCall(form, lambda x: F.gelu(x, approximate=approximate))


def own_gelu(function: Any) -> fused.GeluCall | None:
    """Returns the call of GELU for a function that computes GELU and is named for it, or for a module that is not part of
    the model; None for every other object."""
    if function is F.gelu:
        return fused.as_operator(function)
    if isinstance(function, nn.Module):
        call = functools.partial(type(function).forward, function) if gelu_candidate(function) else None
    else:
        named = isinstance(function, FunctionType) and "gelu" in function.__name__.lower()
        call = function if named else None
    if call is None:
        return None
    if isinstance(known := fused.as_operator(function), fused.GeluCall):
        return known
    form, _ = gelu_form(call)
    return None if form is None else fused.known_function(function, form)
