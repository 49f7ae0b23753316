"""The only place under cupyops that imports PyTorch: tensors for launches, the mechanism that makes an operator, and the
export to ONNX."""

from .bench import bench_op
from .check import CHECKS, CheckFailed, check_op, checks_for
from .elementwise import elementwise
from .onnx import ExportReport, export_onnx
from .operator import Operator, operator
from .row_reduce import row_reduce

__all__ = [
    "CHECKS",
    "CheckFailed",
    "ExportReport",
    "Operator",
    "bench_op",
    "check_op",
    "checks_for",
    "elementwise",
    "export_onnx",
    "operator",
    "row_reduce",
]
