"""The two places in which a kernel runs: the simulator and a GPU."""

from collections.abc import Iterator

import pytest

import cupyops

GPU = pytest.mark.gpu
LANES = [pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=GPU)]


@pytest.fixture(name="lane", params=LANES)
def lane_of(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
        return
    with cupyops.simulate(sanitize=True):
        yield "cpu"
