"""A fork while other threads work: the child simulates, compiles and changes settings without those threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cupyops.simulator import build
from tests.support import give_runtime

ROOT = Path(__file__).parents[2]

# From 3.12 on, Python warns of a fork in a process with threads, which this file tests. A child that hangs is ended by
# its alarm.
BEGIN = """
import os, signal, sys, threading, traceback, warnings
warnings.simplefilter("ignore")
import numpy as np
import cupyops
from cupyops import Kernel, Threads, sharing, simulator
from cupyops.launch import debug
from cupyops.launch import recording as launches

TEXT = '''extern "C" __global__ void twice(const float* x /* (n) */, float* y /* (n) */, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[i];
}'''

def right(kernel, n=300):
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    kernel(x, y, n)
    assert (y == 2 * x).all(), y

def child(work):
    process = os.fork()
    if process == 0:
        signal.alarm(300)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 0, f"a child ended with {status}"

def child_amid(begun, of_thread, of_child):
    # Forks when a thread has come to a place that sets `begun` and then takes its time.
    thread = threading.Thread(target=of_thread)
    thread.start()
    assert begun.wait(60)
    try:
        child(of_child)
    finally:
        thread.join()
"""

BUSY = """
kernel, other = Kernel(TEXT, "twice", Threads("n")), Kernel("// of the child\\n" + TEXT, "twice", Threads("n"))
stop = threading.Event()

def work():
    while not stop.is_set():
        right(kernel, 200_000)

with cupyops.simulate(sanitize=True):
    right(kernel)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()

    def simulate():
        right(kernel)
        with cupyops.simulate(optimize=False):  # compiled by the child
            right(other)

    try:
        for _ in range(5):
            child(simulate)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    right(kernel)
    process = os.fork()  # and a child may have children
    if process == 0:
        child(lambda: right(kernel))
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""

BUILDING = """
begun, go = threading.Event(), threading.Event()

def make():
    begun.set()
    go.wait()
    return "made by the parent"

def made():
    with sharing.alone(path):
        return make()

path = sharing.Path(sys.argv[1], "lock")
got = []
thread = threading.Thread(target=lambda: got.append(sharing.once("key", made)))
thread.start()
begun.wait()

def build():
    assert sharing.once("key", lambda: "made by the child") == "made by the child"
    assert not os.path.exists("/proc/self/fd") or str(path) not in map(os.path.realpath, (f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")))

try:
    child(build)
finally:
    go.set()
    thread.join()
assert got == ["made by the parent"]
"""

# concurrent.futures registers a lock for forks when it is imported. A fork that falls into its import reports an error.
IMPORTING = """
import concurrent.futures.thread

begun = threading.Event()

class Slow:
    # Finds nothing, and takes its time: the fork falls into the import.
    def find_spec(self, name, path=None, target=None):
        if name == SLOW:
            begun.set()
            threading.Event().wait(1)

def first():
    with cupyops.simulate():
        right(Kernel(TEXT, "twice", Threads("n")))

sys.meta_path.insert(0, Slow())
child_amid(begun, first, first)
"""

STARTING = """
import subprocess

begun = threading.Event()
module, name = (subprocess, "_fork_exec") if hasattr(subprocess, "_fork_exec") else (subprocess._posixsubprocess, "fork_exec")
start = getattr(module, name)

def slow(*arguments):
    # The compiler is about to start, and the pipe is open on which its start is told: the fork falls in between.
    if not begun.is_set():
        begun.set()
        threading.Event().wait(1)
    return start(*arguments)

kernel = Kernel(TEXT, "twice", Threads("n"))

def first():
    with cupyops.simulate():
        right(kernel)

with cupyops.simulate():  # finds the compiler, and compiles nothing
    setattr(module, name, slow)
child_amid(begun, first, first)
"""

DECLARING = """
from cupyops.launch.signature import Signature

begun = threading.Event()
check = Signature.check

def slow(*arguments):
    if not begun.is_set():
        begun.set()
        threading.Event().wait(1)
    return check(*arguments)

Signature.check = slow
child_amid(begun, lambda: Kernel(TEXT, "twice", Threads("n")), lambda: Kernel("// of the child\\n" + TEXT, "twice", Threads("n")))
"""

SETTINGS = """
stop = threading.Event()

def work():
    while not stop.is_set():
        with cupyops.debug_mode(), launches.recorded():
            pass

def settings():
    with cupyops.debug_mode(), launches.recorded():
        assert debug.enabled() and launches.recording()

threads = [threading.Thread(target=work) for _ in range(2)]
sys.setswitchinterval(1e-6)
for thread in threads:
    thread.start()
try:
    for _ in range(50):
        child(settings)
finally:
    stop.set()
    for thread in threads:
        thread.join()
"""

OWN_FOLDER = """
from pathlib import Path

from cupyops.simulator import build

build.runtime_path = lambda: Path(os.environ["RUNTIME"])  # which takes seconds to compile
with cupyops.simulate():
    right(Kernel(TEXT, "twice", Threads("n")))
    folder = simulator.build._own_folder(os.getpid())
    process = os.fork()
    if process == 0:
        right(Kernel(TEXT, "twice", Threads("n")))
        assert simulator.build._root() != folder
        sys.exit()  # which runs what was registered for the exit
    assert os.waitpid(process, 0)[1] == 0
    assert folder.is_dir(), "a child has removed its parent's folder"
"""


def run(code: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.simulator
def test_a_child_simulates_while_its_parent_does(tmp_path: Path) -> None:
    run(BUSY, tmp_path)


def test_a_child_does_not_wait_for_what_a_thread_of_its_parent_makes(tmp_path: Path) -> None:
    run(BUILDING, tmp_path)


def test_a_child_sets_what_threads_of_its_parent_were_setting(tmp_path: Path) -> None:
    run(SETTINGS, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.simulator
@pytest.mark.parametrize("module", ["host", "simulated", "numpy_arrays"])
def test_a_child_does_not_wait_for_an_import_by_a_thread_of_its_parent(tmp_path: Path, module: str) -> None:
    run(f"SLOW = 'cupyops.simulator.{module}'\n{IMPORTING}", tmp_path)


@pytest.mark.simulator
def test_a_child_does_not_wait_for_a_thread_of_its_parent_that_waits_for_the_child(tmp_path: Path) -> None:
    give_runtime(tmp_path / "cache" / "simulator")
    run(STARTING, tmp_path, CUPYOPS_CACHE_DIR=str(tmp_path / "cache"))


def test_a_child_declares_a_kernel_while_a_thread_of_its_parent_does(tmp_path: Path) -> None:
    run(DECLARING, tmp_path)


@pytest.mark.simulator
def test_a_child_leaves_its_parent_the_folder_that_is_not_the_cache(tmp_path: Path) -> None:
    run(OWN_FOLDER, tmp_path, CUPYOPS_CACHE_DIR=os.devnull, RUNTIME=str(build.runtime_path()))
