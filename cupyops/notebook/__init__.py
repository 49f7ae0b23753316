"""The cell magic ``%%cu`` of notebooks: a cell of CUDA C++ becomes a PyTorch operator. ``%load_ext cupyops`` loads it."""

from .magic import load

__all__ = ["load"]
