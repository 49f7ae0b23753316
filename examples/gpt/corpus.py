"""The text that a character model learns: the standard library's sources, or a file of the user's, as numbers."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from examples.console import UserError

__all__ = ["Corpus", "load_corpus", "python_sources", "read_text"]

# Packages that pip puts below the standard library's folder, and tests: neither is there on every machine.
LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
HELD_OUT_SHARE = 10
INSTEAD = "name another text with --text FILE"


@dataclass(frozen=True)
class Corpus:
    """A text as numbers: `tokens` (n) holds each character's place in `characters`, which are sorted.

    The last tenth is held out: whole files that the model has not seen, where the text is of many.
    """

    source: str
    characters: str
    tokens: Tensor
    held_out: int
    fingerprint: str

    @classmethod
    def of_text(cls, text: str, context: int, source: str) -> "Corpus":
        """Number the characters of `text`.

        Raises:
            UserError: the text is empty, or too short for a window of `context` characters, and the one that follows,
                in each of its two parts.
        """
        window = context + 1
        if len(text) < 2 * window:
            raise UserError(
                f"{source} holds {len(text):,} characters; training and validation with --context {context} "
                f"need {2 * window:,}: choose a smaller --context, or {INSTEAD}"
            )
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        present = np.zeros(int(codes.max()) + 1, dtype=bool)
        present[codes] = True
        number = np.cumsum(present, dtype=np.int32) - 1
        return cls(
            source,
            "".join(map(chr, np.flatnonzero(present))),
            torch.from_numpy(number[codes].astype(np.int32)),
            max(len(text) // HELD_OUT_SHARE, window),
            hashlib.sha256(text.encode()).hexdigest()[:12],
        )

    @property
    def train(self) -> Tensor:
        return self.tokens[: -self.held_out]

    @property
    def validation(self) -> Tensor:
        return self.tokens[-self.held_out :]

    def encode(self, text: str) -> Tensor:
        """The numbers (n), int64, of a text's characters; `UserError` for one that the corpus does not hold."""
        for character in text:
            if character not in self.characters:
                raise UserError(f"--prompt: {character!r} does not occur in {self.source}")
        return torch.tensor([self.characters.index(c) for c in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of some numbers (n)."""
        return "".join(self.characters[i] for i in tokens.tolist())


def load_corpus(path: Path | None, context: int) -> Corpus:
    """The corpus of the file at `path`; of the standard library's sources if that is None."""
    if path is not None:
        return Corpus.of_text(read_text(path), context, str(path))
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = python_sources(folder)
    # Newlines are made alike by read_text. The one between files is there for those that end without it.
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    if not text:
        raise UserError(f"there are no Python sources in {folder}; {INSTEAD}")
    return Corpus.of_text(text, context, f"{len(files)} files of Python's standard library in {folder}")


def python_sources(folder: Path) -> list[Path]:
    """The ``*.py`` files below `folder`, in the order of their names, without tests and what pip has installed."""
    found = [path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file()]
    return [folder / path for path in sorted(found, key=Path.as_posix) if LEFT_OUT.isdisjoint(path.parts)]


def read_text(path: Path) -> str:
    """A file's text, in UTF-8 and with its line ends made ``\\n``; `UserError`, with its name, where it has none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"--text: there is no file {path}") from None
    except OSError as error:
        raise UserError(f"--text: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"--text: {path} is not UTF-8: byte 0x{byte:02x} at position {error.start:,}") from None
    if not text:
        raise UserError(f"--text: {path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")
