"""native() in several threads: blocks that overlap, calls at the end of a block, and when kernels are removed."""

import _thread
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cupyops
from cupyops.launch.recording import recorded
from cupyops.torch import native
from cupyops.torch.models import aten, overrides
from tests.support import HANG

from .overriding import in_a_process, overridden, tables

pytestmark = [pytest.mark.simulator, pytest.mark.usefixtures("nothing_is_left")]


def test_threads_enter_and_leave_within_an_outer_block() -> None:
    wanted = F.gelu(torch.ones(5))
    faults: list[BaseException] = []
    together = threading.Barrier(4)

    def work() -> None:
        try:
            together.wait(HANG)
            for _ in range(10):
                with native(["cpu"]):
                    torch.testing.assert_close(F.gelu(torch.ones(5)), wanted)
        except BaseException as error:
            faults.append(error)

    with native(["cpu"]), cupyops.simulate(), recorded() as launches:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert overrides._entries["cpu"] == 1
    assert not faults
    assert len(launches) == 40


def test_a_call_that_is_under_way_at_the_end_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, ended = threading.Event(), threading.Event()
    body, found = aten.gelu_body, []

    def slow(*args: Any) -> Any:
        entered.set()
        assert ended.wait(HANG)
        return body(*args)

    monkeypatch.setattr(aten, "gelu_body", slow)
    thread = threading.Thread(target=lambda: found.append(F.gelu(torch.ones(3))))
    with cupyops.simulate():
        with native(["cpu"]):
            thread.start()
            assert entered.wait(HANG)
        ended.set()
        thread.join()
    torch.testing.assert_close(found[0], F.gelu(torch.ones(3)))


TOGGLED = """
import threading
import torch
import torch.nn.functional as F
from cupyops.torch import native

x, wanted, faults, done = torch.ones(3), F.gelu(torch.ones(3)), [], threading.Event()

def work():
    try:
        while not done.is_set():
            assert torch.equal(F.gelu(x), wanted)
    except BaseException as error:
        faults.append(error)

threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(1500):
    with native(["cpu"]):
        pass
done.set()
for thread in threads:
    thread.join()
assert not faults, faults
"""


def test_threads_that_compute_survive_the_end_of_a_block() -> None:
    in_a_process(TOGGLED)  # a kernel whose memory is gone would end the process


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(overrides, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(overrides, "_QUIET", 1.0)
    return now


def call_in_a_thread(start: Callable[[Callable[[], None]], Any]) -> None:
    """Calls gelu in a thread that `start` starts, and waits for the end of the call."""
    done = threading.Event()

    def call() -> None:
        F.gelu(torch.ones(3))
        done.set()

    start(call)
    assert done.wait(HANG)


def by_python(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_kernels_stay_until_no_other_thread_calls_them(clock: list[float]) -> None:
    """PyTorch's dispatcher removes a kernel without a lock, so a call in another thread could take half of it."""
    before, done = tables(), threading.Event()
    helper = threading.Thread(target=done.wait)
    helper.start()
    try:
        with native(["cpu"]):
            pass
        assert tables() != before
        assert not overridden(), "what is not removed yet calls PyTorch's kernels"
        with native(["cpu"]):
            assert overridden()
        clock[0] = 100.9
        call_in_a_thread(by_python)
        clock[0] = 101.5
        assert not overridden()
        clock[0] = 102.4
        assert not overridden()
        assert tables() != before, "another thread called them less than a second before the calls of this one"
        clock[0] = 102.5
        call_in_a_thread(lambda call: _thread.start_new_thread(call, ()))
        assert tables() != before, "a thread that Python does not know, as autograd's, removes nothing"
        assert not overridden()
        assert tables() == before
    finally:
        done.set()
        helper.join()


def test_kernels_stay_while_another_thread_computes_gradients(clock: list[float]) -> None:
    """Autograd's own threads call PyTorch's operators for it."""
    before, entered, ended = tables(), threading.Event(), threading.Event()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            entered.set()
            assert ended.wait(HANG)
            return grad

    y: Any = Slow.apply(torch.ones(3, requires_grad=True))  # type: ignore[no-untyped-call]
    thread = threading.Thread(target=y.sum().backward)
    thread.start()
    try:
        assert entered.wait(HANG)
        with native(["cpu"]):
            pass
        clock[0] += 2
        assert not overridden()
        assert tables() != before
    finally:
        ended.set()
        thread.join()
    assert not overridden()
    assert tables() == before


def test_a_thread_that_is_alone_removes_kernels_at_once(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    before = tables()
    with native(["cpu"]):
        pass
    assert tables() == before


def test_removed_kernels_are_let_go_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_KEPT", -1.0)
    for _ in range(3):
        with native(["cpu"]):
            pass
    assert len(overrides._removed) == 1
