"""bench times any call."""

import re

import pytest

from cupyops.testing import bench


def test_bench_times_any_call_on_a_cpu() -> None:
    calls: list[int] = []
    timing = bench(lambda: calls.append(1), device="cpu", samples=3)
    assert (timing.timer, timing.microseconds.samples, timing.device) == ("host", 3, "the CPU")
    assert 0 < timing.microseconds.p10 <= timing.microseconds.median <= timing.microseconds.p90
    assert len(calls) > 3
    assert re.fullmatch(
        r"[\d.]+ µs a call of the host on the CPU \(10 to 90 %: [\d.]+ to [\d.]+, 3 samples\)", str(timing)
    )
    with pytest.raises(TypeError, match="`call` must be a function without arguments"):
        bench(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`samples` must be at least 1, got 0"):
        bench(list, samples=0)
