"""What the tests of examples/lenet5.py share: a small data set that can be learned, and short runs on it."""

from pathlib import Path
from typing import Any

import torch
from examples.datasets import ImageSet
from examples.training import LoaderTrainer

from examples.lenet5 import Config, build_model

BATCH = 32
TRAIN_COUNT = 150  # four batches and a short one
CPU = torch.device("cpu")


def synthetic(count: int, seed: int) -> ImageSet:
    """Ten classes that can be told apart: a bright square whose place is the class, on noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randint(0, 100, (count, 28, 28), generator=generator).to(torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 4)
        image[8 * row + 2 : 8 * row + 8, 7 * column : 7 * column + 6] = 255
    return ImageSet(images, labels)


TRAIN_SET, TEST_SET = synthetic(TRAIN_COUNT, 0), synthetic(60, 1)


def config(out: Path | None = None, **changes: Any) -> Config:
    defaults: dict[str, Any] = {"device": "cpu", "batch_size": BATCH, "epochs": 3, "progress": False}
    return Config(out=out, **{**defaults, **changes})


def command(out: Path, *more: str) -> list[str]:
    return ["--out", str(out), "--device", "cpu", "--batch-size", str(BATCH), *more]


def make_recipe(device: torch.device = CPU) -> LoaderTrainer:
    model = build_model(config(), device)
    return LoaderTrainer(model, TRAIN_SET, TEST_SET, batch_size=BATCH, lr=3e-3, device=device)
