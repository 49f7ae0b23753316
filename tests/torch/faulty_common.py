"""Operators whose ``common=`` declares that a result depends on x, and omits other values that it depends on."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cupyops.torch import Operator

from .faulty_ops import Mix, _numbers, reference


@dataclass
class Totals(Mix):
    """An operator with a second result, for which it declares that the result follows from x.

    Attributes:
        total: computes the second result.
    """

    total: Callable[[Tensor, Tensor, float], Tensor] = lambda x, w, factor: (x * w).sum(-1)

    def operator(self) -> Operator:
        def totals(x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor]:
            return reference(x, w, factor), self.total(x, w, factor)

        schema = f"faulty::totals{next(_numbers)}(Tensor x, Tensor w, float factor) -> (Tensor y, Tensor total)"
        return Operator(schema, totals, reference=totals, common={"total": ("total", "x")})
