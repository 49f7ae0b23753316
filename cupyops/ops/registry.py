"""The shipped operators: the one list that everything reads which speaks of all operators.

An operator NAME has one file ``cupyops/torch/ops/NAME.py`` with its public function NAME, its module, its reference and its
ONNX form. A family of operators shares tests and a benchmark: ``tests/operators/test_FAMILY.py``, ``benchmarks/FAMILY.py``,
kernels whose names begin with FAMILY.

Explicit import lines in :mod:`cupyops` and :mod:`autograd_bridge` serve type checkers and editors.
``tests/operators/test_registry.py`` holds these lines, the tests' cases, the benchmarks, the ONNX forms and the kernels for
``warmup()`` to this list.
"""

from dataclasses import dataclass

__all__ = ["SHIPPED", "Shipped", "families"]


@dataclass(frozen=True)
class Shipped:
    """A shipped operator.

    Attributes:
        name: of the operator, of its public function and of its file.
        work: what the operator's time is measured over: ``"elements"``, ``"rows"`` (elements and the length of a row),
            ``"products"`` (shapes of a matrix product) or ``"steps"`` (of a recurrence).
        family: of operators with the same tests and the same benchmark.
        body: the module of its functions of CuPy arrays; "" for a program, which takes tensors alone.
    """

    name: str
    work: str
    family: str
    body: str = ""


SHIPPED = (
    Shipped("add2", "elements", "add2", body="cupyops.ops.add2"),
    Shipped("gelu", "elements", "gelu", body="cupyops.ops.gelu"),
    Shipped("layer_norm", "rows", "layer_norm", body="cupyops.ops.layer_norm.body"),
    Shipped("add_layer_norm", "rows", "layer_norm", body="cupyops.ops.layer_norm.body"),
    Shipped("rms_norm", "rows", "rms_norm"),
    Shipped("linear", "products", "linear", body="cupyops.ops.linear.body"),
    Shipped("linear_gelu", "products", "linear", body="cupyops.ops.linear.fused_gelu"),
    Shipped("lltm_cell", "steps", "lltm", body="cupyops.ops.lltm.cell"),
    Shipped("lltm", "steps", "lltm", body="cupyops.ops.lltm.sequence"),
)


def families(*work: str) -> tuple[str, ...]:
    """The families of this work, in the registry's order.

    >>> families("rows", "products")
    ('layer_norm', 'rms_norm', 'linear')
    """
    return tuple(dict.fromkeys(s.family for s in SHIPPED if s.work in work))
