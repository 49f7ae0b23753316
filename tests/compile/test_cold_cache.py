"""Many threads and processes on a cold cache: one compiler for each thing that is compiled."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cupyops import CompileError, sharing
from cupyops.compile import compiler
from cupyops.compile.cache import Binary, DiskCache
from cupyops.sharing import alone, once
from cupyops.simulator import host
from tests.process.test_sharing import in_threads
from tests.support import HANG

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}

# Once in a process ----------------------------------------------------------------------------------------------------


class Asked(dict[Any, Any]):
    """The table of running compilations, which signals when this many threads have asked."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left, self.all, self.lock = count, threading.Event(), threading.Lock()

    def setdefault(self, key: Any, value: Any = None) -> Any:
        found = super().setdefault(key, value)
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.all.set()
        return found


def test_who_asks_meanwhile_gets_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(8)
    monkeypatch.setattr(sharing, "_running", asked)
    made, got = [], []

    def make() -> object:
        asked.all.wait()
        made.append(object())
        return made[-1]

    in_threads(8, lambda _: got.append(once("key", make)))
    assert len(made) == 1
    assert got == made * 8
    assert not asked
    assert once("key", make) is not got[0], "nothing is kept"


def test_who_asks_meanwhile_gets_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(8)
    monkeypatch.setattr(sharing, "_running", asked)
    raised = []

    def make() -> object:
        asked.all.wait()
        raise CompileError(f"number {len(raised)}")

    def ask(_: int) -> None:
        with pytest.raises(CompileError) as caught:
            once("key", make)
        raised.append(str(caught.value))

    in_threads(8, ask)
    assert raised == ["number 0"] * 8
    assert once("key", lambda: 1) == 1


def test_ctrl_c_in_one_thread_leaves_the_work_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(8)
    monkeypatch.setattr(sharing, "_running", asked)
    outcomes: list[object] = []

    def make() -> object:
        asked.all.wait()
        if not outcomes:
            outcomes.append("begun")
            raise KeyboardInterrupt
        return "made"

    def ask(_: int) -> None:
        try:
            outcomes.append(once("key", make))
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    in_threads(8, ask)
    assert Counter(outcomes) == {"begun": 1, "interrupted": 1, "made": 7}


def test_different_things_are_made_at_once() -> None:
    together = threading.Barrier(2, timeout=HANG)
    in_threads(2, lambda n: once(n, together.wait))


def test_threads_compile_a_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several kernels with the same text share only the cache."""
    looked, all_looked, compiled = [], threading.Event(), []
    get = DiskCache.get

    def looking(disk: DiskCache, key: str) -> Binary | None:
        found = get(disk, key)
        looked.append(key)
        if len(looked) >= 8:
            all_looked.set()
        return found

    def compile_text(text: str, *rest: object) -> Binary:
        all_looked.wait()
        compiled.append(text)
        return Binary(text.encode(), "", {}, 1.0)

    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(DiskCache, "get", looking)
    monkeypatch.setattr(compiler, "compile_text", compile_text)
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (12, 9))
    found = []
    in_threads(8, lambda _: found.append(compiler.binary_for("text", "k", "sm_90").code))
    assert found == [b"text"] * 8
    assert compiled == ["text"]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".cubin", ".json"]


# One process at a time ------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from cupyops.sharing import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_process_waits_for_another_and_goes_on_when_it_dies(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "new" / "lock"
    path.parent.mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with path.open("r+") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entered = threading.Event()

        def enter() -> None:
            with alone(path):
                entered.set()

        waiting = threading.Thread(target=enter)
        waiting.start()
        assert not entered.is_set()
        other.send_signal(signal.SIGKILL)
        waiting.join()
        assert entered.is_set()
    finally:
        other.kill()
        other.communicate()
    assert not list(path.parent.iterdir()), "the file of the lock stays behind"


def test_where_nothing_can_be_locked_the_work_is_done_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = []
    with alone(tmp_path / "file" / "lock"):
        ran.append(True)
    assert ran


# The simulator's compiler ---------------------------------------------------------------------------------------------

SIMULATE = """
import sys, threading, time
from pathlib import Path
import numpy as np
from cupyops import Kernel, Threads, simulate
text = '''extern "C" __global__ void twice(const float* x /* (n) */, float* y /* (n) */, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[i];
}'''
shared, count, right = Kernel(text, "twice", Threads("n")), int(sys.argv[3]), []
begin = threading.Barrier(count)
def work(number):
    kernel = shared if number % 2 else Kernel(text, "twice", Threads("n"))
    x, y = np.full(9, number, np.float32), np.zeros(9, np.float32)
    begin.wait()
    with simulate():
        kernel(x, y, 9)
    right.append((y == 2 * number).all())
Path(sys.argv[1], f"ready.{sys.argv[2]}").touch()
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.001)
threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(right) == count and all(right), right
"""


@pytest.mark.thorough
@pytest.mark.simulator
def test_one_compiler_for_each_thing(tmp_path: Path) -> None:
    processes, threads = 3, 4
    log, wrapper = tmp_path / "log", tmp_path / "compiler"
    real = shlex.join(host.compiler().command)
    wrapper.write_text(
        "#!/bin/sh\n"
        'what=; for word; do case "$before" in -o) what=$word;; esac; before=$word; done\n'
        f'echo "${{what:-$1}}" >> {shlex.quote(str(log))}\n'
        f'exec {real} "$@" -O0\n'  # the runtime takes seconds to optimize
    )
    wrapper.chmod(0o755)
    environment = {**ENVIRONMENT, "CUPYOPS_CXX": str(wrapper), "CUPYOPS_CACHE_DIR": str(tmp_path / "cache")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SIMULATE, str(tmp_path), str(number), str(threads)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        while len(list(tmp_path.glob("ready.*"))) < processes:
            assert all(p.poll() is None for p in started), [p.communicate() for p in started if p.poll() is not None]
        (tmp_path / "go").touch()
        said = [p.communicate()[1] for p in started]
    finally:
        for p in started:
            p.kill()
    assert [p.returncode for p in started] == [0] * processes, said
    compiled = Counter(log.read_text().split())
    assert compiled.pop("--version") == processes
    assert compiled.keys() >= {"kernel.o", "kernel.so", "runtime.so", "scheduler.o"}
    assert set(compiled.values()) == {1}, compiled
    assert not list((tmp_path / "cache").glob("simulator/.*")), "something is left behind"
