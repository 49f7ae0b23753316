"""Signatures of bundles: Ed25519, by the package ``cryptography``.

With ``CUPYOPS_REQUIRE_SIGNED=1``, compiled code comes from bundles that a key of ``CUPYOPS_TRUSTED_KEYS`` has signed, or
from a compiler that this process has run. No unsigned bundle is loaded, and no cache is read.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupyops.environment import switched
from cupyops.errors import MissingDependencyError
from cupyops.installing import pip_install
from cupyops.trust import Refused, open_folder, shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SIZE", "private_key", "public_keys", "required", "sign", "trusted_keys", "verify"]

SIZE = 64  # bytes of a signature
# The signed message begins with these bytes, so that a signature of a bundle is a signature of nothing else.
_PURPOSE = b"cupyops bundle signature 1\0"
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


def required() -> bool:
    """Returns whether ``CUPYOPS_REQUIRE_SIGNED=1`` is set."""
    return switched("CUPYOPS_REQUIRE_SIGNED") == "on"


def sign(content: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Returns the signature of a content, :data:`SIZE` bytes. The same content and key give the same bytes."""
    return key.sign(_PURPOSE + content)


def verify(content: bytes, signature: bytes, keys: "list[Ed25519PublicKey]") -> bool:
    """Returns whether one of the keys has signed the content."""
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        try:
            key.verify(signature, _PURPOSE + content)
        except InvalidSignature:
            continue
        return True
    return False


def private_key(path: str | os.PathLike[str]) -> "Ed25519PrivateKey":
    """Reads an Ed25519 private key from a PEM file, ``openssl genpkey -algorithm ed25519``.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no such key, or the key has a password.
        MissingDependencyError: the package ``cryptography`` is not installed.
    """
    kinds, serialization = _cryptography()
    name = shown(path)
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except TypeError:
        raise ValueError(f"{name}: a private key without a password is needed") from None
    except Exception:  # cryptography raises ValueError, and UnsupportedAlgorithm for keys that it does not know
        raise ValueError(f"{name} is not a PEM file of a private key") from None
    if not isinstance(key, kinds.Ed25519PrivateKey):
        raise ValueError(f"{name} must be an Ed25519 private key, got {type(key).__name__.lstrip('_')}")
    return key


def public_keys(path: str | os.PathLike[str]) -> "list[Ed25519PublicKey]":
    """Reads Ed25519 public keys from a PEM file, which may hold several.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no public key, or a key or certificate of another kind.
        MissingDependencyError: the package ``cryptography`` is not installed.
    """
    return _public_keys(Path(path).read_bytes(), shown(path))


def _public_keys(content: bytes, name: str) -> "list[Ed25519PublicKey]":
    kinds, serialization = _cryptography()
    keys: list[Ed25519PublicKey] = []
    for block in _BLOCK.finditer(content):
        if block[1] != b"PUBLIC KEY":
            raise ValueError(f"{name} must hold public keys alone, got a {block[1].decode()}")
        try:
            key = serialization.load_pem_public_key(block[0])
        except Exception:  # ValueError, and UnsupportedAlgorithm
            raise ValueError(f"{name}: public key {len(keys) + 1} cannot be read") from None
        if not isinstance(key, kinds.Ed25519PublicKey):
            raise ValueError(f"{name} must hold Ed25519 keys, got {type(key).__name__.lstrip('_')}")
        keys.append(key)
    if not keys:
        raise ValueError(f"{name} holds no public key in the PEM format")
    return keys


def trusted_keys() -> "list[Ed25519PublicKey]":
    """Reads the file of ``CUPYOPS_TRUSTED_KEYS``, which no other user may be able to change.

    Raises:
        ValueError: the variable is not set, or the file cannot be used.
        MissingDependencyError: the package ``cryptography`` is not installed.
    """
    given = os.environ.get("CUPYOPS_TRUSTED_KEYS")
    if not given:
        raise ValueError("CUPYOPS_REQUIRE_SIGNED=1 needs CUPYOPS_TRUSTED_KEYS=FILE, the public keys in the PEM format")
    path = Path(os.path.abspath(os.path.expanduser(given)))
    try:
        with open_folder(path.parent, always=True) as folder:
            content = folder.read(path.name)
    except Refused as refused:
        raise ValueError(f"CUPYOPS_TRUSTED_KEYS={shown(given)} is not used: {refused}") from None
    except OSError as error:
        raise ValueError(f"CUPYOPS_TRUSTED_KEYS={shown(given)} cannot be read: {error.strerror}") from None
    return _public_keys(content, shown(given))


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDependencyError(
            f"signatures of bundles need the package cryptography, and it does not import ({error}). Install it with: "
            f"{pip_install('signed')}"
        ) from error
    return ed25519, serialization
