"""The checked and the generated launch together: the same launches, the same refusals, and one opening."""

import ctypes
import random
import threading
import time
from typing import Any

import pytest

from cupyops import Elementwise, GridStride, Kernel, Rows, Threads
from cupyops.launch import generated
from cupyops.launch.generated import TensorAccess
from cupyops.launch.geometry import Geometry
from tests.gpu.stub_gpu import FLOATS, Driver, Stub, scale


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def checked(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Records the calls of the checked launch that a generated launch makes."""
    gpu.library.tensor_access = TensorAccess(frozenset({Stub}), lambda: 0, lambda device: 1000 + device, lambda: 1)
    checked: list[tuple[Any, ...]] = []
    launch = Kernel.checked_launch

    def watched(self: Kernel, *args: Any, **kwargs: Any) -> None:
        checked.append(args)
        launch(self, *args, **kwargs)

    monkeypatch.setattr(Kernel, "checked_launch", watched)
    return checked


@pytest.mark.parametrize(
    "geometry",
    [GridStride("N"), Rows("M"), Threads("N", "M", block=(32, 8, 1)), Threads("M", "M"), Elementwise("N", vectors=2)],
)
@pytest.mark.parametrize("vouched", [False, True])
def test_both_launches_launch_the_same(
    gpu: Driver, checked: list[tuple[Any, ...]], geometry: Geometry, vouched: bool
) -> None:
    found = scale(geometry, shared=256)
    types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_int32, ctypes.c_int64)
    found(Stub(2, 2), Stub(2, 2), 1.0, 2, 2)
    assert len(checked) == 1
    generator = random.Random(0)
    for _ in range(20):
        rows, columns = generator.randint(1, 1000), generator.choice([1, 5, 10**5, 2**33])
        args = (Stub(rows, columns), Stub(rows, columns), generator.random(), rows, columns)
        (found.launch_vouched if vouched else found.launch)(*args)
        fast = gpu.launches[-1][:5], gpu.read(*types)
        assert len(checked) == 1
        found.checked_launch(*args)
        assert (gpu.launches[-1][:5], gpu.read(*types)) == fast
        checked.pop()


def test_an_open_generated_launch_refuses_in_the_same_words(gpu: Driver, checked: list[tuple[Any, ...]]) -> None:
    found = scale()
    x, y = Stub(3, 4), Stub(12)
    for _ in range(2):
        for args, error, words in [
            ((x, y, 2.0, 3), TypeError, "scale: missing `N`; it takes x, y, factor, M, N"),
            ((x, y, 2.0, 3, 4, 5), TypeError, "scale takes 5 arguments"),
            ((x, y, "2", 3, 4), TypeError, "scale: `factor` must be a number"),
            ((x, y, 2.0, 3, 5), ValueError, "scale: `x` must hold M x N = 15 elements, got 12"),
            ((x, Stub(12, dtype="float64"), 2.0, 3, 4), TypeError, "scale: `y` must have dtype float32"),
            ((x, None, 2.0, 3, 4), TypeError, "scale: `y` must be a CuPy array or a PyTorch tensor, got NoneType"),
        ]:
            with pytest.raises(error, match=words):
                found(*args)
        found(x, y, 2.0, 3, 4)  # the first opens the generated launch
    assert len(gpu.launches) == 2
    assert sum(args == (x, y, 2.0, 3, 4) for args in checked) == 1


def test_each_choice_of_types_opens_the_generated_launch_once(gpu: Driver, checked: list[tuple[Any, ...]]) -> None:
    found = scale()
    for _ in range(3):
        for dtype in FLOATS:
            found(Stub(3, 4, dtype=dtype), Stub(12, dtype=dtype), 2.0, 3, 4)
    assert len(checked) == len(FLOATS)
    found.close_generated_launch()
    found(Stub(3, 4), Stub(12), 2.0, 3, 4)
    assert len(checked) == len(FLOATS) + 1
    assert len(gpu.launches) == 3 * len(FLOATS) + 1


def test_calls_by_name(gpu: Driver, checked: list[tuple[Any, ...]]) -> None:
    found = scale()
    for _ in range(2):
        found(N=4, M=3, factor=2.0, y=Stub(12), x=Stub(3, 4))
        with pytest.raises(TypeError, match="scale has no parameter `m`"):
            found(Stub(3, 4), Stub(12), 2.0, m=3, N=4)
    assert len(gpu.launches) == 2


def test_threads_that_call_first_open_one_generated_launch(
    gpu: Driver, checked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = generated.write_launch

    def slow(*args: Any, **kwargs: Any) -> Any:
        written.append(args)
        time.sleep(0.02)
        return write(*args, **kwargs)

    monkeypatch.setattr(generated, "write_launch", slow)
    found, failures = scale(), []

    def work(dtype: str) -> None:
        try:
            found(Stub(3, 4, dtype=dtype), Stub(12, dtype=dtype), 2.0, 3, 4)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(FLOATS[i % 3],)) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(written) == 1
    checked.clear()
    for dtype in FLOATS:
        work(dtype)
    assert not checked  # all three are in the dictionary that the function looks in
