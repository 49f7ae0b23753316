"""Kernels compiled ahead, in one file: for machines without NVRTC and without a folder that can be written.

``python -m cupyops bundle`` writes the file, :func:`load_bundle` or ``CUPYOPS_BUNDLE`` loads it. A kernel is looked for by
what it is made of (final text, options, architecture), as in the compile cache; one that is not in the file is compiled
as ever. The file is a zip archive: a manifest, and a cubin for each kernel, dtype and architecture. The same kernels give
the same bytes.
"""

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import cache
from .cache import Binary
from .compiler import OPTIONS

__all__ = ["Bundle", "Entry", "find", "load_bundle", "write_bundle"]

# Raise it when the meaning of the file changes.
FORMAT = 1
_MANIFEST = "cupyops-bundle.json"


@dataclass(frozen=True)
class Entry:
    """One kernel for one architecture, to be written.

    Attributes:
        what: kernel, dtypes and constants, for messages.
        text: the final text.
        options: for NVRTC, beside :data:`cupyops.compile.compiler.OPTIONS`.
        architecture: 90 for sm_90.
        binary: what the compiler made of it.
    """

    what: str
    text: str
    options: tuple[str, ...]
    architecture: int
    binary: Binary


class Bundle:
    """A bundle that has been loaded.

    Attributes:
        path: its file.
        about: what its manifest says: versions of cupyops and NVRTC, and each kernel.
        architectures: what it has kernels for, (80, 90).
    """

    def __init__(self, path: str, archive: zipfile.ZipFile, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self._archive, self._kernels = archive, about["kernels"]
        self.architectures = tuple(sorted({kernel["architecture"] for kernel in self._kernels.values()}))

    def __repr__(self) -> str:
        targets = ", ".join(f"sm_{a}" for a in self.architectures)
        return f"<Bundle {self.path} of cupyops {self.about['cupyops']}: {len(self)} kernels for {targets}>"

    def __len__(self) -> int:
        return len(self._kernels)

    def get(self, text: str, capability: int, options: Sequence[str]) -> Binary | None:
        """The kernel of a final text for a GPU: that of its own architecture, else of an older one of its generation, whose
        code it runs as it is."""
        for architecture in reversed(self.architectures):
            if architecture <= capability and architecture // 10 == capability // 10:
                key = _key(text, architecture, options)
                if key in self._kernels:
                    resources = {name: tuple(numbers) for name, numbers in self._kernels[key]["resources"].items()}
                    return Binary(self._archive.read(f"{key}.cubin"), "", resources, 0.0)
        return None


_loaded: list[Bundle] = []


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Takes kernels from a file before any is compiled; several files are looked in, the last loaded first.

    ``CUPYOPS_BUNDLE=FILE`` in the environment does the same at the first launch.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no bundle, or damaged, or of a format that this version does not read.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        content = io.BytesIO(file.read())  # whatever becomes of the file
    try:
        archive = zipfile.ZipFile(content)
        about = json.loads(archive.read(_MANIFEST))
        found = about["format"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError):
        raise ValueError(f"load_bundle: {name} is no bundle of kernels, or not all of one") from None
    if found != FORMAT:
        raise ValueError(
            f"load_bundle: {name} is of format {found}, and this cupyops reads format {FORMAT}; write it again: "
            f"python -m cupyops bundle"
        )
    try:
        bundle = Bundle(name, archive, about)
        for key, kernel in about["kernels"].items():
            if hashlib.sha256(archive.read(f"{key}.cubin")).hexdigest() != kernel["sha256"]:
                raise ValueError(f"{kernel['what']} for sm_{kernel['architecture']} is not what was written")
    except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"load_bundle: {name} is damaged: {problem}") from None
    _loaded.insert(0, bundle)
    return bundle


def find(text: str, capability: int, options: Sequence[str]) -> Binary | None:
    """The kernel in the bundles that are loaded, or None.

    Raises:
        OSError, ValueError: of ``CUPYOPS_BUNDLE``, as :func:`load_bundle`.
    """
    for bundle in _bundles():
        if (binary := bundle.get(text, capability, options)) is not None:
            return binary
    return None


def lacking(what: str, capability: int) -> str:
    """What to say of a kernel that is in no bundle, where it cannot be compiled either; nothing without a bundle."""
    return "".join(f"{what} for sm_{capability} is not in {bundle!r}. " for bundle in _bundles())


def _bundles() -> list[Bundle]:
    path = os.environ.get("CUPYOPS_BUNDLE")
    if path and not any(bundle.path == path for bundle in _loaded):
        load_bundle(path)
    return _loaded


def write_bundle(path: str | os.PathLike[str], entries: Iterable[Entry], versions: dict[str, str]) -> None:
    """Writes a file for :func:`load_bundle`: all of it, or nothing.

    Args:
        path: where to.
        entries: what goes in; of several with one content the last.
        versions: of ``cupyops`` and ``nvrtc``.

    Raises:
        OSError: the file cannot be written.
    """
    sorted_entries = sorted({_key(e.text, e.architecture, e.options): e for e in entries}.items())
    kernels = {
        key: {
            "what": e.what,
            "architecture": e.architecture,
            "sha256": hashlib.sha256(e.binary.code).hexdigest(),
            "resources": e.binary.resources,
        }
        for key, e in sorted_entries
    }
    manifest = json.dumps({"format": FORMAT, **versions, "kernels": kernels}, indent=1)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ((_MANIFEST, manifest.encode()), *((f"{k}.cubin", e.binary.code) for k, e in sorted_entries)):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # without the time of day
    cache.write(path, content.getvalue())


def _key(text: str, architecture: int, options: Sequence[str]) -> str:
    """What the kernel is made of. Unlike the compile cache's key it does not name the compiler, which the machine that loads
    it may not have."""
    content = json.dumps([text, architecture, [*OPTIONS, *options]])
    return hashlib.sha256(content.encode()).hexdigest()[:40]
