"""Rewrites methods so that consecutive calls of modules and functions become one operator.

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
``self.act(g) * u`` after
``self.norm(x) * (1 + scale) + shift``      :func:`.fused_diffusion.norm_then_modulation`, for a layer norm without weight and bias; also as
                                            two statements, and by a function ``modulate`` of the model's own
``x + gate * y``                            :func:`.fused_diffusion.plus_gated`, if the gate is one of several results of a call; also
                                            as two statements, and with the addition in float32
``s = x + gate * y`` and the modulation of  :func:`.fused_diffusion.plus_gated_then_modulation`, if nothing else is called between them
``self.norm(s)`` after
``self.norm(a + b)``                        :func:`.fused.add_then_norm`
``s = a + b`` and ``self.norm(s)`` after   :func:`.fused.add_and_norm`, if nothing else is called between them
``F.gelu(x)``, ``F.layer_norm(x, ...)``,    the operator with the same arguments; also a function of the model's own
``F.rms_norm(x, ...)``                      that computes GELU
``apply_rotary_pos_emb(q, k, cos, sin)``    the operator (:mod:`.rotary`), for a function of the model's own that computes it
``z = self.head(x)``, if a call of a loss   :func:`.lazy.lazy_linear`, if ``lazy``
reads z below                               in a module of the model whose result a loss reads, too
``super().forward(x)``,                     the operator, if that is the ``forward`` of a module of ``torch.nn``
``nn.LayerNorm.forward(self, x)``
==========================================  ==========================================================================
"""

import ast
import copy
from collections.abc import Mapping
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from . import fused
from .expressions import PREFIX, Change, Parent, owner_of
from .lazy import lazy_head, lazy_linear, passed_on
from .rewrite_diffusion import Diffusion
from .rewrite_gates import Gates
from .rotary import own_rotary
from .single_calls import FUNCTIONS
from .source import compiled, innermost, parsed, redecorated
from .syntax import (
    SCOPES,
    Path,
    first_call,
    innermost_call,
    is_alias,
    is_name,
    is_super_forward,
    path_of,
    read_by_losses,
    replace_node,
    returned_call,
    single_target,
)

__all__ = ["called_paths", "loss_paths", "mentions", "returned_path", "rewritten"]

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
    tree, owner = parsed(function), owner_of(function)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {path for f in calls if (path := path_of(f, owner))}


def loss_paths(function: FunctionType, head: bool) -> set[Path]:
    """Returns the attributes of its object that a method calls, and whose result a loss reads.

    Args:
        function: the method.
        head: whether a loss reads the result of the method.

    Raises:
        UnreadableError: the source of the method cannot be read.
    """
    function = innermost(function)
    tree, owner = parsed(function), owner_of(function)
    names = read_by_losses(tree)
    calls = [innermost_call(n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign) and single_target(n) in names]
    if head:
        calls.append(returned_call(tree))
    return {path for c in calls if isinstance(c, ast.Call) and (path := path_of(c.func, owner))}


def returned_path(function: FunctionType) -> Path:
    """Returns the attribute of its object whose result a method returns, or ().

    Raises:
        UnreadableError: the source of the method cannot be read.
    """
    function = innermost(function)
    call = returned_call(parsed(function))
    return () if call is None else path_of(call.func, owner_of(function))


def rewritten(
    function: FunctionType,
    kinds: Mapping[Path, str],
    parent: Parent | None = None,
    fuse: bool = True,
    lazy: bool = False,
    head: bool = False,
) -> tuple[FunctionType, list[Change]]:
    """Returns the method with replaced calls, or the method itself if none is replaced; and the changes, with the reasons for
    what was left as it is.

    Args:
        function: the method.
        kinds: what the attributes of the method's object hold: ``"linear"`` for a linear layer that may be fused,
            ``"gelu"``, ``"layer_norm"`` or ``"rms_norm"`` for an optimised module, ``"plain_layer_norm"`` for one without
            weight and bias, ``"head"`` for a module that returns the result of a linear layer, ``"function"`` for a function
            that computes GELU, and the name of the gated unit for SiLU and ReLU.
        parent: what ``super().forward`` is: an operator's name, and the ``forward`` that calls the operator.
        fuse: whether neighbouring calls become one.
        lazy: whether a linear layer whose result a loss reads returns :class:`.lazy.LazyLogits`.
        head: whether a loss reads the result of the method.

    Raises:
        UnreadableError: the source of the method cannot be read.
    """
    done = _DONE.setdefault(function, {})
    key = frozenset(kinds.items()), parent and parent[0], fuse, lazy, head
    if key not in done:
        inner = innermost(function)
        tree, made = copy.deepcopy(parsed(inner)), function
        rewriter = _Rewriter(tree, inner, kinds, parent, fuse, lazy, head)
        tree.body = [rewriter.visit(s) for s in rewriter.block(tree.body)]
        if rewriter.changes:
            tree = ast.fix_missing_locations(tree)
            made = redecorated(function, compiled(inner, tree, rewriter.values))
        done[key] = made, [*rewriter.changes, *rewriter.left]
    return done[key]


class _Rewriter(Gates, Diffusion, ast.NodeTransformer):
    # Expressions

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        name, call = single_target(node), innermost_call(node.value)
        x = self.called(call, "linear") if name in self.of_losses and name in self.private else None
        if x is not None and isinstance(call, ast.Call) and self.owner is not None:
            owner = ast.Name(self.owner, ast.Load())
            new = self.change("linear_cross_entropy", call, self.helper(lazy_linear, owner, call.func, x))
            replace_node(node, call, new)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        new = (self.gated(node) or self.modulated(node) or self.gated_add(node)) if self.fuse else None
        return self.generic_visit(node if new is None else new)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.fuse and (new := self.fused_call(node)) is not None:
            return self.generic_visit(new)
        if self.owner is not None and node is self.returned:
            owner = ast.Name(self.owner, ast.Load())
            if (x := self.called(node, "linear")) is not None:
                new = self.helper(lazy_head, owner, node.func, x)
                return self.generic_visit(self.change("linear_cross_entropy", node, new))
            if self.kind(node.func) == "head":
                new = self.helper(passed_on, owner, ast.Call(node.func, node.args, node.keywords))
                return self.generic_visit(self.change("linear_cross_entropy", node, new))
        if self.parent is not None and self.owner is not None and is_super_forward(node):
            operator, forward = self.parent
            args = [ast.Name(self.owner, ast.Load()), *node.args]
            new = ast.Call(self.constant("forward", forward), args, node.keywords)
            return self.generic_visit(self.change(operator, node, new))
        function = None if self.kind(node.func) else self.named(node.func)
        entry = next((found for known, found in FUNCTIONS.items() if known is function), None)
        if entry is not None:
            operator, drop_in = entry
            new = ast.Call(self.constant(operator, drop_in), node.args, node.keywords)
            return self.generic_visit(self.change(operator, node, new))
        turn = None if function is None else own_rotary(ast.unparse(node.func), function)
        if isinstance(turn, str):
            self.left.append(Change("", ast.unparse(node.func), turn))
        elif turn is not None:
            new = ast.Call(self.constant(turn.__name__, turn), node.args, node.keywords)
            return self.generic_visit(self.change("rotary_embedding", node, new))
        if self.kind(node.func) != "gelu" and (found := self.activation(node)) is not None:
            x, act = found
            return self.generic_visit(self.change("gelu", node, ast.Call(act, [x], [])))
        return self.generic_visit(node)

    def fused_call(self, node: ast.Call) -> ast.expr | None:
        if (new := self.narrowed(node)) is not None:
            return new
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
        statements = self.with_products_moved(statements)
        texts = list(map(ast.unparse, statements))  # before a modulation in them is replaced
        for i, first in enumerate(statements):
            self.fuse_gated_modulation(first, texts[i], statements[i + 1 :])
        # A layer norm without weight belongs to the modulation after it rather than to the addition before it.
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
        z = single_target(first)
        if z is None or z not in self.private or not rest:
            return
        value, second = first.value, rest[0]  # type: ignore[attr-defined]
        x = self.called(value, "linear")
        call = first_call(second)
        if x is None or call is None or (found := self.activation(call)) is None or not is_name(found[0], z):
            return
        if not self.is_dead(z, second):
            return
        old = f"{ast.unparse(value)}; {ast.unparse(call)}"
        new = self.helper(fused.linear_then_gelu, value.func, found[1], x)
        first.value = ast.copy_location(new, value)  # type: ignore[attr-defined]
        self.changes.append(Change("linear_gelu", old))
        replace_node(second, call, found[0])
        if isinstance(second, ast.Assign) and is_name(second.value, z) and single_target(second) == z:
            del rest[0]  # z = z

    def fuse_norm(self, first: ast.stmt, rest: list[ast.stmt]) -> None:
        """Rewrites ``s = a + b`` and ``self.norm(s)`` in the next statement that is not ``name = s``."""
        s = single_target(first)
        value = getattr(first, "value", None)
        if s is None or s not in self.private or not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
            return
        aliases = 0
        while aliases < len(rest) and is_alias(rest[aliases], s):
            aliases += 1
        call = first_call(rest[aliases]) if aliases < len(rest) else None
        x, norm = (None, "") if call is None else self.normalised(call)
        if call is None or x is None or not is_name(x, s):
            return
        self.changes.append(Change(f"add_{norm}", f"{ast.unparse(first)}; {ast.unparse(call)}"))
        y = PREFIX + "y"
        names: list[ast.expr] = [ast.Name(y, ast.Store()), ast.Name(s, ast.Store())]
        first.targets = [ast.Tuple(names, ast.Store())]  # type: ignore[attr-defined]
        new = self.helper(fused.add_and_norm, call.func, value.left, value.right)
        first.value = ast.copy_location(new, value)  # type: ignore[attr-defined]
        # pop() takes the result out of the variable, which would keep it alive until the method returns.
        taken = ast.Call(ast.Attribute(ast.Name(y, ast.Load()), "pop", ast.Load()), [], [])
        replace_node(rest[aliases], call, ast.copy_location(taken, call))
