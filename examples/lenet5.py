"""LeNet-5 with a custom GELU, trained on handwritten digits.

::

    python -m examples.lenet5                                    # scikit-learn's digits: no download, under a minute
    python -m examples.lenet5 --dataset mnist --device cuda      # the published recipe
    python -m examples.lenet5 --dataset mnist --fast             # data on the GPU, the step replayed as a CUDA graph
    python -m examples.lenet5 --resume                           # go on after an interruption, to the same result
    python -m examples.lenet5 --export lenet5.onnx               # and write the trained model for other runtimes

A run writes into ``--out``: ``checkpoint.pt`` and ``metrics.json`` after every epoch, TensorBoard events, and at the
end ``curves.png``. An earlier run's files there first move into ``earlier-1`` (2, 3, ...) beneath it: none is lost.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from autograd_bridge import GELU
from examples.checkpoint import CHECKPOINT, load_checkpoint
from examples.console import EPILOG, UserError, add_common_options, add_run_options, describe_device, pick_device
from examples.datasets import MNIST_MIRRORS, ImageSet, load_digits, load_mnist
from examples.endings import Diverged, run_command
from examples.exporting import check_export, export_classifier
from examples.fast import FastTrainer
from examples.reporting import EpochRecord
from examples.run import DEFAULT_EPOCHS, EXAMPLE, Config, Result, Run
from examples.training import LoaderTrainer, Trainer, repeatable

__all__ = ["Config", "Diverged", "LeNet5", "Result", "main", "train"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"kernels": GELU, "torch": nn.GELU}


class LeNet5(nn.Sequential):
    """Images (N, 1, 28, 28) to logits (N, 10), with GELU in six places; 44,426 parameters.

    The activations hold no parameters, so a `state_dict` fits both backends.
    """

    def __init__(self, activation: Callable[[], nn.Module] = GELU) -> None:
        super().__init__(
            nn.Conv2d(1, 6, kernel_size=5),  # 24×24
            activation(),
            nn.AvgPool2d(2, stride=2),  # 12×12
            activation(),
            nn.Conv2d(6, 16, kernel_size=5),  # 8×8
            activation(),
            nn.AvgPool2d(2, stride=2),  # 4×4
            activation(),
            nn.Flatten(),
            nn.Linear(256, 120),
            activation(),
            nn.Linear(120, 84),
            activation(),
            nn.Linear(84, 10),
        )


def build_model(config: Config, device: torch.device) -> LeNet5:
    """The model that the seed stands for, drawn on the CPU so that it is the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(config.seed)
        return LeNet5(ACTIVATIONS[config.backend]).to(device)


def load_data(config: Config, echo: Callable[[str], object]) -> tuple[ImageSet, ImageSet]:
    """The training and the test set of `config`."""
    if config.dataset == "digits":
        return load_digits()
    return load_mnist(config.data_dir, config.mirrors, show_progress=config.progress, echo=echo)


def train(config: Config, echo: Callable[[str], object] = print) -> Result:
    """Train LeNet-5 as `config` says; every line for the reader goes to `echo`.

    Raises `UserError` for what cannot be had, `Diverged` when the loss is no longer finite. Whatever ends the run, the
    checkpoint of the last whole epoch is kept.
    """
    device = pick_device(config.device)
    if config.fast and device.type != "cuda":
        raise UserError(f"--fast replays CUDA graphs and needs a GPU, got --device {device.type}; leave out --fast")
    if config.export is not None:
        check_export(config.export)
    saved = load_checkpoint(config.out, EXAMPLE, config.settings(device)) if config.resume and config.out else None
    data = load_data(config, echo)
    source = "scikit-learn's digits" if config.dataset == "digits" else f"MNIST from {config.data_dir}"
    echo(f"device:  {describe_device(device)}")
    echo(f"backend: {config.backend} ({'autograd_bridge' if config.backend == 'kernels' else 'torch.nn'}.GELU)")
    echo(f"data:    {source}, {len(data[0]):,} images to train on and {len(data[1]):,} to test")
    echo(f"mode:    {'CUDA graphs, data on the GPU' if config.fast else 'DataLoader, batch by batch'}")
    with repeatable():
        model = build_model(config, device)
        with torch.inference_mode():  # compiles the kernel, or says what it lacks, before any file is touched
            model(torch.zeros(1, 1, 28, 28, device=device))
        make: type[FastTrainer] | type[LoaderTrainer] = FastTrainer if config.fast else LoaderTrainer
        trainer: Trainer = make(model, *data, batch_size=config.batch_size, lr=config.lr, device=device)
        if config.fast:
            echo(f"setup:   graphs captured in {trainer.setup_seconds:.2f} s")
        history: list[EpochRecord] = []
        if saved is not None:
            model.load_state_dict(saved["model"])
            trainer.load_optimizer_state(saved["optimizer"])
            history = [EpochRecord.from_dict(values) for values in saved["history"]]
        run = Run(config, device, model, trainer, history, len(data[0]), echo)
        run.open_folder()
        run.run_epochs()
    result = Result(model, history, trainer.setup_seconds)
    run.summarise(result)
    if config.export is not None:
        trained = build_model(config, torch.device("cpu"))
        trained.load_state_dict(model.state_dict())
        accuracy = history[-1].accuracy
        export_classifier(trained.eval(), config.export, data[1], accuracy, config.batch_size, echo)
    return result


def build_parser() -> argparse.ArgumentParser:
    """The command line of this example."""
    parser = argparse.ArgumentParser(
        "python -m examples.lenet5",
        description="Train LeNet-5 with a custom GELU on handwritten digits.",
        epilog=EPILOG,
    )
    add_common_options(parser)
    parser.add_argument(
        "--dataset",
        choices=tuple(DEFAULT_EPOCHS),
        default=Config.dataset,
        help="digits comes with scikit-learn; mnist is read from --data-dir, or downloaded (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Config.data_dir,
        metavar="DIR",
        help="the four original MNIST files, gzipped or raw (default: %(default)s)",
    )
    parser.add_argument(
        "--mirror", action="append", metavar="URL", help="where to download MNIST from instead; may be repeated"
    )
    epochs = ", ".join(f"{count} for {name}" for name, count in DEFAULT_EPOCHS.items())
    parser.add_argument("--epochs", type=int, metavar="N", help=f"passes over the training set (default: {epochs})")
    parser.add_argument("--batch-size", type=int, default=Config.batch_size, metavar="N", help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=Config.lr, help="learning rate of NAdam (default: %(default)s)")
    parser.add_argument(
        "--fast", action="store_true", help="keep the data on the GPU and replay the step as a CUDA graph (GPU only)"
    )
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the trained model as an ONNX file, and test that, too"
    )
    add_run_options(parser, Config.out)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the example: 0 when done, 1 if the loss diverged, 2 for a mistake in the options, 130 after Ctrl-C."""
    parser = build_parser()
    options = vars(parser.parse_args(argv))
    mirrors = options.pop("mirror")
    options["mirrors"] = tuple(mirrors) if mirrors else MNIST_MIRRORS
    return run_command(parser.prog, options["out"] / CHECKPOINT, lambda: train(Config(**options)))


if __name__ == "__main__":
    raise SystemExit(main())
