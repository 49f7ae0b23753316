"""Functions on syntax trees of methods: which names they read, what is called first, and which code changes no
tensor."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

__all__ = [
    *("Path", "SCOPES", "TRIES", "approximate_of", "calls_nothing", "first_call", "innermost_call"),
    *("in_order", "is_alias", "is_name", "is_super_forward", "last_reads", "only_argument", "path_of"),
    *("read_by_losses", "reads_of", "reads_only", "replace_node", "returned_call", "root_of"),
    *("single_target", "stored_names", "unpacked_names", "widened"),
]

Path = tuple[str, ...]
"""("a", "b") for an expression ``self.a.b``."""

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)  # they have variables of their own
_PURE = (ast.Name, ast.Attribute, ast.Constant, ast.keyword, ast.expr_context)
_ITEMS = (ast.Subscript, ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator)
TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
_ORDERED = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Attribute, ast.Starred, ast.keyword)


def stored_names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def path_of(node: ast.AST, owner: str | None) -> Path:
    """Returns ``("a", "b")`` for an expression ``self.a.b``, and () for every other."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    return tuple(path[::-1]) if isinstance(node, ast.Name) and node.id == owner else ()


def only_argument(node: ast.Call) -> ast.expr | None:
    """Returns the only argument of a call, or None."""
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
        return node.args[0]
    return None


def approximate_of(keyword: ast.keyword) -> str | None:
    if keyword.arg == "approximate" and isinstance(keyword.value, ast.Constant):
        return keyword.value.value if keyword.value.value in ("none", "tanh") else None
    return None


def is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def single_target(node: ast.AST) -> str | None:
    """Returns the name of an assignment to one name, or None."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def is_alias(node: ast.stmt, name: str) -> bool:
    """Returns whether a statement is ``other = name``."""
    return single_target(node) not in (None, name) and is_name(getattr(node, "value", None), name)


def reads_of(tree: ast.AST) -> Counter[str]:
    """Returns how often each name is read. ``z += 1`` reads z, too."""
    nodes = list(ast.walk(tree))
    names = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    names += [n.target for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]
    return Counter(n.id for n in names)


def last_reads(tree: ast.AST) -> dict[str, tuple[int, int]]:
    """Returns the line and column of the last read of each name in the source. A name that a loop reads has none, since the
    loop may read it again after any of its statements."""
    found: dict[str, tuple[int, int]] = {}
    nodes = [(tree, False)]
    for node, looped in nodes:
        looped = looped or isinstance(node, ast.For | ast.AsyncFor | ast.While)
        nodes += [(child, looped) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name, at = node.target.id, node.target
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name, at = node.id, node
        else:
            continue
        place = (sys.maxsize, 0) if looped else (at.lineno, at.col_offset)
        found[name] = max(place, found.get(name, place))
    return found


def root_of(node: ast.AST) -> str:
    """Returns the name whose value an expression of items, attributes and views shows, ``"e"`` for ``e[2].unsqueeze(1)``, or
    ``""``."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call) and reads_only(node):
            node = node.func
        elif isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        else:
            return ""
    return node.id


def unpacked_names(tree: ast.AST) -> set[str]:
    """Returns the names that hold one of several results of a call, and views of them: ``shift, scale, gate =
    self.modulation(c).chunk(3, dim=1)``, then ``gate = gate.unsqueeze(1)``."""
    found: set[str] = set()
    assigned = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    for n in assigned:
        target, value = n.targets[0], n.value
        if not isinstance(value, ast.Call):
            continue
        if isinstance(target, ast.Tuple | ast.List):
            found |= {e.id for e in target.elts if isinstance(e, ast.Name)}
        elif isinstance(target, ast.Name) and isinstance(value.func, ast.Attribute) and value.func.attr == "chunk":
            found.add(target.id)
    while more := {t for n in assigned if (t := single_target(n)) and root_of(n.value) in found} - found:
        found |= more
    return found


def widened(node: ast.AST) -> ast.expr | None:
    """Returns x of an expression ``x.float()``, or None."""
    is_float = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "float"
    return node.func.value if is_float and not (node.args or node.keywords) else None  # type: ignore[attr-defined]


def read_by_losses(tree: ast.AST) -> set[str]:
    """Returns the names that the arguments of a call of a loss read, such as ``self.loss_function(logits=logits,
    ...)``. A loss is recognised by its name."""
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    losses = (c for c in calls if any(word in ast.unparse(c.func).lower() for word in ("loss", "cross_entropy")))
    return {name for c in losses for a in (*c.args, *c.keywords) for name in reads_of(a)}


def innermost_call(node: Any) -> Any:
    """Returns ``self.head(x)`` of an expression ``self.head(x).float()``, and every other expression as it is."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


def returned_call(tree: ast.FunctionDef) -> ast.Call | None:
    """Returns the call whose result a method returns: ``self.decoder(x)`` of ``x = self.decoder(x)`` and ``return x``. The method
    has one ``return``, its last statement."""
    *before, last = tree.body
    if not isinstance(last, ast.Return) or sum(isinstance(n, ast.Return) for n in ast.walk(tree)) != 1:
        return None
    value = last.value
    for statement in reversed(before):
        if not isinstance(value, ast.Name):
            break
        if single_target(statement) == value.id:
            value = statement.value  # type: ignore[attr-defined]
        elif value.id in stored_names(statement):
            break
    return value if isinstance(value, ast.Call) else None


def is_super_forward(node: ast.Call) -> bool:
    """Returns whether a call is ``super().forward(...)``."""
    f = node.func
    if not (isinstance(f, ast.Attribute) and f.attr == "forward" and isinstance(f.value, ast.Call)):
        return False
    return is_name(f.value.func, "super") and not f.value.args and not f.value.keywords


def first_call(statement: ast.stmt) -> ast.Call | None:
    """Returns the call that finishes first in a statement without a block, or None.

    Before this call, only names, attributes and constants are read. The call runs whenever the statement runs.
    """
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) or statement.value is None:
        return None
    for node in in_order(statement.value):
        if isinstance(node, ast.Call):
            return node
        if not isinstance(node, _PURE):
            return None
    return None


def calls_nothing(node: ast.AST) -> bool:
    """Returns whether the evaluation of an expression changes no tensor."""
    return all(map(reads_only, ast.walk(node)))


def reads_only(node: ast.AST) -> bool:
    """Returns whether a part of an expression changes no tensor. ``x.unsqueeze(1)`` is a view."""
    view = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze"
    return view or isinstance(node, (*_PURE, *_ITEMS))


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of an expression in the order in which they are evaluated."""
    if isinstance(node, _ORDERED):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.operator | ast.unaryop):
                yield from in_order(child)
    elif isinstance(node, ast.Subscript):
        yield from in_order(node.value)
    yield node


def replace_node(root: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(root):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(v is old for v in value):
                setattr(node, name, [new if v is old else v for v in value])
