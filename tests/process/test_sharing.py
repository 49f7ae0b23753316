"""Settings that threads share, whose blocks end in any order."""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

import cupyops
from cupyops import simulator
from cupyops.arrays import host
from cupyops.launch import debug
from cupyops.launch import recording as launches
from cupyops.launch.kernel import Kernel
from cupyops.sharing import Setting
from cupyops.simulator import simulated
from tests.support import HANG

# Settings of the process ----------------------------------------------------------------------------------------------

BLOCKS = [
    pytest.param(cupyops.simulate, simulator.enabled, marks=pytest.mark.simulator),
    pytest.param(cupyops.debug_mode, debug.enabled),
    pytest.param(launches.recorded, launches.recording),
]


@pytest.mark.parametrize(("block", "holds"), BLOCKS)
def test_a_block_that_ends_before_an_older_one_leaves_nothing_on(
    block: Callable[[], AbstractContextManager[object]], holds: Callable[[], bool]
) -> None:
    """Blocks of two threads may overlap in this order."""
    before = holds()
    first, second = block(), block()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert holds(), "the second block is still running"
    second.__exit__(None, None, None)
    assert holds() == before


@pytest.mark.simulator
def test_what_holds_is_what_the_newest_block_says() -> None:
    with cupyops.simulate(sanitize=True):
        outer = cupyops.simulate(optimize=False)
        outer.__enter__()
        with cupyops.simulate(False):
            outer.__exit__(None, None, None)
            assert not simulator.enabled()
        assert simulator.enabled()
        assert simulator._setting.now.sanitize


def test_blocks_of_many_threads_leave_the_default() -> None:
    setting = Setting("default")

    def work(name: str) -> None:
        for _ in range(200):
            with setting.during(name):
                assert name in setting.active

    in_threads(8, lambda n: work(f"thread {n}"))
    assert setting.now == "default"
    assert setting.active == ()


def test_no_list_of_launches_is_lost_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that ends removes only itself, not lists that were added meanwhile."""
    note = launches.Launch(Kernel.__new__(Kernel), {}, host(), (1, 1, 1))

    def work(_: int) -> None:
        for _ in range(300):
            with launches.recorded() as record:
                launches.note(note)
            assert record

    monkeypatch.setattr("cupyops.launch.hooks.KERNELS", [])
    in_threads(8, work)
    assert not launches.recording()


def test_setting_debug_within_a_block_ends_with_it() -> None:
    before = debug.enabled()
    with cupyops.debug_mode():
        cupyops.set_debug(False)
        assert not debug.enabled()
    assert debug.enabled() == before


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Runs it in threads that begin together; raises the first that any of them has raised."""
    begin, raised = threading.Barrier(count), []

    def run(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    if raised:
        raise raised[0]


# Work that is done once -----------------------------------------------------------------------------------------------


def test_an_edit_during_a_compilation_for_the_simulator_is_compiled_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that calls after the edit must not wait for the compilation of the text before it, and run that text."""

    class Edited:
        text = "before"

    kernel, begun, go_on = Edited(), threading.Event(), threading.Event()

    def compile_slowly(kernel: Edited, *_: object, **__: object) -> str:
        text = kernel.text
        if text == "before":
            begun.set()
            assert go_on.wait(HANG)
        return text

    def call(found: list[object]) -> None:
        found.append(simulated.prepare(kernel, {}, 1, checked=False, optimize=True))  # type: ignore[arg-type]

    monkeypatch.setattr(simulated, "Simulated", compile_slowly)
    results: tuple[list[object], list[object]] = ([], [])
    callers = [threading.Thread(target=call, args=(found,), daemon=True) for found in results]
    try:
        callers[0].start()
        assert begun.wait(HANG)
        vars(kernel).update(text="after", _simulated={})  # as an edit of the file does
        callers[1].start()
        callers[1].join(10)  # for ever, if this call waits for the other's compilation
    finally:
        go_on.set()
    for caller in callers:
        caller.join(HANG)
    assert results == (["before"], ["after"])
