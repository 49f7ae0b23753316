"""What the tests of examples/char_gpt.py share: a text that can be learned, and short runs of a small model on it."""

import random
from pathlib import Path
from typing import Any

import torch
from examples.gpt.corpus import Corpus
from examples.gpt.trainer import Trainer

from examples.char_gpt import Config

CPU = torch.device("cpu")
CONTEXT = 16
SMALL: dict[str, Any] = {
    "layers": 2,
    "heads": 2,
    "width": 16,
    "context": CONTEXT,
    "batch_size": 4,
    "steps": 24,
    "eval_every": 8,
    "eval_batches": 2,
    "lr": 1e-2,
    "sample_length": 20,
}


def words(count: int, seed: int = 0) -> str:
    """Lines of words from a short list, in no order: something to learn, and something that cannot be."""
    generator = random.Random(seed)
    listed = ("red", "green", "blue", "yellow", "größe")
    return "".join(generator.choice(listed) + generator.choice("  \n") for _ in range(count))


TEXT = words(600)


def corpus(context: int = CONTEXT) -> Corpus:
    return Corpus.of_text(TEXT, context, "words")


def text_file(folder: Path) -> Path:
    path = folder / "words.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def config(folder: Path, out: Path | None = None, **changes: Any) -> Config:
    """A small run on the text, on the CPU unless told otherwise; without `out` it writes nothing."""
    given = {"amp": False, "device": "cpu", "progress": False, **SMALL, **changes}
    return Config(text=text_file(folder), out=out, **given)


def trainer(folder: Path, device: torch.device = CPU, **changes: Any) -> Trainer:
    return Trainer(config(folder, **changes), corpus(), device)


def command(folder: Path, out: Path, *more: str) -> list[str]:
    """The command line of a small run; what stands in `more` comes last and so wins."""
    sizes = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*sizes, "--text", str(text_file(folder)), "--out", str(out), "--device", "cpu", *more]
