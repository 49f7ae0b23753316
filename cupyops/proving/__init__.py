"""Bounds of kernels for all sizes: :func:`prove_bounds`, with the solver z3."""

from .bounds import Bounds, Proof, prove_bounds
from .faults import Fault

__all__ = ["Bounds", "Fault", "Proof", "prove_bounds"]
