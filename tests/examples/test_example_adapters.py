"""examples/with_accelerate.py and with_lightning.py: cupyops' modules in other projects' trainers."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # what the trainers and their packages warn of
]


def test_accelerate_trains_our_modules(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate, of the extra adapters")
    from examples import with_accelerate

    loss, accuracy = with_accelerate.train(Namespace(seed=0, lr=3e-3, cpu=True, epochs=2))
    assert loss < 0.4
    assert accuracy > 90  # chance gives 10
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1: training loss ")
    assert last == f"epoch 2: training loss {loss:.4f}, accuracy {accuracy:.2f} %"


def test_lightning_trains_our_modules_and_loads_their_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytorch_lightning", reason="needs pytorch-lightning, of the extra adapters")
    from examples import with_lightning

    options = Namespace(seed=0, lr=3e-3, accelerator="cpu", devices=1, epochs=2)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    found = with_lightning.train(options, default_root_dir=tmp_path, **quiet)
    assert found["train_loss"] < 0.4
    assert found["accuracy"] > 90
    told = f"training loss {found['train_loss']:.4f}, accuracy {found['accuracy']:.2f} %\n"
    assert told in capsys.readouterr().out
    (kept,) = tmp_path.rglob("*.ckpt")
    loaded = with_lightning.Digits.load_from_checkpoint(kept, weights_only=True)
    assert [type(m).__module__.split(".")[0] for m in loaded.model[1:]] == ["cupyops"] * 3


@pytest.mark.parametrize("name", ["with_accelerate", "with_lightning"])
def test_a_missing_package_is_named(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"with_accelerate": "accelerate", "with_lightning": "pytorch_lightning"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"examples.{name}", run_name="__main__")
    assert ended.value.code == 2
    assert f"pip install '{package.replace('_', '-')}>=" in capsys.readouterr().err
