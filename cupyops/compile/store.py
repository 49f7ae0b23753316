"""Caches on disk what clang's syntax tree says about texts, by their content."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from cupyops.trust import Refused as UntrustedError
from cupyops.trust import mode, open_folder, warn_refused

from . import upkeep
from .cache import default_folder, write

__all__ = ["Program", "digest"]


def digest(text: str) -> str:
    """Returns a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _version() -> str:
    """Returns a digest of what decides the results: the files of the packages that compute them, and PyTorch's version."""
    from importlib.metadata import version

    found = hashlib.sha256(version("torch").encode())  # PyTorch itself takes a second to import
    here = Path(__file__).parent
    for file in sorted([*here.glob("*.py"), *here.glob("names/*.cuh"), *here.with_name("importer").glob("*.py")]):
        found.update(file.read_bytes())
    return found.hexdigest()


class Program:
    """The place on disk of a result, which is a dict for JSON. Its key ``"included"`` has the digests of files that it depends on.

    Args:
        parts: what decides the result, for JSON.
    """

    def __init__(self, *parts: Any) -> None:
        key = digest(json.dumps([_version(), *parts]))[:40]
        self.path = default_folder() / "programs" / f"{key}.json"

    def read(self) -> dict[str, Any] | None:
        """Returns the result; None if it is absent or damaged, if another user could change it, or if a file has changed."""
        try:
            with open_folder(self.path.parent) as folder:
                found: dict[str, Any] = json.loads(folder.read(self.path.name))
            for file, expected in found.get("included", {}).items():
                if digest(Path(file).read_text(encoding="utf-8")) != expected:
                    return None
        except UntrustedError as refused:
            warn_refused("the cache of programs", refused)
            return None
        except (OSError, ValueError):
            return None
        return found

    def write(self, found: dict[str, Any]) -> None:
        """Keeps a result. A folder that cannot be written keeps none."""
        data = json.dumps(found).encode()
        try:
            with open_folder(self.path.parent, make=True):
                write(self.path, data, mode(0o600))
            upkeep.keep_within(self.path.parent, len(data), folders=False)
        except (UntrustedError, OSError):
            pass
