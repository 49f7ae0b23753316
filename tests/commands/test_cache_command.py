"""``python -m cupyops cache``: it shows the entries, and removes only the requested ones."""

import os
import time
from pathlib import Path

import pytest

from cupyops import trust
from cupyops.__main__ import main
from cupyops.compile import upkeep
from cupyops.compile.cache import Binary, DiskCache

DAY = 86400


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels of 1 MiB that were last used 0, 10 and 20 days ago, two of the simulator's, and a choice."""
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUPYOPS_CACHE_SHARED", raising=False)
    monkeypatch.setenv("CUPYOPS_CACHE_LIMIT", "8M")
    folder = tmp_path / "cache"
    for number in range(3):
        DiskCache(folder).put(f"{number:040x}", Binary(bytes(2**20), "", {}, 1.0))
        for path in folder.glob(f"{number:040x}*"):
            os.utime(path, (time.time() - 10 * number * DAY,) * 2)
    for number in range(2):
        library = folder / "simulator" / f"{number:032x}" / "kernel.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(bytes(2**19))
        os.utime(library.parent, (time.time() - 10 * number * DAY,) * 2)
    (folder / "tuning").mkdir()
    (folder / "tuning" / f"{0:040x}.json").write_text("{}")
    (folder / "notes.txt").write_text("of the user")
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    assert main(["cache", *arguments]) == status
    return capsys.readouterr().out.splitlines()


def counts(folder: Path) -> tuple[int, int, int]:
    return (
        len(upkeep.entries(folder, folders=False)),
        len(upkeep.entries(folder / "simulator", folders=True)),
        len(upkeep.entries(folder / "tuning", folders=False)),
    )


def test_it_shows_entries_sizes_and_ages_and_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / f"{2:040x}.json").stat().st_mtime))
    lines = said(capsys)
    assert lines[0] == f"folder: {folder}"
    assert lines[1] == f"kernels for GPUs: 3 entries, 3.0 MiB of 8.0 MiB, the oldest last used {day}"
    assert lines[2].startswith("kernels for the simulator: 2 entries, 1.0 MiB of 8.0 MiB, the oldest last used ")
    assert lines[3].startswith("choices of Tuned: 1 entries, 0.0 MiB, the oldest last used ")
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--purge"], (0, 0, 0)),
        (["--older-than", "15d"], (2, 2, 1)),
        (["--older-than", "1w"], (1, 1, 1)),
        (["--older-than", "100w"], (3, 2, 1)),
        (["--down-to", "2.5M"], (2, 2, 1)),
        (["--down-to", "600K"], (0, 1, 1)),
        (["--down-to", "0"], (0, 0, 0)),
    ],
)
def test_it_removes_what_was_asked_for(
    folder: Path, arguments: list[str], left: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, *arguments)
    assert counts(folder) == left
    assert lines[1] == f"kernels for GPUs: removed {3 - left[0]} entries"
    assert (folder / "notes.txt").read_text() == "of the user"
    if left[0]:
        assert DiskCache(folder).get(f"{0:040x}") is not None, "the entry used last was removed"


def test_it_removes_what_killed_processes_have_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / f".{9:040x}.cubin.abcd").write_text("half")
    assert said(capsys, "--older-than", "1000w")[1] == "kernels for GPUs: removed 0 entries and 1 temporary files"
    assert not list(folder.glob(".*"))


def test_a_folder_that_is_absent_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "absent"))
    monkeypatch.delenv("CUPYOPS_CACHE_LIMIT", raising=False)
    assert said(capsys, "--purge")[2] == "kernels for GPUs: 0 entries, 0.0 MiB of 5120.0 MiB"
    assert not (tmp_path / "absent").exists()


def test_a_refused_folder_is_told_and_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.chmod(0o777)
    lines = said(capsys, "--purge", status=1)
    assert lines[1] == f"kernels for GPUs: REFUSED, not used: {folder} can be written by every user"
    assert counts(folder) == (3, 2, 1)
    assert trust.problem(folder.stat())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--older-than", "soon"], "--older-than must be an age such as 12h, 30d or 4w, got 'soon'"),
        (["--down-to=-1"], "`--down-to` must be a size such as 500M or 5G, got '-1'"),
        (["--down-to", "half"], "`--down-to` must be a size such as 500M or 5G, got 'half'"),
        (["--purge", "--down-to", "1G"], "not allowed with argument"),
    ],
)
def test_mistakes_end_with_one_line(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as status:
        main(["cache", *arguments])
    assert status.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert counts(folder) == (3, 2, 1)
