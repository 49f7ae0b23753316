"""Bundles: kernels compiled ahead into one file, for machines without NVRTC or without a writable folder.

``python -m cupyops bundle`` writes a bundle. :func:`load_bundle` or ``CUPYOPS_BUNDLE`` loads it. The key of a kernel is
a hash of its final text (:func:`cupyops.compile.source.assemble`), options and architecture. NVRTC compiles the kernels
that are in no loaded bundle.

The file is a zip archive of a manifest and a cubin for each kernel, dtype and architecture. The same kernels give a
file of the same bytes. :mod:`cupyops.compile.bundle_file` describes the file and its signature. A damaged file is
refused when it is loaded, and nothing of the file is used.
"""

import hashlib
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cupyops.trust import shown

from . import bundle_file, cache, signing
from .cache import Binary
from .compiler import OPTIONS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Bundle", "Entry", "check", "find", "load_bundle", "read_file", "write_bundle"]

# Increment when the format of the file changes.
FORMAT = 1
_MANIFEST = "cupyops-bundle.json"
_LARGEST_MANIFEST = 2**26


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
        verified: whether a trusted key has signed the file. Without ``CUPYOPS_REQUIRE_SIGNED=1`` no signature is
            checked.
    """

    def __init__(self, path: str, archive: zipfile.ZipFile, about: dict[str, Any], verified: bool) -> None:
        self.path, self.about, self.verified = path, about, verified
        self._archive, self._kernels = archive, about["kernels"]
        self.architectures = tuple(sorted({kernel["architecture"] for kernel in self._kernels.values()}))

    def __repr__(self) -> str:
        targets = ", ".join(f"sm_{a}" for a in self.architectures)
        return f"<Bundle {shown(self.path)} of cupyops {self.about['cupyops']}: {len(self)} kernels for {targets}>"

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
                    code = bundle_file.read(self._archive, f"{key}.cubin")
                    types = tuple(self._kernels[key].get("types", ()))
                    return Binary(code, "", resources, 0.0, entry=self._kernels[key].get("entry"), types=types)
        return None


_loaded: list[Bundle] = []


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Loads a bundle, and returns it. From then on, kernels in the bundle are not compiled.

    The bundle that was loaded last is searched first. ``CUPYOPS_BUNDLE=FILE`` in the environment loads a
    bundle at the first launch.

    With ``CUPYOPS_REQUIRE_SIGNED=1``, a key of the file ``CUPYOPS_TRUSTED_KEYS`` must have signed the bundle. The
    signature is checked before anything else in the file is read.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a bundle, is damaged, has a format that this version does not read, or lacks a
            required signature of a trusted key.
        MissingDependencyError: a signature is required, and the package ``cryptography`` is not installed.
    """
    name = os.fspath(path)
    told = f"load_bundle: {shown(name)}"
    content, verified = read_file(name), signing.required()  # the file may change or vanish after loading
    if verified:
        keys = signing.trusted_keys()
        try:
            bundle_file.check_signature(content, keys)
        except ValueError as problem:
            raise ValueError(
                f"{told} is not loaded: {problem}, and CUPYOPS_REQUIRE_SIGNED=1 requires a signature by a key of "
                f"{shown(os.environ['CUPYOPS_TRUSTED_KEYS'])}"
            ) from None
    bundle = _parsed(name, content, told, verified)
    _loaded.insert(0, bundle)
    return bundle


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Reads a file that should be a bundle.

    Raises:
        OSError: the file cannot be read.
        ValueError: the path is not that of a regular file, or the file is larger than a bundle may be.
    """
    # O_NONBLOCK: a pipe in the place of a file must not block the reader.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"load_bundle: {shown(path)} is no regular file")
        if about.st_size > bundle_file.FILE:
            raise ValueError(f"load_bundle: {shown(path)} is larger than {bundle_file.FILE >> 20} MiB")
        return file.read(about.st_size)


def check(path: str | os.PathLike[str], content: bytes) -> None:
    """Checks the content of a bundle's file, as :func:`load_bundle` does, without loading the bundle.

    Raises:
        ValueError: the file is not a bundle, is damaged, or has another format.
    """
    _parsed(os.fspath(path), content, f"load_bundle: {shown(path)}", False)


def _parsed(name: str, content: bytes, told: str, verified: bool) -> Bundle:
    """Returns the bundle of a file's content, every part of which is checked here.

    Raises:
        ValueError: the file is not a bundle, is damaged, or has another format.
    """
    # A damaged archive or manifest raises various exceptions of zipfile, zlib, struct and json, so all are caught.
    try:
        archive = bundle_file.unpack(content)
        if archive.getinfo(_MANIFEST).file_size > _LARGEST_MANIFEST:
            raise ValueError("the manifest is too large")
        about = json.loads(bundle_file.read(archive, _MANIFEST), object_pairs_hook=_distinct)
        found = about["format"]
    except bundle_file.Damaged as problem:
        raise ValueError(f"{told} is damaged: {problem}") from None
    except Exception as problem:
        raise ValueError(f"{told} is not a bundle of kernels, or is incomplete: {_words(problem)}") from None
    if found != FORMAT:
        raise ValueError(
            f"{told} is of format {shown(found)[:40]}, and this cupyops reads format {FORMAT}; write it again: "
            f"python -m cupyops bundle"
        )
    try:
        _check(about, archive)
        return Bundle(name, archive, about, verified)
    except Exception as problem:
        raise ValueError(f"{told} is damaged: {_words(problem)}") from None


def _words(problem: Exception) -> str:
    """Returns the message of an exception, shortened and without control characters."""
    return shown(str(problem) or type(problem).__name__)[:300]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in the manifest")
    return found


def _check(about: dict[str, Any], archive: zipfile.ZipFile) -> None:
    """Raises an exception if the manifest is not one, or if the archive has other files than the manifest names."""
    kernels: dict[str, Any] = about["kernels"]
    for version in ("cupyops", "nvrtc"):
        _is_text(about[version], version)
    if {f"{key}.cubin" for key in kernels} | {_MANIFEST} != set(archive.namelist()):
        raise ValueError("the archive has other files than the manifest names")
    for told in (one for listed in about.get("answers", {}).values() for one in listed):
        if not isinstance(told, str):
            raise ValueError("an answer of the compiler is no text")
    for key, kernel in kernels.items():
        if not re.fullmatch("[0-9a-f]{40}", key):
            raise ValueError(f"{key!r} is not the key of a kernel")
        what, architecture = kernel["what"], kernel["architecture"]
        _is_text(what, "what")
        if type(architecture) is not int or not 10 <= architecture < 10_000:
            raise ValueError(f"{what} has no architecture")
        _is_text(kernel.get("entry", ""), "entry")
        for told in kernel.get("types", []):
            _is_text(told, "types")
        for name, numbers in kernel["resources"].items():
            _is_text(name, "resources")
            if [type(number) for number in numbers] != [int, int]:
                raise ValueError(f"{what} has other resources than registers and spilled bytes")
        if hashlib.sha256(bundle_file.read(archive, f"{key}.cubin")).hexdigest() != kernel["sha256"]:
            raise ValueError(f"the checksum of {what} for sm_{architecture} differs")


def _is_text(value: object, name: str) -> None:
    """Raises ValueError unless a value is a short text that a message can contain."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 10_000:
        raise ValueError(f"`{name}` is not a short text")


def find(text: str, capability: int, options: Sequence[str]) -> Binary | None:
    """Returns the kernel from the loaded bundles, or None if no bundle has it.

    Raises:
        OSError, ValueError: ``CUPYOPS_BUNDLE`` cannot be loaded, for the reasons given in :func:`load_bundle`.
    """
    for bundle in _bundles():
        if signing.required() and not bundle.verified:
            continue  # the bundle was loaded before the variable was set
        if (binary := bundle.get(text, capability, options)) is not None:
            return binary
    return None


def answers(key: str) -> tuple[str, ...] | None:
    """Returns the compiler's answers to the questions of a key (:mod:`.ask`) from the loaded bundles, or None."""
    for bundle in _bundles():
        if not (signing.required() and not bundle.verified) and (found := bundle.about.get("answers", {}).get(key)):
            return tuple(found)
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


def write_bundle(
    path: str | os.PathLike[str],
    entries: Iterable[Entry],
    versions: dict[str, str],
    key: "Ed25519PrivateKey | None" = None,
    answers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Writes a bundle for :func:`load_bundle`. A failed write leaves no partial file.

    Args:
        path: the file to write.
        entries: the kernels. If entries have equal text, architecture and options, the last one is written.
        versions: the versions of ``cupyops`` and ``nvrtc``, by these two names.
        key: the key that signs the bundle, if any; :func:`cupyops.compile.signing.private_key` reads it.
        answers: the compiler's answers about the parameters of kernels, by the keys of the questions.

    Raises:
        OSError: the file cannot be written.
        ValueError: the kernels are too many or too large for a bundle.
    """
    sorted_entries = sorted({_key(e.text, e.architecture, e.options): e for e in entries}.items())
    kernels = {
        key: {
            "what": e.what,
            "architecture": e.architecture,
            "sha256": hashlib.sha256(e.binary.code).hexdigest(),
            "resources": e.binary.resources,
            **({} if e.binary.entry is None else {"entry": e.binary.entry}),
            **({"types": e.binary.types} if e.binary.types else {}),
        }
        for key, e in sorted_entries
    }
    told = {"answers": {key: list(answers[key]) for key in sorted(answers)}} if answers else {}
    about = {"format": FORMAT, **versions, "kernels": kernels, **told}
    manifest = json.dumps(about, indent=1)
    members = {_MANIFEST: manifest.encode(), **{f"{k}.cubin": e.binary.code for k, e in sorted_entries}}
    content = bundle_file.pack(members)
    cache.write(path, bundle_file.sign(content, key) if key else content)


def _key(text: str, architecture: int, options: Sequence[str]) -> str:
    """Returns a hash of the kernel's text, architecture and options.

    The compile cache's key also contains the version of NVRTC; this key does not, because the machine that loads a
    bundle may have no NVRTC.
    """
    content = json.dumps([text, architecture, [*OPTIONS, *options]])
    return hashlib.sha256(content.encode()).hexdigest()[:40]
