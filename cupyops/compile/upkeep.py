"""Keeps cache folders within a size, and removes what killed processes have left in them.

An entry is all files and folders of a cache folder whose names begin with one key: ``KEY.cubin`` and ``KEY.json``, or
the folder ``KEY``. Names that begin with a dot and a key are temporary. The modification time of an entry is its last
recorded use: a process that loads an entry records the use if the last record is older than five minutes. The entry
that was used longest ago is removed first.
"""

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cupyops.errors import expected
from cupyops.sharing import alone

__all__ = ["Stored", "begin", "entries", "keep_within", "limit", "parse_size", "remove", "sweep", "use"]

# Only these names are entries: the folder may hold other files of the user.
_KEY = r"[0-9a-f]{32,64}|headers-1"
_ENTRY = re.compile(rf"({_KEY})(?:\.cubin|\.json|)")
_TEMPORARY = re.compile(rf"\.({_KEY})\..+")
# Seconds from one record of a use to the next. A launch of a loaded kernel records nothing.
_RECORDED = 300.0
_FOLLOWS = os.utime not in os.supports_follow_symlinks
_DEFAULT = "5G"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass
class Stored:
    """An entry of a cache folder.

    Attributes:
        names: its files and folders.
        size: bytes of its files.
        used: the time of its last recorded use, in seconds since 1970.
    """

    names: list[str]
    size: int = 0
    used: float = 0.0


def parse_size(word: str, where: str) -> int:
    """Returns the bytes of ``500M``, ``1.5G`` or ``1000``; the units K, M, G and T are powers of 1024.

    Raises:
        ValueError: the word is not a size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", word.strip().upper().removesuffix("B").removesuffix("I"))
    if not found:
        raise ValueError(expected("cache", where, "be a size such as 500M or 5G", ascii(word)))
    return int(float(found[1]) * _UNITS[found[2]])


def limit() -> int:
    """Returns the bytes that each cache folder may have, by ``CUPYOPS_CACHE_LIMIT``; 0 for any number."""
    return parse_size(os.environ.get("CUPYOPS_CACHE_LIMIT") or _DEFAULT, "CUPYOPS_CACHE_LIMIT")


def entries(folder: Path, *, folders: bool) -> dict[str, Stored]:
    """Returns the entries of a cache folder by key.

    Args:
        folder: the folder; an absent folder has no entries.
        folders: whether an entry is a folder, as the simulator's are, or files.
    """
    found: dict[str, Stored] = {}
    with suppress(OSError), os.scandir(folder) as listed:
        for item in listed:
            named = _ENTRY.fullmatch(item.name)
            if not named or item.is_dir(follow_symlinks=False) != folders:
                continue
            with suppress(OSError):  # another process has just removed the file
                about = item.stat(follow_symlinks=False)
                size = _size(item.path) if folders else about.st_size
                entry = found.setdefault(named[1], Stored([]))
                entry.names.append(item.name)
                entry.size += size
                entry.used = max(entry.used, about.st_mtime)
    return found


def _size(folder: str) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as listed:
        for item in listed:
            inside = item.is_dir(follow_symlinks=False)
            total += _size(item.path) if inside else item.stat(follow_symlinks=False).st_size
    return total


def use(path: Path) -> bool:
    """Records that a file or a folder of an entry is in use; returns whether it exists."""
    try:
        if time.time() - path.lstat().st_mtime > _RECORDED:
            os.utime(path, follow_symlinks=_FOLLOWS)
    except FileNotFoundError:
        return False
    except OSError:  # a folder that this user may only read
        pass
    return True


def remove(folder: Path, entry: Stored) -> None:
    """Removes an entry. A reader sees the whole entry or none."""
    for name in sorted(entry.names, reverse=True):  # KEY.json, without which KEY.cubin is not an entry, comes first
        with suppress(OSError):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                aside = folder / f".{name}.removed"
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                path.unlink()


# For each folder, the bytes that this process has added since it last looked for entries to remove.
_added: dict[Path, int] = {}


def begin(folder: Path) -> None:
    """Prepares for the first new entry of this process: removes what killed processes have left.

    Raises:
        ValueError: ``CUPYOPS_CACHE_LIMIT`` is not a size.
    """
    limit()
    if folder not in _added:
        _added[folder] = limit()
        sweep(folder)


def keep_within(folder: Path, size: int, *, folders: bool) -> None:
    """Removes entries until the folder is within the limit, after an entry of `size` bytes has been added.

    Listing a large folder takes time, so a process looks after its first new entry, and then after each sixteenth of
    the limit that it adds. Entries that were used in the last ten minutes stay: a process may be about to load them.
    """
    most = limit()
    _added[folder] = _added.get(folder, most) + size
    if not most or _added[folder] <= most // 16:
        return
    _added[folder] = 0
    stored = sorted(entries(folder, folders=folders).values(), key=lambda entry: entry.used)
    total = sum(entry.size for entry in stored)
    for entry in stored:
        if total <= most or time.time() - entry.used < 2 * _RECORDED:
            return
        remove(folder, entry)
        total -= entry.size


def sweep(folder: Path) -> int:
    """Removes the temporary files and folders of processes that have ended; returns how many.

    A process holds the lock ``.KEY.lock`` while it makes the entry of a key. A lock that can be taken is of a process
    that has ended.
    """
    try:
        names = [(found[1], name) for name in os.listdir(folder) if (found := _TEMPORARY.fullmatch(name))]
    except OSError:
        return 0
    removed = 0
    for key in {key for key, _ in names}:
        lock = f".{key}.lock"
        with alone(folder / lock, wait=False) as held:
            for of, name in names:
                if held and of == key and name != lock:
                    removed += _removed(folder / name)
    return removed


def _removed(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # in a shared folder, the entry may belong to another user
        return False
    return True
