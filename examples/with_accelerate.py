"""Hugging Face Accelerate with a model of cupyops: ``python -m examples.with_accelerate``.

``accelerate launch -m examples.with_accelerate`` trains on several GPUs. `Accelerator.prepare` takes the modules of
`autograd_bridge` as it takes those of PyTorch. The optional argument is the number of epochs.
"""

import argparse
from collections.abc import Sequence

from .command import Parser, at_least, positive, run_command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("with_accelerate", __doc__, "seed")
    parser.add_argument("epochs", nargs="?", type=at_least(1), default=5, metavar="EPOCHS", help="default: %(default)s")
    parser.add_argument("--lr", type=positive, default=3e-3, help="learning rate of AdamW (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even if there is a GPU")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from autograd_bridge import LayerNorm, Linear, LinearGELU
from cupyops.installing import pip_install

from .data import load_digits

try:
    from accelerate import Accelerator
    from accelerate.utils import set_seed
except ModuleNotFoundError as error:
    if __name__ == "__main__":
        Parser("with_accelerate", None).error(f"{error}; {pip_install('adapters', 'accelerate')}")
    raise


def train(options: argparse.Namespace) -> tuple[float, float]:
    """Train on scikit-learn's digits. Returns, and prints, the last epoch's mean loss and the accuracy in percent."""
    accelerator = Accelerator(cpu=options.cpu)
    set_seed(options.seed)
    model = nn.Sequential(nn.Flatten(), LayerNorm(784), LinearGELU(784, 128), Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    train_set, test_set = load_digits()
    loaders = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(test_set, batch_size=355)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, *loaders)
    for epoch in range(1, options.epochs + 1):
        losses, right = [], []
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        with torch.inference_mode():
            for images, labels in test:
                right.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
        mean = accelerator.reduce(torch.stack(losses).mean(), reduction="mean").item()
        accuracy = 100 * torch.cat(right).double().mean().item()
        accelerator.print(f"epoch {epoch}: training loss {mean:.4f}, accuracy {accuracy:.2f} %")
    return mean, accuracy


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 2 for a request that cannot be met, 130 after Ctrl-C."""
    options = parse(argv)
    return run_command("with_accelerate", lambda: train(options) and 0)


if __name__ == "__main__":
    raise SystemExit(main())
