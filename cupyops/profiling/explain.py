"""The function :func:`cupyops.explain`, which imports what it needs when it is called."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cupyops.errors import expected
from cupyops.sharing import held_across_fork
from cupyops.simulator import counted

if TYPE_CHECKING:
    from .report import Report

__all__ = ["explain"]

# Held by the imports at the first call. A child that is forked meanwhile would wait for ever for the lock of the import.
_importing = held_across_fork(threading.RLock())


def explain(
    call: Callable[..., Any],
    /,
    *args: Any,
    gpu: str = "H200",
    flops: float | None = None,
    path: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> "Report":
    """Runs the kernels of a call in the simulator, counts their memory requests, and explains them.

    No GPU is needed. The call runs on CPU tensors or NumPy arrays and writes its outputs, as in
    :func:`cupyops.simulate`. The report has, for each line of the text: executions by a warp, active lanes, sectors of
    a request to global memory, bank conflicts of a request to shared memory, and atomic operations. For each kernel it
    has the bytes moved and needed, the registers and spills that NVRTC reports, the occupancy, lower bounds of the
    time, and what to change. ``docs/explain.md`` says how each number is counted.

    Args:
        call: a :class:`cupyops.Kernel`, an operator, or any function that launches kernels.
        args, kwargs: its arguments.
        gpu: the GPU whose peaks and limits are used, such as ``"H200"``, ``"A100"`` or ``"RTX 4090"``.
        flops: floating-point operations of each launch, for the roofline. By default the additions, multiplications,
            divisions and square roots that the simulation executes. A fused multiply-add counts as two, and a call of
            a function such as ``expf`` and a product of tensor cores count nothing.
        path: the HTML file to write; by default none is written.

    Returns:
        The report: ``print(report)`` shows a table, ``report.html(path)`` writes the HTML file, and
        ``report.kernels`` has the numbers.

    Raises:
        TypeError: `call` is not callable.
        ValueError: the GPU is unknown; `flops` is negative; or the call launched no kernel in the simulator.
        MissingDependencyError: no C++ compiler is installed.
        CompileError: a text does not compile for the host.
        LaunchError: a launch failed.
        OSError: the file cannot be written.

    >>> import numpy
    >>> from cupyops import gelu
    >>> report = explain(gelu, numpy.ones(4096, numpy.float32))
    >>> report.kernels[0].total("global", "load").per_request
    16.0
    """
    with _importing:
        from .explained import explained
        from .gpus import gpu_named
        from .report import Report
    if not callable(call):
        raise TypeError(expected("explain", "call", "be a kernel or a function", call))
    if flops is not None and not flops >= 0:
        raise ValueError(expected("explain", "flops", "be at least 0", flops))
    chosen = gpu_named(gpu)
    with counted(chosen.multiprocessors) as launches:
        call(*args, **kwargs)
    if not launches:
        raise ValueError(
            "explain: the call launched no kernel in the simulator. Pass CPU tensors or NumPy arrays with elements"
        )
    report = Report(tuple(explained(launch, chosen, flops) for launch in launches))
    if path is not None:
        report.html(path)
    return report
