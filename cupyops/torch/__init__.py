"""The only place under cupyops that imports PyTorch: tensors for launches, the mechanism that makes an operator, and the
export to ONNX."""

from .onnx import ExportReport, export_onnx
from .operator import Operator

__all__ = ["ExportReport", "Operator", "export_onnx"]
