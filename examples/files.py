"""Files that are either whole or absent, and errors that name them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Unwritable", "naming", "whole_file", "write_whole"]


class Unwritable(OSError):
    """A file cannot be written. The message names it, and says why."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be written: {self.strerror}"


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Have what the system says of a write in the block, which names no file, name this one: `Unwritable`."""
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if error.errno is None:
            raise  # not the system's
        raise Unwritable(error.errno, error.strerror, str(target)) from error


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; it becomes `target` if the block succeeds, and is removed if not.

    A reader therefore sees the old file or the new one, never a part, whatever interrupts the writer. The temporary
    file lies in the same folder because only a rename within one file system is atomic.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(target: Path, contents: bytes | memoryview) -> None:
    """Write a file, or leave the one that is there untouched and raise `Unwritable`."""
    with naming(target), whole_file(target) as temporary:
        temporary.write_bytes(contents)
