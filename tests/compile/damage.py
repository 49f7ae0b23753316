"""Damages the bytes of a bundle, as disks, transfers and attackers may."""

import io
import random
import struct
import warnings
import zipfile
from collections.abc import Iterable

# Fields of a zip archive's records: mark, then (offset, bytes) of lengths, methods, flags and places.
FIELDS = {
    b"PK\3\4": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\1\2": ((6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2), (42, 4)),
    b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}
EXTREMES = (0, 1, 2, 7, 8, 9, 12, 14, 22, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three changes of one kind."""
    kind = rng.choice((flipped, truncated, fielded, fielded, spliced, rezipped, rezipped))
    for _ in range(rng.randint(1, 3)):
        content = kind(content, rng)
    return content


def flipped(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 16))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def truncated(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return rng.choice((content[:at], content[at:], content + rng.randbytes(rng.randrange(1, 200)), b"PK" + content))


def fielded(content: bytes, rng: random.Random) -> bytes:
    """A length, a place, a method or a flag of one record has another value."""
    mark = rng.choice(list(FIELDS))
    places = [i for i in range(len(content) - 46) if content.startswith(mark, i)]
    if not places:
        places = [max(content.rfind(mark), 0)]
    data, (offset, size) = bytearray(content), rng.choice(FIELDS[mark])
    at = rng.choice(places) + offset
    value = rng.choice((*EXTREMES, rng.getrandbits(32))) & ((1 << 8 * size) - 1)
    if at + size <= len(data):
        struct.pack_into("<H" if size == 2 else "<L", data, at, value)
    return bytes(data)


def spliced(content: bytes, rng: random.Random) -> bytes:
    """A part is removed, doubled, or moved."""
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    at = rng.randrange(len(content) + 1)
    return rng.choice(
        (content[:a] + content[b:], content[:b] + content[a:], content[:at] + content[a:b] + content[at:])
    )


JUNK = (b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 5000, b'{"format": 1}', b'{"format": 1e999, "kernels": {}}')
WORDS = (b"null", b"-1", b"1e999", b'"\\ud800"', b"[]", b"{}", b"[1, 2, 3]", b'"../../x"', b"true", b"9" * 5000)


def rezipped(content: bytes, rng: random.Random) -> bytes:
    """A well-formed archive again, with another manifest, other names, or files too few or too many."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # the content is damaged already
        return flipped(content, rng)
    members = members or [("empty", b"")]
    at = rng.randrange(len(members))
    name, data = members[at]
    change = rng.randrange(6)
    if change == 0:
        del members[at]
    elif change == 1:
        members[at] = (rng.choice(("../../x", "/etc/x", "a\nb", "x.cubin", "0" * 40 + ".cubin")), data)
    elif change == 2:
        members.append((rng.choice((name, "more")), data))
    elif change == 3:
        members[at] = (name, flipped(data, rng))
    else:
        about = members[0][1]
        parts = about.split(b": ")
        which = rng.randrange(len(parts))
        end = parts[which].find(b"\n")
        if rng.random() < 0.8:
            parts[which] = rng.choice(WORDS) + (b"," + parts[which][end:] if end >= 0 else b"}")
        members[0] = (members[0][0], b": ".join(parts) if rng.random() < 0.8 else rng.choice(JUNK))
    return zipped(members, rng.choice((0, 8, 12)))


def zipped(members: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive of these members, whose names may be equal."""
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as archive:
        warnings.simplefilter("ignore")  # zipfile warns of equal names
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return made.getvalue()
