"""The list of launches: every one that is made while it is written, by either launch and any thread, and none after."""

import threading

import pytest
import torch

import cupyops
from cupyops.arrays import host
from cupyops.launch import recording as launches
from cupyops.launch.generated import TensorAccess
from tests.gpu.stub_gpu import Driver, Stub, scale
from tests.torch.faulty_ops import Mix


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver(monkeypatch)
    found.library.tensor_access = TensorAccess(frozenset({Stub}), lambda: 0, lambda device: 1000 + device, lambda: 1)
    return found


def test_launches_through_an_open_generated_launch_are_listed(gpu: Driver) -> None:
    kernel = scale()
    args = (Stub(2, 2), Stub(2, 2), 1.0, 2, 2)
    kernel(*args)
    assert kernel.launch != kernel.checked_launch
    with launches.recorded() as outer:
        kernel(*args)
        with launches.recorded() as inner:
            kernel(*args)
        kernel(*args)
    assert [len(outer), len(inner)] == [3, 1]
    assert (inner[0].kernel, inner[0].device, inner[0].grid) == (kernel, 0, (1, 1, 1))
    assert inner[0].types["scalar_t"] == "float32"
    kernel(*args)
    kernel(*args)
    assert len(outer) == 3
    assert kernel.launch != kernel.checked_launch, "the generated launch stays closed"
    assert len(gpu.launches) == 6


def test_one_list_ends_and_another_goes_on(gpu: Driver) -> None:
    with launches.recorded() as outer:
        with launches.recorded():
            pass  # both are empty here, and equal
        scale()(Stub(2, 2), Stub(2, 2), 1.0, 2, 2)
    assert len(outer) == 1
    assert not launches.recording()


def test_launches_of_nothing_and_refused_ones_are_not_listed(gpu: Driver) -> None:
    kernel = scale()
    with launches.recorded() as record:
        kernel(Stub(2, 0), Stub(2, 0), 1.0, 2, 0)
        with pytest.raises(ValueError, match="must hold"):
            kernel(Stub(2, 2), Stub(3, 2), 1.0, 2, 2)
    assert record == []


@pytest.mark.simulator
def test_launches_of_the_simulator_are_listed_of_all_threads() -> None:
    op = Mix().operator()
    x, w = torch.ones(3, 5, requires_grad=True), torch.ones(3, 5)
    with cupyops.simulate(), launches.recorded() as record:
        thread = threading.Thread(target=lambda: op(x, w, 0.5).sum().backward())
        thread.start()
        thread.join()
    assert [(launch.kernel.name, launch.device) for launch in record] == [("mix", host()), ("mix_backward", host())]
