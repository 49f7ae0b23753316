"""Coordinates threads and processes: settings for a block of code, work that is done once, file locks, and locks that
are safe across a fork."""

import atexit
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from cupyops import trust

__all__ = ["Setting", "alone", "computed_once", "held_across_fork", "once", "own_folder", "run_program"]

T = TypeVar("T")
Lock = TypeVar("Lock", bound=Any)


def held_across_fork(lock: Lock) -> Lock:
    """Returns the lock, after registering it to be held during every fork of the process.

    A lock held by another thread at the fork would stay locked in the child, which does not have that thread. Holding
    the lock during the fork gives the child consistent data and a free lock.
    """
    holders: set[int] = set()  # the threads that fork and hold the lock

    def acquire() -> None:
        lock.acquire()
        holders.add(threading.get_ident())

    def release() -> None:
        # A lock that is registered while a fork waits for another lock is released by this fork, and was not acquired.
        if threading.get_ident() in holders:
            holders.remove(threading.get_ident())
            lock.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)
    return lock


class ComputedOnce(Generic[T]):
    """A property that is computed at its first use and then kept in the object.

    :class:`functools.cached_property` holds a lock of the class while it computes, before Python 3.12. A child that is
    forked meanwhile would wait for the lock for ever.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "ComputedOnce[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.function(instance))


computed_once = ComputedOnce
# Held while a program is started. A fork during a start would give the child the write end of a pipe, on which the
# starting thread of the parent would wait until the child ends.
_starting = held_across_fork(threading.Lock())


def run_program(
    command: Sequence[str], *, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program, and returns its exit status and what it printed. A fork of this process waits for the start.

    Args:
        command: the program and its arguments.
        timeout: seconds after which the program is killed; None for no limit.
        options: options of :class:`subprocess.Popen`, such as ``cwd`` and ``env``.

    Raises:
        OSError: the program cannot be started.
        subprocess.TimeoutExpired: the time is over.
    """
    with _starting:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    with process:
        try:
            printed, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


class Setting(Generic[T]):
    """A setting of the whole process, which ``with`` blocks change while they run.

    Blocks in several threads may end in another order than they began. The end of a block therefore removes the value
    of that block only. The value of the newest running block is in force.

    Attributes:
        now: the value in force. Hot paths read this attribute.
        active: the values of the running blocks, oldest first.
    """

    _lock = held_across_fork(threading.Lock())

    def __init__(self, default: T) -> None:
        self.now = self._default = default
        self.active: tuple[T, ...] = ()
        self._entries: list[list[T]] = []  # each entry is a list of one value; entries are compared by identity

    @contextmanager
    def during(self, value: T) -> Iterator[None]:
        """Adds the value while a block of code runs."""
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
        """Changes the value of the newest running block, or the default if no block is running."""
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
    """Returns ``make()``, called by one thread of this process at a time for each key.

    Threads that call :func:`once` with the same key meanwhile wait, and get the same result or the same exception.
    Results are not cached. A thread may begin just after another thread has finished, so `make` must first look for the
    stored result of an earlier call.
    """
    mine: Future[T] = Future()
    try:
        while (theirs := _running.setdefault(key, mine)) is not mine:
            with suppress(CancelledError):  # Ctrl-C interrupted the thread that ran make(), so this one tries
                return theirs.result()
        mine.set_result(make())
    except Exception as error:
        mine.set_exception(error)
        raise
    finally:
        if _running.get(key) is mine:
            del _running[key]
        mine.cancel()  # no effect on a future that has a result
    return mine.result()


@contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds a file lock on a path while a block of code runs, so that one process at a time runs the block.

    The file exists while the lock is held. The operating system releases the lock of a process that dies. The block
    runs without a lock if the file cannot be created or locked, and on Windows, which has no ``flock``. Several
    processes may then do the same work. A symbolic link in the place of the file is not followed.

    Args:
        path: the file, in a folder that exists.
        wait: whether to wait for another holder. If False, the block runs without the lock while another holds it.

    Yields:
        Whether the lock is held.
    """
    handle = _lock_file(path, wait)
    try:
        yield handle in _locked
    finally:
        if handle in _locked:
            with suppress(OSError):
                path.unlink()
            _locked.discard(handle)
            os.close(handle)


def _lock_file(path: Path, wait: bool) -> int:
    """Opens and locks the file. Returns its descriptor, or -1 if the file cannot be created or locked."""
    try:
        import fcntl

        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, trust.mode(0o600))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                # The previous holder may have deleted the file. A lock on a deleted file excludes no other process.
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
    """Returns a new temporary folder of this process, which no other user can read or write.

    The process removes the folder at exit, and its forked children do not. The folder of a process that was killed is
    removed when another process makes a folder with the same prefix.

    Raises:
        OSError: no temporary folder can be created.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(left)
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(_remove, folder, os.getpid())
    with suppress(ImportError, OSError):
        import fcntl

        # The process holds the lock until it ends. The file gets its name only after it is locked. If another process
        # can lock a file of this name, the process that made the file has ended.
        handle = os.open(f"{folder}/.held", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.replace(f"{folder}/.held", f"{folder}/.lock")
    trust.own.add(Path(folder))
    return Path(folder)


def _remove_if_left(folder: Path) -> None:
    """Removes a folder that :func:`own_folder` made, if it is this user's and its process has ended."""
    with suppress(ImportError, OSError):
        import fcntl

        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_in_child() -> None:
    """Clears in a forked child the work of the parent's other threads.

    The child closes its copies of the parent's lock files: an open copy would keep a lock held after the parent
    releases the lock.
    """
    _running.clear()
    for handle in _locked:
        os.close(handle)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
