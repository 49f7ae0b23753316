"""What the threads of a process share, and processes a folder: settings for a block of code, work that is done once,
locks that a fork leaves whole."""

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["Setting", "alone", "held_across_fork", "once", "own_folder"]

T = TypeVar("T")
Lock = TypeVar("Lock", bound=Any)


def held_across_fork(lock: Lock) -> Lock:
    """The lock, taken for each fork of the process: the child finds nothing half done, and a lock that is free.

    A lock that another thread held would stay held in the child, where that thread is not.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class Setting(Generic[T]):
    """A setting of the whole process, which blocks of code change while they run.

    Blocks of several threads need not end in the order in which they began, so none puts back what it has found: each takes
    away its own value, and the newest of those that are left holds.

    Attributes:
        now: what holds, to be read on hot paths.
        active: the values of the blocks that are running, in the order in which they began.
    """

    _lock = held_across_fork(threading.Lock())

    def __init__(self, default: T) -> None:
        self.now = self._default = default
        self.active: tuple[T, ...] = ()
        self._entries: list[list[T]] = []  # of one value, told apart by identity

    @contextmanager
    def during(self, value: T) -> Iterator[None]:
        """A block of code for which the value is added."""
        entry = [value]
        try:
            with self._lock:
                self._entries.append(entry)
                self._look()
            yield
        finally:
            with self._lock:
                self._entries = [e for e in self._entries if e is not entry]
                self._look()

    def set(self, value: T) -> None:
        """Changes what holds: for the rest of the newest block, or for good where there is none."""
        with self._lock:
            if self._entries:
                self._entries[-1][0] = value
            else:
                self._default = value
            self._look()

    def _look(self) -> None:
        self.active = tuple(value for (value,) in self._entries)
        self.now = self.active[-1] if self.active else self._default


_running: dict[Hashable, Future[Any]] = {}
_locked: set[int] = set()


def once(key: Hashable, make: Callable[[], T]) -> T:
    """What `make` returns, called by one thread of this process at a time for a key: who asks meanwhile waits, and gets
    the same result or the same error.

    Nothing is kept. A thread may ask just after another is done, so `make` first looks for what that one has left.
    """
    mine: Future[T] = Future()
    try:
        while (theirs := _running.setdefault(key, mine)) is not mine:
            with suppress(CancelledError):  # Ctrl-C has met the thread that was at it, and this one is next
                return theirs.result()
        mine.set_result(make())
    except Exception as error:
        mine.set_exception(error)
        raise
    finally:
        if _running.get(key) is mine:
            del _running[key]
        mine.cancel()  # does nothing to one that has ended
    return mine.result()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """A block of code that one process at a time runs for a path, which is a file for as long.

    The system gives the lock of a process that dies to the next. Where the file cannot be made or locked, and where the
    system has no such locks, as Windows, the block runs all the same: no more is lost than the work that is done twice.
    """
    handle = _lock_file(path)
    try:
        yield
    finally:
        if handle in _locked:
            with suppress(OSError):
                path.unlink()
            _locked.discard(handle)
            os.close(handle)


def _lock_file(path: Path) -> int:
    """The file, open and locked; -1 where that cannot be."""
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # Who had it before has deleted it, perhaps: to hold what has no name keeps nobody away.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), path.stat()):
                        _locked.add(handle)
                        return handle
            finally:
                if handle not in _locked:
                    os.close(handle)
    except (ImportError, OSError):
        return -1


def own_folder(prefix: str) -> Path:
    """A folder for what this process cannot keep elsewhere, removed when it ends, and not by one that it has forked off.

    Raises:
        OSError: there is nowhere to make one.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_in_child() -> None:
    """What other threads were at goes on in the parent alone. Their locks are the parent's, too, and would outlive it here."""
    _running.clear()
    for handle in _locked:
        os.close(handle)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
