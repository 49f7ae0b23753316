"""No kernel lands that has not run on a GPU: the committed record was made on these texts, by this code, and everything
passed."""

import ast
import json

import pytest
from gpu_record import RECORD, TOOLS, hashes, without_docstrings

RUNS = json.loads(RECORD.read_text()) if RECORD.exists() else {}


@pytest.mark.parametrize("run", list(RUNS))
def test_the_record_is_of_this_tree(run: str) -> None:
    recorded, now = RUNS[run]["hashes"], hashes()
    changed = sorted(f for f in recorded.keys() | now.keys() if recorded.get(f) != now.get(f))
    assert not changed, (
        f"{', '.join(changed)} changed since the GPU suite ran as '{run}'. Run it again on a machine with a GPU and commit the record: "
        f"python -m tests.gpu_record"
    )


def test_both_cuda_majors_and_two_gpus_have_run() -> None:
    majors = {RUNS[r]["machine"]["nvrtc"].partition(".")[0] for r in RUNS}
    assert majors >= {"12", "13"}
    assert any(RUNS[r]["machine"]["gpus"] >= 2 for r in RUNS)


@pytest.mark.parametrize("run", list(RUNS))
def test_everything_passed(run: str) -> None:
    tests = RUNS[run]["tests"]
    assert tests["failed"] == []
    assert tests["exit_code"] == 0
    assert tests["passed"] > 500


def test_all_sanitizers_were_clean() -> None:
    found = [RUNS[r]["sanitizer"] for r in RUNS if RUNS[r]["sanitizer"]]
    assert found
    assert all(f == dict.fromkeys(TOOLS, "clean") for f in found)


def test_a_changed_text_changes_its_hash(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import gpu_record

    before = hashes()
    assert {"kernels_cu/gelu.cu", "cupyops/kernel.py", "autograd_bridge.py"} <= before.keys()
    for folder in ("kernels_cu", "cupyops"):
        (tmp_path / folder).mkdir()
        for path in (gpu_record.ROOT / folder).glob("*.*"):
            if path.is_file():
                (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    text = tmp_path / "kernels_cu" / "gelu.cu"
    text.write_text(text.read_text().replace("0.044715", "0.044716"))
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    after = hashes()
    assert [f for f in after if after[f] != before[f]] == ["kernels_cu/gelu.cu"]


def test_words_in_docstrings_and_comments_do_not_count() -> None:
    plain, documented = "def f():\n    return 1\n", 'def f():\n    """Says."""\n    return 1  # why\n'
    assert ast.dump(without_docstrings(ast.parse(plain))) == ast.dump(without_docstrings(ast.parse(documented)))
