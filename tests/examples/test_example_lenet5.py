"""examples/lenet5.py: the model, the two ways to train it, and what a run leaves behind however it ends."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from examples.datasets import load_digits
from examples.training import LoaderTrainer, epoch_order, repeatable

from autograd_bridge import GELU
from examples import lenet5, reporting
from examples.lenet5 import LeNet5, build_model, main, train
from tests.examples.example_support import quiet, saved
from tests.examples.lenet5_support import BATCH, CPU, TEST_SET, TRAIN_COUNT, TRAIN_SET, command, config, make_recipe


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenet5, "load_digits", lambda: (TRAIN_SET, TEST_SET))


# The model -----------------------------------------------------------------------------------------------------------


def test_model_is_the_published_one() -> None:
    model = LeNet5()
    assert sum(p.numel() for p in model.parameters()) == 44_426
    assert sum(isinstance(layer, GELU) for layer in model) == 6
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_state_fits_both_backends() -> None:
    ours, theirs = (build_model(config(backend=backend), CPU) for backend in ("kernels", "torch"))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_building_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model(config(seed=1), CPU)
    assert torch.equal(torch.rand(3), expected)


# Training ------------------------------------------------------------------------------------------------------------


def test_backends_train_alike() -> None:
    ours, theirs = (train(config(backend=backend), quiet).history for backend in ("kernels", "torch"))
    assert [r.loss for r in ours] == pytest.approx([r.loss for r in theirs], rel=1e-4)


def test_seed_fixes_the_run_and_another_changes_it() -> None:
    first, again, other = (train(config(seed=seed, epochs=1), quiet).history[0] for seed in (1, 1, 2))
    assert (first.loss, first.accuracy) == (again.loss, again.accuracy)
    assert first.loss != other.loss


def test_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    order = epoch_order(3, 4, 1000)
    torch.rand(5)
    assert torch.equal(order, epoch_order(3, 4, 1000))
    assert order.sort().values.tolist() == list(range(1000))
    others = [epoch_order(3, 5, 1000), epoch_order(4, 4, 1000), epoch_order(4, 3, 1000)]
    assert not any(torch.equal(order, other) for other in others)


def test_average_loss_and_accuracy_are_those_of_the_whole_sets() -> None:
    trainer = make_recipe()
    expected = [trainer.model(image[None, None] / 255).argmax().item() for image in TEST_SET.images]
    share = sum(int(a == b) for a, b in zip(expected, TEST_SET.labels.tolist(), strict=True)) / len(TEST_SET)
    assert trainer.accuracy() == pytest.approx(100 * share)
    assert len(trainer.train_epoch(epoch_order(0, 1, TRAIN_COUNT), lambda _: None)) == math.ceil(TRAIN_COUNT / BATCH)


def test_digits_are_learned() -> None:
    pytest.importorskip("sklearn")
    with repeatable():
        data = load_digits()
        trainer = LoaderTrainer(build_model(config(), CPU), *data, batch_size=64, lr=3e-3, device=CPU)
        for epoch in range(1, 7):
            trainer.train_epoch(epoch_order(0, epoch, len(data[0])), lambda _: None)
    assert trainer.accuracy() > 90


def test_cudnn_settings_come_back() -> None:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with repeatable():
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == before


# What a run prints and writes ----------------------------------------------------------------------------------------


def test_run_prints_the_published_lines_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, "--epochs", "2")) == 0
    output = capsys.readouterr().out
    assert len(re.findall(r"^Epoch: \[ [12] \], Average Loss: \d\.\d{6}$", output, re.M)) == 2
    assert len(re.findall(r"^Test Accuracy: \d+\.\d\d %$", output, re.M)) == 2
    for words in ("device:  cpu", "backend: kernels", "scikit-learn's digits, 150 images", "Time per epoch: "):
        assert words in output
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["parameters"] == 44_426
    assert metrics["config"]["epochs"] == 2
    assert [f"Average Loss: {epoch['loss']:.6f}" in output for epoch in metrics["epochs"]] == [True, True]
    assert all(epoch["train_seconds"] > 0 for epoch in metrics["epochs"])


def test_curves_are_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    train(config(tmp_path, epochs=1), quiet)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_events_hold_each_batch_and_each_epoch_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = train(config(tmp_path, epochs=1), quiet)
    result = train(config(tmp_path, epochs=2, resume=True), quiet)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    batches = events.Scalars("Loss/Train")
    assert [event.step for event in batches] == list(range(10))
    assert sum(event.value for event in batches[5:]) / 5 == pytest.approx(result.history[1].loss, rel=1e-5)
    accuracies = [(event.step, event.value) for event in events.Scalars("Accuracy/Test")]
    assert accuracies == [(r.epoch, pytest.approx(r.accuracy)) for r in result.history]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(train(config(epochs=1), quiet).history) == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_and_do_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib.figure", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    lines: list[str] = []
    train(config(tmp_path, epochs=1), lines.append)
    assert any(line.startswith("No TensorBoard events: tensorboard is not installed (pip install") for line in lines)
    assert any(line.startswith("No curves: matplotlib is not installed (pip install") for line in lines)
    assert (tmp_path / "checkpoint.pt").exists()


def test_earlier_run_is_moved_and_can_still_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    train(config(tmp_path, epochs=1, seed=1), quiet)
    for seed in (2, 3):
        train(config(tmp_path, epochs=1, seed=seed), quiet)
    assert saved(tmp_path)["settings"]["seed"] == 3
    assert saved(tmp_path / "earlier-2")["settings"]["seed"] == 2
    assert (tmp_path / "notes.txt").exists()
    assert len(train(config(tmp_path / "earlier-1", epochs=2, seed=1, resume=True), quiet).history) == 2


def test_fast_without_a_gpu_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "--fast")) == 2
    assert "--fast replays CUDA graphs and needs a GPU" in capsys.readouterr().err


# The command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--lr", "nan"], "--lr must be a positive number, got nan"),
        (["--seed", "-1"], "--seed must lie in"),
        (["--resume"], "--resume: there is no"),
        (["--dataset", "mnist", "--data-dir", "absent", "--mirror", "http://127.0.0.1:9/"], "Without a network"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(command(tmp_path / "file", "--epochs", "1")) == 2
    assert f"cannot write to {tmp_path / 'file'}" in capsys.readouterr().err


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    for option in ("--dataset {digits,mnist}", "--data-dir", "--fast", "--resume", "--backend", "--seed", "--device"):
        assert option in output


# On a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_graphs_train_like_the_recipe(backend: str) -> None:
    recipe, fast = (
        train(config(device="cuda", backend=backend, fast=fast, epochs=5), quiet).history for fast in (False, True)
    )
    assert fast[0].loss == pytest.approx(recipe[0].loss, rel=0.02)
    assert fast[-1].accuracy == pytest.approx(recipe[-1].accuracy, abs=10)


@pytest.mark.gpu
def test_gpu_use_is_reported_where_the_driver_tells() -> None:
    monitor = reporting.GpuMonitor(torch.device("cuda", torch.cuda.current_device()))
    try:
        use = monitor.read()
    finally:
        monitor.close()
    if use is None:
        assert monitor.why_not
    else:
        assert 0 <= use.utilisation_percent <= 100
        assert use.memory_mib > 0
