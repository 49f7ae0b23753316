"""The file of the GPU record: which trees get fingerprints, and tests that failed and run again after a mend."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import gpu_record
from .fingerprints import Compiled, Fingerprints, Seen, changes, fingerprints, pinned_nvrtc
from .test_gpu_record import TEXT, source


def recorded(tmp_path: Path, tree: str) -> Path:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"runs": {"a run": {"tree": tree}}, "fingerprints": {"of another": {}}}))
    return path


def test_a_tree_that_has_not_run_gets_no_fingerprints(tmp_path: Path) -> None:
    path = recorded(tmp_path, "another")
    with pytest.raises(SystemExit, match=r"no run of .* was made on this tree .*: there are 'a run' on another"):
        gpu_record.fingerprint(path)


def test_a_tree_that_has_run_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path, gpu_record.tree_hash())
    seen = Seen([source(TEXT)], {"scale": {"once": [(0, [[1, 1, 1]], ["input 0 + 0"])]}})
    monkeypatch.setattr(gpu_record, "look_at", lambda tree: seen)
    monkeypatch.setattr(gpu_record, "installed_nvrtc", pinned_nvrtc)
    monkeypatch.setattr(gpu_record, "known_code", lambda record, nvrtc: {})
    faults, spills = ["scale<>: warning: of this"], ["scale<> spills 8 bytes"]
    monkeypatch.setattr(
        gpu_record, "compiled", lambda sources, known: Compiled({s.key: "code" for s in sources}, faults, spills)
    )
    with pytest.raises(SystemExit, match="no kernel may be warned of: scale<>: warning: of this"):
        gpu_record.fingerprint(path)
    assert json.loads(path.read_text())["fingerprints"] == {"of another": {}}
    faults.clear()
    told = gpu_record.fingerprint(path)
    assert "fingerprints of 1 kernels, which ran as a run" in told
    assert told.splitlines()[1:] == spills
    found = json.loads(path.read_text())["fingerprints"]
    assert list(found) == [gpu_record.tree_hash()]
    assert (
        changes(Fingerprints(**found[gpu_record.tree_hash()]), fingerprints(seen, {source(TEXT).key: "code"}, ""), seen)
        == []
    )


def test_an_edited_text_with_the_code_of_what_has_run_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with other code is, until it has run; and one that has run as it is needs no second entry."""
    path, pinned = recorded(tmp_path, "tree"), pinned_nvrtc()
    ran, edited, other = (source(TEXT.replace("2.0f", value)) for value in ("2.0f", "(1.0f + 1.0f)", "3.0f"))
    code = {ran.key: "code", edited.key: "code", other.key: "other code"}
    record = {**gpu_record.read(path), "fingerprints": {"tree": Fingerprints(pinned, {ran.key: "code"}, {})._asdict()}}
    path.write_text(json.dumps(record))
    asked: list[dict[str, str]] = []
    faults = ["scale<>: warning: of this"]

    def compiled(sources: list[Any], known: dict[str, str]) -> Compiled:
        asked.append(known)
        return Compiled({s.key: code[s.key] for s in sources}, faults, [])

    monkeypatch.setattr(gpu_record, "look_at", lambda tree: Seen([ran, edited, other], {}))
    monkeypatch.setattr(gpu_record, "installed_nvrtc", pinned_nvrtc)
    monkeypatch.setattr(gpu_record, "compiled", compiled)
    with pytest.raises(SystemExit, match="no kernel may be warned of"):
        gpu_record.add_texts(path)
    assert "texts" not in gpu_record.read(path)
    faults.clear()
    told = gpu_record.add_texts(path)
    assert told.startswith(
        "1 texts of 3 kernels have other tokens than what has run, and the same code; the code of 1 has"
    )
    assert gpu_record.read(path)["texts"] == {pinned: {edited.key: "code"}}
    gpu_record.add_texts(path)
    assert asked == [{ran.key: "code"}] * 2 + [{ran.key: "code", edited.key: "code"}]
    assert gpu_record.known_code(gpu_record.read(path), "13.0") == {}
    # What has run as it is, and what has the code of nothing that has run, leave the record.
    record = gpu_record.read(path)
    record["fingerprints"]["tree"]["code"] = {edited.key: "code"}
    record["texts"][pinned] |= {ran.key: "code", other.key: "other code"}
    gpu_record.write(record, path)
    assert gpu_record.read(path)["texts"] == {pinned: {ran.key: "code"}}


def test_another_nvrtc_makes_no_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_record, "installed_nvrtc", lambda: "13.0")
    with pytest.raises(SystemExit, match="CuPy has loaded 13.0"):
        gpu_record.fingerprint(recorded(tmp_path, gpu_record.tree_hash()))
    with pytest.raises(SystemExit, match="CuPy has loaded 13.0"):
        gpu_record.add_texts(tmp_path / "record.json")


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def _move(path: Path) -> None:
    path.rename(path.with_name("elsewhere" + path.suffix))


@pytest.mark.parametrize("edit", [_append, _move, Path.unlink], ids=["bytes", "place", "gone"])
def test_any_change_makes_another_tree(edit: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "kernels_cu" / "shared").mkdir(parents=True)
    path = tmp_path / "kernels_cu" / "shared" / "one.cuh"
    path.write_text("// one\n")
    (tmp_path / "autograd_bridge.py").write_text("import cupyops\n")
    before = gpu_record.tree_hash(tmp_path)
    (tmp_path / "README.md").write_text("words\n")
    assert gpu_record.tree_hash(tmp_path) == before
    edit(path)
    assert gpu_record.tree_hash(tmp_path) != before


def again_record(tmp_path: Path, whole: str) -> Path:
    """A record whose one run has two failed tests."""
    tests = {"passed": 8, "failed": ["tests.a.test_a::test_x[1]", "tests.a.test_a::test_y"], "exit_code": 1}
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"runs": {"a run": {"tree": whole, "tests": tests}}, "fingerprints": {}}))
    return path


def test_a_mended_test_counts_as_passed_on_the_mended_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = again_record(tmp_path, "whole")
    ran: list[Any] = []
    found = {"passed": 1, "failed": ["tests.a.test_a::test_y"], "skipped": {}, "exit_code": 1}
    monkeypatch.setattr(gpu_record, "run_suite", lambda *args: ran.append(args) or found)
    assert gpu_record._again(path, "a run", "mended", 3) == 1
    assert ran == [(3, ["tests.a.test_a::test_x[1]", "tests.a.test_a::test_y"])]
    run = gpu_record.read(path)["runs"]["a run"]
    assert run == {
        "tree": "whole",
        "again": "mended",
        "tests": {"passed": 9, "failed": ["tests.a.test_a::test_y"], "exit_code": 1},
    }


def test_a_failed_test_that_is_gone_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_record, "run_suite", lambda *_: {"passed": 1, "failed": []})
    with pytest.raises(SystemExit, match="2 of the failed tests had to pass, and 1 did"):
        gpu_record._again(again_record(tmp_path, "whole"), "a run", "mended", 1)
    with pytest.raises(SystemExit, match="has no run 'another' with a failed test"):
        gpu_record._again(tmp_path / "record.json", "another", "mended", 1)


def test_the_failed_tests_alone_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("a", "b"):
        text = "import pytest\n\n\n@pytest.mark.gpu\ndef test_x():\n    open('ran', 'a').write('X')\n\n\n".replace(
            "X", name
        )
        text += "def test_without_a_gpu():\n    open('ran', 'a').write('not needed')\n"
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    monkeypatch.setenv("CUPYOPS_PYTEST", "-p no:xdist")
    assert gpu_record.run_suite(1, ["tests.test_a::test_x"])["passed"] == 1
    assert (tmp_path / "ran").read_text() == "a"


def test_a_mend_that_changes_a_launch_gets_no_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = again_record(tmp_path, "whole")
    record = gpu_record.read(path)
    record["runs"]["a run"]["again"] = gpu_record.tree_hash()
    path.write_text(json.dumps(record))
    seen = Seen([source(TEXT)], {"scale": {"once": [(0, [[1, 1, 1]], ["input 0 + 0"])]}})
    monkeypatch.setattr(gpu_record, "look_at", lambda tree: seen)
    monkeypatch.setattr(gpu_record, "installed_nvrtc", pinned_nvrtc)
    monkeypatch.setattr(
        gpu_record, "compiled", lambda sources, known: Compiled({s.key: "code" for s in sources}, [], [])
    )
    monkeypatch.setattr(gpu_record, "known_code", lambda record, nvrtc: {})
    with pytest.raises(SystemExit, match="take the fingerprints of whole first"):
        gpu_record.fingerprint(path)
    for code, right in (("other", False), ("code", True)):
        ran = fingerprints(seen, {source(TEXT).key: code}, pinned_nvrtc())._asdict()
        path.write_text(json.dumps({**record, "fingerprints": {"whole": ran}}))
        if right:
            assert "fingerprints of 1 kernels" in gpu_record.fingerprint(path)
            assert set(gpu_record.read(path)["fingerprints"]) == {"whole", gpu_record.tree_hash()}
        else:
            with pytest.raises(
                SystemExit, match="all tests ran on whole, and since then this has changed: the code of"
            ):
                gpu_record.fingerprint(path)
