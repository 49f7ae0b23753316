"""Holding an operator to what a finished one promises."""

from cupyops.deprecated import moved_names

__getattr__ = moved_names(__name__, "cupyops.torch.check.run")
