"""The text that a character model learns: the standard library's sources, or a file of the user's, as numbers."""

import hashlib
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..command import UserError

# Packages of pip, and the standard library's tests, differ from machine to machine.
LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


class Corpus:
    """A text as numbers: `tokens` (n) int32 holds each character's place in `characters`, which are sorted.

    The last tenth is held out for validation. If the text consists of many files, most of these files are unseen in
    training. Raises `UserError` if the training or the held-out part is shorter than a window of `context` characters
    and the one that follows.
    """

    def __init__(self, text: str, context: int, source: str) -> None:
        window = context + 1
        if len(text) < 2 * window:
            raise UserError(
                f"{source} holds {len(text):,} characters; training and validation with --context {context} "
                f"need {2 * window:,}: choose a smaller --context, or name another text with --text FILE"
            )
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        present = np.zeros(int(codes.max()) + 1, dtype=bool)  # np.unique would sort millions of characters
        present[codes] = True
        self.source, self.characters = source, "".join(map(chr, np.flatnonzero(present)))
        self.tokens = torch.from_numpy((np.cumsum(present, dtype=np.int32) - 1)[codes].astype(np.int32))
        self.held_out = max(len(text) // 10, window)
        self.train, self.validation = self.tokens[: -self.held_out], self.tokens[-self.held_out :]
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        parts = f"{len(self.characters)} different, {self.held_out:,} held out"
        return f"{self.source}: {len(self.tokens):,} characters, {parts}"

    @property
    def beginning(self) -> str:
        """The prompt if `--prompt` is not given: the beginning of a line."""
        return "\n" if "\n" in self.characters else self.characters[0]

    def about(self) -> dict[str, object]:
        """The entries of `metrics.json` about the text."""
        return {
            "source": self.source,
            "characters": len(self.tokens),
            "held_out": self.held_out,
            "different": len(self.characters),
            "fingerprint": self.fingerprint,
        }

    def encode(self, text: str) -> Tensor:
        """The tokens (n), int64, of a text. Raises `UserError` for a character that the corpus does not have."""
        for character in text:
            if character not in self.characters:
                raise UserError(f"--prompt: {character!r} does not occur in {self.source}")
        return torch.tensor([self.characters.index(c) for c in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens (n)."""
        return "".join(self.characters[i] for i in tokens.tolist())


class Share:
    """The rows of every batch that this process computes: all rows without `--parallel` and under `tp`, else one of
    `ranks` equal parts.

    Every process draws whole batches, so that a run sees the same batches on any number of ranks.

    Attributes:
        ranks: the number of parts.
        rows: the rows of a batch that are this process's.

    Raises:
        UserError: the parts of a batch of `size` rows would not be equal.
    """

    def __init__(self, fabric: Any, parallel: str | None, size: int) -> None:
        self.fabric, self.ranks = fabric, fabric.world_size if parallel in ("ddp", "fsdp") else 1
        if size % self.ranks:
            raise UserError(f"--batch-size must be a multiple of the {self.ranks} processes of torchrun, got {size}")
        each = size // self.ranks
        first = fabric.global_rank * each if self.ranks > 1 else 0
        self.rows = slice(first, first + each)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x over the shares, on every rank."""
        return x if self.ranks == 1 else self.fabric.all_reduce(x, reduce_op="mean")


class Windows:
    """Batches of windows of a corpus, on `device`: pairs of inputs and targets (B, context), int64.

    The target of a character is the one that follows it. `generator` draws the positions of the training batches on the
    device, so the host does not wait for them. A batch is cut down to `share`.
    """

    def __init__(
        self, corpus: Corpus, context: int, size: int, device: torch.device, seed: int, share: Share | None = None
    ) -> None:
        self.train, self.validation = corpus.train.to(device), corpus.validation.to(device)
        self.shape, self.window = (size, context), torch.arange(context + 1, device=device)
        self.generator, self.share = torch.Generator(device).manual_seed(seed), share
        self.rows = slice(None) if share is None else share.rows

    def at(self, tokens: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The windows that begin at this rank's share of `starts` (B)."""
        batch = tokens[starts[self.rows].unsqueeze(1) + self.window].long()
        return batch[:, :-1], batch[:, 1:]

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch of training."""
        ends, device = len(self.train) - len(self.window) + 1, self.train.device
        return self.at(self.train, torch.randint(ends, self.shape[:1], generator=self.generator, device=device))

    def held_out(self, batches: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields `count` batches of windows, evenly spread over the held-out text: the same windows in each call."""
        last = len(self.validation) - len(self.window)
        starts = torch.linspace(0, last, batches * self.shape[0], dtype=torch.float64).long().to(self.validation.device)
        return (self.at(self.validation, part) for part in starts.split(self.shape[0]))

    @torch.no_grad()
    def validation_loss(self, model: nn.Module, batches: int) -> float:
        """The model's mean loss over the held-out windows, in nats per character; the same on every rank."""
        mean = torch.stack([model(*batch).clone() for batch in self.held_out(batches)]).double().mean()
        return (mean if self.share is None else self.share.mean(mean)).item()


def nats(loss: float) -> str:
    """A loss in words."""
    return f"{loss:.4f} nats = {loss / math.log(2):.4f} bits per character"


def load_corpus(path: Path | None, context: int) -> Corpus:
    """The corpus of the file at `path`; of the standard library's sources if `path` is None."""
    if path is not None:
        return Corpus(read_text(path), context, str(path))
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = python_sources(folder)
    if not files:
        raise UserError(f"there are no Python sources in {folder}; name another text with --text FILE")
    # read_text converts line ends to \n. Some files do not end with a newline.
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    return Corpus(text, context, f"{len(files)} files of Python's standard library in {folder}")


def python_sources(folder: Path) -> list[Path]:
    """The `*.py` files below `folder`, in the order of their names, without tests and what pip has installed."""
    found = [path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file()]
    return [folder / path for path in sorted(found, key=Path.as_posix) if LEFT_OUT.isdisjoint(path.parts)]


def read_text(path: Path) -> str:
    r"""The text of a UTF-8 file with line ends `\n`. Raises a `UserError` that names the file if it cannot be read or
    is empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"--text: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"--text: {path} is not UTF-8: byte 0x{byte:02x} at position {error.start:,}") from None
    if not text:
        raise UserError(f"--text: {path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")
