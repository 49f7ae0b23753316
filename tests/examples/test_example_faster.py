"""The example that optimises any model and times a training step before and after."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from examples import any_model, faster
from examples.command import UserError


def test_a_small_model_is_optimised_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert faster.optimize(faster.small()).replaced


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


def test_the_first_floating_tensor_of_a_result_is_found() -> None:
    x = torch.zeros(2)
    assert any_model.first_tensor(x) is x
    assert any_model.first_tensor((None, [torch.zeros(2, dtype=torch.int64), x])) is x
    assert any_model.first_tensor({"a": None, "b": x}) is x
    assert any_model.first_tensor(SimpleNamespace(values=lambda: [x])) is x
    with pytest.raises(UserError, match="has no floating tensor"):
        any_model.first_tensor([torch.zeros(2, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("name", "package", "inputs"),
    [
        ("convnext_atto", "timm", {"x": (2, 3, 224, 224)}),
        ("convnext_atto.d2_in1k", "timm", {"x": (2, 3, 224, 224)}),
        ("bert", "transformers", {"input_ids": (2, 16)}),
        ("esm", "transformers", {"input_ids": (2, 16)}),
        ("t5", "transformers", {"input_ids": (2, 16), "decoder_input_ids": (2, 16)}),
        ("clip", "transformers", {"input_ids": (2, 16), "pixel_values": (2, 3, 224, 224)}),
        ("segformer", "transformers", {"pixel_values": (2, 3, 224, 224)}),
        ("videomae", "transformers", {"pixel_values": (2, 16, 3, 224, 224)}),
        ("whisper", "transformers", {"input_features": (2, 80, 3000), "decoder_input_ids": (2, 16)}),
        ("wav2vec2", "transformers", {"input_values": (2, 16000)}),
        ("audio-spectrogram-transformer", "transformers", {"input_values": (2, 1024, 128)}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_another_package_takes_the_inputs(
    name: str, package: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs {package}: {error}")
    with torch.device("meta"):
        model = any_model.built(name, any_model.maker(name))
        given = any_model.inputs_of(model, 2, 16)
        assert {key: tuple(x.shape) for key, x in given.items()} == inputs
        any_model.check_run(name, model.eval(), given)


def test_inputs_are_no_longer_than_a_model_takes() -> None:
    config = SimpleNamespace(vocab_size=9, max_position_embeddings=4, max_target_positions=None)
    assert any_model.tokens(config, 3, 8).shape == (3, 4)
    config.max_position_embeddings = -1  # an unlimited number
    assert any_model.tokens(config, 3, 8).shape == (3, 8)


def test_a_model_that_does_not_fit_is_not_built() -> None:
    def make() -> nn.Module:
        assert torch.get_default_device().type == "meta"
        return nn.Linear(2**24, 2**20)  # 2^44 parameters

    with pytest.raises(UserError, match="17592.2 billion parameters: 2 copies of it need 562950 GB in training"):
        any_model.check_memory("huge", make, 2, torch.device("cpu"), torch.float32)
    any_model.check_memory("small", lambda: nn.Linear(2, 2), 2, torch.device("cpu"), torch.float32)


def test_errors_of_a_model_are_one_line() -> None:
    def broken() -> nn.Module:
        raise KeyError("sizes")

    with pytest.raises(UserError, match="the default configuration of broken builds no model: KeyError: 'sizes'"):
        any_model.built("broken", broken)
    with pytest.raises(
        UserError, match=r"layer does not run on input of shape \(2, 3\): RuntimeError: .*mat1 and mat2"
    ):
        any_model.check_run("layer", nn.Linear(4, 4), {"input": torch.zeros(2, 3)})


def test_a_batch_that_does_not_fit_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(faster, "compare", out_of_memory)
    assert faster.main(["--device", "cpu", "--batch", "7"]) == 2
    err = capsys.readouterr().err
    assert err == "python -m examples.faster: error: --batch 7 takes more memory than cpu has; give a smaller one\n"
