"""Compiled kernels on disk: found again, never confused, never read in part, and never the cause of a failure."""

import errno
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cupyops.compile.cache import Binary, DiskCache, default_folder
from tests.support import HANG

BINARY = Binary(b"\x7fELF code", "a log, Φ", {"first": (32, 0), "second": (255, 16)}, 0.25)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# One entry


def test_round_trip(cache: DiskCache) -> None:
    kept = cache.put("key", BINARY)
    assert kept == replace(BINARY, path=cache.folder / "key.cubin")
    assert cache.get("key") == kept
    assert files(cache.folder) == ["key.cubin", "key.json"]
    assert kept.path is not None
    assert kept.path.read_bytes() == BINARY.code


def test_absent(cache: DiskCache) -> None:
    assert cache.get("key") is None
    cache.put("key", BINARY)
    assert cache.get("other") is None


def whole(about: dict[str, Any], **changed: Any) -> bytes:
    return json.dumps({**about, **changed}).encode()


DAMAGE = {
    "code: one bit": lambda code, about: (bytes([code[0] ^ 1]) + code[1:], None),
    "code: truncated": lambda code, about: (code[:-1], None),
    "code: empty": lambda code, about: (b"", None),
    "code: longer": lambda code, about: (code + b"\0", None),
    "json: empty": lambda code, about: (None, b""),
    "json: truncated": lambda code, about: (None, whole(about)[:-7]),
    "json: no text": lambda code, about: (None, b"\xff\xfe\0"),
    "json: a list": lambda code, about: (None, b"[1, 2]"),
    "json: a number": lambda code, about: (None, b"5"),
    "json: null": lambda code, about: (None, b"null"),
    "json: foreign": lambda code, about: (None, b'{"name": "left-pad", "version": "1.3.0"}'),
    "json: another checksum": lambda code, about: (None, whole(about, sha256="0" * 64)),
    "json: of another key": lambda code, about: (None, whole(about, key="other")),
    "json: nested without end": lambda code, about: (None, b"[" * 100_000),
    "json: too much": lambda code, about: (None, whole(about, surprise=1)),
    "json: too little": lambda code, about: (None, whole({"sha256": about["sha256"]})),
    "json: resources of another kind": lambda code, about: (None, whole(about, resources=[1])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_counts_as_absent_and_is_mended(cache: DiskCache, damage: str) -> None:
    kept = cache.put("key", BINARY)
    about = json.loads((cache.folder / "key.json").read_text())
    for name, data in zip(("key.cubin", "key.json"), DAMAGE[damage](BINARY.code, about), strict=True):
        if data is not None:
            (cache.folder / name).write_bytes(data)
    assert cache.get("key") is None
    assert cache.put("key", BINARY) == cache.get("key") == kept


@pytest.mark.parametrize("lost", ["key.cubin", "key.json"])
def test_half_an_entry_counts_as_absent(cache: DiskCache, lost: str) -> None:
    cache.put("key", BINARY)
    (cache.folder / lost).unlink()
    assert cache.get("key") is None


# Folders that cannot be written


def test_a_folder_that_cannot_be_made_costs_only_the_entry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    assert cache.put("key", BINARY) == BINARY
    assert cache.get("key") is None


@pytest.mark.parametrize("function", ["os.replace", "os.open", "os.fdopen"])
def test_a_full_disk_costs_only_the_entry(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    real = os.open

    def full(*args: Any, **kwargs: Any) -> int:
        if function == "os.open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        if function == "os.fdopen":
            os.close(args[0])
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.put("before", BINARY)
    monkeypatch.setattr(function, full)
    assert cache.put("key", BINARY) == BINARY
    assert cache.get("key") is None
    assert files(cache.folder) == ["before.cubin", "before.json"]
    assert cache.get("before") is not None


def test_a_disk_that_fills_between_the_files_leaves_no_entry(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    move = os.replace

    def full(source: str, target: Path) -> None:
        if target.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device")
        move(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert cache.put("key", BINARY).path is None
    assert cache.get("key") is None
    assert files(cache.folder) == ["key.cubin"]
    monkeypatch.undo()
    assert cache.put("key", BINARY) == cache.get("key")


def test_an_interrupt_leaves_no_temporary_file(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put("key", BINARY)
    assert files(cache.folder) == []


def test_temporary_files_lie_beside_their_place(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename from another file system would not be atomic."""
    folders = []
    move = os.replace

    def watched(source: Path, target: Path) -> None:
        folders.append(source.parent)
        move(source, target)

    monkeypatch.setattr(os, "replace", watched)
    cache.put("key", BINARY)
    assert folders == [cache.folder, cache.folder]


# Where


def test_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CUPYOPS_CACHE_DIR", raising=False)
    assert default_folder() == Path("/home/somebody/.cache/cupyops")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_folder() == Path("/caches/cupyops")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", "/chosen")
    assert default_folder() == Path("/chosen")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", "~/chosen")
    assert default_folder() == Path("/home/somebody/chosen")


def test_a_relative_folder_is_taken_from_where_it_is_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", f"relative-{tmp_path.name}")
    monkeypatch.chdir(tmp_path)
    assert default_folder() == tmp_path / f"relative-{tmp_path.name}"
    monkeypatch.chdir("elsewhere")
    assert default_folder() == tmp_path / f"relative-{tmp_path.name}", "it moves with the process"
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", f"./another-{tmp_path.name}/..//x")
    assert default_folder() == tmp_path / "elsewhere" / "x"


def test_an_empty_folder_is_none_and_a_relative_one_of_the_desktop_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard of ``XDG_CACHE_HOME`` has relative paths ignored."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", "")
    for given in ("", "caches", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_folder() == Path("/home/somebody/.cache/cupyops")


def test_a_home_that_nobody_has_is_no_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", "~nobody-of-this-name/cache")
    cache = DiskCache(default_folder())
    assert cache.put("key", BINARY) == BINARY
    assert not Path("~nobody-of-this-name").exists()


def test_a_relative_folder_of_a_directory_that_is_gone_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", f"gone-{tmp_path.name}")
    cache = DiskCache(default_folder())
    assert cache.put("key", BINARY) == BINARY


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CUPYOPS_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    cache = DiskCache(default_folder())
    assert cache.put("key", BINARY) == BINARY
    assert cache.get("key") is None


# Several at once


def test_readers_see_all_of_an_entry_or_none(cache: DiskCache) -> None:
    """Writers with different contents, unlike real ones, so that a mixture would show."""
    binaries = [Binary(bytes([i]) * (50_000 + 999 * i), f"log {i}", {"k": (i, i)}, float(i)) for i in range(2)]
    right = [replace(b, path=cache.folder / "key.cubin") for b in binaries]
    wrong: list[object] = []
    done = threading.Event()

    def write(binary: Binary) -> None:
        for _ in range(150):
            cache.put("key", binary)

    def read() -> None:
        while not done.is_set():
            found = cache.get("key")
            if found is not None and found not in right:
                wrong.append(found)

    writers = [threading.Thread(target=write, args=(b,)) for b in binaries]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert not wrong
    assert files(cache.folder) == ["key.cubin", "key.json"]


# Four forks of a process that has imported what they need; each writes what it printed into a file of its own.
COLD_START = """
import os, sys, time
from pathlib import Path
from cupyops.compile import compiler
from cupyops.compile.compiler import binary_for, supported_architectures
from cupyops.compile.source import assemble
import kernels_cu
text = assemble(kernels_cu.source("gelu"), "gelu.cu", {"scalar_t": "float32"}, {"TANH": 0})
folder, children = Path(sys.argv[1]), []
for number in range(4):
    if not (child := os.fork()):
        break
    children.append(child)
else:
    while len(list(folder.glob("ready.*"))) < 4:
        assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a process ended before it was ready"
        time.sleep(0.001)
    (folder / "go").touch()
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
supported_architectures()  # loads NVRTC, so that the compilations coincide
compile_text = compiler.compile_text
def logged(*args):
    with (folder / "compiled").open("a") as file:
        print(number, file=file)
    return compile_text(*args)
compiler.compile_text = logged
(folder / f"ready.{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
binary = binary_for(text, "gelu", "sm_80")
(folder / f"said.{number}").write_text(f"{binary.path}\\n{binary.code.hex()}")
"""


def test_four_processes_start_cold_on_one_folder(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    folder = tmp_path / "cache"
    environment = {
        **os.environ,
        "CUPYOPS_CACHE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", COLD_START, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    said = [path.read_text() for path in tmp_path.glob("said.*")]
    assert len(said) == 4
    (one,) = set(said)  # all the same
    assert len((tmp_path / "compiled").read_text().split()) == 1
    path, code = one.split()
    names = files(folder)
    assert [Path(n).suffix for n in names] == [".cubin", ".json"]
    kept = DiskCache(folder).get(Path(path).stem)
    assert kept is not None
    assert kept.code == bytes.fromhex(code)
    assert kept.code.startswith(b"\x7fELF")
    assert b"gelu_forward" in kept.code
    assert set(kept.resources) == {"gelu_forward", "gelu_backward"}
