"""Timing an operator beside its peers."""

from cupyops.deprecated import moved_names

__getattr__ = moved_names(__name__, "cupyops.torch.bench.run")
