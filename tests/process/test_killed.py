"""Processes that are killed leave temporary files; the next process removes them, and none of a process that lives."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cupyops import sharing
from cupyops.compile import upkeep
from cupyops.compile.cache import Binary, DiskCache
from cupyops.simulator import build
from cupyops.tuning import records

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such locks")

ROOT = Path(__file__).parents[2]
KEY, OTHER = "5e" * 20, "0a" * 20
BINARY = Binary(b"code", "", {"k": (32, 0)}, 1.0)

BEGIN = """
import os, sys, time
from pathlib import Path
def stop(*given):
    print("begun", flush=True)
    time.sleep(600)
"""
COMPILING = """
from cupyops.compile.cache import Binary, DiskCache
os.replace = stop  # the temporary file is written, and has not got its name
DiskCache(Path(os.environ["CUPYOPS_CACHE_DIR"])).get_or_make("5e" * 20, lambda: Binary(b"code", "", {}, 1.0))
"""
SIMULATING = """
from cupyops.simulator import build
def make(folder, final):
    (folder / "half").mkdir()
    (folder / "half" / "made").write_text("x")
    stop()
build._cached("5e" * 16, "kernel.so", make, build._root())
"""
TUNING = """
from cupyops.tuning import records
os.replace = stop
records.put("5e" * 20, records.Record("k", "GPU", "n", "a", {"a": 1.0}))
"""
EVICTING = """
from cupyops.compile import upkeep
import shutil
folder = Path(os.environ["CUPYOPS_CACHE_DIR"]) / "simulator"
(folder / ("5e" * 16)).mkdir(parents=True)
(folder / ("5e" * 16) / "kernel.so").write_text("x")
(folder / ("5e" * 16) / "sha256").write_text("x")
remove = shutil.rmtree
shutil.rmtree = lambda path, **more: stop() if Path(path).exists() else None
upkeep.remove(folder, upkeep.Stored(["5e" * 16]))
"""
OWN_FOLDER = """
from cupyops.sharing import own_folder
(own_folder("cupyops-test-") / "file").write_text("x")
stop()
"""


@contextmanager
def halted(code: str) -> Iterator[None]:
    """A process that stops in the middle; at the end of the block it is killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(records, "_own", {})
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def library(folder: Path, final: Path) -> None:
    (folder / "kernel.so").write_bytes(b"code")


STARTS = {
    COMPILING: ("", lambda f: DiskCache(f).get_or_make(OTHER, lambda: BINARY), [f"{OTHER}.cubin", f"{OTHER}.json"]),
    SIMULATING: ("simulator", lambda f: build._cached("0a" * 16, "kernel.so", library, build._root()), ["0a" * 16]),
    EVICTING: ("simulator", lambda f: build._cached("0a" * 16, "kernel.so", library, build._root()), ["0a" * 16]),
    TUNING: (
        "tuning",
        lambda f: records.put(OTHER, records.Record("k", "GPU", "n", "a", {"a": 1.0})),
        [f"{OTHER}.json"],
    ),
}


@pytest.mark.parametrize("code", STARTS, ids=["compiling", "simulating", "evicting", "tuning"])
def test_the_next_start_removes_what_a_killed_process_has_left(code: str, folder: Path) -> None:
    below, start, wanted = STARTS[code]
    with halted(code):
        left = names(folder / below)
        assert [name for name in left if name.startswith(".")], "the process was killed too late"
        if code != EVICTING:  # an evicting process holds no lock on files that it has moved aside
            assert upkeep.sweep(folder / below) == 0
            assert names(folder / below) == left, "a file of a process that lives"
    assert names(folder / below) == left
    start(folder)
    assert names(folder / below) == wanted


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".lock").touch()
    (tmp_path / "cupyops-test-link").symlink_to(tmp_path / "kept")
    (tmp_path / "cupyops-test-without-a-lock").mkdir()
    always = names(tmp_path)
    with halted(OWN_FOLDER):
        (dead,) = set(names(tmp_path)) - set(always)
        own = sharing.own_folder("cupyops-test-")
        assert set(names(tmp_path)) == {*always, dead, own.name}
    again = sharing.own_folder("cupyops-test-")
    assert set(names(tmp_path)) == {*always, own.name, again.name}
    assert names(tmp_path / "kept") == [".lock"]


def test_a_program_whose_time_is_over_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    program = f"import time; time.sleep(4); open({str(mark)!r}, 'w')"
    with pytest.raises(subprocess.TimeoutExpired):
        sharing.run_program([sys.executable, "-S", "-c", program], timeout=0.1)
    assert not mark.exists()
