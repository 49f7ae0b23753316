"""Attacks on the folders of compiled code. Each attack succeeds without its guard, and fails with it."""

import json
import os
import stat
from pathlib import Path

import pytest

from cupyops import sharing, trust
from cupyops.compile import cache
from cupyops.compile.cache import DiskCache
from cupyops.trust import Folder, Refused, open_folder

from .attacks import EVIL, KEY, OTHER, OWN, STRANGER, found, give_away, refused, succeeds_where_shared

pytestmark = pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system has no such descriptors")


@pytest.fixture(autouse=True)
def _as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUPYOPS_CACHE_SHARED", "CUPYOPS_REQUIRE_SIGNED", "CUPYOPS_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trust, "_told", set())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder that holds an entry, as an attacker would plant it: whole, with the right checksum."""
    made = tmp_path / "cache"
    assert DiskCache(made).put(KEY, EVIL).path
    return made


# Owners and modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["the folder", "above", "above that", "cubin", "json"])
def test_what_another_user_owns_is_not_loaded(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {
        "the folder": folder,
        "above": folder.parent,
        "above that": folder.parent.parent,
        "cubin": folder / f"{KEY}.cubin",
        "json": folder / f"{KEY}.json",
    }
    give_away(monkeypatch, paths[place])
    succeeds_where_shared(folder, monkeypatch)
    refused(folder, f"{paths[place]} belongs to user {STRANGER}. Correct its owner")


@pytest.mark.parametrize("place", ["the folder", "above", "cubin", "json"])
@pytest.mark.parametrize(("bits", "who"), [(0o002, "every user"), (0o020, r"group \d+")])
def test_what_another_user_may_write_to_is_not_loaded(
    folder: Path, place: str, bits: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_private", lambda group: False)
    paths = {
        "the folder": folder,
        "above": folder.parent,
        "cubin": folder / f"{KEY}.cubin",
        "json": folder / f"{KEY}.json",
    }
    path = paths[place]
    path.chmod(stat.S_IMODE(path.stat().st_mode) | bits)
    succeeds_where_shared(folder, monkeypatch)
    refused(folder, f"{path} can be written by {who}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_an_owner_that_the_system_itself_reports(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(folder / f"{KEY}.cubin", STRANGER, STRANGER)
    succeeds_where_shared(folder, monkeypatch)
    refused(folder, f"belongs to user {STRANGER}")


def test_root_does_not_load_from_a_users_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under sudo that keeps HOME, or in a container with a mounted home. A user loads files that root has made."""
    give_away(monkeypatch, folder, folder.parent, to=1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if folder.stat().st_uid == 0:
        assert found(folder) == EVIL.code
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    succeeds_where_shared(folder, monkeypatch)
    refused(folder, r"belongs to user \d+")


def test_a_group_of_one_user_may_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems with a group for each user have the umask 002."""
    folder.chmod(0o770)
    monkeypatch.setattr(trust, "_private", lambda group: group == folder.stat().st_gid)
    assert found(folder) == EVIL.code


def test_the_names_of_a_group_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    user = pwd.struct_passwd(("ann", "x", os.geteuid(), 500, "", "/home/ann", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    for name, members, private in (
        ("ann", [], True),
        ("ann", ["ann"], True),
        ("ann", ["bob"], False),
        ("all", [], False),
    ):
        trust._private.cache_clear()
        monkeypatch.setattr(grp, "getgrgid", lambda group, n=name, m=members: grp.struct_group((n, "x", group, m)))
        assert trust._private(500) == private
        assert not trust._private(501)
    trust._private.cache_clear()


def test_a_folder_made_beforehand_in_a_sticky_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /tmp, another user may make the folder first; the user's own folder there is safe."""
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    assert DiskCache(sticky / "cupyops").put(KEY, EVIL).path
    assert found(sticky / "cupyops") == EVIL.code
    assert stat.S_IMODE((sticky / "cupyops").stat().st_mode) == 0o700
    give_away(monkeypatch, sticky / "cupyops")
    succeeds_where_shared(sticky / "cupyops", monkeypatch)
    refused(sticky / "cupyops", f"belongs to user {STRANGER}")


def test_a_sticky_folder_is_itself_no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o1777)
    succeeds_where_shared(folder, monkeypatch)
    refused(folder, "can be written by every user")


def test_folders_and_files_are_the_users_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        for name, modes in (("own", (0o700, 0o700, 0o600)), ("shared", (0o777, 0o777, 0o666))):
            monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1" if name == "shared" else "0")
            path = DiskCache(tmp_path / name / "cache").put(KEY, EVIL).path
            assert path
            assert tuple(stat.S_IMODE(p.stat().st_mode) for p in (path.parent.parent, path.parent, path)) == modes
    finally:
        os.umask(before)


# Links ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["the folder", "above"])
def test_a_link_of_another_user_is_not_followed(
    folder: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder if place == "the folder" else folder.parent)
    path = link if place == "the folder" else link / "cache"
    assert found(path) == EVIL.code, "a link of the user's own is followed"
    give_away(monkeypatch, link)
    succeeds_where_shared(path, monkeypatch)
    refused(path, f"{link} belongs to user {STRANGER}")


def test_a_link_into_a_folder_of_another_user(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("cache/../cache")
    assert found(tmp_path / "link") == EVIL.code
    give_away(monkeypatch, folder)
    succeeds_where_shared(tmp_path / "link", monkeypatch)
    refused(tmp_path / "link", f"belongs to user {STRANGER}")


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert DiskCache(tmp_path / "a").get_or_make(KEY, lambda: OWN) == OWN


@pytest.mark.parametrize("suffix", ["cubin", "json"])
def test_an_entry_that_is_a_link_is_not_loaded(
    folder: Path, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = folder / f"{KEY}.{suffix}"
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    with monkeypatch.context() as off:
        off.setattr(trust, "_READ", trust._READ & ~os.O_NOFOLLOW)
        assert found(folder) == EVIL.code
    refused(folder, f"{entry} is a symbolic link")
    assert (tmp_path / "elsewhere").exists()
    assert found(folder) == OWN.code, "the link is replaced, and its target is left as it was"


def test_an_entry_linked_to_another_key_is_not_loaded(folder: Path) -> None:
    """A hard link has the owner, the mode and the checksum of the entry that it is of."""
    about = json.loads((folder / f"{KEY}.json").read_text())
    os.link(folder / f"{KEY}.cubin", folder / f"{OTHER}.cubin")
    os.link(folder / f"{KEY}.json", folder / f"{OTHER}.json")
    assert DiskCache(folder).get(OTHER) is None
    (folder / f"{OTHER}.json").unlink()
    (folder / f"{OTHER}.json").write_text(json.dumps({**about, "key": OTHER}))
    there = DiskCache(folder).get(OTHER)
    assert there is not None
    assert there.code == EVIL.code, "the key alone kept the entry from being loaded"


def test_a_new_entry_does_not_write_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    for make in (os.symlink, os.link):
        (folder / f"{KEY}.cubin").unlink()
        make(tmp_path / "kept", folder / f"{KEY}.cubin")
        assert DiskCache(folder).put(KEY, OWN).path
        assert found(folder) == OWN.code
        assert (tmp_path / "kept").read_bytes() == b"kept"


def test_a_temporary_name_that_is_guessed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    monkeypatch.setattr(cache.secrets, "token_hex", lambda size: "guessed")
    link = folder / f".{KEY}.cubin.guessed"
    link.symlink_to(tmp_path / "kept")
    assert DiskCache(folder).put(KEY, OWN).path is None
    assert (tmp_path / "kept").read_bytes() == b"kept"
    monkeypatch.setattr(cache, "_NEW", cache._NEW & ~os.O_EXCL)
    DiskCache(folder).put(KEY, OWN)
    assert (tmp_path / "kept").read_bytes() == OWN.code, "without the guard, the file of the link is overwritten"


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = folder / f".{OTHER}.lock"
    lock.symlink_to(tmp_path / "made")
    with sharing.alone(lock) as held:
        assert not held
    assert not (tmp_path / "made").exists()
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    with sharing.alone(lock):
        assert (tmp_path / "made").exists(), "without the guard"


# Between check and use ------------------------------------------------------------------------------------------------


def test_a_folder_that_is_exchanged_after_its_check(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskCache(tmp_path / "own").put(KEY, OWN)
    real = cache.open_folder

    def exchanged(path: Path, *, checked: bool = True) -> Folder:
        opened = real(path)
        (tmp_path / "own").rename(tmp_path / "aside")
        folder.rename(tmp_path / "own")
        return opened if checked else Folder(path, None)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "open_folder", exchanged)
        assert found(tmp_path / "own") == OWN.code
    (tmp_path / "own").rename(folder)
    (tmp_path / "aside").rename(tmp_path / "own")
    monkeypatch.setattr(cache, "open_folder", lambda path: exchanged(path, checked=False))
    assert found(tmp_path / "own") == EVIL.code, "with paths in place of descriptors"


def test_a_pipe_in_the_place_of_an_entry_does_not_block(folder: Path) -> None:
    for suffix in ("cubin", "json"):
        path = folder / f"{KEY}.{suffix}"
        path.rename(folder / "kept")
        os.mkfifo(path, 0o600)
        assert found(folder) is None
        path.unlink()
        (folder / "kept").rename(path)
    assert found(folder) == EVIL.code


# What a message says --------------------------------------------------------------------------------------------------


def test_a_name_of_a_folder_adds_no_line_to_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "a\nERROR: run this command\x1b[2J\u202e"
    assert DiskCache(bad).put(KEY, EVIL).path
    bad.chmod(0o777)
    with pytest.raises(Refused) as told:
        open_folder(bad)
    assert str(told.value).isprintable()
    refused(bad, r"a\\nERROR: run this command\\x1b\[2J\\u202e' can be written")
    monkeypatch.setattr(trust, "shown", str)
    with pytest.raises(Refused, match="\nERROR: run this command\x1b"):
        open_folder(bad)


def test_a_refusal_is_told_once(folder: Path) -> None:
    folder.chmod(0o777)
    refused(folder, "every user")
    assert found(folder) is None
    assert DiskCache(folder).put(OTHER, OWN) == OWN
    assert sorted(p.name for p in folder.iterdir()) == [f"{KEY}.cubin", f"{KEY}.json"], "something was written"
