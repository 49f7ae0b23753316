"""The list of the shipped operators.

The file ``cupyops/torch/ops/NAME.py`` of an operator NAME defines the public function NAME, the module, the reference
and the ONNX form. The operators of a FAMILY share tests (``tests/operators/test_FAMILY.py``), test data
(``tests/cases/FAMILY.py``), a benchmark (``benchmarks/FAMILY.py``) and a prefix: the names of their kernels begin with
FAMILY.

:mod:`cupyops` and :mod:`autograd_bridge` import the operators line by line, for type checkers and editors.
``tests/operators/test_registry.py`` compares these lines, the test data, the benchmarks, the ONNX forms and the
kernels of ``warmup()`` with the list.
"""

from dataclasses import dataclass

__all__ = ["SHIPPED", "Shipped", "families"]


@dataclass(frozen=True)
class Shipped:
    """A shipped operator.

    Attributes:
        name: name of the operator, of its public function and of its file.
        work: the sizes over which the benchmark measures the operator's time: ``"elements"``, ``"rows"`` (elements and
            the length of a row), ``"products"`` (shapes of a matrix product) or ``"steps"`` (steps of a recurrence).
        family: name of the family. The operators of a family share tests, test data and a benchmark.
        body: the module with the operator's functions for CuPy arrays; "" for an operator that only takes tensors.
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
    Shipped("add_rms_norm", "rows", "rms_norm"),
    Shipped("softmax", "rows", "softmax"),
    Shipped("log_softmax", "rows", "softmax"),
    Shipped("cross_entropy", "rows", "cross_entropy"),
    Shipped("linear", "products", "linear", body="cupyops.ops.linear.body"),
    Shipped("linear_gelu", "products", "linear", body="cupyops.ops.linear.fused_gelu"),
    Shipped("lltm_cell", "steps", "lltm", body="cupyops.ops.lltm.cell"),
    Shipped("lltm", "steps", "lltm", body="cupyops.ops.lltm.sequence"),
)


def families(*work: str) -> tuple[str, ...]:
    """Returns the families of the operators whose ``work`` is one of the arguments, in the order of the list.

    >>> families("products", "steps")
    ('linear', 'lltm')
    """
    return tuple(dict.fromkeys(s.family for s in SHIPPED if s.work in work))
