"""The calls into CuPy and the driver, without a GPU."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from cupyops import LaunchError
from cupyops.compile.cache import Binary
from cupyops.launch import driver

TEXT = """extern "C" __global__ void scale(
    const scalar_t* x, scalar_t* y, acc_t factor, int M, long long N) {}"""


class Launches:
    """CuPy's launchKernel, that refuses the first calls with these errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[tuple[Any, ...]] = []
        self.contexts = 0
        monkeypatch.setattr(driver, "launch_kernel", lambda: self.launch)
        monkeypatch.setattr(driver, "ensure_context", self.ensure_context)

    def launch(self, *args: Any) -> None:
        self.calls.append(args)
        if self.errors:
            raise self.errors.pop(0)

    def ensure_context(self) -> None:
        self.contexts += 1


def test_submit_gives_the_driver_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches(monkeypatch)
    buffer = driver.argument_buffer(8, [0])
    driver.submit(7, (1, 2, 3), (4, 5, 6), 100, 9, buffer)
    assert launches.calls == [(7, 1, 2, 3, 4, 5, 6, 100, 9, buffer.addresses, 0)]


def test_a_cooperative_launch_is_another_call_without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuLaunchKernel would start such a grid in parts, whose blocks wait for ones that never come."""
    from cupy.cuda import driver as theirs

    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(theirs, "launchCooperativeKernel", lambda *args: calls.append(args))
    driver.launch_cooperative_kernel.cache_clear()
    buffer = driver.argument_buffer(8, [0])
    driver.submit(7, (1, 2, 3), (4, 5, 6), 100, 9, buffer, cooperative=True)
    driver.launch_cooperative_kernel.cache_clear()
    assert calls == [(7, 1, 2, 3, 4, 5, 6, 100, 9, buffer.addresses)]


def test_a_thread_without_a_context_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches(monkeypatch, RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context"))
    driver.submit(7, (1, 2, 3), (4, 5, 6), 100, 9, driver.argument_buffer(0, []))
    assert (len(launches.calls), launches.contexts) == (2, 1)
    assert launches.calls[0] == launches.calls[1]


def test_any_other_error_of_the_driver_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches(monkeypatch, RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS"))
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        driver.submit(7, (1, 1, 1), (1, 1, 1), 0, 0, driver.argument_buffer(0, []))
    assert (len(launches.calls), launches.contexts) == (1, 0)


def test_argument_buffers_share_nothing() -> None:
    buffers = [driver.argument_buffer(12, [0, 8]) for _ in range(3)]
    for i, buffer in enumerate(buffers):
        buffer.memory[0:12] = bytes([i]) * 12
    for i, buffer in enumerate(buffers):
        first, second = (ctypes.c_void_p * 2).from_address(buffer.addresses)
        assert second - first == 8
        assert ctypes.string_at(first, 12) == bytes([i]) * 12


def test_a_kernel_is_loaded_from_its_file_where_it_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    class Module:
        def __init__(self, path: str = "") -> None:
            self.origin: object = path

        def load(self, code: bytes) -> None:
            self.origin = code

        def get_function(self, name: str) -> tuple[str, object]:
            return name, self.origin

    cupy = SimpleNamespace(RawModule=Module, cuda=SimpleNamespace(function=SimpleNamespace(Module=Module)))
    monkeypatch.setattr(driver.toolchain, "cupy", lambda: cupy)
    assert driver.load(Binary(b"code", "", {}, 0.0), "k") == ("k", b"code")
    assert driver.load(Binary(b"code", "", {}, 0.0, tmp_path / "k.cubin"), "k") == ("k", str(tmp_path / "k.cubin"))


def test_whole_clusters_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    of_status = {0: 3, 1: 0}

    def clusters_of(status: int) -> Any:
        def count(found: Any, function: Any, config: Any) -> int:
            found._obj.value = of_status[status]
            return status

        return SimpleNamespace(cuOccupancyMaxActiveClusters=count)

    device = SimpleNamespace(attributes={"MultiProcessorCount": 132})
    blocks = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: 2)
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, driver=blocks))
    monkeypatch.setattr(driver.toolchain, "cupy", lambda: cupy)
    assert driver.resident_blocks(7, 128, 0, 1) == 2 * 132
    monkeypatch.setattr(driver, "libcuda", lambda: clusters_of(0))
    assert driver.resident_blocks(7, 128, 0, 4) == 3 * 4
    monkeypatch.setattr(driver, "libcuda", lambda: clusters_of(1))
    with pytest.raises(LaunchError, match=r"no block of 128 threads .* \(in clusters of 4\) fits this GPU"):
        driver.resident_blocks(7, 128, 0, 4)
