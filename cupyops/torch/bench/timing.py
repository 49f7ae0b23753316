"""Measures GPU time by CUDA graphs or events, host time per call, and the bandwidth of a copy."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
    "faster_than_memory",
    "gigabytes_per_second",
    "host_timer",
    "interleave",
    "l2_bytes",
    "memory_bandwidth",
    "rotation",
    "samples_in_turn",
    "spread",
]

# Minimum duration of a sample: the events' resolution of 0.5 µs and the gap between two replays are negligible then.
SAMPLE_MICROSECONDS = 2000.0
# Calls before the first sample, and the seconds after which no further one is made. An eager operator records its steps in the
# 32nd call of the same shapes, which takes a millisecond or more (cupyops/torch/core/repeated.py).
SETTLED_CALLS, SETTLED_SECONDS = 40, 0.2
# One rotation reads and writes this many times the L2 cache, which evicts each set before its next use.
ROTATION_IN_L2 = 4
# Maximum number of sets: a CUDA graph captures one call per set. Sets of small operands therefore stay in the cache;
# `BenchRow.sets` shows their number.
MAX_SETS = 512
DEFAULT_L2_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile, and number of samples."""

    median: float
    p10: float
    p90: float
    samples: int


def spread(values: Sequence[float]) -> Spread:
    """Returns median and percentiles, with linear interpolation between neighbouring samples.

    Raises:
        ValueError: `values` is empty.
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
    """Returns the size of the GPU's L2 cache, in bytes."""
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or DEFAULT_L2_BYTES


def memory_bandwidth(device: torch.device) -> float:
    """Returns the GB/s of the GPU's memory at its full clock, two transfers a cycle; infinity if they are not known."""
    told = torch.cuda.get_device_properties(device)
    kilohertz, bits = getattr(told, "memory_clock_rate", 0), getattr(told, "memory_bus_width", 0)
    return 2 * kilohertz * bits / 8 / 1e6 or math.inf


def faster_than_memory(times: Mapping[str, Spread], nbytes: int, device: torch.device) -> dict[str, str]:
    """Returns which calls take less time than the memory needs for their bytes, each with the words for it.

    A call need not move what the L2 cache holds. If all calls are so fast, the bytes are not what a call must move: an operator
    may read a part of an argument.

    Args:
        times: of calls of the same function, by name.
        nbytes: the bytes of operands and results.
    """
    rate = memory_bandwidth(device)
    least = max(0, nbytes - l2_bytes(device)) / rate / 1e3
    found = [name for name, us in times.items() if us.median < least]
    if len(found) == len(times):
        return {}
    words = f"the memory ({rate:.0f} GB/s) needs at least {least:.1f} µs for {nbytes} bytes: a result is not computed, or not yet"
    return {name: f"takes {times[name].median:.1f} µs, and {words}" for name in found}


def gigabytes_per_second(nbytes: int, microseconds: float) -> float:
    """Returns bytes per time, in units of 10^9 bytes per second."""
    return nbytes / microseconds / 1e3


def rotation(nbytes: int, l2_bytes: int) -> int:
    """Returns how many sets of operands and results, of `nbytes` each, exceed the L2 cache: from 2 to 512."""
    return max(2, min(MAX_SETS, math.ceil(ROTATION_IN_L2 * l2_bytes / max(nbytes, 1))))


class Timer(Protocol):
    """Times one implementation: call `calibrate` once, then `sample` for the microseconds per call."""

    name: str

    def calibrate(self) -> None:
        """Warms up, and chooses the number of calls per sample."""

    def sample(self) -> float:
        """Times one batch of calls; returns microseconds per call."""


class GraphTimer:
    """Times replays of a CUDA graph of the calls, which need no host time between kernels.

    Args:
        calls: one call per set of inputs.
        pool: memory pool. Graphs that share a pool share the memory of their outputs, so only one may run at a time.

    Attributes:
        outputs: the results of the captured calls, each in its own memory. Set to `[]` before the next capture into the
            pool.
    """

    name = "graph"

    def __init__(self, calls: Sequence[Callable[[], Any]], pool: Any) -> None:
        self._calls = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        # If a capture fails, torch.cuda.graph leaves its own stream current: the outer block restores the stream.
        with torch.cuda.stream(torch.cuda.current_stream()):  # noqa: SIM117
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self.outputs = [call() for call in calls]
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._replays = 1

    def replay(self) -> None:
        self._graph.replay()

    def calibrate(self) -> None:
        """Chooses the number of replays per sample."""
        self.sample()
        self._replays = _repeats(self.sample() * self._calls)

    def sample(self) -> float:
        # The replay before the first event keeps the GPU busy while the host queues the rest: no host time is measured.
        self._graph.replay()
        self._events[0].record()
        for _ in range(self._replays):
            self._graph.replay()
        return _elapsed(self._events) / (self._replays * self._calls)


class EventTimer:
    """Times eager calls between two CUDA events; with small operands this measures host time.

    Args:
        calls: one call per set of inputs.
        all_streams: whether the second event waits for all streams of the GPU, for calls that may use a stream of their own.
    """

    name = "events"

    def __init__(self, calls: Sequence[Callable[[], Any]], all_streams: bool = False) -> None:
        self._calls, self._all_streams = calls, all_streams
        self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._rounds = 1

    def calibrate(self) -> None:
        """Chooses the number of rotations through the sets per sample."""
        settle(self._calls[-1])
        self._rounds = _repeats(self.sample() * len(self._calls))

    def sample(self) -> float:
        self._calls[-1]()
        self._events[0].record()
        for _ in range(self._rounds):
            # The outputs are kept until the rotation ends, so that each call writes to its own memory.
            kept = [call() for call in self._calls]
            del kept
        if self._all_streams:
            torch.cuda.synchronize()
        return _elapsed(self._events) / (self._rounds * len(self._calls))


def settle(call: Callable[[], Any]) -> int:
    """Calls until later calls do the same work, and returns the number of calls."""
    began, made = time.perf_counter(), 0
    while made < SETTLED_CALLS and time.perf_counter() - began <= SETTLED_SECONDS:
        call()
        made += 1
    return made


def _elapsed(events: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    """Records the second event and waits; returns the microseconds since the first event."""
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) * 1e3


def _repeats(microseconds: float) -> int:
    return max(1, min(100, math.ceil(SAMPLE_MICROSECONDS / max(microseconds, 1.0))))


class HostTimer:
    """Times the host's part of asynchronous calls; the wait for the GPU is outside the measured time.

    The loop costs about 0.03 µs per call.
    """

    name = "host"

    def __init__(self, call: Callable[[], Any], device: torch.device, calls: int) -> None:
        self._call, self._device, self._calls = call, device, calls

    def calibrate(self) -> None:
        """Warms up."""
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


def host_timer(call: Callable[[], Any], device: torch.device) -> HostTimer:
    """Returns a timer of the host's time whose samples take about :data:`SAMPLE_MICROSECONDS`. Calls a few times."""
    once = HostTimer(call, device, 1)
    once.calibrate()
    typical = sorted(once.sample() for _ in range(3))[1]
    return HostTimer(call, device, max(1, round(SAMPLE_MICROSECONDS / max(typical, 0.05))))


def synchronize(device: torch.device) -> None:
    """Waits for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeatable_backward() -> AbstractContextManager[Any]:
    """Makes torch.compile generate backwards that can run several times after one forward.

    By default the code that torch.compile makes of a backward writes over what the forward saved, and refuses
    ``retain_graph=True`` for it.
    """
    from torch._functorch import config

    found: AbstractContextManager[Any] = config.patch(donated_buffer=False)
    return found


def interleave(timers: Mapping[str, Timer], rounds: int) -> dict[str, Spread]:
    """Samples all timers in turn, and returns the spread of each one's samples (:func:`samples_in_turn`)."""
    return {name: spread(samples) for name, samples in samples_in_turn(timers, rounds).items()}


def samples_in_turn(timers: Mapping[str, Timer], rounds: int) -> dict[str, list[float]]:
    """Samples all timers in turn, A B C C B A, so that drift of clocks and temperature affects all equally."""
    values: dict[str, list[float]] = {name: [] for name in timers}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for i in range(rounds):
            for name in reversed([*timers]) if i % 2 else [*timers]:
                values[name].append(timers[name].sample())
    finally:
        if collecting:
            gc.enable()
    return values


def copy_bandwidth(device: torch.device, nbytes: int = 2**32, rounds: int = 15) -> tuple[Spread, int]:
    """Returns the GB/s of ``dst.copy_(src)``, and the bytes that one copy reads and writes.

    Args:
        nbytes: bytes of each of the two buffers; halved until both fit into a third of the free memory.
        rounds: number of samples.
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
