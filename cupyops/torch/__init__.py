"""The only place under cupyops that imports PyTorch: tensors for launches, and the mechanism that makes an operator."""

from .elementwise import elementwise
from .operator import Operator, operator
from .row_reduce import row_reduce

__all__ = ["Operator", "elementwise", "operator", "row_reduce"]
