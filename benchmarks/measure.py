"""From cases to rows: check every implementation against float64, then time those that are right, in turn."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cupyops.torch.bench.timing import (
    EventTimer,
    GraphTimer,
    HostTimer,
    Spread,
    Timer,
    gigabytes_per_second,
    interleave,
    l2_bytes,
    rotation,
    synchronize,
)

from .cases import Call, Case, WrongResult, check
from .peers import BuildFailed, Unavailable

__all__ = ["Findings", "Skipped", "measure_device", "measure_host"]

DEVICE_ROUNDS = 15
HOST_ROUNDS = 31
HOST_CALLS = 300
# A reference in float64 and its gradient keep about this many results alive at once.
REFERENCE_TEMPORARIES = 16


@dataclass(frozen=True)
class Skipped:
    """A missing measurement of a run. `failed` distinguishes failures from features that this machine lacks."""

    section: str
    what: str
    reason: str
    failed: bool


@dataclass
class Findings:
    """Rows of the results file, and the missing ones; equal reasons are kept once."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, section: str, what: str, reason: str, *, failed: bool) -> None:
        entry = Skipped(section, what, " ".join(reason.split()), failed)
        if entry not in self.skipped:
            self.skipped.append(entry)
            if failed:
                print(f"FAILED {section}: {what}: {reason}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> bool:
        return any(entry.failed for entry in self.skipped)


def measure_device(
    cases: Iterable[Case],
    device: torch.device,
    copy_gb_per_s: float,
    names: Sequence[str],
    *,
    rounds: int = DEVICE_ROUNDS,
    echo: Callable[[str], object] = print,
) -> Findings:
    """Time on the GPU: rows with microseconds, GB/s and the share of the copy bandwidth.

    Args:
        names: of the implementations wanted, in the order of measuring.
        copy_gb_per_s: what 100 % is.
        echo: gets a line per case.
    """
    findings = Findings()
    for case in cases:
        section = f"{case.op}.device"
        torch.cuda.empty_cache()
        lacking = _memory_lacking(case, device)
        if lacking:
            findings.skip(section, case.title, lacking, failed=False)
            continue
        sets = rotation(case.nbytes, l2_bytes(device))
        make_timer = partial(_device_timer, case, [torch.cuda.graph_pool_handle()])
        rows = _rows(case, section, device, sets, names, make_timer, rounds, findings)
        for row in rows:
            rate = gigabytes_per_second(case.nbytes, row["microseconds"])
            row |= {"bytes": case.nbytes, "gb_per_s": round(rate, 2), "share_of_copy": round(rate / copy_gb_per_s, 4)}
        findings.rows += rows
        echo(case.title + ": " + _summary(rows, "share_of_copy", "{:.1%}"))
    return findings


def measure_host(
    cases: Iterable[Case],
    device: torch.device,
    names: Sequence[str],
    *,
    rounds: int = HOST_ROUNDS,
    calls: int = HOST_CALLS,
    echo: Callable[[str], object] = print,
) -> Findings:
    """The host's time per call, over queues of `calls`: rows with microseconds. Else as :func:`measure_device`."""
    findings = Findings()
    make_timer = partial(_host_timer, calls)
    for case in cases:
        rows = _rows(case, f"{case.op}.host", device, 1, names, make_timer, rounds, findings)
        findings.rows += rows
        echo(case.title + ", host: " + _summary(rows, "microseconds", "{:.2f} µs"))
    return findings


def _rows(
    case: Case,
    section: str,
    device: torch.device,
    sets: int,
    names: Sequence[str],
    make_timer: Callable[[Sequence[Call], Sequence[Tensor]], Timer],
    rounds: int,
    findings: Findings,
) -> list[dict[str, Any]]:
    generator = torch.Generator(device).manual_seed(20240229)
    inputs = [case.inputs(generator) for _ in range(sets)]
    expected = case.expected(inputs[-1])
    timers: dict[str, Timer] = {}
    errors: dict[str, float] = {}
    for name in names:
        if name not in case.implementations:
            continue
        try:
            function = case.implementations[name]()
            calls = [case.bind(function, x) for x in inputs]
            errors[name] = check_call(case, calls[-1], expected, device)
            timer = make_timer(calls, expected)
            timer.calibrate()
            timers[name] = timer
        except Unavailable as reason:
            findings.skip(section, name, str(reason), failed=isinstance(reason, BuildFailed))
        except Exception as error:
            findings.skip(section, f"{name}, {case.title}", f"{type(error).__name__}: {error}", failed=True)
            synchronize(device)  # raises again if the GPU is lost to this process: nothing more can be measured
    spreads = interleave(timers, rounds)
    return [
        {
            **case.labels(),
            "implementation": name,
            **_times(spreads[name]),
            "timer": timer.name,
            "sets": sets,
            "error_eps": round(errors[name], 3),
        }
        for name, timer in timers.items()
    ]


def check_call(case: Case, call: Call, expected: Sequence[Tensor], device: torch.device) -> float:
    """The largest error of one call, in eps. Its outputs most likely reuse memory that held NaN.

    Raises:
        WrongResult: beyond what is allowed.
    """
    # The allocator hands freed memory of the right size out again, so an element that is never written stays NaN.
    poison = [torch.full(x.shape, math.nan, dtype=x.dtype, device=device) for x in case.results]
    del poison
    return check(case, call(), expected)


def _host_timer(queue: int, calls: Sequence[Call], expected: Sequence[Tensor]) -> Timer:
    return HostTimer(calls[0], expected[0].device, queue)


def _device_timer(case: Case, pool: list[Any], calls: Sequence[Call], expected: Sequence[Tensor]) -> Timer:
    """The timer of one implementation.

    Args:
        pool: the memory pool of the case's graphs, the only item. A failed capture leaves its pool open, so the next
            implementation gets a new one.
    """
    if not case.capturable:
        return EventTimer(calls)
    try:
        timer = GraphTimer(calls, pool[0])
    except RuntimeError as error:
        pool[0] = torch.cuda.graph_pool_handle()
        print(f"{case.title}: not captured, timed by events instead: {error}", file=sys.stderr, flush=True)
        synchronize(expected[0].device)
        return EventTimer(calls)
    # The replay is timed, so the replay's results are checked.
    last = timer.outputs[-1]
    for out in (last,) if isinstance(last, Tensor) else last:
        out.fill_(math.nan)
    timer.replay()
    try:
        check(case, last, expected)
    except WrongResult as wrong:
        raise WrongResult(f"in a graph's replay: {wrong}") from None
    timer.outputs = []
    return timer


def _times(spread: Spread) -> dict[str, Any]:
    values = {key: round(value, 4) if key != "samples" else value for key, value in asdict(spread).items()}
    return {"microseconds": values.pop("median"), **values}


def _memory_lacking(case: Case, device: torch.device) -> str:
    """Returns the memory that the case needs beyond what is free, as text, or an empty string."""
    sets = rotation(case.nbytes, l2_bytes(device))
    held = sum(x.nbytes for x in case.operands) + 2 * sum(x.nbytes for x in case.results)
    needed = sets * held + REFERENCE_TEMPORARIES * 8 * max(x.numel for x in case.results)
    free = torch.cuda.mem_get_info(device)[0]
    if needed <= free:
        return ""
    return f"needs {needed / 2**30:.1f} GiB of GPU memory, and {free / 2**30:.1f} GiB are free"


def _summary(rows: Sequence[dict[str, Any]], key: str, form: str) -> str:
    return ", ".join(f"{row['implementation']} {form.format(row[key])}" for row in rows) or "nothing measured"
