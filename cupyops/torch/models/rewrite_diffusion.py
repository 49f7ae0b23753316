"""Rewrites the steps of a diffusion transformer in the source of a method: a layer norm with a scale and a shift, a sum with a
gated branch, and both."""

import ast
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from . import fused_diffusion as fused
from .expressions import PREFIX, Change, Expressions
from .recognise import modulation_form
from .syntax import (
    calls_nothing,
    in_order,
    is_name,
    only_argument,
    path_of,
    reads_of,
    reads_only,
    replace_node,
    root_of,
    single_target,
    stored_names,
    widened,
)

__all__ = ["Diffusion"]


class Diffusion(Expressions):
    """Finds modulations and gated sums, in one expression or in several statements."""

    # Expressions

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

    # Statements

    def fuse_modulation(self, first: Any, rest: list[ast.stmt]) -> None:
        """Rewrites ``h = self.norm(x)`` and ``h * (1 + scale) + shift`` in a later statement."""
        h, call = single_target(first), getattr(first, "value", first)
        x = self.called(call, "plain_layer_norm")
        if h is None or x is None:
            return

        def is_modulated(node: ast.AST) -> bool:
            return (found := self.modulation(node)) is not None and is_name(found[0], h)

        if (found := self.reader(h, rest, is_modulated)) is None:
            return
        statement, node = found
        _, scale, shift = self.modulation(node)  # type: ignore[misc]
        self.changes.append(Change("adaptive_layer_norm", f"{ast.unparse(first)}; {ast.unparse(node)}"))
        new = self.helper(fused.norm_then_modulation, self.deferred(first, h, call.func, x), scale, shift)
        replace_node(statement, node, ast.copy_location(new, node))

    def with_products_moved(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements of a block with ``p = gate * y`` inside the statement that computes ``x + p`` and alone reads
        p."""
        statements = list(statements)
        for first in list(statements):
            p, product = single_target(first), getattr(first, "value", None)
            if p is None or not isinstance(product, ast.BinOp) or self.factors(product) is None:
                continue

            def sums(node: Any, p: str = p, product: ast.BinOp = product) -> ast.BinOp | None:
                if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
                    return None
                if is_name(node.right, p):
                    new = ast.BinOp(node.left, node.op, product)
                elif is_name(node.left, p):
                    new = ast.BinOp(product, node.op, node.right)
                else:
                    return None
                return new if self.gated_sum(new) is not None else None

            at = next(i for i, s in enumerate(statements) if s is first)
            found = self.reader(p, statements[at + 1 :], lambda node: sums(node) is not None)
            if found is None:
                continue
            statement, node = found
            between = statements[at + 1 : next(i for i, s in enumerate(statements) if s is statement)]
            # The names that the product reads must still have the values that they had.
            if any(stored_names(s) & {*reads_of(product)} for s in between):
                continue
            new = sums(node)
            assert new is not None
            replace_node(statement, node, ast.copy_location(new, node))
            del statements[at]
        return statements

    def fuse_gated_modulation(self, first: ast.stmt, text: str, rest: list[ast.stmt]) -> None:
        """Rewrites ``s = x + gate * y`` and the modulation of ``self.norm(s)`` in the next statement, or in a later one if the
        next is ``h = self.norm(s)``."""
        s, value = single_target(first), getattr(first, "value", first)
        found = self.gated_sum(value)
        if s is None or s not in self.private or found is None or not rest:
            return
        call = next((n for n in in_order(getattr(rest[0], "value", rest[0])) if not reads_only(n)), None)
        if not isinstance(call, ast.Call) or not is_name(self.called(call, "plain_layer_norm"), s):
            return
        at: Any = rest[0]
        modulation = next((n for n in ast.walk(at) if self.modulated_norm(n) is call), None)
        if modulation is None and (h := single_target(at)) is not None and at.value is call:
            reads = self.reader(h, rest[1:], lambda n: is_name(self.modulated_norm(n), h))
            if reads is None:
                return
            statement, modulation = reads
            between = rest[: next(i for i, r in enumerate(rest) if r is statement)]
        elif modulation is not None:
            statement, between = at, []
        if modulation is None:
            return
        function, scale, shift = self.modulating(modulation)
        # Scale and shift are read before the sum has its name.
        stored = {s}.union(*(stored_names(b) for b in between))
        if stored & {*reads_of(scale), *reads_of(shift)}:
            return
        which, operands, residual, _ = found
        if which is fused.gated_plus:
            if not isinstance(residual, ast.Name):
                return
            operands = [operands[-1], *operands[:-1]]
        self.changes.append(Change("add_adaptive_layer_norm", f"{text}; {ast.unparse(modulation)}"))
        y = PREFIX + "y"
        names: list[ast.expr] = [ast.Name(y, ast.Store()), ast.Name(s, ast.Store())]
        first.targets = [ast.Tuple(names, ast.Store())]  # type: ignore[attr-defined]
        new = ast.Call(function, [call.func, *operands, scale, shift], [])
        first.value = ast.copy_location(new, value)  # type: ignore[attr-defined]
        taken = ast.Call(ast.Attribute(ast.Name(y, ast.Load()), "pop", ast.Load()), [], [])
        if between:
            at.value = ast.copy_location(taken, call)
            taken = self.modulated_norm(modulation)  # type: ignore[assignment]
        replace_node(statement, modulation, ast.copy_location(taken, modulation))


@functools.cache
def own_modulation(function: FunctionType) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Returns the functions :func:`.fused_diffusion.modulation_by` and :func:`.fused_diffusion.plus_gated_then_modulation_by` of a function
    (x, shift, scale) that computes x·(1 + scale) + shift, or None."""
    found = modulation_form(function)
    if found is None:
        return None
    return fused.modulation_by(function, *found), fused.plus_gated_then_modulation_by(function, *found)
