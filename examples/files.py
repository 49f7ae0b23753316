"""Files that are either whole or absent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


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
        temporary.unlink(missing_ok=True)
