"""examples/lenet5.py: the model, the training, what a run prints and writes, and the exported file."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from autograd_bridge import GELU
from cupyops.errors import ExportError
from examples import lenet5, pictures
from examples.data import epoch_order, load_digits
from examples.exporting import export_and_test
from examples.lenet5 import LeNet5, accuracy, build_model, main, train, train_epoch
from examples.run import Run, make_fabric
from tests.examples.example_support import (
    BATCH,
    CPU,
    TEST_SET,
    TRAIN_COUNT,
    TRAIN_SET,
    lenet5_arguments,
    lenet5_options,
    quiet,
    status,
)
from tests.onnx.onnx_support import leftovers, nodes, run

pytestmark = pytest.mark.usefixtures("one_thread", "small_digits")


# The model -----------------------------------------------------------------------------------------------------------


def test_model_is_the_published_one() -> None:
    model = LeNet5()
    assert sum(p.numel() for p in model.parameters()) == 44_426
    assert sum(isinstance(layer, GELU) for layer in model) == 6
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_state_fits_both_backends() -> None:
    ours, theirs = (build_model(backend, 0) for backend in ("kernels", "torch"))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_run_leaves_global_state_alone(tmp_path: Path) -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(lenet5_options(tmp_path, "--epochs", 1, "--seed", 1), quiet)
    assert torch.equal(torch.rand(3), expected)
    assert (cudnn.enabled, cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == before


# Training ------------------------------------------------------------------------------------------------------------


def test_backends_train_alike(tmp_path: Path) -> None:
    ours, theirs = (train(lenet5_options(tmp_path / b, "--backend", b), quiet) for b in ("kernels", "torch"))
    assert [r["loss"] for r in ours] == pytest.approx([r["loss"] for r in theirs], rel=1e-4)


def test_seed_fixes_the_run_and_another_changes_it(tmp_path: Path) -> None:
    first, again, other = (
        train(lenet5_options(tmp_path, "--epochs", 1, "--seed", seed), quiet)[0] for seed in (1, 1, 2)
    )
    assert (first["loss"], first["accuracy"]) == (again["loss"], again["accuracy"])
    assert first["loss"] != other["loss"]


def test_accuracy_is_that_of_the_whole_set() -> None:
    model = build_model("kernels", 0)
    expected = [model(image[None, None] / 255).argmax().item() for image in TEST_SET.images]
    share = sum(int(a == b) for a, b in zip(expected, TEST_SET.classes, strict=True)) / len(TEST_SET)
    assert accuracy(model, TEST_SET.batches(BATCH, CPU)) == pytest.approx(100 * share)


def test_digits_are_learned() -> None:
    pytest.importorskip("sklearn")
    train_set, test_set = load_digits()
    fabric, model = make_fabric(CPU, False), build_model("kernels", 0)
    wrapped, optimizer = fabric.setup(model, torch.optim.NAdam(model.parameters(), lr=3e-3))
    for epoch in range(1, 5):
        order = epoch_order(0, epoch, len(train_set))
        train_epoch(fabric, wrapped, optimizer, train_set.batches(64, CPU, order), quiet)
    assert accuracy(model, test_set.batches(355, CPU)) > 88


# What a run prints and writes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pictures")
def test_run_prints_the_published_lines_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(lenet5_arguments(tmp_path, "--epochs", 2)) == 0
    output = capsys.readouterr().out
    assert len(re.findall(r"^Epoch: \[ [12] \], Average Loss: \d\.\d{6}$", output, re.M)) == 2
    assert len(re.findall(r"^Test Accuracy: \d+\.\d\d %$", output, re.M)) == 2
    for said in ("device:  cpu", "backend: PyTorch's operations: on a CPU", "scikit-learn's digits, 70 images"):
        assert said in output
    assert re.search(
        r"^Time per epoch: \d+\.\d{3} s \(training \d+\.\d{3} s, test .*; medians of 2 epochs\)$", output, re.M
    )
    for name in ("curves", "digits"):
        assert f"{name.title()}: {tmp_path / f'{name}.png'}" in output
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert f"TensorBoard: python -m tensorboard.main --logdir {tmp_path}" in output
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["parameters"] == 44_426
    assert (metrics["config"]["epochs"], metrics["config"]["out"], metrics["setup_seconds"]) == (2, str(tmp_path), 0.0)
    assert [f"Average Loss: {epoch['loss']:.6f}" in output for epoch in metrics["epochs"]] == [True, True]
    assert all(epoch["train_seconds"] > 0 and epoch["test_seconds"] > 0 for epoch in metrics["epochs"])
    best, final = max(metrics["epochs"], key=lambda epoch: epoch["accuracy"]), metrics["epochs"][-1]
    words = (f"{r['accuracy']:.2f} % (epoch {r['epoch']})" for r in (best, final))
    assert "Accuracy: best {} and final {}\n".format(*words) in output


@pytest.mark.simulator
def test_a_run_on_a_cpu_shows_the_kernels_in_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(lenet5_arguments(tmp_path, "--epochs", 1)) == 0
    line = r"^kernels: gelu_forward, gelu_backward, simulated on one batch: same as PyTorch to \de-0[67], in \d+\.\d s$"
    assert re.search(line, capsys.readouterr().out, re.M)


def test_the_best_accuracy_may_be_of_an_earlier_epoch(tmp_path: Path) -> None:
    lines: list[str] = []
    times = {"train_seconds": 1.0, "test_seconds": 1.0, "gpu": None}
    history = [{"epoch": i, "accuracy": a, **times} for i, a in ((1, 97.0), (2, 98.5), (3, 98.0))]
    with Run("lenet5/1", lenet5_options(tmp_path), {}, unit="epoch", records="epochs", echo=lines.append) as training:
        training.summarise(history)
    assert lines[1] == "Accuracy: best 98.50 % (epoch 2) and final 98.00 % (epoch 3)"


@pytest.mark.usefixtures("pictures")
def test_mistakes_come_first_in_the_picture_of_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(pictures, "write_figure", lambda figure, path: figures.append(figure))
    images = torch.arange(40).view(-1, 1, 1).expand(40, 28, 28)
    pictures.plot_digits(tmp_path / "x.png", images, [i % 10 for i in range(40)], [i % 10 for i in range(39)] + [3])
    (figure,) = figures
    assert figure.get_suptitle() == "Mistakes: 1 of 40 digits"
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:4] == ["3, is 9", "0", "1", "2"]
    assert len(titles) == 32
    assert figure.axes[0].images[0].get_array()[0, 0] == 39, "another image than the mistake's"


# The exported file ---------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_accuracy_under_onnxruntime_is_pytorchs(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lenet5.onnx"
    arguments = lenet5_arguments(tmp_path / "run", "--epochs", 6, "--backend", backend, "--export", path)
    assert main(arguments) == 0
    output = capsys.readouterr().out
    line = re.search(r"^Test Accuracy under onnxruntime: (\d+\.\d\d) % \(PyTorch: (\d+\.\d\d) %\)$", output, re.M)
    assert line
    last = re.findall(r"^Test Accuracy: (\d+\.\d\d) %$", output, re.M)[-1]
    assert line[1] == line[2] == last
    assert float(last) > 20  # chance gives 10
    assert "ONNX: " in output
    assert "for inputs (1, 1, 28, 28) and (2, 1, 28, 28)" in output
    assert nodes(path).count("Gelu") == 6


def test_the_accuracy_is_that_of_the_file(tmp_path: Path) -> None:
    path, model = tmp_path / "lenet5.onnx", build_model("kernels", 3).eval()
    lines: list[str] = []
    export_and_test(model, path, TEST_SET, accuracy, 12.5, lines.append)
    images = TEST_SET.images[:, None] / 255
    with torch.no_grad():
        wanted = model(images)
    torch.testing.assert_close(run(path, images)[0], wanted, rtol=1e-4, atol=1e-5)
    share = 100 * (wanted.argmax(1) == TEST_SET.labels).double().mean().item()
    assert lines[-1] == f"Test Accuracy under onnxruntime: {share:.2f} % (PyTorch: 12.50 %)"


def test_a_missing_package_is_said_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert status(main, *lenet5_arguments(tmp_path / "run", "--export", tmp_path / "x.onnx")) == 2
    captured = capsys.readouterr()
    install = "pip install 'onnx>=1.18' 'onnxruntime>=1.22' 'onnxscript>=0.7'"
    assert f"onnxruntime is not installed. Install them with: {install}" in captured.err
    assert captured.err.count("\n") == 1
    assert "Epoch" not in captured.out
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ExportError("export_onnx: output 'logits' differs from PyTorch's by 1"),
            "error: export_onnx: output 'logits'",
        ),
        (OSError(27, "File too large"), "m.onnx cannot be written: File too large"),
    ],
)
def test_a_file_that_is_not_right_is_one_line(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("cupyops.torch.onnx.export.export_onnx", refuse)
    assert main(lenet5_arguments(tmp_path / "run", "--epochs", 1, "--export", tmp_path / "m.onnx")) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


# On a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_graphs_train_like_the_recipe(backend: str, tmp_path: Path) -> None:
    gpu = ("--device", "cuda", "--backend", backend, "--epochs", 5)
    recipe, fast = (train(lenet5_options(tmp_path, *gpu, *mode), quiet) for mode in ((), ("--fast",)))
    assert fast[0]["loss"] == pytest.approx(recipe[0]["loss"], rel=0.02)
    assert fast[-1]["accuracy"] == pytest.approx(recipe[-1]["accuracy"], abs=10)
    assert len(recipe) == 5
    assert len(TRAIN_SET) == TRAIN_COUNT


@pytest.mark.gpu
def test_resumed_nadam_keeps_its_numbers_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    whole = lenet5.train_epoch

    def training(fabric, model, optimizer, *rest):  # type: ignore[no-untyped-def]
        seen.append({v[k].device.type for v in optimizer.state.values() for k in ("mu_product", "step")})
        return whole(fabric, model, optimizer, *rest)

    monkeypatch.setattr(lenet5, "train_epoch", training)
    assert main(lenet5_arguments(tmp_path, "--device", "cuda", "--epochs", 1)) == 0
    assert main(lenet5_arguments(tmp_path, "--device", "cuda", "--epochs", 2, "--resume")) == 0
    assert seen == [set(), {"cpu"}]
