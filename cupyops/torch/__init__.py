"""The only place under cupyops that imports PyTorch: tensors for launches, and the mechanism that makes an operator."""

from .bench import bench_op
from .check import CHECKS, CheckFailed, check_op, checks_for
from .operator import Operator

__all__ = ["CHECKS", "CheckFailed", "Operator", "bench_op", "check_op", "checks_for"]
