"""Lightning's Trainer with a model of cupyops: ``python -m examples.with_lightning``.

A `LightningModule` holds the modules of `autograd_bridge` as it holds those of PyTorch. Devices, DDP, precision and
checkpoints are arguments of the Trainer. The optional argument is the number of epochs.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from .command import Parser, UserError, at_least, positive, run_command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("with_lightning", __doc__, "seed")
    parser.add_argument("epochs", nargs="?", type=at_least(1), default=5, metavar="EPOCHS", help="default: %(default)s")
    parser.add_argument("--lr", type=positive, default=3e-3, help="learning rate of AdamW (default: %(default)s)")
    parser.add_argument("--accelerator", default="auto", help="of the Trainer: auto, cpu or gpu (default: %(default)s)")
    parser.add_argument("--devices", type=at_least(1), default=1, metavar="N", help="of the Trainer; default: 1")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from autograd_bridge import LayerNorm, Linear, LinearGELU
from cupyops.installing import pip_install

from .data import load_digits

try:
    import pytorch_lightning as lightning
except ModuleNotFoundError as error:
    if __name__ == "__main__":
        Parser("with_lightning", None).error(f"{error}; {pip_install('adapters', 'pytorch-lightning')}")
    raise


class Digits(lightning.LightningModule):
    """Images (N, 1, 28, 28) to logits (N, 10): one hidden layer."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Flatten(), LayerNorm(784), LinearGELU(784, 128), Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss, on_epoch=True, on_step=False, prog_bar=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        right = (self.model(images).argmax(1) == labels).double().mean()
        self.log("accuracy", 100 * right, prog_bar=True, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def train(options: argparse.Namespace, **more: Any) -> dict[str, float]:
    """Train on scikit-learn's digits, and print the loss and the accuracy. more: arguments of the Trainer."""
    lightning.seed_everything(options.seed, verbose=False)
    train_set, test_set = load_digits()
    loader, test = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(test_set, batch_size=355)
    where = {"accelerator": options.accelerator, "devices": options.devices}
    try:
        trainer = lightning.Trainer(max_epochs=options.epochs, **where, **more)
    except lightning.utilities.exceptions.MisconfigurationException as error:
        raise UserError(str(error)) from None
    trainer.fit(Digits(options.lr), loader, test)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if trainer.is_global_zero:
        print(f"training loss {found['train_loss']:.4f}, accuracy {found['accuracy']:.2f} %")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 2 for a request that cannot be met, 130 after Ctrl-C."""
    options = parse(argv)
    return run_command("with_lightning", lambda: train(options) and 0)


if __name__ == "__main__":
    raise SystemExit(main())
