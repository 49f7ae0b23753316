"""The only place under cupyops that imports PyTorch: tensors for launches, and the mechanism that makes an operator."""

from .operator import Operator, operator

__all__ = ["Operator", "operator"]
