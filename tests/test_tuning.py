"""What is remembered of tuned launches: found by its content, mended where it is damaged, shipped as a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from timed_gpu import BLOCKS, TEXT, Gpu, a_new_process, arguments, axpy, launched, timed_gpu, tuned

from cupyops import Elementwise, GridStride, Kernel, Threads, Tuned, tuning


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with timed_gpu(monkeypatch, tmp_path) as found:
        yield found


# What is remembered


def record_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "tuning").iterdir()
    return path


def test_a_new_process_finds_the_choice(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tuned()(*arguments())
    assert json.loads(record_file(tmp_path).read_text())["choice"] == "block=(128, 1, 1)"
    a_new_process(monkeypatch)
    again = tuned()
    assert launched(gpu, lambda: again(*arguments())) == [128]


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "truncated": lambda text: text[:-5],
    "a list": lambda text: "[]",
    "other fields": lambda text: text.replace('"gpu"', '"cpu"'),
    "a choice that is none": lambda text: text.replace("(128, 1, 1)", "(96, 1, 1)"),
    "a choice of another kind": lambda text: json.dumps({**json.loads(text), "choice": 1}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_costs_time_and_is_mended(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    tuned()(*arguments())
    path = record_file(tmp_path)
    right = path.read_text()
    path.write_text(DAMAGE[damage](right))
    a_new_process(monkeypatch)
    axpys = tuned()
    assert axpys.choice(*arguments()) is axpys.kernels[1]
    assert path.read_text() == right


def test_a_folder_that_cannot_be_written_costs_only_time(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    axpys = tuned()
    axpys(*arguments())
    assert launched(gpu, lambda: axpys(*arguments())) == [128]


@pytest.mark.parametrize(
    "other",
    [
        lambda: Tuned([axpy(256), axpy(128), axpy(1024)]),
        lambda: Tuned([axpy(b, constants={"N": 1}) for b in BLOCKS]),
        lambda: Tuned([axpy(b, options=("-lineinfo",)) for b in BLOCKS]),
        lambda: Tuned([axpy(b, shared=8) for b in BLOCKS]),
        lambda: Tuned(
            [Kernel(TEXT + "\n", "axpy", Threads("n", block=(b, 1, 1)), dtypes=("float32", "float64")) for b in BLOCKS]
        ),
        lambda: tuned(atol=1.0),
        lambda: tuned(exact=("n",)),
    ],
    ids=["another choice", "constants", "options", "shared", "text", "tolerance", "exact"],
)
def test_a_record_of_other_code_is_not_used(gpu: Gpu, other: Callable[[], Tuned]) -> None:
    tuned()(*arguments(1024))
    gpu.cost = lambda block, n: 1.0 if block == 256 else 2.0
    axpys = other()
    assert axpys.choice(*arguments(1024)) is axpys.kernels[0]
    assert len(tuning._own) == 2


def test_geometries_that_plan_differently_are_other_code(gpu: Gpu) -> None:
    """Their macros alone may be the same."""

    def key(geometry: Any) -> str:
        kernels = [Kernel(TEXT, "axpy", geometry, dtypes=("float32",)), axpy(256, dtypes=("float32",))]
        return Tuned(kernels)._key({"scalar_t": "float32"}, "GPU", 90, (10,))

    policies = [
        GridStride("n"),
        GridStride("n", blocks_per_multiprocessor=2),
        Elementwise("n", block=256),
        Threads("n"),
    ]
    assert len({key(p) for p in policies}) == len(policies)
    assert key(GridStride("n")) == key(GridStride("n"))


# Files


def test_choices_are_shipped_as_a_file(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for n in (1000, 5000):
        tuned()(*arguments(n))
    assert tuning.save(tmp_path / "choices.json") == 2
    # Another machine: nothing is remembered, nothing may be timed.
    a_new_process(monkeypatch)
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("CUPYOPS_TUNE", "0")
    axpys = tuned()
    assert launched(gpu, lambda: axpys(*arguments(1000))) == [256]
    assert tuning.load(tmp_path / "choices.json") == 2
    for n in (1000, 5000):
        assert launched(gpu, lambda n=n: axpys(*arguments(n))) == [128]  # type: ignore[misc]
    assert launched(gpu, lambda: axpys(*arguments(50))) == [256]
    # What was loaded is saved with the rest, and the same choices give the same bytes.
    assert tuning.save(tmp_path / "again.json") == 2
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "choices.json").read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is no file of choices"),
        ("[]", "is no file of choices"),
        ("{}", "is no file of choices"),
        ('{"cupyops tuning": 0, "choices": {}}', "is of format 0, and this cupyops reads format 1"),
        ('{"cupyops tuning": 1}', "is damaged: 'choices'"),
        ('{"cupyops tuning": 1, "choices": {"key": {}}}', "is damaged: a record with other fields"),
        ('{"cupyops tuning": 1, "choices": []}', "is damaged: "),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "choices.json").write_text(text)
    with pytest.raises(ValueError, match=rf"tuning.load: {tmp_path}/choices.json {words}"):
        tuning.load(tmp_path / "choices.json")
    with pytest.raises(FileNotFoundError):
        tuning.load(tmp_path / "absent.json")
