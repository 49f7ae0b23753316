"""The device of a tensor as host code sees it, in the simulator and without it."""

from functools import cache
from typing import Any

import torch

from cupyops import arrays

__all__ = ["place", "seen", "simulated"]


def simulated() -> bool:
    """Returns whether kernels on tensors in host memory run in the simulator."""
    return arrays.host().enabled()


@cache
def _gpu() -> torch.device:
    """Returns the device of tensors in host memory while the simulator runs: one after the GPUs of the machine, which are GPUs
    there, too."""
    # A mode of PyTorch's functions may give host memory for a GPU, as cpp_extension.simulated() does. Not here.
    with torch._C.DisableTorchFunction():
        return torch.device("cuda", torch.cuda.device_count())


def seen(device: torch.device) -> torch.device:
    """Returns a tensor's device as host code sees it: a GPU for host memory while the simulator runs."""
    return _gpu() if device.type == "cpu" and simulated() else device


def place(device: Any) -> torch.device:
    """Returns where to allocate for a device of host code: host memory for the simulator's GPU, or for any, while it runs."""
    device = torch.device(device)
    in_host_memory = device.type == "cuda" and device.index in (None, _gpu().index) and simulated()
    return torch.device("cpu") if in_host_memory else device
