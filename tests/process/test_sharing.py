"""What threads share: settings whose blocks end in any order."""

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
    """As blocks of two threads may: the first to begin is the first to end."""
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
    """A list that ends takes away itself, and not what has been added meanwhile."""
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
