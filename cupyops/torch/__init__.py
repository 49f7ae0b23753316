"""The part of cupyops that imports PyTorch: the class Operator, operators from formulas, checks, benchmarks and the
export to ONNX. No other folder of cupyops imports PyTorch."""

from cupyops.torch.bench.run import bench_op
from cupyops.torch.check.run import CHECKS, CheckFailed, check_op, checks_for
from cupyops.torch.core.operator import Operator, operator
from cupyops.torch.fusions.backend import Fusions
from cupyops.torch.onnx.export import ExportReport, export_onnx
from cupyops.torch.programs.elementwise import elementwise
from cupyops.torch.programs.row_reduce import row_reduce

__all__ = [
    "CHECKS",
    "CheckFailed",
    "ExportReport",
    "Fusions",
    "Operator",
    "bench_op",
    "check_op",
    "checks_for",
    "elementwise",
    "export_onnx",
    "operator",
    "row_reduce",
]
