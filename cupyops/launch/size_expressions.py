"""Expressions of a kernel's size parameters, which count blocks and bytes of shared memory: ``"ceil(N / 32)"``. The
policy :class:`Blocks` takes such expressions."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cupyops.codegen import write
from cupyops.errors import expected

from .geometry import InThree, at_least, is_integer

__all__ = ["Blocks", "SharedBytes", "size_expression"]

_FUNCTIONS = ("ceil", "max", "min")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_WANTED = "have size parameters, integers, + - * // %, min, max and ceil(a / b)"


def size_expression(where: str, argument: str, text: Any) -> tuple[str, tuple[str, ...]]:
    """Returns an expression as Python code of integers, and the names in it.

    Raises:
        TypeError: the expression is neither a string nor an integer.
        ValueError: it has something else than the operations of a size.

    >>> size_expression("Blocks", "x", "ceil(N / 32) + 1")
    ('(-(-(N) // (32)) + 1)', ('N',))
    """
    if is_integer(text):
        return str(at_least(where, argument, text, 0)), ()
    if not isinstance(text, str):
        raise TypeError(expected(where, argument, "be an expression such as 'ceil(N / 32)', or a number", repr(text)))
    names: dict[str, None] = {}

    def code(node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return str(value)
            case ast.Name(id=name) if name not in _FUNCTIONS:
                names[name] = None
                return name
            case ast.BinOp(left, op, right) if isinstance(op, _OPERATORS):
                sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}[type(op)]
                return f"({code(left)} {sign} {code(right)})"
            case ast.Call(ast.Name("ceil"), [ast.BinOp(left, ast.Div(), right)], []):
                return f"-(-({code(left)}) // ({code(right)}))"
            case ast.Call(ast.Name("min" | "max" as name), [_, _, *_] as args, []):
                return f"{name}({', '.join(map(code, args))})"
        raise ValueError(expected(where, argument, _WANTED, f"`{ast.unparse(node)}` in {text!r}"))

    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise ValueError(expected(where, argument, _WANTED, repr(text))) from None
    return code(tree.body), tuple(names)


@dataclass(frozen=True)
class Blocks(InThree):
    """Launches the blocks that expressions of size parameters count: ``Blocks("ceil(N / 32)", "M", block=(32, 8))``.

    An expression has size parameters of the kernel, integers, ``+ - * // %``, ``min``, ``max``, and ``ceil(a / b)``. The
    launch raises for more than 65535 blocks in y or z, CUDA's limit.

    Args:
        x, y, z: the blocks in each dimension, as expressions or numbers.
        block: threads of a block in x, y, z. An omitted number is 1, so 128 means (128, 1, 1).

    Raises:
        TypeError: an expression is neither a string nor an integer, or block is neither an integer nor a tuple of integers.
        ValueError: an expression has another operation, or block is not one to three numbers of at least 1.
    """

    x: str | int
    y: str | int = 1
    z: str | int = 1
    block: int | tuple[int, ...] = (256, 1, 1)

    def __post_init__(self) -> None:
        for axis in "xyz":
            size_expression("Blocks", axis, getattr(self, axis))
        super().__post_init__()

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for axis in "xyz" for name in size_expression("", "", getattr(self, axis))[1]))

    @property
    def blocks(self) -> tuple[str, str, str]:
        x, y, z = (size_expression("", "", getattr(self, axis))[0] for axis in "xyz")
        return x, y, z


@dataclass(frozen=True)
class SharedBytes:
    """Bytes of dynamic shared memory as a function of arguments of the call: ``shared="4 * n"``, ``shared=lambda n: 4 * n``.

    Attributes:
        names: the parameters of the kernel whose values the function takes.
        function: from these values to the bytes.
        source: what the author gave.
    """

    kernel: str
    names: tuple[str, ...]
    function: Callable[..., Any]
    source: Any

    @classmethod
    def given(cls, kernel: str, shared: Any, constants: Mapping[str, int]) -> "SharedBytes | None":
        """Returns the function of ``shared=``, or None for a number. An expression may name macros of `constants`."""
        if isinstance(shared, str):
            code, names = size_expression(kernel, "shared", shared)
            names = tuple(name for name in names if name not in constants)
            lines = [f"def shared({', '.join(names)}):", f"    return {code}"]
            return cls(kernel, names, write(f"shared memory of {kernel}", "shared", lines, dict(constants)), shared)
        if callable(shared):
            return cls(kernel, tuple(inspect.signature(shared).parameters), shared, shared)
        if not is_integer(shared):
            wanted = "be a number of bytes, an expression such as '4 * n', or a function of parameters by their names"
            raise TypeError(expected(kernel, "shared", wanted, repr(shared)))
        return None

    def of(self, values: Mapping[str, Any]) -> int:
        """Returns the bytes for the arguments of a call.

        Raises:
            TypeError, ValueError: the function does not return an integer of at least 0.
        """
        return at_least(self.kernel, "shared", self.function(*(values[name] for name in self.names)), 0)
