"""The size limit of the caches: which entries are removed first, and that only entries are removed."""

import os
import time
from pathlib import Path

import pytest

from cupyops.compile import upkeep
from cupyops.compile.cache import Binary, DiskCache
from cupyops.simulator import build

HOUR = 3600


def key(number: int) -> str:
    return f"{number:040x}"


def binary(size: int = 1000) -> Binary:
    return Binary(bytes(size), "", {"k": (32, 0)}, 1.0)


def last_used(folder: Path, number: int, hours: float) -> None:
    for path in folder.glob(f"{key(number)}*"):
        os.utime(path, (time.time() - hours * HOUR,) * 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """Five entries of 1000 bytes of code; the entry 0 was used last 10 hours ago, the entry 4 six hours ago."""
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "0")
    cache = DiskCache(tmp_path / "cache")
    for number in range(5):
        cache.put(key(number), binary())
        last_used(cache.folder, number, 10 - number)
    return cache


def kept(cache: DiskCache) -> list[int]:
    return sorted(int(k, 16) for k in upkeep.entries(cache.folder, folders=False))


def size_of(cache: DiskCache) -> int:
    return sum(path.stat().st_size for path in cache.folder.iterdir())


def test_what_was_used_longest_ago_is_removed_first(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", str(size_of(cache)))
    cache.put(key(7), binary())
    assert kept(cache) == [1, 2, 3, 4, 7]
    assert cache.get(key(1)) is not None  # a use
    cache.put(key(8), binary(1900))
    assert kept(cache) == [1, 4, 7, 8]
    assert len(list(cache.folder.iterdir())) == 8, "half an entry is left"


def test_without_a_limit_nothing_is_removed(cache: DiskCache) -> None:
    cache.put(key(7), binary(10**6))
    assert kept(cache) == [0, 1, 2, 3, 4, 7]


def test_what_is_in_use_stays(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has just found an entry loads it by its path."""
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "10")
    for number in range(4):
        assert cache.get(key(number)) is not None
    cache.put(key(7), binary())
    assert kept(cache) == [0, 1, 2, 3, 7]


def test_a_use_is_recorded_at_most_once_in_five_minutes(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []
    real = os.utime

    def utime(name: object, *given: object, **more: object) -> None:
        recorded.append(name)
        real(name, *given, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "utime", utime)
    for _ in range(3):
        assert cache.get(key(0)) is not None
    assert recorded == [cache.folder / f"{key(0)}.json"]


def test_a_large_folder_is_not_listed_for_each_entry(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    entries = upkeep.entries
    monkeypatch.setattr(upkeep, "entries", lambda *given, **more: listed.append(1) or entries(*given, **more))
    monkeypatch.setattr(upkeep, "_added", {})  # as in a new process
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "160K")
    cache.get_or_make(key(10), binary)
    assert len(listed) == 1, "after the first new entry of the process"
    for number in range(11, 31):
        cache.get_or_make(key(number), binary)
    assert len(listed) == 3, "after each sixteenth of the limit"


def test_a_process_that_has_made_no_entry_lists_no_folder(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm start reads its entries, and nothing else."""
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "no size")
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail("listed"))
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("listed"))
    assert cache.get_or_make(key(0), lambda: pytest.fail("compiled")).code == bytes(1000)


def test_a_limit_that_is_no_size(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "much\n")
    words = r"`CUPYOPS_CACHE_LIMIT` must be a size such as 500M or 5G, got 'much\\n'"
    with pytest.raises(ValueError, match=words):
        cache.get_or_make(key(9), lambda: pytest.fail("compiled"))


@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("1k", 1024),
        ("500M", 500 * 2**20),
        ("1.5 GiB", None),
        ("1.5GiB", 3 * 2**29),
        ("2GB", 2**31),
    ],
)
def test_sizes(word: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="must be a size"):
            upkeep.parse_size(word, "x")
    else:
        assert upkeep.parse_size(word, "x") == size


def test_what_cannot_be_removed_costs_nothing_else(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared sticky folder, the temporary files and the entries of other users cannot be removed."""
    (cache.folder / f".{key(1)}.cubin.half").touch()
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if not path.name.endswith(".lock"):
            raise PermissionError(1, "Operation not permitted")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(upkeep, "_added", {})
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "10")
    assert cache.get_or_make(key(7), binary).path is not None
    assert upkeep.sweep(cache.folder) == 0


def test_files_of_the_user_stay(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPYOPS_CACHE_DIR may name a folder that holds other files."""
    own = ["notes.json", "model.cubin", ".bashrc", ".bashrc.bak", ".config.json.lock", "deadbeef.json"]
    for name in own:
        (cache.folder / name).write_bytes(bytes(5000))
        os.utime(cache.folder / name, (0, 0))
    (cache.folder / "folder").mkdir()
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "10")
    cache.get_or_make(key(7), binary)
    assert kept(cache) == [7]
    assert sorted(p.name for p in cache.folder.iterdir()) == sorted(
        [*own, "folder", f"{key(7)}.cubin", f"{key(7)}.json"]
    )


def test_the_simulators_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "0")

    def add(number: int) -> Path:
        def make(folder: Path, final: Path) -> None:
            (folder / "kernel.so").write_bytes(bytes(1000))

        return build._cached(f"{number:032x}", "kernel.so", make, build._root())

    for number in range(4):
        path = add(number)
        os.utime(path.parent, (time.time() - (10 - number) * HOUR,) * 2)
    root = path.parent.parent
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "3500")  # of 1064 bytes each
    add(0)  # a use
    add(8)
    assert sorted(int(p.name, 16) for p in root.iterdir()) == [0, 3, 8]


@pytest.mark.simulator
def test_the_runtime_is_built_again_where_another_process_has_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that are compiled later are linked with the file."""
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))

    def run(tool: object, arguments: list[str], folder: Path) -> None:
        (folder / arguments[arguments.index("-o") + 1]).write_bytes(b"made")

    monkeypatch.setattr(build, "run", run)
    path = build.runtime_path()
    upkeep.remove(path.parent.parent, upkeep.Stored([path.parent.name]))
    assert not path.exists()
    assert build.runtime_path() == path
    assert path.read_bytes() == b"made"
