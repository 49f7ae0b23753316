"""Helpers for users: :func:`bench` times any callable, :func:`score` compares two modules, :func:`prove_bounds` proves
that a kernel stays inside its arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cupyops.errors import expected
from cupyops.proving import Bounds, Fault, Proof, prove_bounds
from cupyops.torch.bench.score import Score, score
from cupyops.torch.bench.timing import EventTimer, Spread, host_timer, interleave

__all__ = ["Bounds", "Fault", "Proof", "Score", "Timing", "bench", "prove_bounds", "score"]


@dataclass(frozen=True)
class Timing:
    """The time of a call, of :func:`bench`.

    Attributes:
        microseconds: median, 10th and 90th percentile of the samples.
        timer: ``"events"`` for the time between two events on the GPU, ``"host"`` for the time on the CPU.
        device: where the call ran.
    """

    microseconds: Spread
    timer: str
    device: str

    def __str__(self) -> str:
        us = self.microseconds
        words = {"events": "between CUDA events", "host": "of the host"}[self.timer]
        return (
            f"{us.median:.2f} µs a call {words} on {self.device} (10 to 90 %: {us.p10:.2f} to {us.p90:.2f}, "
            f"{us.samples} samples)"
        )


def bench(call: Callable[[], Any], *, device: Any = None, samples: int = 25) -> Timing:
    """Times a call of anything: a kernel's launch, an operator, a model's step. Prints nothing.

    A sample is a loop of calls that takes about two milliseconds. The inputs stay in the GPU's caches from call to call; for
    operands that do not, and for a comparison with peers, there is :func:`cupyops.torch.bench_op`. A call that takes the
    GPU less time than the host takes to launch it is timed at the host's time.

    Args:
        call: called without arguments: ``lambda: kernel(x, y, n)``. The first calls, which compile, are not timed.
        device: ``"cpu"``, or a GPU; by default the current GPU if PyTorch sees one, else the CPU.
        samples: how many samples are taken.

    Raises:
        TypeError: ``call`` cannot be called.
        ValueError: ``samples`` is less than 1.

    >>> timing = bench(lambda: sum(range(1000)), device="cpu")
    >>> timing.timer, timing.microseconds.samples
    ('host', 25)
    """
    if not callable(call):
        wanted = "be a function without arguments, such as lambda: kernel(x, y, n)"
        raise TypeError(expected("bench", "call", wanted, type(call).__name__))
    if samples < 1:
        raise ValueError(expected("bench", "samples", "be at least 1", samples))
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda":
        with torch.cuda.device(where):
            timer = EventTimer([call])
            timer.calibrate()
            found = interleave({"": timer}, samples)[""]
            return Timing(found, timer.name, torch.cuda.get_device_name())
    host = host_timer(call, where)
    return Timing(interleave({"": host}, samples)[""], host.name, "the CPU")
