"""Lightning's callback, with each of Lightning's two packages that is installed, and Accelerate."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cupyops.torch import optimize
from cupyops.torch.models.classes import is_optimised


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))


def batches() -> DataLoader[Any]:
    torch.manual_seed(1)
    x = torch.randn(32, 8)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_trains_the_optimized_model(package: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip(package)
    from cupyops.integrations.lightning import Optimize

    class Fits(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def configure_model(self) -> None:  # after `setup`, where an earlier callback would find no model
            if not hasattr(self, "model"):
                self.model = a_model()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    def trained(*callbacks: Any) -> tuple[float, Any, Path]:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, callbacks=[*callbacks], default_root_dir=tmp_path, **quiet
        )
        module = Fits()
        trainer.fit(module, batches())
        kept = tmp_path / f"{len(callbacks)}.ckpt"
        trainer.save_checkpoint(kept)
        return float(trainer.callback_metrics["loss"]), module, kept

    plain, _, before = trained()
    loss, module, after = trained(callback := Optimize(exclude="model.2"))
    assert loss == pytest.approx(plain, rel=1e-6)
    assert callback.report is not None
    assert [site.operator for site in callback.report.replaced] == ["gelu", "linear_gelu"]
    assert is_optimised(type(module.model[1]))
    kept = [torch.load(path, weights_only=True)["state_dict"] for path in (before, after)]
    assert kept[0].keys() == kept[1].keys()


def test_accelerate_prepares_an_optimized_model() -> None:
    accelerate = pytest.importorskip("accelerate")
    losses = []
    for ours in (False, True):
        accelerator = accelerate.Accelerator(cpu=True)
        model = a_model()
        if ours:
            assert len(optimize(model).replaced) == 3
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), batches())
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
