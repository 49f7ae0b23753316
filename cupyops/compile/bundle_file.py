"""The file of a bundle: a zip archive, a digest of all its bytes, and a signature if the bundle is signed.

The archive's comment, which ends the file, has three parts: a mark, which differs for signed and unsigned bundles; the
signature of a signed bundle; and the digest. The signature is of all bytes before the signature, and the digest of all
bytes before the digest. The digest finds damage. Only the signature proves who wrote the file. A file of the first
version has no archive comment.

Every size is checked before anything is decompressed.
"""

import hashlib
import io
import struct
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import signing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["FILE", "Damaged", "check_signature", "pack", "read", "sign", "signed", "unpack"]

# Bytes at most: of a file, of one member, of all members when they are decompressed, of the list of the members.
FILE, MEMBER, MEMBERS, LIST = 2**30, 2**28, 2**30, 2**24
COUNT = 65_000  # an archive of more members has other records, which are not read

_PLAIN, _SIGNED = b"cupyops bundle 1", b"cupyops signed 1"
_DIGEST = hashlib.sha256().digest_size
_LENGTHS = {
    0: b"",
    len(_PLAIN) + _DIGEST: _PLAIN,
    len(_SIGNED) + signing.SIZE + _DIGEST: _SIGNED,
}
# The record at the archive's end: mark, three numbers, count of the members, size and place of their list, length of
# the comment.
_END = struct.Struct("<4s4xHHLLH")
_ZIP64 = 20  # bytes of the record before it, in large archives


class Damaged(ValueError):
    """The bytes of a bundle differ from those that were written."""


def pack(members: Mapping[str, bytes]) -> bytes:
    """Returns the content of an unsigned file. The same members give the same bytes.

    Raises:
        ValueError: the members are too large, or too many.
    """
    if len(members) > COUNT or any(len(data) > MEMBER for data in members.values()):
        raise ValueError(f"a bundle has at most {COUNT} files, each of at most {MEMBER >> 20} MiB")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            about = zipfile.ZipInfo(name)  # without a date
            about.create_system = 3  # on every system
            archive.writestr(about, data, zipfile.ZIP_DEFLATED)
    body = _with_comment(content.getvalue(), _PLAIN)
    return body + hashlib.sha256(body).digest()


def sign(content: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Returns the content of a file, signed. A former signature is replaced."""
    mark = _mark(content)
    bare = content[: len(content) - next(n for n, known in _LENGTHS.items() if known == mark)]
    body = _with_comment(bare, _SIGNED)
    body += signing.sign(body, key)
    return body + hashlib.sha256(body).digest()


def _with_comment(archive: bytes, mark: bytes) -> bytes:
    """Returns an archive without a comment with the length and the first bytes of its comment."""
    (length,) = (n for n, known in _LENGTHS.items() if known == mark)
    return archive[:-2] + length.to_bytes(2, "little") + mark


def _mark(content: bytes) -> bytes:
    """Returns the mark at the file's end, after a check of the digest.

    Raises:
        Damaged: the digest differs.
        ValueError: the end is not that of a bundle.
    """
    for length, mark in _LENGTHS.items():
        at = len(content) - length - _END.size
        if at >= 0 and content[at : at + 4] == b"PK\5\6" and content[at + _END.size :].startswith(mark):
            _, _, _, size, place, comment = _END.unpack_from(content, at)
            if comment == length and size <= LIST and place + size == at and content[at - _ZIP64 :][:4] != b"PK\6\7":
                if mark and hashlib.sha256(memoryview(content)[:-_DIGEST]).digest() != content[-_DIGEST:]:
                    raise Damaged("the digest of the file differs")
                return mark
    raise ValueError("the end of the file is not that of a bundle")


def signed(content: bytes) -> bool:
    """Returns whether a file has a signature, which may be wrong.

    Raises:
        ValueError: the file is not a bundle, or is damaged.
    """
    return _mark(content) == _SIGNED


def check_signature(content: bytes, keys: "list[Ed25519PublicKey]") -> None:
    """Checks the signature of a file, before anything else in the file is read.

    Raises:
        ValueError: the file has no signature, or none of the keys has made the signature.
    """
    if not signed(content):
        raise ValueError("the file is not signed")
    end = len(content) - signing.SIZE - _DIGEST
    if not signing.verify(content[:end], content[end:-_DIGEST], keys):
        raise ValueError("the signature is of another content or of another key")


def unpack(content: bytes) -> zipfile.ZipFile:
    """Opens a file's archive after a check of the digest and of all names and sizes; decompresses nothing.

    Raises:
        Exception: the file is damaged. :mod:`zipfile` has many exceptions for damaged archives.
    """
    if len(content) > FILE:
        raise ValueError(f"the file is larger than {FILE >> 20} MiB")
    _mark(content)
    archive = zipfile.ZipFile(io.BytesIO(content))
    names: set[str] = set()
    for member in archive.infolist():
        if member.filename in names:
            raise ValueError(f"two files are named {member.filename}")
        names.add(member.filename)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
            raise ValueError(f"{member.filename} is encrypted, or compressed by another method")
        if member.file_size > MEMBER:
            raise ValueError(f"{member.filename} says that it has {member.file_size} bytes")
    if sum(member.file_size for member in archive.infolist()) > MEMBERS:
        raise ValueError("the files together say that they have too many bytes")
    return archive


def read(archive: zipfile.ZipFile, name: str) -> bytes:
    """Decompresses a member, up to the size that the archive declares.

    Raises:
        Exception: the member is absent or damaged.
    """
    with archive.open(archive.getinfo(name)) as file:
        size = archive.getinfo(name).file_size
        data = file.read(size)  # without a size, zipfile would decompress all that there is
    if len(data) != size:
        raise ValueError(f"{name} has {len(data)} bytes, and says that it has {size}")
    return data
