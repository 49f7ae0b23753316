"""``python -m cupyops cache``: shows the contents of the cache folders, and removes entries."""

import argparse
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from cupyops.compile import upkeep
from cupyops.compile.cache import default_folder
from cupyops.trust import Refused, open_folder, shown

__all__ = ["add_parser"]

DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


class Store(NamedTuple):
    """A folder of entries.

    Attributes:
        name: the kind of the entries.
        folder: the folder.
        folders: whether an entry is a folder.
        limited: whether ``CUPYOPS_CACHE_LIMIT`` holds for the folder.
    """

    name: str
    folder: Path
    folders: bool
    limited: bool


def stores() -> list[Store]:
    """Returns the folders below the cache folder."""
    folder = default_folder()
    return [
        Store("kernels for GPUs", folder, False, True),
        Store("kernels for the simulator", folder / "simulator", True, True),
        Store("choices of Tuned", folder / "tuning", False, False),
        Store("halves of texts with host code", folder / "programs", False, True),
    ]


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``cache`` to the command line."""
    parser = commands.add_parser(
        "cache",
        help="show what the cache holds, and remove entries",
        description="Shows the entries of the cache folder. The options remove entries; removed kernels are compiled again.",
        epilog="Exit status: 0, 1 if a folder is refused since another user can change it, 2 if the options are invalid.",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--purge", action="store_true", help="remove all entries")
    choice.add_argument(
        "--older-than", metavar="AGE", help="remove entries that were last used so long ago: 12h, 30d, 4w"
    )
    choice.add_argument(
        "--down-to", metavar="SIZE", help="remove the entries used longest ago until each kind has this size: 500M, 2G"
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if a folder is refused.

    Raises:
        SystemExit: with status 2, if the options or ``CUPYOPS_CACHE_LIMIT`` are invalid.
    """
    try:
        age = days(options.older_than) if options.older_than is not None else None
        size = upkeep.parse_size(options.down_to, "--down-to") if options.down_to is not None else None
        limit = upkeep.limit()
    except ValueError as problem:
        options.parser.error(str(problem))
    removing = options.purge or age is not None or size is not None
    print(f"folder: {shown(default_folder())}")
    status = 0
    for store in stores():
        try:
            with open_folder(store.folder):
                pass
        except Refused as refused:
            print(f"{store.name}: REFUSED, not used: {refused}")
            status = 1
            continue
        except OSError:
            pass  # an absent folder has no entries
        if removing:
            gone = purge(store, age, 0 if options.purge else size)
            left = upkeep.sweep(store.folder)
            print(f"{store.name}: removed {gone} entries" + (f" and {left} temporary files" if left else ""))
        print(f"{store.name}: {state(store, limit)}")
    return status


def purge(store: Store, age: float | None, size: int | None) -> int:
    """Removes the entries of a store that are older than `age` days, or the oldest until `size` bytes are left.

    Returns:
        The number of removed entries.
    """
    found = sorted(upkeep.entries(store.folder, folders=store.folders).values(), key=lambda entry: entry.used)
    total, now, gone = sum(entry.size for entry in found), time.time(), 0
    for entry in found:
        if (age is not None and now - entry.used > age * 86400) or (size is not None and total > size) or size == 0:
            upkeep.remove(store.folder, entry)
            total, gone = total - entry.size, gone + 1
    return gone


def state(store: Store, limit: int) -> str:
    """Returns the number of entries of a store, their size, and when the oldest was last used."""
    found = upkeep.entries(store.folder, folders=store.folders).values()
    most = f" of {mebibytes(limit)}" if store.limited and limit else ""
    words = f"{len(found)} entries, {mebibytes(sum(entry.size for entry in found))}{most}"
    if found:
        oldest = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(entry.used for entry in found)))
        words += f", the oldest last used {oldest}"
    return words


def mebibytes(size: int) -> str:
    """Formats a number of bytes as "1.5 MiB"."""
    return f"{size / 2**20:.1f} MiB"


def days(word: str) -> float:
    """Returns the days of an age such as 12h, 30d or 4w.

    Raises:
        ValueError: the word is not an age.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", word.strip().lower())
    if not found:
        raise ValueError(f"--older-than must be an age such as 12h, 30d or 4w, got {word!a}")
    return float(found[1]) * DAYS[found[2]]
