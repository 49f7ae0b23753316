"""The checks that `check_op` runs on an operator."""

from cupyops.deprecated import moved_names

__getattr__ = moved_names(__name__, "cupyops.torch.check.run")
