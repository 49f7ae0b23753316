"""The example that optimises any model and times a training step before and after."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from examples import faster


def test_a_small_model_is_optimised_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    picture = tmp_path / "faster.png"
    given = ["--device", "cpu", "--batch", "1", "--length", "8", "--steps", "3", "--plot", str(picture)]
    assert faster.main(given) == 0
    out = capsys.readouterr().out
    assert "small, batch 1, float32, on cpu" in out
    assert "PyTorch" in out
    assert "of 3 steps" in out
    assert "both copies run PyTorch's own kernels, as on every CPU" in out
    if "No picture" not in out:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_small_model_has_what_optimize_looks_for() -> None:
    model, _ = faster.build("small", 1, 4)
    report = faster.optimize(model)
    assert report.replaced


@pytest.mark.parametrize(
    ("ratio", "device", "replaced", "words"),
    [
        (1.25, "cuda", True, "1.25 x: a step takes 20 % less time."),
        (1.0, "cuda", True, "does not help this model"),
        (0.8, "cuda", True, "does not help this model"),
        (1.1, "cpu", True, "as on every CPU"),
        (1.1, "cuda", False, "both copies run PyTorch's own kernels."),
    ],
)
def test_the_verdict_says_when_it_does_not_help(ratio: float, device: str, replaced: bool, words: str) -> None:
    assert words in faster.verdict(ratio, device, replaced)


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert faster.main(["no_such_model", "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("python -m examples.faster: error: no model 'no_such_model'")
    assert err.count("\n") == 1


def test_the_first_tensor_of_a_result_is_found() -> None:
    x = torch.zeros(2)
    assert faster.first_tensor(x) is x
    assert faster.first_tensor((None, [x])) is x
    assert faster.first_tensor({"a": None, "b": x}) is x
    assert faster.first_tensor(SimpleNamespace(values=lambda: [x])) is x


@pytest.mark.parametrize(
    ("name", "package", "inputs"), [("convnext_atto", "timm", "x"), ("bert", "transformers", "input_ids")]
)
def test_a_model_of_another_package_is_built(name: str, package: str, inputs: str) -> None:
    pytest.importorskip(package)
    with torch.device("meta"):
        model, given = faster.build(name, 2, 16)
    assert next(model.parameters()).is_meta
    assert list(given) == [inputs]
