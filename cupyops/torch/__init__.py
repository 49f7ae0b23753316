"""The only place under cupyops that imports PyTorch: tensors for launches, the mechanism that makes an operator, and the
export to ONNX."""

from .elementwise import elementwise
from .onnx import ExportReport, export_onnx
from .operator import Operator, operator
from .row_reduce import row_reduce

__all__ = ["ExportReport", "Operator", "elementwise", "export_onnx", "operator", "row_reduce"]
