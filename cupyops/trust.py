"""Opens folders and files of compiled code, and refuses those that another user can change.

Code that a process loads from a folder runs with the rights of the process. A folder is trusted if the user or root
owns it and every folder above it, and if no other user may write to them. ``docs/security.md`` states the rules.

A path is walked from the root, one folder at a time, by file descriptors. The system follows no symbolic link: a link
of the user or of root is read here, and its target is walked in the same way. The owner and the mode are those of the
open descriptor, so a folder that is exchanged after its check is not used.
"""

import errno
import os
import stat
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType

from cupyops.environment import switched

__all__ = ["Folder", "Refused", "mode", "open_folder", "problem", "shared", "shown", "warn_refused"]

# Systems without these descriptors protect the user's folders by access lists: there, nothing is compared.
_COMPARED = hasattr(os, "O_PATH") and os.open in os.supports_dir_fd
_PASS = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# O_NONBLOCK: a pipe in the place of a file must not block the reader.
_READ = os.O_RDONLY | sum(getattr(os, f"O_{word}", 0) for word in ("NOFOLLOW", "NONBLOCK", "CLOEXEC", "BINARY"))
_LINKS = 40  # Linux follows as many
# Temporary folders that this process has made for itself. The system protects the folders above them.
own: set[Path] = set()


class Refused(OSError):
    """Another user can change a folder or a file. The message is one line: the path, and the reason."""


def shared() -> bool:
    """Returns whether ``CUPYOPS_CACHE_SHARED=1`` allows cache folders that other users write to."""
    return switched("CUPYOPS_CACHE_SHARED") == "on"


def mode(full: int = 0o700) -> int:
    """Returns the mode of a new folder, or of a new file with ``full=0o600``: the user's alone unless shared."""
    return full | full >> 3 | full >> 6 if shared() else full


def problem(about: os.stat_result, *, above: bool = False, always: bool = False) -> str:
    """Returns why another user can change a folder or a file, or ``""``.

    Args:
        about: what the system reports of the open descriptor.
        above: whether the folder lies above the trusted folder. Others may then write to the folder if it is sticky, as
            ``/tmp`` is: only its owner, root and the owner of an entry can exchange the entry.
        always: whether to compare although cache folders are shared.
    """
    if shared() and not always:
        return ""
    if about.st_uid not in (0, os.geteuid()) and not (above and about.st_uid == _unmapped()):
        return f"belongs to user {about.st_uid}"
    if stat.S_ISLNK(about.st_mode) or (above and about.st_mode & stat.S_ISVTX):
        return ""
    if about.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if about.st_mode & stat.S_IWGRP and not _private(about.st_gid):
        return f"can be written by group {about.st_gid}"
    return ""


@cache
def _private(group: int) -> bool:
    """Returns whether a group has the user as its only member, by the names: systems with a group for each user make
    folders that the group may write to."""
    try:
        import grp
        import pwd

        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return group == user.pw_gid and found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}


@cache
def _unmapped() -> int | None:
    """Returns the user number that a user namespace shows for root outside of the namespace; None without one."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


class Folder:
    """An open folder, a context manager. :func:`open_folder` opens it."""

    def __init__(self, path: Path, handle: int | None, always: bool = False) -> None:
        self.path, self._handle, self._always = path, handle, always

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def read(self, *parts: str) -> bytes:
        """Returns the content of a file of the folder: ``read("key", "kernel.so")``.

        Raises:
            Refused: the file, or a folder on the way, is a link or can be changed by another user.
            OSError: the file cannot be read, or is not a regular file.
        """
        if self._handle is None:
            return self.path.joinpath(*parts).read_bytes()
        opened: list[int] = []
        try:
            at = self._handle
            for name in parts:
                last = len(opened) + 1 == len(parts)
                try:
                    at = os.open(name, _READ if last else _PASS, dir_fd=at)
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    raise Refused(f"{shown(self.path.joinpath(*parts))} is a symbolic link") from None
                opened.append(at)
                about = os.fstat(at)
                if why := "is a symbolic link" if stat.S_ISLNK(about.st_mode) else problem(about, always=self._always):
                    raise Refused(f"{shown(self.path.joinpath(*parts))} {why}")
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "no regular file", str(self.path.joinpath(*parts)))
            return _content(at, about.st_size)
        finally:
            for handle in opened:
                os.close(handle)


def _content(handle: int, size: int) -> bytes:
    parts = []
    while part := os.read(handle, max(size, 1) + 1):
        parts.append(part)
    return b"".join(parts)


def open_folder(path: Path, *, make: bool = False, always: bool = False) -> Folder:
    """Opens a folder that no other user can change.

    Args:
        path: an absolute path.
        make: whether to create the folder and the missing folders above it, for the user alone.
        always: whether to compare although cache folders are shared, for a folder that is not a cache.

    Raises:
        Refused: another user can change the folder or a folder above it.
        OSError: the folder is absent, is not a folder, or cannot be created.
    """
    if not _COMPARED:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        return Folder(path, None)
    if path in own:
        return Folder(path, os.open(path, _PASS))
    at, handle, parts, links = Path("/"), os.open("/", _PASS), list(reversed(path.parts[1:])), 0
    try:
        while parts:
            name = parts.pop()
            child = _child(handle, name, make)
            try:
                about = os.fstat(child)
                link = os.readlink("", dir_fd=child) if stat.S_ISLNK(about.st_mode) else ""
                if not link and not stat.S_ISDIR(about.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(at / name))
                if why := problem(about, above=bool(link or parts), always=always):
                    raise Refused(f"{shown(at / name)} {why}")
                if link and (links := links + 1) > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            except BaseException:
                os.close(child)
                raise
            if link:
                os.close(child)
                parts += reversed(Path(link).parts)  # the first part of an absolute target is "/"
            else:
                os.close(handle)
                at, handle = at / name, child
    except BaseException:
        os.close(handle)
        raise
    return Folder(path, handle, always)


def _child(handle: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _PASS, dir_fd=handle)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another process has just made the folder
        os.mkdir(name, mode(), dir_fd=handle)
    return os.open(name, _PASS, dir_fd=handle)


def shown(value: object) -> str:
    """Returns a path or a text for a message: on one line, and without characters that control a terminal."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return text if text.isprintable() else ascii(text)


_told: set[str] = set()


def warn_refused(what: str, refused: Refused) -> None:
    """Warns once that a folder or an entry is not used."""
    message = (
        f"{what} is not used: {refused}. Correct its owner or mode, choose another CUPYOPS_CACHE_DIR, or trust all its "
        f"writers with CUPYOPS_CACHE_SHARED=1"
    )
    if message not in _told:
        _told.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
