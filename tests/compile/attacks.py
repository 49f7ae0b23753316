"""Helpers for the tests of attacks: planted entries, their owners, and the check of a refusal."""

import os
from pathlib import Path

import pytest

from cupyops.compile.cache import Binary, DiskCache

KEY = "5e" * 20
OTHER = "0a" * 20
EVIL = Binary(b"code of another user", "", {"k": (32, 0)}, 1.0)
OWN = Binary(b"code of this user", "", {"k": (32, 0)}, 1.0)
STRANGER = 4711


def found(folder: Path) -> bytes | None:
    """The code that the cache returns for the key. Warnings are errors here, so each refusal is expected by name."""
    entry = DiskCache(folder).get(KEY)
    return entry and entry.code


def refused(folder: Path, words: str) -> None:
    """The entry is not loaded, one line says why, and work goes on: the kernel is compiled."""
    with pytest.warns(RuntimeWarning, match=words) as said:
        codes = found(folder), DiskCache(folder).get_or_make(KEY, lambda: OWN).code
    assert codes == (None, OWN.code)
    assert len(said) == 1
    assert str(said[0].message).isprintable()
    assert len(str(said[0].message).splitlines()) == 1


def succeeds_where_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard, the planted code is loaded."""
    monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1")
    assert found(folder) == EVIL.code
    monkeypatch.delenv("CUPYOPS_CACHE_SHARED")


def give_away(monkeypatch: pytest.MonkeyPatch, *paths: Path, to: int = STRANGER) -> None:
    """Makes the system report another owner of these files, without the rights of root."""
    inodes = {(about.st_dev, about.st_ino) for about in map(os.lstat, paths)}
    real = os.fstat

    def fstat(handle: int) -> os.stat_result:
        about = real(handle)
        if (about.st_dev, about.st_ino) not in inodes:
            return about
        return os.stat_result((*about[:4], to, *about[5:10]))

    monkeypatch.setattr(os, "fstat", fstat)
