"""The compile cache: compiled kernels on disk, keyed by a hash of their content.

An entry is two files in one folder: ``<key>.cubin``, which the driver loads, and ``<key>.json``, which holds the
checksum of the cubin and the compiler's log. Each file is written under a temporary name and then renamed, the checksum
last. A reader therefore sees a whole entry or none, also while other processes write. An entry with a wrong checksum
or of another key counts as absent. Threads and processes that miss the same entry at the same time compile it once. If
the folder cannot be written, each process compiles its kernels, and no error is raised. A folder or an entry that
another user can change is not used, and a warning says so (:mod:`cupyops.trust`).
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from cupyops.sharing import alone, once
from cupyops.trust import Refused, mode, open_folder, warn_refused

from . import upkeep

__all__ = ["Binary", "DiskCache", "default_folder", "write"]


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: a cubin, or PTX if the GPU is newer than NVRTC.
        log: the compiler's log.
        resources: for each kernel, the registers per thread and the bytes spilled to local memory. Empty for PTX, which
            the driver compiles.
        seconds: duration of the compilation.
        path: the cubin's file in the cache, or None if the file could not be written.
        entry: the name in the binary of each kernel that the text names, with blanks between them; None if the kernels
            are ``extern "C"`` functions.
        types: the answers to the questions of the source (:mod:`.ask`).
    """

    code: bytes
    log: str
    resources: dict[str, tuple[int, int]]
    seconds: float
    path: Path | None = None
    entry: str | None = None
    types: tuple[str, ...] = ()

    def named(self, kernel: str, number: int = 0) -> str:
        """Returns the name of a kernel in the binary. `number` is its place among the kernels of the text."""
        return self.entry.split()[number] if self.entry else kernel


# O_EXCL refuses a name that exists, a link's too.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# A path below a file: every attempt to create or write it raises OSError.
_NOWHERE = Path(os.devnull) / "cupyops"


def default_folder() -> Path:
    """Returns the absolute path of ``CUPYOPS_CACHE_DIR`` if it is set, else of the platform's cache folder.

    A relative path is resolved once, against the working directory of the first call: the cache stays in one place when
    the process changes its working directory.
    """
    if chosen := os.environ.get("CUPYOPS_CACHE_DIR"):
        chosen = os.path.expanduser(chosen)
        return _NOWHERE if chosen.startswith("~") else _absolute(chosen)  # "~" remains: the user has no home
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "cupyops" / "cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the XDG specification ignores relative paths
        return Path(given) / "cupyops"
    try:
        return _absolute(str(Path.home() / ".cache" / "cupyops"))
    except RuntimeError:  # the user has no home, as in some containers
        return _NOWHERE


@cache
def _absolute(folder: str) -> Path:
    try:
        return Path(os.path.abspath(folder))
    except OSError:  # the working directory has been deleted
        return _NOWHERE


class DiskCache:
    """Stores binaries by key in one folder. No method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Binary | None:
        """Returns the entry of a key, or None if the entry is absent, damaged, or can be changed by another user."""
        try:
            with open_folder(self.folder) as folder:
                code = folder.read(f"{key}.cubin")
                about = json.loads(folder.read(f"{key}.json"))
                if about.pop("sha256") != hashlib.sha256(code).hexdigest() or about.pop("key") != key:
                    return None
                about["resources"] = {kernel: tuple(numbers) for kernel, numbers in about["resources"].items()}
                about["types"] = tuple(about["types"])
                found = Binary(code=code, path=self.folder / f"{key}.cubin", **about)
            upkeep.use(self.folder / f"{key}.json")
            return found
        except Refused as refused:
            warn_refused("the compile cache", refused)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        return None

    def get_or_make(self, key: str, make: Callable[[], Binary]) -> Binary:
        """Returns the entry of a key; if it is absent, calls `make` and stores the result.

        One thread of one process calls `make` at a time. Other threads and processes that request the key meanwhile
        wait. An exception of `make` propagates.

        Raises:
            ValueError: ``CUPYOPS_CACHE_LIMIT`` is not a size.
        """

        def made() -> Binary:
            if not self._opens():
                return make()
            upkeep.begin(self.folder)
            with alone(self.folder / f".{key}.lock"):
                return self.get(key) or self.put(key, make())

        return self.get(key) or once(f"{self.folder}:{key}", made)

    def put(self, key: str, binary: Binary) -> Binary:
        """Stores the entry if the folder can be written. Returns the binary, with its path if the entry was stored."""
        about = {k: v for k, v in asdict(binary).items() if k not in ("code", "path")}
        about = {**about, "sha256": hashlib.sha256(binary.code).hexdigest(), "key": key}
        description = json.dumps(about, indent=1).encode()
        if not self._opens():
            return binary
        try:
            write(self.folder / f"{key}.cubin", binary.code, mode(0o600))
            write(self.folder / f"{key}.json", description, mode(0o600))
        except OSError:
            return binary
        upkeep.keep_within(self.folder, len(binary.code) + len(description), folders=False)
        return replace(binary, path=self.folder / f"{key}.cubin")

    def _opens(self) -> bool:
        """Returns whether the folder exists, or could be made, and no other user can change it."""
        try:
            with open_folder(self.folder, make=True):
                return True
        except Refused as refused:
            warn_refused("the compile cache", refused)
        except OSError:
            pass
        return False


def write(path: str | os.PathLike[str], data: bytes, permissions: int = 0o666) -> None:
    """Writes a file atomically: under a temporary name in the same folder, then renamed.

    A reader sees the former content or the whole new content. The temporary name is random, and a file or a link that
    has the name already is neither opened nor followed.

    Args:
        path: the file.
        data: its content.
        permissions: the file's mode, less the bits of the umask.

    Raises:
        OSError: the file cannot be written. The temporary file is removed.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, _NEW, permissions)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:  # after Ctrl-C, too, the temporary file is removed
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
