"""Rewrites methods so that modules and functions that stand beside each other call one operator.

The method's own source is rewritten, not a graph of a traced call: a trace would fix what the method decides by
``self.training``, by an attribute or by an argument, and cannot follow a method that branches on a tensor. In a
rewritten method every statement stays, and each replaced call decides at run time whether one operator computes it
(:mod:`.fused`).

==========================================  ==========================================================================
``self.act(self.fc1(x))``                   :func:`.fused.linear_then_gelu`; also as two statements, if nothing else
                                            reads the value between them
``self.act(g) * u``, ``u * self.act(g)``    :func:`.fused.gated`; also as ``a = self.act(g)`` and ``a * u`` further down, if
                                            nothing else reads a or can change g
``g, u = z.chunk(2, dim=-1)`` and           :func:`.fused.gated_halves`, if nothing else reads g or u
``self.act(g) * u`` behind
``self.norm(x) * (1 + scale) + shift``      :func:`.fused.norm_then_modulation`, for a layer norm without weight and bias; also as
                                            two statements, and by a function ``modulate`` of the model's own
``self.norm(a + b)``                        :func:`.fused.add_then_norm`
``s = a + b`` and ``self.norm(s)`` behind   :func:`.fused.add_and_norm`, if nothing else is called between them
``F.gelu(x)``, ``F.layer_norm(x, ...)``,    the operator with the same arguments; also a function of the model's own
``F.rms_norm(x, ...)``                      that computes GELU
``apply_rotary_pos_emb(q, k, cos, sin)``    the operator (:mod:`.rotary`), for a function of the model's own that computes it
``z = self.head(x)``, if a call of a loss   :func:`.lazy.lazy_linear`, if ``lazy``
reads z below
``super().forward(x)``,                     the operator, if that is the ``forward`` of a module of ``torch.nn``
``nn.LayerNorm.forward(self, x)``
==========================================  ==========================================================================
"""

import ast
import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from cupyops.torch.ops.gated import GATES

from . import fused
from .lazy import lazy_linear
from .leaves import unit_of
from .recognise import gelu_candidate, gelu_form, modulation_form
from .rotary import own_rotary
from .source import compiled, innermost, parsed, redecorated

__all__ = ["Change", "called_paths", "mentions", "own_gelu", "rewritten"]

_PREFIX = "cupyops_"


class Change(NamedTuple):
    """A change of a method.

    Attributes:
        operator: the operator that is called.
        text: the calls that the operator replaces, as the method has them.
    """

    operator: str
    text: str


Path = tuple[str, ...]
Parent = tuple[str, Callable[..., Any]]
_DONE: WeakKeyDictionary[FunctionType, dict[Any, tuple[FunctionType, list[Change]]]] = WeakKeyDictionary()


def mentions(function: FunctionType, names: set[str]) -> bool:
    """Returns whether a function may hold a call that can be replaced.

    Args:
        function: a function.
        names: names that such a call has, beside those of PyTorch's activations and normalisations.
    """
    codes = [innermost(function).__code__]
    for code in codes:
        codes.extend(c for c in code.co_consts if hasattr(c, "co_names"))
    used = {name for code in codes for name in code.co_names}
    return bool(used & names) or any(_sounds_like(name) for name in used)


def _sounds_like(name: str) -> bool:
    return any(part in name.lower() for part in ("gelu", "rotary", "apply_rot", "modulate")) or name in (
        "layer_norm",
        "rms_norm",
        "LayerNorm",
        "RMSNorm",
        "silu",
        "relu",
    )


def called_paths(function: FunctionType) -> set[Path]:
    """Returns the attributes of its object that a method calls: ``("mlp", "fc1")`` for ``self.mlp.fc1(x)``.

    Raises:
        UnreadableError: the source of the method cannot be read.
    """
    function = innermost(function)
    tree, owner = parsed(function), _owner(function)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {path for f in calls if (path := _path(f, owner))}


def rewritten(
    function: FunctionType,
    kinds: Mapping[Path, str],
    parent: Parent | None = None,
    fuse: bool = True,
    lazy: bool = False,
) -> tuple[FunctionType, list[Change]]:
    """Returns a method with calls replaced, and the changes; the method itself if there are none.

    Args:
        function: the method.
        kinds: what the attributes of the method's object hold: ``"linear"`` for a linear layer that may be fused,
            ``"gelu"``, ``"layer_norm"`` or ``"rms_norm"`` for an optimised module, ``"plain_layer_norm"`` for one without
            weight and bias, ``"function"`` for a function that computes GELU, and the name of the gated unit for SiLU and ReLU.
        parent: what ``super().forward`` is: an operator's name, and the ``forward`` that calls the operator.
        fuse: whether calls that stand beside each other become one.
        lazy: whether a linear layer whose result a loss reads returns :class:`.lazy.LazyLogits`.

    Raises:
        UnreadableError: the source of the method cannot be read.
    """
    done = _DONE.setdefault(function, {})
    key = frozenset(kinds.items()), parent and parent[0], fuse, lazy
    if key not in done:
        inner = innermost(function)
        tree, made = copy.deepcopy(parsed(inner)), function
        rewriter = _Rewriter(tree, inner, kinds, parent, fuse, lazy)
        tree.body = [rewriter.visit(s) for s in rewriter.block(tree.body)]
        if rewriter.changes:
            tree = ast.fix_missing_locations(tree)
            made = redecorated(function, compiled(inner, tree, rewriter.values))
        done[key] = made, rewriter.changes
    return done[key]


def _owner(function: FunctionType) -> str | None:
    """Returns the name of a method's first parameter; None if the method assigns to the name."""
    code, tree = function.__code__, parsed(function)
    if not code.co_argcount:
        return None
    name = code.co_varnames[0]
    return None if name in _stored(tree) else name


def _stored(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def _path(node: ast.AST, owner: str | None) -> Path:
    """Returns ``("a", "b")`` for an expression ``self.a.b``, and () for every other."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    return tuple(path[::-1]) if isinstance(node, ast.Name) and node.id == owner else ()


class _Rewriter(ast.NodeTransformer):
    def __init__(
        self,
        tree: ast.FunctionDef,
        function: FunctionType,
        kinds: Mapping[Path, str],
        parent: Parent | None,
        fuse: bool,
        lazy: bool,
    ) -> None:
        code = function.__code__
        self.kinds, self.parent, self.fuse = kinds, parent if function.__name__ == "forward" else None, fuse
        self.globals, self.owner = function.__globals__, _owner(function)
        self.local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *_stored(tree)}
        # Names that only this function's own statements read and write.
        self.private = {*code.co_varnames} - {*code.co_cellvars}
        self.loads = _readers(tree)
        # A handler could read a variable that the rewritten statement did not assign.
        self.plain = not any(isinstance(n, _TRIES) for n in ast.walk(tree)) and "locals" not in code.co_names
        self.of_losses = _read_by_losses(tree) if lazy else set()
        self.values: dict[str, Any] = {}
        self.changes: list[Change] = []

    # The target of a call

    def kind(self, node: ast.AST) -> str | None:
        """Returns what an expression ``self.a.b`` holds, or None."""
        return self.kinds.get(_path(node, self.owner))

    def named(self, node: ast.AST) -> Any:
        """Returns the function that an expression of global names is, ``F.gelu`` or ``nn.LayerNorm.forward``, or None."""
        if isinstance(node, ast.Name):
            return None if node.id in self.local else self.globals.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(holder := self.named(node.value), _HOLDERS):
            return getattr(holder, node.attr, None)
        return None

    def called(self, node: ast.AST, kind: str) -> ast.expr | None:
        """Returns the argument of a call of an optimised module with one argument, or None."""
        return _argument(node) if isinstance(node, ast.Call) and self.kind(node.func) == kind else None

    def normalised(self, node: ast.AST) -> tuple[ast.expr | None, str]:
        """Returns the argument of a call of an optimised norm with one argument, or None, and the norm's operator."""
        if not isinstance(node, ast.Call):
            return None, ""
        norm = (self.kind(node.func) or "").removeprefix("plain_")
        return (_argument(node), norm) if norm in ("layer_norm", "rms_norm") else (None, "")

    def activation(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """Returns the argument of a call of GELU, and an expression of what is called; None for another call."""
        if not isinstance(node, ast.Call):
            return None
        kind = self.kind(node.func)
        if kind in ("gelu", "function") and (x := _argument(node)) is not None:
            return x, node.func if kind == "gelu" else self.helper(fused.as_operator, node.func)
        function = self.named(node.func)
        if function is F.gelu and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            if not node.keywords:
                return node.args[0], self.constant("gelu", fused.as_operator(F.gelu))
            if len(node.keywords) == 1 and (form := _approximate(node.keywords[0])):
                return node.args[0], self.constant(f"gelu_{form}", _with_form(form))
        elif function is not None and (x := _argument(node)) is not None and (call := own_gelu(function)) is not None:
            return x, self.constant(getattr(function, "__name__", "module"), call)
        return None

    def gate(self, node: ast.AST) -> tuple[ast.expr, ast.expr, str] | None:
        """Returns the argument of a call of an activation with a gated unit, an expression of what is called, and the name of
        the unit; None for another call."""
        if not isinstance(node, ast.Call):
            return None
        if (found := self.activation(node)) is not None:
            return *found, "geglu"
        if (g := _argument(node)) is None:
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
        return None if any(isinstance(f, ast.Constant) or _path(f, self.owner) for f in both) else both

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
            if _calls_nothing(u) or self.is_fresh(g):
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
            if (
                isinstance(one, ast.Constant)
                and one.value == 1
                and _calls_nothing(scale)
                and _calls_nothing(node.right)
            ):
                return n, scale, node.right
        return None

    def modulate(self, node: ast.Call) -> ast.expr | None:
        """Returns what takes the place of ``modulate`` in ``modulate(self.norm(x), shift, scale)``, with the norm as its first
        argument, or None."""
        function = self.named(node.func)
        if not isinstance(function, FunctionType) or len(node.args) != 3 or node.keywords:
            return None
        x: Any = node.args[0]
        more = node.args[1:]
        if not (isinstance(x, ast.Call) and self.called(x, "plain_layer_norm") and all(map(_calls_nothing, more))):
            return None
        return None if (call := own_modulation(function)) is None else self.constant(function.__name__, call)

    def modulated(self, node: ast.BinOp) -> ast.expr | None:
        """Returns the call that computes ``self.norm(x) * (1 + scale) + shift``, or None."""
        call, scale, shift = self.modulation(node) or (node, node, node)
        if not isinstance(call, ast.Call) or (x := self.called(call, "plain_layer_norm")) is None:
            return None
        new = self.helper(fused.norm_then_modulation, call.func, x, scale, shift)
        return self.change("adaptive_layer_norm", node, new)

    def is_fresh(self, node: ast.expr) -> bool:
        """Returns whether an expression makes a tensor that nothing else holds: the result of a linear layer."""
        return isinstance(node, ast.Call) and self.called(node, "linear") is not None

    # New expressions

    def constant(self, name: str, value: Any) -> ast.Name:
        name = _PREFIX + name
        while self.values.setdefault(name, value) is not value:
            name += "_"
        return ast.Name(name, ast.Load())

    def helper(self, function: Callable[..., Any], *args: ast.expr) -> ast.Call:
        return ast.Call(self.constant(function.__name__, function), list(args), [])

    def change(self, operator: str, old: ast.AST, new: ast.expr) -> ast.expr:
        self.changes.append(Change(operator, ast.unparse(old)))
        return ast.copy_location(new, old)

    # Expressions

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _SCOPES) else super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        name, call = _single_target(node), node.value
        while (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Call)
        ):
            call = call.func.value  # self.head(x) in self.head(x).float()
        x = self.called(call, "linear") if name in self.of_losses and name in self.private else None
        if x is not None and isinstance(call, ast.Call) and self.owner is not None:
            owner = ast.Name(self.owner, ast.Load())
            new = self.change("linear_cross_entropy", call, self.helper(lazy_linear, owner, call.func, x))
            _replace(node, call, new)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        new = (self.gated(node) or self.modulated(node)) if self.fuse else None
        return self.generic_visit(node if new is None else new)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.fuse and (new := self.fused_call(node)) is not None:
            return self.generic_visit(new)
        if self.parent is not None and self.owner is not None and _is_super_forward(node):
            operator, forward = self.parent
            args = [ast.Name(self.owner, ast.Load()), *node.args]
            new = ast.Call(self.constant("forward", forward), args, node.keywords)
            return self.generic_visit(self.change(operator, node, new))
        function = None if self.kind(node.func) else self.named(node.func)
        entry = next((found for known, found in fused.FUNCTIONS.items() if known is function), None)
        if entry is not None:
            operator, drop_in = entry
            new = ast.Call(self.constant(operator, drop_in), node.args, node.keywords)
            return self.generic_visit(self.change(operator, node, new))
        if function is not None and (turn := own_rotary(ast.unparse(node.func), function)) is not None:
            new = ast.Call(self.constant(turn.__name__, turn), node.args, node.keywords)
            return self.generic_visit(self.change("rotary_embedding", node, new))
        if self.kind(node.func) != "gelu" and (found := self.activation(node)) is not None:
            x, act = found
            return self.generic_visit(self.change("gelu", node, ast.Call(act, [x], [])))
        return self.generic_visit(node)

    def fused_call(self, node: ast.Call) -> ast.expr | None:
        if (found := self.activation(node)) is not None:
            z, act = found
            if isinstance(z, ast.Call) and (x := self.called(z, "linear")) is not None:
                return self.change("linear_gelu", node, self.helper(fused.linear_then_gelu, z.func, act, x))
        s, norm = self.normalised(node)
        if (modulate := self.modulate(node)) is not None:
            normed: Any = node.args[0]
            new = ast.Call(modulate, [normed.func, *normed.args, *node.args[1:]], [])
            return self.change("adaptive_layer_norm", node, new)
        if isinstance(s, ast.BinOp) and isinstance(s.op, ast.Add):
            new = self.helper(fused.add_then_norm, node.func, s.left, s.right)
            return self.change(f"add_{norm}", node, new)
        return None

    # Statements

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, self.block(statements))
        return super().generic_visit(node)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements of a block, of which neighbours are fused."""
        if not (self.fuse and self.plain):
            return statements
        # A layer norm without weight belongs to the modulation behind it rather than to the addition before it.
        for i, first in enumerate(statements):
            self.fuse_modulation(first, statements[i + 1 :])
        done: list[ast.stmt] = []
        rest = list(statements)
        while rest:
            first = rest.pop(0)
            self.fuse_halves(first, rest)
            self.fuse_gate(first, rest)
            self.fuse_activation(first, rest)
            self.fuse_norm(first, rest)
            done.append(first)
        return done

    def fuse_activation(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``z = self.fc1(x)`` and ``self.act(z)`` in the next statement."""
        z = _single_target(first)
        if z is None or z not in self.private or not rest:
            return
        value, second = first.value, rest[0]  # type: ignore[attr-defined]
        x = self.called(value, "linear")
        call = _first_call(second)
        if x is None or call is None or (found := self.activation(call)) is None or not _is_name(found[0], z):
            return
        if not self.is_dead(z, second):
            return
        old = f"{ast.unparse(value)}; {ast.unparse(call)}"
        new = self.helper(fused.linear_then_gelu, value.func, found[1], x)
        first.value = ast.copy_location(new, value)  # type: ignore[attr-defined]
        self.changes.append(Change("linear_gelu", old))
        _replace(second, call, found[0])
        if isinstance(second, ast.Assign) and _is_name(second.value, z) and _single_target(second) == z:
            del rest[0]  # z = z

    def is_dead(self, name: str, statement: ast.stmt) -> bool:
        """Returns whether a statement is the only reader of the value of a variable: it reads the variable once, and then the
        variable has no other reader, or another value, or the method ends."""
        if name not in self.private or _readers(statement)[name] != 1:
            return False
        return self.loads[name] == 1 or _single_target(statement) == name or isinstance(statement, ast.Return)

    def fuse_halves(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``g, u = z.chunk(2, dim=-1)`` and ``self.act(g) * u`` in the next statement."""
        if not rest or (found := self.halves(first)) is None:
            return
        z, g, u = found
        call = _first_call(rest[0])
        gate = None if call is None else self.gate(call)
        if call is None or gate is None or not _is_name(gate[0], g):
            return
        product = next((n for n in ast.walk(rest[0]) if (f := self.factors(n)) is not None and call in f), None)
        if product is None or not any(_is_name(f, u) for f in self.factors(product) or ()):
            return
        if not (self.is_dead(g, rest[0]) and self.is_dead(u, rest[0])):
            return
        self.changes.append(Change(gate[2], f"{ast.unparse(first)}; {ast.unparse(product)}"))
        first.targets, first.value = [ast.Name(g, ast.Store())], z  # type: ignore[attr-defined]
        _replace(rest[0], product, ast.copy_location(self.helper(fused.gated_halves, gate[1], gate[0]), product))

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
        a, gate = _single_target(first), self.gate(getattr(first, "value", first))
        if a is None or gate is None:
            return
        g, act, unit = gate
        found = self.reader(a, rest, lambda n: any(_is_name(f, a) for f in self.factors(n) or ()), self.is_fresh(g))
        if found is None:
            return
        statement, product = found
        self.changes.append(Change(unit, f"{ast.unparse(first)}; {ast.unparse(product)}"))
        held = self.deferred(first, a, act, g)
        if _is_name(product.left, a):
            new = self.helper(fused.gated, held, product.right)
        else:
            new = self.helper(fused.gated_after, product.left, held)
        _replace(statement, product, ast.copy_location(new, product))

    def fuse_modulation(self, first: Any, rest: list[ast.stmt]) -> None:
        """Rewrites ``h = self.norm(x)`` and ``h * (1 + scale) + shift`` in a later statement."""
        h, call = _single_target(first), getattr(first, "value", first)
        x = self.called(call, "plain_layer_norm")
        if h is None or x is None:
            return

        def is_modulated(node: ast.AST) -> bool:
            return (found := self.modulation(node)) is not None and _is_name(found[0], h)

        if (found := self.reader(h, rest, is_modulated)) is None:
            return
        statement, node = found
        _, scale, shift = self.modulation(node)  # type: ignore[misc]
        self.changes.append(Change("adaptive_layer_norm", f"{ast.unparse(first)}; {ast.unparse(node)}"))
        new = self.helper(fused.norm_then_modulation, self.deferred(first, h, call.func, x), scale, shift)
        _replace(statement, node, ast.copy_location(new, node))

    def reader(
        self, name: str, rest: list[ast.stmt], matches: Callable[[ast.AST], bool], fresh: bool = False
    ) -> tuple[ast.stmt, Any] | None:
        """Returns the statement that reads a variable, and the expression in it that matches; None if something else may read
        the variable, or may change a tensor before.

        Args:
            name: the variable.
            rest: the statements behind the assignment to it.
            matches: whether an expression is the one that is sought.
            fresh: whether nothing else can change the tensors that matter.
        """
        for statement in rest:
            value = getattr(statement, "value", None)
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) or value is None:
                return None
            if name in _stored(value):
                return None
            for node in _in_order(value):
                if matches(node):
                    return (statement, node) if self.is_dead(name, statement) else None
                if not fresh and not _reads_only(node):
                    return None
            if _readers(statement)[name] or name in _stored(statement):
                return None
        return None

    def deferred(self, first: Any, name: str, called: ast.expr, x: ast.expr) -> ast.Starred:
        """Has the variable of a call hold ``(called, x)``, and returns the two as arguments."""
        first.value = ast.copy_location(ast.Tuple([called, x], ast.Load()), first.value)
        return ast.Starred(ast.Name(name, ast.Load()), ast.Load())

    def fuse_norm(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``s = a + b`` and ``self.norm(s)`` in the next statement that is not ``name = s``."""
        s = _single_target(first)
        value = getattr(first, "value", None)
        if s is None or s not in self.private or not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
            return
        aliases = 0
        while aliases < len(rest) and _is_alias(rest[aliases], s):
            aliases += 1
        call = _first_call(rest[aliases]) if aliases < len(rest) else None
        x, norm = (None, "") if call is None else self.normalised(call)
        if call is None or x is None or not _is_name(x, s):
            return
        self.changes.append(Change(f"add_{norm}", f"{ast.unparse(first)}; {ast.unparse(call)}"))
        y = _PREFIX + "y"
        names: list[ast.expr] = [ast.Name(y, ast.Store()), ast.Name(s, ast.Store())]
        first.targets = [ast.Tuple(names, ast.Store())]  # type: ignore[attr-defined]
        new = self.helper(fused.add_and_norm, call.func, value.left, value.right)
        first.value = ast.copy_location(new, value)  # type: ignore[attr-defined]
        # pop() takes the result out of the variable, which would keep it alive until the method returns.
        taken = ast.Call(ast.Attribute(ast.Name(y, ast.Load()), "pop", ast.Load()), [], [])
        _replace(rest[aliases], call, ast.copy_location(taken, call))


# Parts of syntax trees ------------------------------------------------------------------------------------------------


def _argument(node: ast.Call) -> ast.expr | None:
    """Returns the only argument of a call, or None."""
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
        return node.args[0]
    return None


def _approximate(keyword: ast.keyword) -> str | None:
    if keyword.arg == "approximate" and isinstance(keyword.value, ast.Constant):
        return keyword.value.value if keyword.value.value in ("none", "tanh") else None
    return None


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _single_target(node: ast.AST) -> str | None:
    """Returns the name of an assignment to one name, or None."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _is_alias(node: ast.stmt, name: str) -> bool:
    """Returns whether a statement is ``other = name``."""
    return _single_target(node) not in (None, name) and _is_name(getattr(node, "value", None), name)


def _readers(tree: ast.AST) -> Counter[str]:
    """Returns how often each name is read. ``z += 1`` reads z, too."""
    nodes = list(ast.walk(tree))
    names = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    names += [n.target for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]
    return Counter(n.id for n in names)


def _read_by_losses(tree: ast.AST) -> set[str]:
    """Returns the names that the arguments of a call of a loss read, such as ``self.loss_function(logits=logits, ...)``. The
    name of a loss says so."""
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    losses = (c for c in calls if any(word in ast.unparse(c.func).lower() for word in ("loss", "cross_entropy")))
    return {name for c in losses for a in (*c.args, *c.keywords) for name in _readers(a)}


def _is_super_forward(node: ast.Call) -> bool:
    """Returns whether a call is ``super().forward(...)``."""
    f = node.func
    if not (isinstance(f, ast.Attribute) and f.attr == "forward" and isinstance(f.value, ast.Call)):
        return False
    return _is_name(f.value.func, "super") and not f.value.args and not f.value.keywords


def _first_call(statement: ast.stmt) -> ast.Call | None:
    """Returns the call that returns first when a statement without a block runs, or None.

    Before this call, only names, attributes and constants are read. The call runs whenever the statement runs.
    """
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) or statement.value is None:
        return None
    for node in _in_order(statement.value):
        if isinstance(node, ast.Call):
            return node
        if not isinstance(node, _PURE):
            return None
    return None


def _calls_nothing(node: ast.AST) -> bool:
    """Returns whether the evaluation of an expression changes no tensor."""
    return all(map(_reads_only, ast.walk(node)))


def _reads_only(node: ast.AST) -> bool:
    """Returns whether a part of an expression changes no tensor. ``x.unsqueeze(1)`` is a view."""
    view = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze"
    return view or isinstance(node, (*_PURE, *_ITEMS))


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)  # they have variables of their own
_HOLDERS = (ModuleType, type)
_PURE = (ast.Name, ast.Attribute, ast.Constant, ast.keyword, ast.expr_context)
_ITEMS = (ast.Subscript, ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator)
_UNITS = {unit.__name__ for unit in GATES.values()}
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
_ORDERED = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Attribute, ast.Starred, ast.keyword)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of an expression in the order in which they are evaluated."""
    if isinstance(node, _ORDERED):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.operator | ast.unaryop):
                yield from _in_order(child)
    elif isinstance(node, ast.Subscript):
        yield from _in_order(node.value)
    yield node


def _replace(root: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(root):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(v is old for v in value):
                setattr(node, name, [new if v is old else v for v in value])


# Functions of a model's own ------------------------------------------------------------------------------------------


@functools.cache
def own_modulation(function: FunctionType) -> Callable[..., Any] | None:
    """Returns a function of a norm, its argument and two tensors, which takes the place of a function (x, shift, scale) that
    computes x·(1 + scale) + shift, or None."""
    found = modulation_form(function)
    return None if found is None else fused.modulation_by(function, *found)


@functools.cache
def _with_form(approximate: str) -> fused.GeluCall:
    form = fused.Form(approximate, True)
    return fused.GeluCall(form, lambda x: F.gelu(x, approximate=approximate))


def own_gelu(function: Any) -> fused.GeluCall | None:
    """Returns the call of GELU for a function that computes GELU and is named for it, or for a module that is no part of
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
