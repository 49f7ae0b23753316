"""The versions of PyTorch whose private compiler classes :mod:`cupyops.torch.compiled` uses."""

import torch

__all__ = ["supported"]

OLDEST, NEWEST = (2, 9), (2, 13)


def supported() -> bool:
    """Returns whether the tests have run with this version of PyTorch."""
    major, minor = torch.__version__.split(".")[:2]
    return OLDEST <= (int(major), int(minor)) <= NEWEST
