"""The records of tuned launches: found by their content, replaced if damaged, shipped as a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops import Elementwise, GridStride, Kernel, Threads, Tuned, TuningError
from cupyops.tuning import records as tuning
from tests.gpu.timed_gpu import BLOCKS, TEXT, Gpu, a_new_process, arguments, axpy, launched, timed_gpu, tuned


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with timed_gpu(monkeypatch, tmp_path) as found:
        yield found


# The records


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
    # Another machine: nothing is recorded, nothing may be timed.
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


def test_a_loaded_choice_that_stands_before_the_processs_own_is_saved(gpu: Gpu, tmp_path: Path) -> None:
    tuned()(*arguments(1000))
    tuning.save(path := tmp_path / "choices.json")
    document = json.loads(path.read_text())
    for record in document["choices"].values():
        record["choice"] = "another"
    path.write_text(json.dumps(document))
    tuning.load(path)
    tuning.save(again := tmp_path / "again.json")
    assert json.loads(again.read_text()) == document


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "is not a file of tuned choices"),
        ("[]", "is not a file of tuned choices"),
        ("{}", "is not a file of tuned choices"),
        pytest.param("[" * 100_000, "is not a file of tuned choices", id="nested without end"),
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


# On a GPU

SCALE = """
extern "C" __global__ void __launch_bounds__(MOST) scale(
    const scalar_t* __restrict__ x,  // (n)
    scalar_t* __restrict__ y,        // (n)
    acc_t factor, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (int k = 0; k < DELAYS; ++k) __nanosleep(500000);
    if (i < n) y[i] = scalar_t(factor * acc_t(x[i]) + acc_t(OFF));
}
"""


def scale(delays: int = 0, block: int = 256, most: int = 1024, off: int = 0) -> Kernel:
    constants = {"DELAYS": delays, "MOST": most, "OFF": off}
    return Kernel(SCALE, "scale", Threads("n", block=(block, 1, 1)), constants=constants)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder without records, and a process without records."""
    monkeypatch.delenv("CUPYOPS_TUNE", raising=False)
    monkeypatch.setattr(tuning, "_own", {})
    monkeypatch.setattr(tuning, "_loaded", {})
    monkeypatch.setattr(tuning, "_folder", lambda: tmp_path / "tuning")
    return tmp_path / "tuning"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_finds_the_fastest_and_gives_its_result(fresh: Path, dtype: torch.dtype) -> None:
    """The first sleeps, the last cannot be launched."""
    scales = Tuned([scale(4), scale(), scale(block=512, most=128)])
    x = torch.randn(5001, device="cuda").to(dtype)
    for start in (0, 1):  # also where the output is not aligned
        y = torch.empty(5001, device="cuda", dtype=dtype)[start:]
        scales(x[start:], y, 2.0, y.numel())
        assert torch.equal(y, 2 * x[start:])
    assert scales.choice(x, x, 2.0, 5001) is scales.kernels[1]
    (file,) = fresh.iterdir()
    record = json.loads(file.read_text())
    assert record["gpu"] == torch.cuda.get_device_name()
    times = list(record["microseconds"].values())
    assert times[0] > 10 * times[1] > 0
    assert times[2] is None


@pytest.mark.gpu
def test_a_gpu_refuses_a_choice_with_another_result(fresh: Path) -> None:
    x, y = torch.ones(5000, device="cuda"), torch.zeros(5000, device="cuda")
    with pytest.raises(TuningError, match="element 0 of `y` is 3.0, and was 2.0"):
        Tuned([scale(), scale(off=1)])(x, y, 2.0, 5000)
    assert not y.any()


@pytest.mark.gpu
def test_a_capture_times_nothing_and_takes_what_is_recorded(fresh: Path) -> None:
    scales = Tuned([scale(1), scale()])
    x, y = torch.randn(1000, device="cuda"), torch.empty(1000, device="cuda")
    scales.kernels[0](x, y, 2.0, 1000)  # compiled, as before any capture
    for recorded in (False, True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scales(x, y, 3.0, 1000)
        y.zero_()
        graph.replay()
        assert torch.equal(y, 3 * x)
        assert bool(list(fresh.glob("*"))) == recorded
        assert (scales.choice(x, y, 2.0, 1000) is scales.kernels[1]) or not recorded


@pytest.mark.gpu
def test_arrays_of_cupy_and_side_streams(fresh: Path) -> None:
    import cupy
    import numpy

    scales = Tuned([scale(1), scale()])
    x, y = cupy.asarray(numpy.arange(1000, dtype=numpy.float32)), cupy.asarray(numpy.zeros(1000, numpy.float32))
    scales(x, y, 2.0, 1000)
    assert (y.get() == 2 * numpy.arange(1000)).all()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        t = torch.full((3000,), 4.0, device="cuda")
        out = torch.empty_like(t)
        scales(t, out, 2.0, 3000)
        assert torch.equal(out, 2 * t)
