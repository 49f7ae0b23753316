"""Clocks: a GPU's time by CUDA graph or events, the host's time per call, and the bandwidth of a copy."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

__all__ = [
    "EventTimer",
    "GraphTimer",
    "HostTimer",
    "Spread",
    "Timer",
    "copy_bandwidth",
    "gigabytes_per_second",
    "interleave",
    "l2_bytes",
    "rotation",
    "spread",
]

# A sample lasts at least this long, so that the events' resolution of 0.5 µs and the gap of two replays do not show.
SAMPLE_MICROSECONDS = 2000.0
# What one rotation reads and writes is this many times the L2 cache, so that nothing is still there at its next turn.
ROTATION_IN_L2 = 4
# Small operands get no more sets than this, since every call has to be captured, and stay in the cache: rows tell.
MAX_SETS = 512
DEFAULT_L2_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of so many samples."""

    median: float
    p10: float
    p90: float
    samples: int


def spread(values: Sequence[float]) -> Spread:
    """Percentiles with linear interpolation between neighbours.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("spread: `values` must hold at least one sample, got none")
    ordered = sorted(values)

    def percentile(p: float) -> float:
        at = p * (len(ordered) - 1)
        low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
        return low + (high - low) * (at - math.floor(at))

    return Spread(percentile(0.5), percentile(0.1), percentile(0.9), len(ordered))


def l2_bytes(device: torch.device) -> int:
    """Bytes of a GPU's cache that all multiprocessors share."""
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or DEFAULT_L2_BYTES


def gigabytes_per_second(nbytes: int, microseconds: float) -> float:
    """Bytes moved over time, in units of 10^9 bytes per second."""
    return nbytes / microseconds / 1e3


def rotation(nbytes: int, l2_bytes: int) -> int:
    """How many sets of operands and results, each of `nbytes`, outgrow the cache: from 2 to 512."""
    return max(2, min(MAX_SETS, math.ceil(ROTATION_IN_L2 * l2_bytes / max(nbytes, 1))))


class Timer(Protocol):
    """Measures one implementation; `calibrate` comes first, and `sample` gives microseconds per call."""

    name: str

    def calibrate(self) -> None:
        """Warm up, and choose how long a sample has to be."""

    def sample(self) -> float:
        """Time one batch."""


class GraphTimer:
    """Calls captured in a CUDA graph: their kernels follow one another without the host.

    Args:
        calls: one per set of inputs.
        pool: memory pool; graphs that share one write into the same outputs, one graph at a time.

    Attributes:
        outputs: what the calls returned, each in memory of its own; to be dropped (`= []`) before the next capture
            into the pool.
    """

    name = "graph"

    def __init__(self, calls: Sequence[Callable[[], Any]], pool: Any) -> None:
        self._calls = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        # The outer block brings the current stream back where a capture fails; torch.cuda.graph then leaves its own.
        with torch.cuda.stream(torch.cuda.current_stream()):  # noqa: SIM117
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self.outputs = [call() for call in calls]
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._replays = 1

    def replay(self) -> None:
        self._graph.replay()

    def calibrate(self) -> None:
        """Choose how many replays make a sample."""
        self.sample()
        self._replays = _repeats(self.sample() * self._calls)

    def sample(self) -> float:
        # The replay before the first event keeps the GPU busy while the rest is queued: the launch itself is not timed.
        self._graph.replay()
        self._events[0].record()
        for _ in range(self._replays):
            self._graph.replay()
        return _elapsed(self._events) / (self._replays * self._calls)


class EventTimer:
    """Eager calls between two events, for what cannot be captured. With small operands this is the host's time."""

    name = "events"

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._rounds = 1

    def calibrate(self) -> None:
        """Choose how many rotations make a sample."""
        self.sample()
        self._rounds = _repeats(self.sample() * len(self._calls))

    def sample(self) -> float:
        self._calls[-1]()
        self._events[0].record()
        for _ in range(self._rounds):
            # Outputs live until the rotation ends, so that each call writes memory of its own.
            kept = [call() for call in self._calls]
            del kept
        return _elapsed(self._events) / (self._rounds * len(self._calls))


def _elapsed(events: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    """Microseconds from the first event to now."""
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) * 1e3


def _repeats(microseconds: float) -> int:
    return max(1, min(100, math.ceil(SAMPLE_MICROSECONDS / max(microseconds, 1.0))))


class HostTimer:
    """The host's time per call of a queue of calls that is waited for outside the clock.

    The loop itself costs some 0.03 µs a call.
    """

    name = "host"

    def __init__(self, call: Callable[[], Any], device: torch.device, calls: int) -> None:
        self._call, self._device, self._calls = call, device, calls

    def calibrate(self) -> None:
        """Warm up."""
        self.sample()

    def sample(self) -> float:
        call = self._call
        synchronize(self._device)
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, self._calls):
            call()
        ended = time.perf_counter_ns()
        synchronize(self._device)
        return (ended - began) / self._calls / 1e3


def synchronize(device: torch.device) -> None:
    """Wait for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleave(timers: Mapping[str, Timer], rounds: int) -> dict[str, Spread]:
    """Samples of all timers in turn, A B C A B C, so that drift of clocks and temperature meets all alike."""
    values: dict[str, list[float]] = {name: [] for name in timers}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, timer in timers.items():
                values[name].append(timer.sample())
    finally:
        if collecting:
            gc.enable()
    return {name: spread(samples) for name, samples in values.items()}


def copy_bandwidth(device: torch.device, nbytes: int = 2**32, rounds: int = 15) -> tuple[Spread, int]:
    """GB/s of ``dst.copy_(src)``, bytes read plus bytes written, and how many bytes a copy moved.

    Args:
        nbytes: size of each of the two buffers; halved until both fit into a third of the free memory.
    """
    free = torch.cuda.mem_get_info(device)[0]
    while nbytes > free // 6:
        nbytes //= 2
    source = torch.empty(nbytes // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    timer = EventTimer([partial(target.copy_, source)] * 2)
    timer.calibrate()
    rates = [gigabytes_per_second(2 * nbytes, timer.sample()) for _ in range(rounds)]
    return spread(rates), 2 * nbytes
