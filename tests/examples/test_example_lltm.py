"""The LLTM's examples: the benchmark measures what it says, and the tasks are those that only a memory can solve."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.peers import Unavailable, lltm_extension
from examples import lltm_benchmark, lltm_timing, pictures, sequence

pytestmark = pytest.mark.usefixtures("one_thread")  # cells of a few numbers


def test_the_benchmark_prints_two_numbers_a_version_and_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["-b", "3", "-f", "2", "-s", "4", "-r", "10", "--no-build"]
    assert lltm_benchmark.main(arguments) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^Python, CPU +Forward: \d+\.\d{3} us \| Backward \d+\.\d{3} us$", out, re.MULTILINE)
    assert "| Python, CPU | " in out
    assert "| 1587.3 / 2777.9 |" in out
    assert "C++, CPU: left out: --no-build" in err
    if not torch.cuda.is_available():
        assert "cupyops: left out: PyTorch sees no CUDA GPU" in err


def test_a_sequence_is_measured_beside_nn_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    assert lltm_benchmark.main(["-b", "2", "-f", "2", "-s", "4", "-t", "3", "-r", "3"]) == 0
    out = capsys.readouterr().out
    for name in ("Python, step by step", "cupyops", "torch.nn.LSTM"):
        assert f"| {name} | " in out


def test_every_step_makes_the_gradients_of_all_five_inputs() -> None:
    inputs = lltm_timing.inputs_for(3, 2, 4, torch.device("cpu"), 0)
    step = lltm_timing.cell_step(lltm_extension.python_cell, inputs)
    forward, backward = step()
    assert forward > 0
    assert backward > 0
    assert all(x.grad is not None and x.grad.any() for x in inputs)
    before = [x.grad for x in inputs]
    step()
    assert all(a is not x.grad for a, x in zip(before, inputs, strict=True)), "gradients add up from run to run"


def test_warm_up_does_not_count_and_versions_take_turns() -> None:
    calls: list[str] = []

    def version(name: str):  # type: ignore[no-untyped-def]
        def step() -> tuple[float, float]:
            calls.append(name)
            return float(len(calls)), 1.0

        return name, step

    heard: list[int] = []
    timings = lltm_timing.measure([version("a"), version("b")], 20, heard.append)
    assert sum(heard) == 40, "the bar hears of every run that counts"
    assert [len(t.forward) for t in timings] == [20, 20]
    assert calls[:6] == ["a"] * 3 + ["b"] * 3
    assert min(timings[0].forward) > 6, "a run of the warm-up was counted"
    assert calls[6:14] == ["a", "a", "b", "b", "a", "a", "b", "b"]


@pytest.mark.usefixtures("pictures")
def test_bars_that_find_no_room_leave_the_old_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    resource = pytest.importorskip("resource")
    file = tmp_path / "bars.svg"
    arguments = ["-b", "1", "-f", "1", "-s", "1", "-r", "3", "--no-build", "--plot", str(file)]
    assert lltm_benchmark.main(arguments) == 0
    before = file.read_bytes()
    assert b"<svg" in before
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert lltm_benchmark.main(arguments) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"error: {file} cannot be written: File too large\n" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.usefixtures("pictures")
def test_bars_of_an_unknown_kind_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bars.words"
    assert lltm_benchmark.main(["-b", "1", "-f", "1", "-s", "1", "-r", "3", "--no-build", "--plot", str(file)]) == 2
    assert f"error: --plot: cannot write {file}: " in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.gpu  # where the minute that a build takes is spent anyway
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("peer", [lltm_extension.cpp_cell, lltm_extension.cuda_cell])
def test_the_peers_give_the_gradients_of_autograd(device: str, peer: Callable[[], lltm_extension.Cell]) -> None:
    if device == "cpu" and peer is lltm_extension.cuda_cell:
        return
    try:
        cell = peer()
    except Unavailable as reason:
        pytest.skip(str(reason))
    drawn = lltm_timing.inputs_for(5, 3, 7, torch.device(device), 0)
    inputs = [x.detach().double().requires_grad_() for x in drawn]
    found = [
        torch.autograd.grad(sum(y.square().sum() for y in f(*inputs)), inputs)
        for f in (cell, lltm_extension.python_cell)
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_the_adding_problem_marks_one_number_in_each_half() -> None:
    x, target = sequence.adding_batch(10, 50, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert x.shape == (10, 50, 2)
    assert (x[:5, :, 1].sum(0) == 1).all()
    assert (x[5:, :, 1].sum(0) == 1).all()
    torch.testing.assert_close(target[:, 0], (x[..., 0] * x[..., 1]).sum(0))
    # Who answers 1 always is off by 1/6.
    _, many = sequence.adding_batch(10, 20_000, torch.device("cpu"), torch.Generator().manual_seed(1))
    assert abs(float((many - 1).square().mean()) - 1 / 6) < 0.005


def test_lltm_solves_a_short_adding_problem(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--steps",
        "6",
        "--state",
        "16",
        "--batch",
        "32",
        "--iterations",
        "600",
        "--lr",
        "0.02",
        "--models",
        "lltm",
    ]
    assert sequence.main([*options, "--device", "cpu"]) == 0
    assert ", solved" in capsys.readouterr().out


def test_what_is_not_solved_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert sequence.main(["--iterations", "2", "--models", "lltm", "--device", "cpu", "--steps", "4"]) == 1
    assert ", not solved" in capsys.readouterr().out


@pytest.mark.usefixtures("pictures")
def test_the_models_losses_are_lines_of_one_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(pictures, "write_figure", lambda figure, path: figures.append((figure, path)))
    options = ["--iterations", "4", "--steps", "4", "--batch", "2", "--state", "2", "--device", "cpu"]
    assert sequence.main([*options, "--plot", str(tmp_path / "x.png")]) == 1
    ((figure, path),) = figures
    assert path == tmp_path / "x.png"
    (axes,) = figure.axes
    assert [(line.get_label(), len(line.get_ydata())) for line in axes.lines] == [("lltm", 4), ("lstm", 4)]
    assert axes.get_yscale() == "log"


def test_without_the_checkout_the_versions_in_c_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel has no benchmarks/."""
    monkeypatch.setitem(sys.modules, "benchmarks.peers", None)
    with pytest.raises(lltm_benchmark.LeftOut, match="its sources are in a checkout of cupyops, in benchmarks/peers"):
        lltm_benchmark.built("cpp_cell")


def test_digits_come_by_rows_of_pixels() -> None:
    pytest.importorskip("sklearn", reason="the digits are bundled with scikit-learn")
    task = sequence.digits(4, torch.device("cpu"), 0)
    x, target = next(task.batches)
    assert (x.shape, target.shape) == ((28, 4, 28), (4,))
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
