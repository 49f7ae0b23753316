"""Files that are damaged: entries of the cache of binaries, and bundles."""

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from cupyops.compile.bundle import Entry, load_bundle, write_bundle
from cupyops.compile.cache import Binary, DiskCache

__all__ = ["damaged_bundle", "damaged_cache"]

VERSIONS = {"cupyops": "0.1.0", "nvrtc": "12.9"}


def damage(data: st.DataObject, content: bytes) -> bytes:
    """The bytes with a few drawn changes: flipped bits, cut or doubled pieces, foreign bytes."""
    for _ in range(data.draw(st.integers(1, 4))):
        a = data.draw(st.integers(0, max(len(content) - 1, 0)))
        b = min(len(content), a + data.draw(st.integers(0, 64)))
        kind = data.draw(st.sampled_from(["flip", "cut", "double", "end", "put", "zeros"]))
        if kind == "flip" and content:
            content = content[:a] + bytes([content[a] ^ (1 << data.draw(st.integers(0, 7)))]) + content[a + 1 :]
        elif kind == "cut":
            content = content[:a] + content[b:]
        elif kind == "double":
            content = content[:b] + content[a:b] + content[b:]
        elif kind == "end":
            content = content[:a]
        elif kind == "put":
            content = content[:a] + data.draw(st.binary(max_size=16)) + content[b:]
        else:
            content = content[:a] + bytes(b - a) + content[b:]
    return content


def damaged_cache(data: st.DataObject, backend: str) -> None:
    """A damaged entry is absent, and never another binary; it can be stored again."""
    with tempfile.TemporaryDirectory(prefix="cupyops-campaign-") as folder:
        cache = DiskCache(Path(folder) / "cache")
        made = Binary(data.draw(st.binary(min_size=1, max_size=400)), "a log", {"k": (32, 0)}, 0.5)
        key = "ab" * 32
        stored = cache.put(key, made)
        assert stored.path is not None
        for file in sorted(p for p in stored.path.parent.iterdir() if p.name.startswith(key)):
            if data.draw(st.booleans()):
                file.write_bytes(damage(data, file.read_bytes()))
        found = cache.get(key)
        assert found is None or found.code == made.code
        again = cache.get_or_make(key, lambda: made)
        assert again.code == made.code
        stored_again = cache.get(key)
        assert stored_again is not None
        assert stored_again.code == made.code


def damaged_bundle(data: st.DataObject, backend: str) -> None:
    """A damaged bundle is refused with a ValueError that names it, or holds the kernels that were written."""
    with tempfile.TemporaryDirectory(prefix="cupyops-campaign-") as folder:
        path = Path(folder) / "kernels"
        texts = [f"text {i}" for i in range(data.draw(st.integers(1, 3)))]
        entries = [Entry(f"{t}<float32>", t, (), 80, Binary(t.encode() * 20, "", {"k": (32, 0)}, 1.0)) for t in texts]
        write_bundle(path, entries, VERSIONS)
        path.write_bytes(damage(data, path.read_bytes()))
        try:
            loaded = load_bundle(path)
            for text in texts:
                found = loaded.get(text, 80, ())
                assert found is None or found.code == text.encode() * 20, "another binary"
        except ValueError as error:
            if str(path) not in str(error):
                raise AssertionError(f"the message does not name the file: {error}") from error
