"""Attacks on the simulator's folders, on its compiler, and on the stored choices of Tuned."""

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from cupyops import MissingDependencyError, trust
from cupyops.compile.cache import default_folder
from cupyops.simulator import build, host
from cupyops.trust import Folder
from cupyops.tuning import records

from .attacks import KEY, STRANGER, give_away

pytestmark = pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system has no such descriptors")


@pytest.fixture(autouse=True)
def _as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUPYOPS_CACHE_SHARED", "CUPYOPS_REQUIRE_SIGNED", "CUPYOPS_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trust, "_told", set())


# The simulator, and the choices of Tuned ------------------------------------------------------------------------------

LIBRARY = "ab" * 16


@pytest.fixture
def simulators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the simulator with a planted library and a planted precompiled header."""
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    root = build._root()
    assert root == tmp_path / "cache" / "simulator"
    (root / LIBRARY).mkdir(0o700)
    for name in ("kernel.so", "headers.h.gch"):
        (root / LIBRARY / name).write_bytes(b"code of another user")
    (root / LIBRARY / "sha256").write_text(hashlib.sha256(b"code of another user").hexdigest())
    return root


def loads(root: Path, product: str) -> bool:
    return build._whole(root / LIBRARY, product)


@pytest.mark.parametrize("product", ["kernel.so", "headers.h.gch"])
@pytest.mark.parametrize("place", ["", LIBRARY, "product", "sha256"])
def test_the_simulator_loads_nothing_that_another_user_owns(
    simulators: Path, product: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = simulators / place if place in ("", LIBRARY) else simulators / LIBRARY / place.replace("product", product)
    assert loads(simulators, product)
    give_away(monkeypatch, path)
    monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1")
    assert loads(simulators, product), "with the guard off"
    monkeypatch.delenv("CUPYOPS_CACHE_SHARED")
    with pytest.warns(RuntimeWarning, match=f"belongs to user {STRANGER}"):
        assert not loads(simulators, product)


@pytest.mark.parametrize("place", ["folder", "file"])
def test_the_simulator_loads_nothing_through_a_link(
    simulators: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = simulators / LIBRARY if place == "folder" else simulators / LIBRARY / "kernel.so"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with monkeypatch.context() as off:
        off.setattr(build, "open_folder", lambda path: Folder(path, None))  # by paths, which the system follows
        assert loads(simulators, "kernel.so")
    with pytest.warns(RuntimeWarning, match="is a symbolic link"):
        assert not loads(simulators, "kernel.so")


def test_a_simulators_folder_that_is_refused_is_replaced_by_the_process_own(
    simulators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulators.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="the simulator's cache is not used: .* can be written by every user"):
        own = build._root()
    assert own != simulators
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1")
    assert build._root() == simulators


def test_what_is_built_can_be_written_by_the_user_alone(simulators: Path) -> None:
    before = os.umask(0)
    try:

        def make(folder: Path, final: Path) -> None:
            (folder / "nv").mkdir()
            (folder / "nv" / "target").write_text("text")

        build._make(simulators, "cd" * 16, "nv/target", make)
    finally:
        os.umask(before)
    assert build._whole(simulators / ("cd" * 16), "nv/target")
    made = [simulators / ("cd" * 16), *(simulators / ("cd" * 16)).rglob("*")]
    assert not [p for p in made if p.stat().st_mode & 0o022]


def test_a_choice_that_another_user_has_stored_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUPYOPS_TUNE", raising=False)
    monkeypatch.setattr(records, "_own", {})
    record = records.Record("k<float32>", "GPU", "n <= 1024", "block=128", {"block=128": 1.0})
    records.put(KEY, record)
    records._own.clear()
    give_away(monkeypatch, default_folder() / "tuning" / f"{KEY}.json")
    with pytest.warns(RuntimeWarning, match=f"belongs to user {STRANGER}"):
        assert records.get(KEY) is None
    monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1")
    assert records.get(KEY) == record


# The host's compiler --------------------------------------------------------------------------------------------------


def planted_compiler(folder: Path) -> Path:
    """A program named g++ that leaves a mark and says that it is a compiler."""
    folder.mkdir(exist_ok=True)
    program = folder / "g++"
    program.write_text(f"#!/bin/sh\n: > {folder / 'ran'}\necho 'g++ 13.0'\n")
    program.chmod(0o755)
    return folder / "ran"


@pytest.mark.parametrize("command", ["g++; touch made;", "g++ $(touch made)", "g++ `touch made`", "g++ | touch made;"])
def test_a_command_for_a_shell_is_no_shells(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(host._ask.cache_clear)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUPYOPS_CXX", command)
    host.missing()
    assert not (tmp_path / "made").exists()
    subprocess.run(f"{command} --version", shell=True, capture_output=True, check=False)
    assert (tmp_path / "made").exists(), "as a shell runs it"


def test_a_command_with_spaces_and_quotation_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CXX", "'/opt/my tools/g++' -B \"a b\"")
    assert list(host.candidates()) == [("/opt/my tools/g++", "-B", "a b")]
    monkeypatch.setenv("CUPYOPS_CXX", "  ")
    assert () not in list(host.candidates()), "a blank command would run a program named --version"
    monkeypatch.setenv("CUPYOPS_CXX", "g++ 'a\n")
    with pytest.raises(MissingDependencyError, match=r"CUPYOPS_CXX=\"g\+\+ 'a\" is not the command of a compiler"):
        list(host.candidates())


@pytest.mark.parametrize("entry", ["", ".", "tools"])
def test_a_compiler_of_the_working_directory_is_not_run(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(host._ask.cache_clear)
    ran = planted_compiler(tmp_path / "tools" if entry == "tools" else tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUPYOPS_CXX", raising=False)
    monkeypatch.setattr(host, "_has_ziglang", lambda: False)
    monkeypatch.setenv("PATH", os.pathsep.join(["/nowhere", entry]))
    assert list(host.candidates()) == []
    assert "there is none" in host.missing()
    assert not ran.exists()
    # subprocess takes an empty entry for the working directory, and shutil.which a relative one.
    subprocess.run([shutil.which("g++") or "g++", "--version"], capture_output=True, check=False)
    assert ran.exists(), "with the whole PATH"


# Names in a text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../../planted", "{}/planted"])
@pytest.mark.simulator
def test_a_file_name_in_a_text_leads_out_of_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "linker_of", lambda tool, objects, *before: (tool, []))
    monkeypatch.setattr(build, "_begin_with", lambda tool, names, flags: ())

    def run(tool: object, arguments: list[str], folder: Path) -> str:
        (folder / arguments[arguments.index("-o") + 1]).write_bytes(b"made")
        return ""

    monkeypatch.setattr(build, "run", run)
    wanted = name.format(tmp_path)
    path = build.build(
        "text", False, checked=False, watched=False, optimize=True, sources={wanted: "planted", "a/b.cu": "text"}
    )
    assert (path.parent / "a" / "b.cu").read_text() == "text"
    assert not list(tmp_path.rglob("planted"))
    # Without the guard, the name is joined to the folder of the build.
    (path.parent / wanted).write_text("planted")
    assert list(tmp_path.rglob("planted"))
