"""The part of cupyops that imports PyTorch: the class Operator, operators from formulas, checks, benchmarks, the
export to ONNX, packages for serving, and models on this project's kernels. No other folder of cupyops imports PyTorch."""

from cupyops.torch.bench.run import bench_op
from cupyops.torch.check.run import CHECKS, CheckFailed, check_op, checks_for
from cupyops.torch.core.decorator import operator
from cupyops.torch.core.operator import Operator
from cupyops.torch.fusions.backend import Fusions
from cupyops.torch.models.report import OptimizeReport
from cupyops.torch.models.swap import optimize
from cupyops.torch.onnx.export import ExportReport, export_onnx
from cupyops.torch.programs.elementwise import elementwise
from cupyops.torch.programs.row_reduce import row_reduce
from cupyops.torch.serving.package import package

__all__ = [
    "CHECKS",
    "CheckFailed",
    "ExportReport",
    "Fusions",
    "Operator",
    "OptimizeReport",
    "bench_op",
    "check_op",
    "checks_for",
    "elementwise",
    "export_onnx",
    "operator",
    "optimize",
    "package",
    "row_reduce",
]
