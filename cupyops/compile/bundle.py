"""Bundles: kernels compiled ahead into one file, for machines without NVRTC or without a writable folder.

``python -m cupyops bundle`` writes a bundle. :func:`load_bundle` or ``CUPYOPS_BUNDLE`` loads it. The key of a kernel is
a hash of its final text (:func:`cupyops.compile.source.assemble`), options and architecture. NVRTC compiles the kernels
that are in no loaded bundle.

The file is a zip archive of a manifest and a cubin for each kernel, dtype and architecture. The same kernels give a
file of the same bytes.
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

# Increment when the format of the file changes.
FORMAT = 1
_MANIFEST = "cupyops-bundle.json"


@dataclass(frozen=True)
class Entry:
    """One kernel for one architecture, which :func:`write_bundle` writes.

    Attributes:
        what: kernel, dtypes and constants, for messages.
        text: the final text, the result of :func:`cupyops.compile.source.assemble`.
        options: NVRTC options in addition to :data:`cupyops.compile.compiler.OPTIONS`.
        architecture: 90 for sm_90.
        binary: the compiled kernel.
    """

    what: str
    text: str
    options: tuple[str, ...]
    architecture: int
    binary: Binary


class Bundle:
    """A loaded bundle.

    Attributes:
        path: the file.
        about: the manifest: the format, the versions of cupyops and NVRTC, and a record of each kernel.
        architectures: the architectures of the kernels, (80, 90).
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
        """Returns the kernel of a final text for a GPU, or None if the bundle has none.

        A kernel for the GPU's own architecture comes first. A GPU also runs a cubin of an older architecture of the
        same major version, so the newest of these comes next.
        """
        for architecture in reversed(self.architectures):
            if architecture <= capability and architecture // 10 == capability // 10:
                key = _key(text, architecture, options)
                if key in self._kernels:
                    resources = {name: tuple(numbers) for name, numbers in self._kernels[key]["resources"].items()}
                    return Binary(self._archive.read(f"{key}.cubin"), "", resources, 0.0)
        return None


_loaded: list[Bundle] = []


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Loads a bundle, and returns it. From then on, kernels in the bundle are not compiled.

    Of several loaded bundles, the last loaded is searched first. ``CUPYOPS_BUNDLE=FILE`` in the environment loads a
    bundle at the first launch.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a bundle, is damaged, or has a format that this version does not read.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        content = io.BytesIO(file.read())  # the file may change or vanish after loading
    try:
        archive = zipfile.ZipFile(content)
        about = json.loads(archive.read(_MANIFEST))
        found = about["format"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError):
        raise ValueError(f"load_bundle: {name} is not a bundle of kernels, or is incomplete") from None
    if found != FORMAT:
        raise ValueError(
            f"load_bundle: {name} is of format {found}, and this cupyops reads format {FORMAT}; write it again: "
            f"python -m cupyops bundle"
        )
    try:
        bundle = Bundle(name, archive, about)
        for key, kernel in about["kernels"].items():
            if hashlib.sha256(archive.read(f"{key}.cubin")).hexdigest() != kernel["sha256"]:
                raise ValueError(f"the checksum of {kernel['what']} for sm_{kernel['architecture']} differs")
    except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"load_bundle: {name} is damaged: {problem}") from None
    _loaded.insert(0, bundle)
    return bundle


def find(text: str, capability: int, options: Sequence[str]) -> Binary | None:
    """Returns the kernel from the loaded bundles, or None if no bundle has it.

    Raises:
        OSError, ValueError: ``CUPYOPS_BUNDLE`` cannot be loaded, for the reasons given in :func:`load_bundle`.
    """
    for bundle in _bundles():
        if (binary := bundle.get(text, capability, options)) is not None:
            return binary
    return None


def lacking(what: str, capability: int) -> str:
    """Returns the message that no loaded bundle has a kernel, or ``""`` if no bundle is loaded.

    An error message begins with these words when the kernel cannot be compiled either.
    """
    return "".join(f"{what} for sm_{capability} is not in {bundle!r}. " for bundle in _bundles())


def _bundles() -> list[Bundle]:
    path = os.environ.get("CUPYOPS_BUNDLE")
    if path and not any(bundle.path == path for bundle in _loaded):
        load_bundle(path)
    return _loaded


def write_bundle(path: str | os.PathLike[str], entries: Iterable[Entry], versions: dict[str, str]) -> None:
    """Writes a bundle for :func:`load_bundle`. A failed write leaves no partial file.

    Args:
        path: the file to write.
        entries: the kernels. Of several entries with equal text, architecture and options, the last is written.
        versions: the versions of ``cupyops`` and ``nvrtc``, by these two names.

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
            # ZipInfo without a date: the same kernels give the same bytes at any time.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    cache.write(path, content.getvalue())


def _key(text: str, architecture: int, options: Sequence[str]) -> str:
    """Returns a hash of the kernel's text, architecture and options.

    The compile cache's key also contains the version of NVRTC; this key does not, because the machine that loads a
    bundle may have no NVRTC.
    """
    content = json.dumps([text, architecture, [*OPTIONS, *options]])
    return hashlib.sha256(content.encode()).hexdigest()[:40]
