"""The sizes of a published reference: its module-level integers, cut so that the simulator can run it."""

import ast
from dataclasses import dataclass
from typing import Any

__all__ = ["LARGE", "SMALL", "Sizes", "cut", "feasible"]

# Limits of a run at larger sizes: operations of the reference's products, and elements of its largest tensor.
MOST_OPERATIONS, MOST_ELEMENTS = 5e10, 2**25


@dataclass(frozen=True)
class Sizes:
    """How far the integers of a reference are cut.

    Attributes:
        most: the largest integer that stays, or None for all.
        batch: the same for names with "batch".
    """

    most: int | None
    batch: int | None

    def __str__(self) -> str:
        if self.most is None:
            return (
                "the sizes of the problem" if self.batch is None else f"those of the problem, {self.batch} in a batch"
            )
        return f"at most {self.most}, {self.batch} in a batch"

    def of(self, value: int, name: str) -> int:
        """Returns an integer of the reference, cut: halved while that is even, else the cut itself."""
        most = self.batch if "batch" in name.lower() else self.most
        if most is None or value <= most:
            return value
        while value > most and value % 2 == 0:
            value //= 2
        return min(value, most)


# The last is for networks that take images of 224 only.
SMALL = (Sizes(64, 4), Sizes(32, 4), Sizes(16, 4), Sizes(256, 1))
LARGE = (Sizes(None, None), Sizes(None, 2), Sizes(1024, 2), Sizes(512, 2), Sizes(256, 2), Sizes(128, 2), Sizes(64, 4))


class _Cutting(ast.NodeTransformer):
    """Cuts the integers of module-level assignments, and those of the two functions that give inputs."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.name = sizes, ""
        self.changed: dict[tuple[str, int], int] = {}

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                target, value = statement.targets[0], statement.value
                pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = [*zip(target.elts, value.elts, strict=True)]
                for name, given in pairs:
                    self.name = getattr(name, "id", "")
                    self.visit(given)
            elif isinstance(statement, ast.FunctionDef) and statement.name in ("get_inputs", "get_init_inputs"):
                self.name = ""
                for inner in statement.body:
                    self.visit(inner)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if type(node.value) is int:
            new = self.sizes.of(node.value, self.name)
            if new != node.value:
                self.changed[self.name, node.value] = new
            node.value = new
        return node


def cut(text: str, sizes: Sizes) -> tuple[dict[str, Any], dict[tuple[str, int], int]]:
    """Runs the text of a reference with its sizes cut.

    Returns:
        Its names, and the integers that were cut: by name and value.
    """
    cutting = _Cutting(sizes)
    tree = ast.fix_missing_locations(cutting.visit(ast.parse(text)))
    scope: dict[str, Any] = {"__name__": "reference"}
    exec(compile(tree, "reference.py", "exec"), scope)
    return scope, cutting.changed


def feasible(scope: dict[str, Any]) -> bool:
    """Returns whether a reference is small enough for a run, from its shapes alone; True if they are not known."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
            return result

    largest, operations = Largest(), FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.device("meta"), largest, operations:
            scope["Model"](*scope["get_init_inputs"]())(*scope["get_inputs"]())
    except Exception:
        return largest.elements <= MOST_ELEMENTS
    return largest.elements <= MOST_ELEMENTS and operations.get_total_flops() <= MOST_OPERATIONS
