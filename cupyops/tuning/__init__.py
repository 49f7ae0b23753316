"""Auto-tuning: chooses the fastest of several kernels, and records the choice."""

from .records import load, save

__all__ = ["load", "save"]
