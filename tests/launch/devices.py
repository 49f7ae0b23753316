"""The two places in which a kernel runs: the simulator and a GPU."""

from collections.abc import Iterator

import pytest

import cupyops

GPU = pytest.mark.gpu
DEVICES = [pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=GPU)]


@pytest.fixture(name="device", params=DEVICES)
def device_of(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
        return
    with cupyops.simulate(sanitize=True):
        yield "cpu"
