"""Derives an operator from a kernel's declaration: schema, allocations, sizes.

``const`` pointers are inputs, other pointers are results. An integer that a shape names is a size, which the shapes of
the inputs give. Every other number is an argument of the operator::

    extern "C" __global__ void softclip(
        const scalar_t* x,  // (n)
        scalar_t* y,        // (n)
        acc_t limit, long long n)

becomes ``softclip(Tensor x, float limit) -> (Tensor y)``. The first name of a shape counts all leading dimensions: with
``// (M, N)``, a tensor of shape (2, 3, 5) has M = 6 and N = 5, and with ``// (n)`` it has n = 30.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops import Kernel
from cupyops.dtypes import DTYPES
from cupyops.errors import expected
from cupyops.launch.signature import Parameter

__all__ = ["Derived", "sizes_of"]


def sizes_of(parameters: Sequence[Parameter]) -> list[str]:
    """Returns the integers among a kernel's parameters that the shapes of its arrays name, in the order of the shapes."""
    numbers = {p.name for p in parameters if not p.pointer}
    terms = (term for p in parameters for term in p.shape or ())
    return [term for term in dict.fromkeys(terms) if term in numbers]


class Derived:
    """The parts of an operator that a kernel's declaration determines.

    Attributes:
        inputs: the parameters of the operator's tensors, in the order of the text.
        results: the parameters of its results.
        numbers: the parameters of its other arguments.
        sizes: the names of the parameters that the shapes give.

    Raises:
        TypeError: a result has no shape, or the kernel has a parameter that no operator of a cell can pass.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        parameters = kernel.signature.parameters
        self.sizes = sizes_of(parameters)
        self.inputs = [p for p in parameters if p.pointer and p.const]
        self.results = [p for p in parameters if p.pointer and not p.const]
        self.numbers = [p for p in parameters if not p.pointer and p.name not in self.sizes]
        for p in parameters:
            if p.map_of is not None or p.length is not None:
                raise TypeError(f"{kernel.name}: declare the operator in Python: a cell gives `{p.name}` no value")
        for p in self.results:
            if p.shape is None or p.nullable:
                wanted = "have a shape comment, such as // (n), and no `or null`, since the operator allocates it"
                raise TypeError(expected(kernel.name, p.name, wanted, "no shape" if p.shape is None else "`or null`"))
        if not self.inputs or not self.results:
            raise TypeError(f"{kernel.name}: an operator needs an input (const T*) and a result (T*)")
        given = {term for p in self.inputs for term in p.shape or ()}
        if lacking := [size for size in self.sizes if size not in given]:
            raise TypeError(
                f"{kernel.name}: no shape of an input gives {', '.join(lacking)}; declare the operator in Python"
            )

    @property
    def schema(self) -> str:
        """The schema without a name, ``(Tensor x, float limit) -> (Tensor y)``."""
        tensors = [f"Tensor{'?' if p.nullable else ''} {p.name}" for p in self.inputs]
        numbers = [f"{self._kind(p)} {p.name}" for p in self.numbers]
        return f"({', '.join(tensors + numbers)}) -> ({', '.join(f'Tensor {p.name}' for p in self.results)})"

    def _kind(self, p: Parameter) -> str:
        if p.type == "bool":
            return "bool"
        return "int" if p.type in DTYPES and not p.type.startswith(("float", "bfloat")) else "float"

    def __call__(self, *args: Any) -> Any:
        """The operator's body: allocates the results, and launches the kernel."""
        given: dict[str, Any] = dict(zip((p.name for p in [*self.inputs, *self.numbers]), args, strict=True))
        for p in self.inputs:
            if given[p.name] is not None:
                given[p.name] = given[p.name].contiguous()
        sizes = self._sizes(given)
        for p in self.results:
            given[p.name] = self._allocated(p, given, sizes)
        self.kernel(*({**given, **sizes}[name] for name in self.kernel.signature.names))
        results = tuple(given[p.name] for p in self.results)
        return results[0] if len(results) == 1 else results

    @property
    def __signature__(self) -> inspect.Signature:
        """The names of the arguments, by which a backward selects its arguments."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(p.name, kind) for p in [*self.inputs, *self.numbers]])

    def _sizes(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Returns the values of the sizes.

        Raises:
            ValueError: an input has fewer dimensions than its shape comment.
        """
        found: dict[str, int] = {}
        for p in self.inputs:
            x, terms = given[p.name], p.shape
            if x is None or terms is None:
                continue
            if x.dim() < len(terms) and len(terms) > 1:
                shape = f"({', '.join(terms)})"
                raise ValueError(expected(self.kernel.name, p.name, f"have the dimensions {shape}", tuple(x.shape)))
            last = list(x.shape[x.dim() - len(terms) + 1 :]) if len(terms) > 1 else []
            for term, size in zip(terms, [math.prod(x.shape[: x.dim() - len(last)]), *last], strict=True):
                found.setdefault(term, size)
        return {name: found[name] for name in self.sizes}

    def _allocated(self, p: Parameter, given: Mapping[str, Any], sizes: Mapping[str, int]) -> Tensor:
        """Returns an empty tensor for a result: with the dimensions of the first input whose shape begins as the
        result's does, else with one dimension for each name of the result's shape."""
        terms, device, shape = p.shape or (), None, None
        for q in self.inputs:
            x = given[q.name]
            if x is None:
                continue
            device = device or x.device
            if shape is None and q.shape and q.shape[: len(terms)] == terms:
                shape = tuple(x.shape[: x.dim() - len(q.shape) + len(terms)])
        constants = {**self.kernel.constants, **sizes}
        size = shape if shape is not None else tuple(int(t) if t.isdigit() else constants[t] for t in terms)
        return torch.empty(size, dtype=self._dtype(p, given), device=device)

    def _dtype(self, p: Parameter, given: Mapping[str, Any]) -> torch.dtype:
        """Returns the dtype of a result: that of the inputs of its type, or the type itself.

        Raises:
            TypeError: no input has the type.
        """
        if p.type in DTYPES:
            declared: torch.dtype = getattr(torch, p.type)
            return declared
        wanted = "scalar_t" if p.type == "acc_t" else p.type
        for q in self.inputs:
            if q.type == wanted and given[q.name] is not None:
                dtype: torch.dtype = given[q.name].dtype
                wide = getattr(torch, DTYPES[str(dtype).removeprefix("torch.")].acc)
                return wide if p.type == "acc_t" else dtype
        raise TypeError(expected(self.kernel.name, p.name, "have the type of an input, or a type of C", p.type))
