"""Layer normalisation on arrays of any library."""

from . import tangent  # declares its kernels for warmup() and the compile command

__all__ = ["tangent"]
