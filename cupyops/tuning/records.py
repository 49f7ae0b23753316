"""Which choice was the fastest: remembered in this process, in the cache folder, and in files to be shipped.

A record belongs to what was timed (the texts of all choices, options, geometries, dtypes), where (GPU and architecture)
and for which sizes. All of that is its key, so a record that is not of this code and this GPU is never found. What is
timed, and when, is in :mod:`cupyops.tuning.tuned`.
"""

import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from cupyops.compile import cache

__all__ = ["Record", "enabled", "get", "load", "put", "save"]

# Raise it when the meaning of a record changes.
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What was found out.

    Attributes:
        kernel: and dtypes, ``scale<float32>``.
        gpu: its name.
        sizes: for which sizes, ``n <= 1024``.
        choice: the chosen one.
        microseconds: what a launch of each choice took; None where it could not be launched.
    """

    kernel: str
    gpu: str
    sizes: str
    choice: str
    microseconds: Mapping[str, float | None]


class User(Protocol):
    """What uses records, and forgets what it has taken from them when there are others."""

    def forget(self) -> None: ...


users: "weakref.WeakSet[User]" = weakref.WeakSet()
_own: dict[str, Record] = {}  # timed in this process, or found in the cache folder
_loaded: dict[str, Record] = {}


def enabled() -> bool:
    """Whether choices are timed: not with ``CUPYOPS_TUNE=0`` in the environment, where only files that :func:`load` was
    given count, and else the first choice is taken."""
    return os.environ.get("CUPYOPS_TUNE", "") != "0"


def get(key: str) -> Record | None:
    """The record, from a file that was loaded, from this process or from the cache folder."""
    if key in _loaded:
        return _loaded[key]
    if not enabled():
        return None
    if key not in _own:
        try:
            _own[key] = _record(json.loads(_path(key).read_bytes()))
        except (OSError, ValueError):
            return None  # a damaged one is timed again
    return _own[key]


def put(key: str, record: Record) -> None:
    """Remembers it. A folder that cannot be written costs the next process the time, never a failure."""
    _own[key] = record
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cache.write(path, json.dumps(asdict(record), indent=1).encode())
    except OSError:
        pass


def save(path: str | os.PathLike[str]) -> int:
    """Writes every choice that this process has made, found or loaded to a file for :func:`load`.

    To ship it, run what is to be fast once on the GPU in question, then save.

    Returns:
        How many there are.

    Raises:
        OSError: the file cannot be written.
    """
    records = {key: asdict(record) for key, record in sorted({**_own, **_loaded}.items())}
    cache.write(path, json.dumps({"cupyops tuning": FORMAT, "choices": records}, indent=1).encode())
    return len(records)


def load(path: str | os.PathLike[str]) -> int:
    """Takes choices from a file; they come before what is remembered elsewhere, and count with ``CUPYOPS_TUNE=0``, too.

    Returns:
        How many there are. Those of other code or another GPU do no harm.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or of a format that this version does not read.
    """
    name = os.fspath(path)
    try:
        document = json.loads(Path(name).read_bytes())
        found = document["cupyops tuning"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"tuning.load: {name} is no file of choices") from None
    if found != FORMAT:
        raise ValueError(f"tuning.load: {name} is of format {found}, and this cupyops reads format {FORMAT}")
    try:
        records = {key: _record(about) for key, about in document["choices"].items()}
    except (ValueError, KeyError, AttributeError) as problem:
        raise ValueError(f"tuning.load: {name} is damaged: {problem}") from None
    _loaded.update(records)
    for user in list(users):
        user.forget()
    return len(records)


def _path(key: str) -> Path:
    return cache.default_folder() / "tuning" / f"{key}.json"


def _record(about: Any) -> Record:
    try:
        record = Record(**about)
    except TypeError:
        raise ValueError("a record with other fields") from None
    words = (record.kernel, record.gpu, record.sizes, record.choice)
    if not all(isinstance(w, str) for w in words) or not isinstance(record.microseconds, dict):
        raise ValueError("a record with fields of other kinds")
    return record
