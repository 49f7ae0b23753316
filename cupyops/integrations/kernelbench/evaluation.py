"""KernelBench's evaluation on a CPU: :func:`simulated`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from cupyops import cpp_extension

__all__ = ["simulated"]

# Answers to the questions that `eval_kernel_against_ref` asks about a GPU, which does not exist here. It accepts any
# name without "AMD".
_ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "get_device_name": lambda device=None: "NVIDIA GPU, simulated on a CPU",
    "set_device": lambda device: None,
    "device": lambda device: nullcontext(),
    "reset_peak_memory_stats": lambda device=None: None,
}


@contextmanager
def simulated(*, sanitize: bool | None = None, timeout: float | None = None) -> Iterator[None]:
    """Lets KernelBench's ``eval_kernel_against_ref`` judge programs with CUDA kernels on a CPU inside a ``with`` block.

    ``load_inline`` and ``load`` of :mod:`cupyops.cpp_extension` are in the place of PyTorch's, kernels run in the simulator, and
    functions of ``torch.cuda`` that KernelBench calls answer as if there was a GPU. ``measure_performance`` must stay False:
    the simulator's times say nothing about a GPU.

    Args:
        sanitize: what is checked; see :func:`cupyops.simulate`. A fault that is found makes a program incorrect.
        timeout: seconds for a launch; see :func:`cupyops.simulate`.
    """
    theirs = {name: getattr(torch.cuda, name) for name in _ANSWERS}
    vars(torch.cuda).update(_ANSWERS)
    try:
        with cpp_extension.replaced(), cpp_extension.simulated(sanitize=sanitize, timeout=timeout):
            yield
    finally:
        vars(torch.cuda).update(theirs)
