"""Records of the fastest choice: in the memory of the process, in the cache folder, and in files that can be shipped.

The key of a record is a hash of the choices (CUDA sources, options, geometries, dtypes), of the GPU with its compute
capability, and of the sizes. A record of other code or of another GPU has another key. :mod:`cupyops.tuning.tuned`
decides what is timed, and when.
"""

import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from cupyops.compile import cache, upkeep
from cupyops.environment import switched
from cupyops.sharing import alone
from cupyops.trust import Refused, mode, open_folder, warn_refused

__all__ = ["Record", "enabled", "get", "load", "put", "save"]

# The version of the record format. A change of a record's meaning raises the version.
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """The result of one tuning.

    Attributes:
        kernel: the kernel's name with its dtypes, such as ``scale<float32>``.
        gpu: the GPU's name.
        sizes: the sizes for which the record holds, such as ``n <= 1024``.
        choice: the name of the fastest choice.
        microseconds: the median time of a launch of each choice; None for a choice that the GPU cannot launch.
    """

    kernel: str
    gpu: str
    sizes: str
    choice: str
    microseconds: Mapping[str, float | None]


class User(Protocol):
    """An object that caches choices from records. ``forget`` clears the cache after :func:`load`."""

    def forget(self) -> None: ...


users: "weakref.WeakSet[User]" = weakref.WeakSet()
_own: dict[str, Record] = {}  # records made in this process, or read from the cache folder
_loaded: dict[str, Record] = {}  # records from files


def enabled() -> bool:
    """Returns whether choices are timed: False with ``CUPYOPS_TUNE=0`` in the environment.

    Without timing, a choice comes from a file that :func:`load` has read. If no file has the record, the first choice
    is launched.
    """
    return switched("CUPYOPS_TUNE", "on") == "on"


def get(key: str) -> Record | None:
    """Returns the record of a key, or None: from a loaded file, else from this process, else from the cache folder."""
    if key in _loaded:
        return _loaded[key]
    if not enabled():
        return None
    if key not in _own:
        try:
            with open_folder(_folder()) as folder:
                _own[key] = _record(json.loads(folder.read(f"{key}.json")))
        except Refused as refused:
            warn_refused("the stored choice of Tuned", refused)
            return None
        except (OSError, ValueError, RecursionError):
            return None  # there is no record, or a damaged record, which the next tuning replaces
    return _own[key]


def put(key: str, record: Record) -> None:
    """Stores a record in the process and in the cache folder.

    A cache folder that cannot be written raises nothing. The next process then tunes again.
    """
    _own[key] = record
    folder = _folder()
    try:
        with open_folder(folder, make=True), alone(folder / f".{key}.lock"):
            upkeep.begin(folder)
            cache.write(folder / f"{key}.json", json.dumps(asdict(record), indent=1).encode(), mode(0o600))
    except Refused as refused:
        warn_refused("the folder of Tuned's choices", refused)
    except OSError:
        pass


def save(path: str | os.PathLike[str]) -> int:
    """Writes all records of this process to a file, which :func:`load` reads.

    The records are those that the process has made, read from the cache folder or loaded. To ship tuned choices, run
    the calls once on the target GPU, then save.

    Returns:
        The number of records.

    Raises:
        OSError: the file cannot be written.
    """
    records = {key: asdict(record) for key, record in sorted({**_own, **_loaded}.items())}
    cache.write(path, json.dumps({"cupyops tuning": FORMAT, "choices": records}, indent=1).encode())
    return len(records)


def load(path: str | os.PathLike[str]) -> int:
    """Reads records from a file that :func:`save` has written.

    Records from files take precedence over all other records, and are used with ``CUPYOPS_TUNE=0``, too. Records of
    other code or of another GPU have no effect.

    Returns:
        The number of records.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no records, is damaged, or has a format that this version does not read.
    """
    name = os.fspath(path)
    try:
        document = json.loads(Path(name).read_bytes())
        found = document["cupyops tuning"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"tuning.load: {name} is not a file of tuned choices") from None
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


def _folder() -> Path:
    return cache.default_folder() / "tuning"


def _record(about: Any) -> Record:
    try:
        record = Record(**about)
    except TypeError:
        raise ValueError("a record with other fields") from None
    words = (record.kernel, record.gpu, record.sizes, record.choice)
    if not all(isinstance(w, str) for w in words) or not isinstance(record.microseconds, dict):
        raise ValueError("a record with fields of other kinds")
    return record
