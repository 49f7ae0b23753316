"""What the threads of a process share: settings for a block of code, locks that a fork leaves whole."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ["Setting", "held_across_fork"]

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
