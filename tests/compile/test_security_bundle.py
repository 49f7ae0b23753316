"""Attacks on bundles: damaged and hostile files are refused by name, and only what a trusted key has signed is loaded."""

import hashlib
import json
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cupyops import load_bundle
from cupyops.compile import bundle, bundle_file
from cupyops.compile.bundle import write_bundle

from .bundles import VERSIONS, code, entries, key_pair, refused
from .damage import damaged, zipped

MANIFEST = "cupyops-bundle.json"


# Damage ---------------------------------------------------------------------------------------------------------------


def first_version(path: Path) -> bytes:
    """The file as it was written before files had a digest."""
    with zipfile.ZipFile(path) as archive:
        return zipped((name, archive.read(name)) for name in archive.namelist())


def test_a_file_of_the_first_version_is_read(path: Path) -> None:
    path.write_bytes(first_version(path))
    assert len(load_bundle(path)) == 6
    assert code() == b"code"


def outcome(path: Path) -> tuple[bundle.Bundle | None, Exception | None]:
    try:
        return load_bundle(path), None
    except Exception as problem:
        return None, problem


@pytest.mark.parametrize("form", ["new", "first", "signed"])
def test_a_damaged_file_is_a_value_error_that_names_it(
    form: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it loads the original kernels: only fields that nobody reads differ."""
    if form == "signed":
        write_bundle(path, entries(), VERSIONS, key_pair(tmp_path, "own")[0])
    content = path.read_bytes() if form != "first" else first_version(path)
    right = {(e.text, e.architecture): e.binary.code for e in entries()}
    rng, outcomes = random.Random(form), {"refused": 0, "loaded": 0}
    for _ in range(250):
        path.write_bytes(changed := damaged(content, rng))
        monkeypatch.setattr(bundle, "_loaded", [])
        loaded, problem = outcome(path)
        if problem is not None:
            assert type(problem) is ValueError, problem
            assert str(problem).startswith(f"load_bundle: {path} "), problem
            outcomes["refused"] += 1
        else:
            assert loaded is not None
            for (text, architecture), wanted in right.items():
                got = loaded.get(text, architecture, ())
                assert got is None or got.code == wanted
            outcomes["loaded"] += 1
            # An archive that is made anew is a file of the first version; in other forms, every byte counts.
            assert form == "first" or changed == content or not zipfile.ZipFile(path).comment
    assert outcomes["refused"] > 150


@pytest.mark.parametrize("signed", [False, True])
def test_each_byte_of_a_file_counts(signed: bool, path: Path, tmp_path: Path) -> None:
    if signed:
        write_bundle(path, entries(), VERSIONS, key_pair(tmp_path, "own")[0])
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="load_bundle"):
            load_bundle(path)


def rezipped(path: Path, change: Callable[[dict[str, bytes]], object], *extra: tuple[str, bytes]) -> None:
    """The file with the digest of its new content, which an attacker without a key can write."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    body = bundle_file._with_comment(zipped((*members.items(), *extra)), bundle_file._PLAIN)
    path.write_bytes(body + hashlib.sha256(body).digest())


def manifest(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """Changes the manifest, and with `kernel` the record of the first kernel."""

    def change(members: dict[str, bytes]) -> None:
        about = json.loads(members[MANIFEST])
        first = next(iter(about["kernels"].values()))
        first.update(changes.pop("kernel", {}))
        members[MANIFEST] = json.dumps({**about, **changes}).encode()

    return change


def renamed(name: str) -> Callable[[dict[str, bytes]], None]:
    """Gives the first kernel another key, in the manifest and in the archive."""

    def change(members: dict[str, bytes]) -> None:
        about = json.loads(members[MANIFEST])
        key = next(iter(about["kernels"]))
        about["kernels"][name] = about["kernels"].pop(key)
        members[f"{name}.cubin"] = members.pop(f"{key}.cubin")
        members[MANIFEST] = json.dumps(about).encode()

    return change


TWICE = b'{"format": 1, "format": 1, "kernels": {}}'
HOSTILE: dict[str, tuple[Callable[[dict[str, bytes]], object], tuple[tuple[str, bytes], ...], str]] = {
    "a path out of the folder": (renamed("../../.bashrc"), (), "is not the key of a kernel"),
    "an absolute path": (renamed("/etc/cron.d/x"), (), "is not the key of a kernel"),
    "a line break in a name": (renamed("x\nERROR"), (), r"x\\nERROR' is not the key of a kernel"),
    "a file that the manifest does not name": (
        lambda m: None,
        (("more", b"x"),),
        "other files than the manifest names",
    ),
    "a kernel that is not there": (lambda m: m.popitem(), (), "other files than the manifest names"),
    "a manifest twice in the archive": (lambda m: None, ((MANIFEST, b"{}"),), "two files are named"),
    "a name twice in the manifest": (lambda m: m.update({MANIFEST: TWICE}), (), "a name appears twice"),
    "escapes for a terminal": (manifest(kernel={"what": "\x1b[2J"}), (), "`what` is not a short text"),
    "a line for a log": (manifest(cupyops="0.1\nERROR"), (), "`cupyops` is not a short text"),
    "a long text": (manifest(nvrtc="9" * 10**6), (), "`nvrtc` is not a short text"),
    "nested without end": (lambda m: m.update({MANIFEST: b"[" * 10**6}), (), "is not a bundle of kernels"),
    "a format for a terminal": (manifest(format="\x1b[2J" * 100), (), r"is of format '\\x1b\[2J"),
    "an architecture that is a truth": (manifest(kernel={"architecture": True}), (), "has no architecture"),
    "resources that are texts": (manifest(kernel={"resources": {"k": "ab"}}), (), "other resources than registers"),
    "another checksum": (manifest(kernel={"sha256": "0" * 64}), (), "the checksum of .* differs"),
    "a checksum that is none": (manifest(kernel={"sha256": None}), (), "the checksum of .* differs"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_archive_with_the_right_digest(attack: str, path: Path) -> None:
    change, extra, words = HOSTILE[attack]
    rezipped(path, lambda members: None)
    assert len(load_bundle(path)) == 6, "the digest alone keeps nobody out"
    bundle._loaded.clear()
    rezipped(path, change, *extra)
    refused(path, words)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_another_method_of_compression(method: int, path: Path) -> None:
    """LZMA takes memory for a dictionary of a size that the file says."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    path.write_bytes(zipped(members))
    assert len(load_bundle(path)) == 6
    bundle._loaded.clear()
    path.write_bytes(zipped(members, method))
    refused(path, "is encrypted, or compressed by another method")


def test_an_archive_behind_another_file(path: Path) -> None:
    """zipfile reads an archive that follows other data, so that one file would be two things."""
    content = first_version(path)
    path.write_bytes(b"#!/bin/sh\n" + content)
    assert len(zipfile.ZipFile(path).namelist()) == 7
    refused(path, "the end of the file is not that of a bundle")


def test_a_device_or_a_pipe_is_no_bundle(tmp_path: Path) -> None:
    """A pipe would block, and /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is no regular file")
    refused(Path("/dev/zero"), "is no regular file")


# What unpacks to more -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("FILE", 500, "is larger than"),
        ("MEMBER", 500, "says that it has"),
        ("MEMBERS", 3000, "too many bytes"),
        ("LIST", 100, "the end of the file is not that of a bundle"),
        ("_LARGEST_MANIFEST", 100, "the manifest is too large"),
    ],
)
def test_a_file_that_says_that_it_is_too_large(
    limit: str, value: int, words: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(load_bundle(path)) == 6, "with the limits as they are"
    bundle._loaded.clear()
    monkeypatch.setattr(bundle if limit.startswith("_") else bundle_file, limit, value)
    decompressed: list[str] = []
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda self, name, *rest, **more: decompressed.append(name))
    refused(path, words)
    assert not decompressed


def test_a_file_unpacks_no_more_than_it_says(path: Path) -> None:
    """The size in the archive's list is small, and the compressed data are of many zeros."""
    bomb, said = 2**27, 1000
    key = next(iter(load_bundle(path).about["kernels"]))
    bundle._loaded.clear()
    rezipped(path, lambda members: members.update({f"{key}.cubin": bytes(bomb)}))
    content = bytearray(path.read_bytes())
    for mark, to in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        at = content.index(mark)
        while not bytes(content[at : at + 100]).count(key.encode()):
            at = content.index(mark, at + 1)
        assert int.from_bytes(content[at + to : at + to + 4], "little") == bomb
        content[at + to : at + to + 4] = said.to_bytes(4, "little")
    content[-32:] = hashlib.sha256(content[:-32]).digest()
    path.write_bytes(content)
    tracemalloc.start()
    try:
        refused(path, "is damaged")
        guarded = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.raises(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            archive.read(f"{key}.cubin")
        bare = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert guarded < 2**23
    assert bare > bomb, "as zipfile reads a file without a size"
