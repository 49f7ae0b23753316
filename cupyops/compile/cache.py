"""Compiled kernels on disk, keyed on content.

An entry is two files in one folder: ``<key>.cubin`` (what the driver loads) and ``<key>.json`` (the checksum of the
first, and what the compiler said). Both are written beside their place and moved there, checksum last, so a reader sees
all of an entry or none, whoever else writes; an entry that fails its checksum counts as absent. Threads and processes that
miss the same entry at once compile it once. A folder that cannot be written costs a compilation per process, never a
failure.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from cupyops.sharing import alone, once

__all__ = ["Binary", "DiskCache", "default_folder", "write"]


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: what the driver loads: a cubin, or PTX where the GPU is newer than NVRTC.
        log: what the compiler said.
        resources: by kernel, registers of a thread and bytes of them spilled to memory; empty where the driver compiles
            (PTX).
        seconds: what the compilation took.
        path: the file in the cache, or None if it could not be kept.
    """

    code: bytes
    log: str
    resources: dict[str, tuple[int, int]]
    seconds: float
    path: Path | None = None


# A folder below a file, so whoever tries to keep something there is told that it cannot be.
_NOWHERE = Path(os.devnull) / "cupyops"


def default_folder() -> Path:
    """``CUPYOPS_CACHE_DIR``, or the platform's folder for caches; always absolute.

    A relative one is taken from the directory in which the process is when it is first asked for: a process that goes
    elsewhere keeps its cache.
    """
    if chosen := os.environ.get("CUPYOPS_CACHE_DIR"):
        chosen = os.path.expanduser(chosen)
        return _NOWHERE if chosen.startswith("~") else _absolute(chosen)  # the home of nobody
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "cupyops" / "cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # others are to be ignored, by the standard of the variable
        return Path(given) / "cupyops"
    try:
        return _absolute(str(Path.home() / ".cache" / "cupyops"))
    except RuntimeError:  # a user without a home, as containers have
        return _NOWHERE


@cache
def _absolute(folder: str) -> Path:
    try:
        return Path(os.path.abspath(folder))
    except OSError:  # the directory has been deleted
        return _NOWHERE


class DiskCache:
    """Binaries by key in one folder. No method raises for what a file system can do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Binary | None:
        """The entry, or None if there is none that is whole."""
        try:
            path = self.folder / f"{key}.cubin"
            code = path.read_bytes()
            about = json.loads((self.folder / f"{key}.json").read_bytes())
            if about.pop("sha256") != hashlib.sha256(code).hexdigest():
                return None
            about["resources"] = {kernel: tuple(numbers) for kernel, numbers in about["resources"].items()}
            return Binary(code=code, path=path, **about)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def get_or_make(self, key: str, make: Callable[[], Binary]) -> Binary:
        """The entry, made if there is none, by one thread of one process: others that ask meanwhile wait for it. Raises what
        `make` raises."""

        def made() -> Binary:
            with alone(self.folder / f".{key}.lock"):
                return self.get(key) or self.put(key, make())

        return self.get(key) or once(f"{self.folder}:{key}", made)

    def put(self, key: str, binary: Binary) -> Binary:
        """Keeps the entry if the folder lets it. Returns the binary, with its path if it was kept."""
        about = {k: v for k, v in asdict(binary).items() if k not in ("code", "path")}
        about["sha256"] = hashlib.sha256(binary.code).hexdigest()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / f"{key}.cubin", binary.code)
            write(self.folder / f"{key}.json", json.dumps(about, indent=1).encode())
        except OSError:
            return binary
        return replace(binary, path=self.folder / f"{key}.cubin")


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file beside its place and moves it there: a reader sees all of it or what was there before.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C, too, should leave nothing behind
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
