"""Helpers for the tests of attacks on bundles: bundles, keys, and the check of a refusal."""

from pathlib import Path
from typing import Any

import pytest

from cupyops import load_bundle
from cupyops.compile.bundle import Entry, find
from cupyops.compile.cache import Binary

VERSIONS = {"cupyops": "0.1.0", "nvrtc": "12.9"}


def entries(code: bytes = b"code") -> list[Entry]:
    return [
        Entry(f"{text}<float32>", text, (), architecture, Binary(code + text.encode() * 300, "", {"k": (32, 0)}, 1.5))
        for text in ("one", "two", "three")
        for architecture in (80, 90)
    ]


def code(text: str = "one") -> bytes | None:
    found = find(text, 80, ())
    return found and found.code[:4]


def refused(path: Path, words: str) -> None:
    with pytest.raises(ValueError, match=words) as told:
        load_bundle(path)
    assert type(told.value) is ValueError
    assert str(told.value).startswith("load_bundle: ")
    assert path.name in str(told.value)
    assert str(told.value).isprintable()
    assert code() is None


def key_pair(folder: Path, name: str) -> tuple[Any, Path]:
    """An Ed25519 key, and the file of its public half; the private half lies beside it."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.generate()
    write_keys(folder / f"{name}.key", key)
    write_keys(folder / f"{name}.pub", key.public_key())
    return key, folder / f"{name}.pub"


def write_keys(path: Path, *keys: Any, password: bytes | None = None) -> Path:
    from cryptography.hazmat.primitives import serialization as s

    text = b""
    for key in keys:
        if hasattr(key, "public_bytes"):
            text += key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        else:
            lock = s.BestAvailableEncryption(password) if password else s.NoEncryption()
            text += key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, lock)
    path.write_bytes(text)
    path.chmod(0o600)
    return path
