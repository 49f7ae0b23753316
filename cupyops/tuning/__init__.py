"""Which of several kernels is the fastest: measured, recorded, and shipped as a file."""

from .records import load, save

__all__ = ["load", "save"]
