"""Records the operators that a model calls."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Counts the calls of this project's operators by their names, and those of PyTorch's by ``"aten.name"``.

    Attributes:
        all: the calls of all operators.
    """

    # PyTorch's operators that this project's replace.
    REPLACED = ("gelu", "native_layer_norm", "layer_norm", "rms_norm", "_fused_rms_norm", "addmm")

    def __init__(self) -> None:
        super().__init__()
        self.all: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """The calls of this project's operators, and of those of PyTorch that they replace."""
        wanted = {f"aten.{name}" for name in self.REPLACED}
        return Counter({name: n for name, n in self.all.items() if "." not in name or name in wanted})

    @property
    def ours(self) -> Counter[str]:
        """The calls of this project's operators."""
        return Counter({name: n for name, n in self.all.items() if "." not in name})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, name = func._schema.name.split("::")
        self.all[name.removesuffix("_inference") if space == "cupyops" else f"{space}.{name}"] += 1
        return func(*args, **(kwargs or {}))


def in_graph(graph: Any) -> list[str]:
    """The names of this project's operators that a graph of Dynamo calls, by their composite operators."""
    names = (str(n.target).partition("cupyops._") for n in graph.graph.nodes if n.op == "call_function")
    return [name.partition("_call")[0] for before, _, name in names if name and not before]
