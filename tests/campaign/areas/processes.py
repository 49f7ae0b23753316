"""Processes that fork in the midst of launches, or are killed in the midst of a compilation."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import strategies as st

from tests.support import HANG

__all__ = ["fork", "kill"]

ROOT = Path(__file__).parents[3]
BEGIN = """
import os, signal, sys, threading, traceback, warnings
warnings.simplefilter("ignore")
import numpy as np
import cupyops
from cupyops import Kernel, Threads

def text(factor):
    return '''extern "C" __global__ void scale(const float* x /* (n) */, float* y /* (n) */, long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] = %d * x[i];
    }''' % factor

def right(factor, n=300, sanitize=False):
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    with cupyops.simulate(sanitize=sanitize):
        Kernel(text(factor), "scale", Threads("n"))(x, y, n)
    assert (y == factor * x).all(), y
"""
FORKS = """
stop = threading.Event()

def busy(factor):
    while not stop.is_set():
        right(factor)

others = [threading.Thread(target=busy, args=(i + 1,)) for i in range({threads})]
for thread in others:
    thread.start()
children = []
for i in range({children}):
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        try:
            right(1 + (i + {shift}) % 7, sanitize={sanitize})
            if {again}:
                grandchild = os.fork()
                if grandchild == 0:
                    right(3)
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
found = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
for thread in others:
    thread.join()
right(2)
assert not any(found), found
"""


def _environment(folder: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "CUPYOPS_CACHE_DIR": folder}


def fork(data: st.DataObject, backend: str) -> None:
    """Children that are forked while threads launch kernels get correct results, and so does the parent."""
    values = {
        "threads": data.draw(st.integers(0, 3)),
        "children": data.draw(st.integers(1, 3)),
        "shift": data.draw(st.integers(0, 6)),
        "sanitize": data.draw(st.booleans()),
        "again": data.draw(st.booleans()),
    }
    with tempfile.TemporaryDirectory(prefix="cupyops-campaign-") as folder:
        script = BEGIN + FORKS.format(**values)
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=_environment(folder), capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr[-3000:]


def kill(data: st.DataObject, backend: str) -> None:
    """A process that is killed at any moment leaves a cache in which the next process finds only correct kernels."""
    with tempfile.TemporaryDirectory(prefix="cupyops-campaign-") as folder:
        environment = _environment(folder)
        for _ in range(data.draw(st.integers(1, 2))):
            script = BEGIN + "print('begun', flush=True)\nfor i in range(1, 4): right(i)\n"
            process = subprocess.Popen(
                [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, start_new_session=True
            )
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(data.draw(st.floats(0, 2.5)))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        script = BEGIN + "for i in range(1, 4): right(i)\n"
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=HANG
        )
        assert done.returncode == 0, done.stderr[-3000:]
