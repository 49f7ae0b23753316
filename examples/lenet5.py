"""LeNet-5 with a custom GELU, trained on handwritten digits.

::

    python -m examples.lenet5                                    # scikit-learn's digits: no download, under a minute
    python -m examples.lenet5 --dataset mnist --device cuda      # the published recipe
    python -m examples.lenet5 --dataset mnist --fast             # data on the GPU, the step replayed as a CUDA graph
    python -m examples.lenet5 --resume                           # go on after an interruption, to the same result
    python -m examples.lenet5 --export lenet5.onnx               # and write the trained model for other runtimes
    torchrun --nproc-per-node 2 -m examples.lenet5 --parallel ddp       # on two GPUs, or in two processes

A run writes into ``--out``: ``checkpoint.pt`` and ``metrics.json`` after every epoch, TensorBoard events, at the end
``curves.png`` and ``digits.png``. An earlier run's files first move into ``earlier-1`` (2, 3, ...) beneath it.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .command import Parser, Progress, UserError, at_least, kept_in, positive, run_command, say

EPOCHS = {"digits": 20, "mnist": 10}
SETTINGS = ("dataset", "batch_size", "lr", "seed", "backend", "fast")  # a resumed run repeats these


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser("lenet5", __doc__, "device", "backend", "seed", parallel=("ddp",), alone="fast")
    add = parser.add_argument
    source = "digits comes with scikit-learn; mnist is read from --data-dir, or downloaded (default: %(default)s)"
    add("--dataset", choices=tuple(EPOCHS), default="digits", help=source)
    files = "the four original MNIST files, gzipped or raw (default: %(default)s)"
    add("--data-dir", type=Path, default=Path("data/mnist"), metavar="DIR", help=files)
    add("--mirror", action="append", metavar="URL", help="where to download MNIST from instead; may be repeated")
    counts = ", ".join(f"{count} for {name}" for name, count in EPOCHS.items())
    add("--epochs", type=at_least(1), metavar="N", help=f"passes over the training set (default: {counts})")
    add("--batch-size", type=at_least(1), default=64, metavar="N", help="default: %(default)s")
    add("--lr", type=positive, default=3e-3, help="learning rate of NAdam (default: %(default)s)")
    add("--fast", action="store_true", help="keep the data on the GPU and replay the step as a CUDA graph (GPU only)")
    add("--export", type=Path, metavar="FILE", help="write the trained model as an ONNX file, and test that, too")
    options = parser.parse_run(argv)
    if options.export is not None and not options.export.parent.is_dir():
        parser.error(f"--export: there is no folder {options.export.parent}; make it, or name another file")
    options.epochs = options.epochs or EPOCHS[options.dataset]
    return options


if __name__ == "__main__":
    parse()  # --help and mistakes are answered here, before PyTorch is imported

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autograd_bridge import GELU
from cupyops.torch.onnx.export import require_onnx

from .data import Batches, epoch_order, load_digits, load_mnist
from .exporting import export_and_test
from .fast import FastTrainer
from .pictures import picture, plot_digits
from .run import Run, check_finite
from .showing import what_runs


class LeNet5(nn.Sequential):
    """Images (N, 1, 28, 28) to logits (N, 10), with GELU in six places; 44,426 parameters.

    GELU holds no parameters: a `state_dict` fits both backends.
    """

    def __init__(self, activation: Callable[[], nn.Module] = GELU) -> None:
        # fmt: off
        super().__init__(
            nn.Conv2d(1, 6, kernel_size=5), activation(), nn.AvgPool2d(2), activation(),  # to 12×12
            nn.Conv2d(6, 16, kernel_size=5), activation(), nn.AvgPool2d(2), activation(),  # to 4×4
            nn.Flatten(), nn.Linear(256, 120), activation(), nn.Linear(120, 84), activation(), nn.Linear(84, 10),
        )
        # fmt: on


def build_model(backend: str, seed: int) -> LeNet5:
    """The model with random parameters from the seed, drawn on the CPU: the same for every device and backend."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return LeNet5(GELU if backend == "kernels" else nn.GELU)


def train_epoch(fabric: Any, model: nn.Module, optimizer: Any, data: Batches, advance: Callable[[int], Any]) -> Tensor:
    """Train on every batch once, with `--parallel` on this rank's part of it; return the loss of each, on the CPU."""
    losses, ranks = [], fabric.world_size
    for images, labels in data:
        part, wanted = (x.tensor_split(ranks)[fabric.global_rank] for x in (images, labels))
        # Parts may differ in size: the mean over the ranks, which DDP takes of gradients, is the mean over the batch.
        loss = F.cross_entropy(model(part), wanted, reduction="sum") / (len(labels) / ranks)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.detach())  # stays on the device: reading it here would wait for the GPU every step
        advance(1)
    return fabric.all_reduce(torch.stack(losses), reduce_op="mean").cpu()


@torch.inference_mode()
def predictions(model: Callable[[Tensor], Tensor], data: Batches) -> tuple[Tensor, ...]:
    """The predicted class (N) and the label (N) of each sample."""
    return tuple(map(torch.cat, zip(*((model(images).argmax(1), labels) for images, labels in data), strict=True)))


def accuracy(model: Callable[[Tensor], Tensor], data: Batches) -> float:
    """Share of the samples that are classified correctly, in percent."""
    found, labels = predictions(model, data)
    return 100 * int((found == labels).sum()) / len(labels)


def train(options: argparse.Namespace, echo: Callable[[str], object] = say) -> list[dict[str, Any]]:
    """Train as the options say; `echo` prints the lines of output. Returns one record per epoch. Raises `UserError` for
    a request that cannot be met, and `Diverged` if a loss or a parameter is not finite. The last checkpoint is kept."""
    settings = {name: getattr(options, name) for name in SETTINGS}
    # Deterministic algorithms, chosen without timing them. TF32 costs LeNet-5 more in layout conversions than it gains.
    repeatable = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with repeatable, Run("lenet5/1", options, settings, unit="epoch", records="epochs", echo=echo) as run:
        device, fabric, size = run.device, run.fabric, options.batch_size
        if options.fast and device.type != "cuda":
            raise UserError(f"--fast replays CUDA graphs and needs a GPU, got --device {device.type}; leave out --fast")
        if options.export is not None:
            require_onnx()
        digits = options.dataset == "digits"
        train_set, test_set = load_digits() if digits else load_mnist(options.data_dir, options.mirror)
        source = "scikit-learn's digits" if digits else f"MNIST from {options.data_dir}"
        echo(f"data:    {source}, {len(train_set):,} images to train on and {len(test_set):,} to test")
        echo(f"mode:    {'CUDA graphs, data on the GPU' if options.fast else 'DataLoader, batch by batch'}")

        model: nn.Module = build_model(options.backend, options.seed).to(device)
        with torch.inference_mode():  # compiles GELU, or raises its errors, before any file is touched
            model(torch.zeros(1, 1, 28, 28, device=device))
        images, wanted = next(iter(train_set.batches(size, device, torch.arange(len(train_set)))))
        names = "autograd_bridge.GELU", "torch.nn.GELU"
        what_runs(options, device, names, model, lambda: F.cross_entropy(model(images), wanted), echo)
        if options.fast:
            optimizer: Any = FastTrainer(model, train_set, size, options.lr)
            echo(f"setup:   graphs captured in {optimizer.setup_seconds:.2f} s")
            test_batches = list(test_set.batches(5000, device))
        else:
            model, optimizer = fabric.setup(model, torch.optim.NAdam(model.parameters(), lr=options.lr))
        run.metrics["setup_seconds"] = getattr(optimizer, "setup_seconds", 0.0)
        state = {"model": model, "optimizer": optimizer, "epoch": 0}
        history = run.begin(state)  # loads `state` with --resume
        for values in () if options.fast else optimizer.state.values():
            values["mu_product"] = values["mu_product"].cpu()  # else each step waits for the GPU

        batches = math.ceil(len(train_set) / size)
        with Progress("Training", options.epochs * batches, "batches", state["epoch"] * batches) as bar:
            for epoch in range(state["epoch"] + 1, options.epochs + 1):
                order = epoch_order(options.seed, epoch, len(train_set))
                began = time.perf_counter()
                if options.fast:
                    losses = optimizer.train_epoch(order, bar.update)
                else:
                    losses = train_epoch(fabric, model, optimizer, train_set.batches(size, device, order), bar.update)
                train_seconds = time.perf_counter() - began
                check_finite(losses, model, f"batch {{}} of epoch {epoch}", after=f"epoch {epoch}", lr=options.lr)
                gpu = run.gpu_use(epoch)
                began = time.perf_counter()
                percent = accuracy(model, test_batches if options.fast else test_set.batches(size, device))
                times = {"train_seconds": train_seconds, "test_seconds": time.perf_counter() - began}
                loss = losses.double().mean().item()
                bar.say(f"Epoch: [ {epoch} ], Average Loss: {loss:.6f}\nTest Accuracy: {percent:.2f} %", echo)
                run.log("Loss/Train", losses.tolist(), (epoch - 1) * len(losses))
                run.log("Accuracy/Test", [percent], epoch)
                history.append({"epoch": epoch, "loss": loss, "accuracy": percent, **times, "gpu": gpu})
                state["epoch"] = epoch
                run.save(state)
        run.summarise(history)
        curves = {"average training loss": "loss", "test accuracy (%)": "accuracy"}
        run.draw(history, curves, f"LeNet-5 on {options.dataset}, --backend {options.backend}")
        if not fabric.is_global_zero:
            return history
        found, labels = (x.tolist() for x in predictions(model, test_set.batches(1000, device)))
        picture(run.out / "digits.png", plot_digits, test_set.images, labels, found, name="Digits", echo=echo)
        if options.export is not None:
            trained = build_model(options.backend, options.seed).eval()
            trained.load_state_dict(model.state_dict())
            export_and_test(trained, options.export, test_set, accuracy, history[-1]["accuracy"], echo)
    return history


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when done, 1 if the loss diverged, 2 for an impossible request, 130 after Ctrl-C."""
    options = parse(argv)
    return run_command("lenet5", lambda: train(options), kept_in(options))


if __name__ == "__main__":
    raise SystemExit(main())
