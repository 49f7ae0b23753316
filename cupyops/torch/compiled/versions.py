"""The versions of PyTorch whose private compiler classes :mod:`cupyops.torch.compiled` uses."""

import warnings

import torch

__all__ = ["supported", "supported_or_told"]

OLDEST, NEWEST = (2, 9), (2, 13)
_told = False


def supported() -> bool:
    """Returns whether the tests have run with this version of PyTorch."""
    major, minor = torch.__version__.split(".")[:2]
    return OLDEST <= (int(major), int(minor)) <= NEWEST


def supported_or_told() -> bool:
    """Returns :func:`supported`. With another version, the first call warns of what compiled graphs lack."""
    global _told
    if not (found := supported()) and not _told:
        _told = True
        warnings.warn(
            f"cupyops knows the compiler of PyTorch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, and this is "
            f"{torch.__version__}: compiled graphs call the registered operators, without direct calls, repeated launches, "
            f"recomputation and results in place. The results are the same",
            stacklevel=2,
        )
    return found
