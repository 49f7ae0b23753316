"""Helpers for the tests of the examples: small data that can be learned, and short runs on it."""

import os
import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples import char_gpt, lenet5
from examples.data import ImageSet
from examples.gpt.text import Corpus
from examples.run import make_fabric

CPU = torch.device("cpu")


def quiet(_: object) -> None:
    """Take the place of print, and of a progress bar."""


def status(main: Callable[[list[str]], int], *arguments: object) -> int:
    """The exit status of an example: what `main` returns, or what argparse ends the program with."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(str(ended.code))


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def numbers(value: Any) -> Any:
    """A checkpoint without what depends on the clock: everything that a resumed run must reproduce."""
    if isinstance(value, dict):
        return {
            k: numbers(v) for k, v in value.items() if not str(k).endswith("seconds") and k not in ("gpu", "tokens")
        }
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.flatten().tolist()
    return [numbers(v) for v in value] if isinstance(value, (list, tuple)) else value


# LeNet-5 -------------------------------------------------------------------------------------------------------------

BATCH, TRAIN_COUNT = 32, 70  # two batches and a short one


def synthetic(count: int, seed: int) -> ImageSet:
    """Ten classes that can be distinguished: a bright square whose place is the class, on noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randint(0, 100, (count, 28, 28), generator=generator).to(torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 4)
        image[8 * row + 2 : 8 * row + 8, 7 * column : 7 * column + 6] = 255
    return ImageSet(images, labels)


TRAIN_SET, TEST_SET = synthetic(TRAIN_COUNT, 0), synthetic(60, 1)


def lenet5_arguments(out: Path, *more: object) -> list[str]:
    """The command line of a short run; later options, from `more`, override earlier ones."""
    common = ["--device", "cpu", "--batch-size", str(BATCH), "--epochs", "3", "--out", str(out)]
    return [*common, *map(str, more)]


def lenet5_options(out: Path, *more: object) -> Namespace:
    return lenet5.parse(lenet5_arguments(out, *more))


# The transformer -----------------------------------------------------------------------------------------------------

CONTEXT = 16
SIZES = "--layers 2 --heads 2 --width 16 --batch-size 4 --steps 12 --eval-every 4 --eval-batches 2 --lr 1e-2"


def words(count: int, seed: int = 0) -> str:
    """Lines of words from a short list, in no order: something to learn, and something that cannot be."""
    generator = random.Random(seed)
    listed = ("red", "green", "blue", "yellow", "größe")
    return "".join(generator.choice(listed) + generator.choice("  \n") for _ in range(count))


TEXT = words(600)


def corpus(context: int = CONTEXT) -> Corpus:
    return Corpus(TEXT, context, "words")


def gpt_arguments(out: Path, *more: object) -> list[str]:
    """The command line of a short run; later options, from `more`, override earlier ones."""
    text = out.parent / "words.txt"
    # Renamed into place: another rank may read the file while this one writes it.
    written = text.with_name(f"{text.name}.{os.getpid()}")
    written.write_text(TEXT, encoding="utf-8")
    written.replace(text)
    common = ["--device", "cpu", "--text", str(text), "--context", str(CONTEXT), "--sample-length", "10"]
    return [*common, *SIZES.split(), "--out", str(out), *map(str, more)]


def gpt_options(out: Path, *more: object) -> Namespace:
    return char_gpt.complete(char_gpt.parse(gpt_arguments(out, *more)))


def gpt_trainer(out: Path, *more: object) -> char_gpt.Trainer:
    options = gpt_options(out, *more)
    device = CPU if options.device == "cpu" else torch.device("cuda", torch.cuda.current_device())
    return char_gpt.Trainer(make_fabric(device, options.amp), options, corpus())


# Both ----------------------------------------------------------------------------------------------------------------


class Example:
    """A training example in tests that hold for both: a short run ends after three stretches, each with a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name, self.unit = name, {"lenet5": "epoch", "char_gpt": "step"}[name]
        self.module: Any = {"lenet5": lenet5, "char_gpt": char_gpt}[name]
        self.stretch, self.end = {"lenet5": (1, 3), "char_gpt": (4, 12)}[name]  # units in a stretch, and in the run

    def arguments(self, out: Path, *more: object) -> list[str]:
        return (lenet5_arguments if self.name == "lenet5" else gpt_arguments)(out, *more)

    def run(self, out: Path, *more: object) -> int:
        """Run the command line; return the exit status."""
        return status(self.module.main, *self.arguments(out, *more))

    def within(self, patch: pytest.MonkeyPatch, stretch: int, action: Callable[[Any], None]) -> None:
        """Call `action` with the model in the middle of a stretch, counted from 1."""
        calls = 0
        if self.name == "char_gpt":
            step = char_gpt.Trainer.step

            def stepping(trainer: char_gpt.Trainer, number: int) -> Tensor:
                loss = step(trainer, number)
                if number == 4 * stretch - 3:
                    action(trainer.module)
                return loss

            patch.setattr(char_gpt.Trainer, "step", stepping)
            return
        epoch = lenet5.train_epoch

        def training(fabric: Any, model: Any, optimizer: Any, data: Any, advance: Any) -> Tensor:
            nonlocal calls
            calls += 1
            first = iter([True])

            def advanced(count: int) -> None:
                if calls == stretch and next(first, False):
                    action(model)

            return epoch(fabric, model, optimizer, data, advanced)

        patch.setattr(lenet5, "train_epoch", training)


def interrupt(_: object) -> None:
    raise KeyboardInterrupt
