"""examples/lenet5.py --export: the file classifies as PyTorch does, and what cannot be exported is said before training."""

import re
import sys
from pathlib import Path

import pytest
import torch
from examples.exporting import accuracy_of_file, export_classifier

from cupyops.errors import ExportError
from examples import exporting, lenet5
from examples.lenet5 import build_model, main
from tests.examples.lenet5_support import CPU, TEST_SET, TRAIN_SET, command, config
from tests.onnx.onnx_support import leftovers, nodes, run


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenet5, "load_digits", lambda: (TRAIN_SET, TEST_SET))


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_accuracy_under_onnxruntime_is_pytorchs(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lenet5.onnx"
    arguments = command(tmp_path / "run", "--epochs", "3", "--backend", backend, "--export", str(path))
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
    path = tmp_path / "lenet5.onnx"
    model = build_model(config(seed=3), CPU).eval()
    lines: list[str] = []
    export_classifier(model, path, TEST_SET, 12.5, 7, lines.append)
    images = TEST_SET.images[:, None] / 255
    with torch.no_grad():
        wanted = model(images)
    torch.testing.assert_close(run(path, images)[0], wanted, rtol=1e-4, atol=1e-5)
    share = 100 * (wanted.argmax(1) == TEST_SET.labels).double().mean().item()
    assert accuracy_of_file(path, TEST_SET, 7) == pytest.approx(share)
    assert lines[-1] == f"Test Accuracy under onnxruntime: {share:.2f} % (PyTorch: 12.50 %)"


@pytest.mark.parametrize(
    ("file", "missing", "words"),
    [
        ("absent/lenet5.onnx", "", "--export: there is no folder absent; make it, or name another file"),
        (
            "lenet5.onnx",
            "onnxruntime",
            "onnxruntime is not installed. Install them with: pip install 'onnx>=1.18' 'onnxruntime>=1.22' 'onnxscript>=0.7'",
        ),
    ],
)
def test_what_cannot_be_exported_is_said_before_the_training(
    file: str,
    missing: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert main(command(tmp_path / "run", "--export", file)) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert "Epoch" not in captured.out
    assert leftovers(tmp_path) == []


def test_a_file_that_is_not_right_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ExportError("export_onnx: output 'logits' differs from PyTorch's by 1")

    monkeypatch.setattr(exporting, "export_onnx", refuse)
    arguments = command(tmp_path / "run", "--epochs", "1", "--export", str(tmp_path / "m.onnx"))
    assert main(arguments) == 2
    assert "error: --export: export_onnx: output 'logits' differs" in capsys.readouterr().err
