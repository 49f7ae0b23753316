"""No kernel lands that has not run on a GPU: the committed record was made on these texts, by this code, and everything
passed."""

import json

import pytest

from tests.gpu.gpu_record import RECORD, hashes

RUNS = json.loads(RECORD.read_text()) if RECORD.exists() else {}


def changed(run: str) -> list[str]:
    """Files whose hash is not what it was when this run was made."""
    recorded, now = RUNS[run]["hashes"], hashes()
    return sorted(f for f in recorded.keys() | now.keys() if recorded.get(f) != now.get(f))


def test_there_is_a_record() -> None:
    assert RUNS, "run the GPU suite and commit its record: python -m tests.gpu.gpu_record"


def test_every_kernel_text_has_run_on_a_gpu() -> None:
    texts = set.intersection(*({f for f in changed(run) if f.startswith("kernels_cu/")} for run in RUNS))
    assert not texts, (
        f"{', '.join(sorted(texts))} changed since the GPU suite ran. Run it again on a machine with a GPU and commit the "
        f"record: python -m tests.gpu.gpu_record"
    )


@pytest.mark.parametrize("run", list(RUNS))
def test_each_run_was_made_on_what_is_here(run: str) -> None:
    """Told, not refused: a message may be mended without a GPU at hand, and a run be behind another; the next takes it
    in."""
    if files := changed(run):
        pytest.skip(f"{', '.join(files)} changed since the GPU suite ran as '{run}'")


# What could not run beside a CuPy for CUDA 12 on a machine whose libraries are CUDA 13's, and how many tests that were.
LACKING = {"12": {"CuPy has no cuBLAS here": 3}}


def test_both_cuda_majors_and_two_gpus_have_run() -> None:
    assert {major(r) for r in RUNS} >= {"12", "13"}
    assert any(RUNS[r]["machine"]["gpus"] >= 2 for r in RUNS)


def major(run: str) -> str:
    return str(RUNS[run]["machine"]["nvrtc"]).partition(".")[0]


@pytest.mark.parametrize("run", list(RUNS))
def test_nothing_failed_and_nothing_was_skipped_but_what_a_machine_lacked(run: str) -> None:
    tests = RUNS[run]["tests"]
    assert tests["passed"] > 1000
    assert tests["failed"] == []
    assert {why.partition(":")[0]: n for why, n in tests["skipped"].items()} == LACKING.get(major(run), {})
    assert tests["exit_code"] == 0


def test_sanitizers_found_nothing() -> None:
    found = [RUNS[r]["sanitizer"] for r in RUNS if RUNS[r]["sanitizer"]]
    assert found
    for sanitizer in found:
        assert sanitizer == dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), "clean")


def test_a_changed_text_changes_its_hash(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from tests.gpu import gpu_record

    before = hashes()
    assert {"kernels_cu/gelu.cu", "cupyops/launch/kernel.py", "autograd_bridge.py"} <= before.keys()
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
