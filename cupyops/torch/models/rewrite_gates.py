"""Rewrites SiLU, GELU or ReLU of a tensor, and its product with another tensor, in the source of a method."""

import ast

import torch
from torch import nn

from cupyops.torch.ops.gated import GATES

from . import fused
from .expressions import Change, Expressions
from .leaves import unit_of
from .syntax import calls_nothing, first_call, is_name, only_argument, replace_node, single_target

__all__ = ["Gates"]

_UNITS = {unit.__name__ for unit in GATES.values()}


class Gates(Expressions):
    """Finds gated units, in one expression or in two statements."""

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

    def fuse_halves(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``g, u = z.chunk(2, dim=-1)`` and ``self.act(g) * u`` in the next statement."""
        if not rest or (found := self.halves(first)) is None:
            return
        z, g, u = found
        call = first_call(rest[0])
        gate = None if call is None else self.gate(call)
        if call is None or gate is None or not is_name(gate[0], g):
            return
        product = next((n for n in ast.walk(rest[0]) if (f := self.factors(n)) is not None and call in f), None)
        if product is None or not any(is_name(f, u) for f in self.factors(product) or ()):
            return
        if not (self.is_dead(g, rest[0]) and self.is_dead(u, rest[0])):
            return
        self.changes.append(Change(gate[2], f"{ast.unparse(first)}; {ast.unparse(product)}"))
        first.targets, first.value = [ast.Name(g, ast.Store())], z  # type: ignore[attr-defined]
        replace_node(rest[0], product, ast.copy_location(self.helper(fused.gated_halves, gate[1], gate[0]), product))

    def halves(self, node: ast.stmt) -> tuple[ast.expr, str, str] | None:
        """Returns z and the names g and u of a statement ``g, u = z.chunk(2, dim=-1)``, or None."""
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call)):
            return None
        names, call = node.targets[0], node.value
        if not (
            isinstance(names, ast.Tuple) and len(names.elts) == 2 and all(isinstance(n, ast.Name) for n in names.elts)
        ):
            return None
        if self.named(call.func) is torch.chunk and call.args:
            z, *args = call.args
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "chunk":
            z, args = call.func.value, call.args
        else:
            return None
        g, u = (n.id for n in names.elts)  # type: ignore[attr-defined]
        given = [ast.unparse(a) for a in args] + [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords]
        return (z, g, u) if given in (["2", "dim=-1"], ["2", "-1"]) and g != u else None

    def fuse_gate(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``a = self.act(g)`` and ``a * u`` in a later statement."""
        a, gate = single_target(first), self.gate(getattr(first, "value", first))
        if a is None or gate is None:
            return
        g, act, unit = gate
        found = self.reader(a, rest, lambda n: any(is_name(f, a) for f in self.factors(n) or ()), self.is_fresh(g))
        if found is None:
            return
        statement, product = found
        self.changes.append(Change(unit, f"{ast.unparse(first)}; {ast.unparse(product)}"))
        held = self.deferred(first, a, act, g)
        if is_name(product.left, a):
            new = self.helper(fused.gated, held, product.right)
        else:
            new = self.helper(fused.gated_after, product.left, held)
        replace_node(statement, product, ast.copy_location(new, product))
