"""Reads the source of a function, and compiles a changed copy of the function.

:func:`parsed` returns the syntax tree only if the tree compiles to the code that runs. A file that has changed since
its import, or a tool that rewrites code, therefore cannot lead to a function that computes something else.
"""

import __future__

import ast
import inspect
import linecache
from collections.abc import Mapping
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from cupyops.codegen import rewritten

__all__ = ["UnreadableError", "compiled", "innermost", "parsed", "redecorated"]

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_OUTER = "cupyops_outer"


class UnreadableError(Exception):
    """The source of a function cannot be read, or is not the source of the code that runs."""


_PARSED: WeakKeyDictionary[FunctionType, ast.FunctionDef | str] = WeakKeyDictionary()


def parsed(function: FunctionType) -> ast.FunctionDef:
    """Returns the syntax tree of a function, with the lines and columns of its file.

    Raises:
        UnreadableError: there is no source; or the source does not belong to the code that runs; or a name in the
            source has a meaning only inside its class (``__name``).
    """
    if function not in _PARSED:
        try:
            _PARSED[function] = _read(function)
        except UnreadableError as error:
            _PARSED[function] = str(error)
    found = _PARSED[function]
    if isinstance(found, str):
        raise UnreadableError(found)
    return found


def _read(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    try:
        text = inspect.getsource(code)
        # An `if` block around the method accepts its indentation. Removing the indentation instead would change strings
        # of several lines in the method.
        tree = ast.parse(f"if 1:\n{text}" if text[0].isspace() else f"\n{text}").body[0]
        tree = tree.body[0] if isinstance(tree, ast.If) else tree
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise UnreadableError("it has no source") from error
    if not isinstance(tree, ast.FunctionDef):
        raise UnreadableError("it is not a plain function")
    tree.decorator_list = []  # decorators ran when the class was made; redecorated() keeps what they returned
    for node in ast.walk(tree):
        for name in (getattr(node, "id", ""), getattr(node, "attr", "")):
            if name.startswith("__") and not name.endswith("__"):
                raise UnreadableError(f"it uses the private name {name}")
    ast.increment_lineno(tree, code.co_firstlineno - 2)
    if not _same(_code_of(tree, code, ()), code):
        raise UnreadableError("its source is not that of the code that runs")
    return tree


def _same(a: CodeType, b: CodeType) -> bool:
    """Returns whether two code objects are equal, apart from their places in the source."""
    if (a.co_code, a.co_names, a.co_varnames, a.co_freevars) != (b.co_code, b.co_names, b.co_varnames, b.co_freevars):
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    for x, y in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(x, CodeType) and isinstance(y, CodeType):
            if not _same(x, y):
                return False
        elif type(x) is not type(y) or _constant(x) != _constant(y):
            return False
    return True


def _constant(x: Any) -> str:
    """Returns a text of a constant, for comparison. Up to Python 3.10, the qualified name of a nested function is a
    constant. Its beginning names the functions around, and is left out."""
    return x.rpartition(".<locals>.")[2] if isinstance(x, str) else repr(x)


def _code_of(tree: ast.FunctionDef, code: CodeType, added: tuple[str, ...]) -> CodeType:
    """Returns the code of a function in a tree, whose free variables are those of ``code`` and ``added``."""
    free = [ast.arg(name) for name in (*added, *code.co_freevars)]
    arguments = ast.arguments(posonlyargs=[], args=free, kwonlyargs=[], kw_defaults=[], defaults=[])
    outer: Any = ast.FunctionDef(name=_OUTER, args=arguments, body=[tree], decorator_list=[])
    outer.type_params = []  # needed from Python 3.12 on
    imports = [ast.Import([ast.alias(name) for name in names])] if (names := _imported(code.co_filename)) else []
    module = ast.fix_missing_locations(ast.Module(body=[*imports, outer], type_ignores=[]))
    found = rewritten(module, code.co_filename, code.co_flags & _FUTURES)
    for name in (_OUTER, tree.name):
        inside = [c for c in found.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if not inside:
            raise UnreadableError("it has type parameters")
        found = inside[-1]
    return found


@lru_cache(256)
def _imported(filename: str) -> tuple[str, ...]:
    """Returns the names that a file imports at its top. CPython compiles a call of ``torch.exp`` in another way if the
    file imports ``torch``."""
    try:
        nodes: list[ast.AST] = list(ast.parse("".join(linecache.getlines(filename))).body)
    except SyntaxError:
        return ()
    found: list[str] = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [a.asname or a.name.partition(".")[0] for a in node.names if a.name != "*"]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]
    return tuple(sorted(set(found)))


def compiled(function: FunctionType, tree: ast.FunctionDef, values: Mapping[str, Any]) -> FunctionType:
    """Returns a function with the code of a tree.

    Args:
        function: the function that :func:`parsed` read. The new function has its globals, its closure, its defaults,
            its file and its lines.
        tree: the changed tree.
        values: the values of the names that the change added.
    """
    code = _code_of(tree, function.__code__, tuple(values))
    cells = {name: CellType(value) for name, value in values.items()}
    cells |= dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    return _copy(function, code, closure, {})


def _copy(
    function: FunctionType, code: CodeType, closure: tuple[CellType, ...], attributes: Mapping[str, Any]
) -> FunctionType:
    """Returns a function with another code and closure, and other attributes."""
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    if hasattr(function, "__annotate__"):  # from Python 3.14 on: annotations are not evaluated here
        made.__annotate__ = function.__annotate__  # type: ignore[attr-defined]
    else:
        made.__annotations__ = function.__annotations__
    made.__qualname__, made.__doc__, made.__module__ = function.__qualname__, function.__doc__, function.__module__
    vars(made).update({**vars(function), **attributes})
    return made


def innermost(function: FunctionType) -> FunctionType:
    """Returns the function inside the wrappers of its decorators."""
    while isinstance(inner := getattr(function, "__wrapped__", None), FunctionType):
        function = inner
    return function


def redecorated(function: FunctionType, made: FunctionType) -> FunctionType:
    """Returns copies of the wrappers around a function, around another function.

    Args:
        function: the outermost wrapper, or the function itself.
        made: the replacement of the innermost function.

    Raises:
        UnreadableError: a wrapper does not keep the function that it calls in its closure.
    """
    inner = getattr(function, "__wrapped__", None)
    if not isinstance(inner, FunctionType):
        return made
    cells = function.__closure__ or ()
    held = [c.cell_contents is inner for c in cells if c != CellType()]
    if held.count(True) != 1 or len(held) != len(cells):
        raise UnreadableError("its decorator does not keep the method in its closure")
    new = redecorated(inner, made)
    closure = tuple(CellType(new) if same else cell for same, cell in zip(held, cells, strict=True))
    return _copy(function, function.__code__, closure, {"__wrapped__": new})
