"""Handwritten digits to train on: the small set bundled with scikit-learn, and MNIST from its four original files."""

import gzip
import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.installing import pip_install
from examples.console import UserError
from examples.download import fetch

__all__ = ["MNIST_MIRRORS", "ImageSet", "load_digits", "load_mnist", "parse_idx"]

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
IMAGE_SIZE = 28


@dataclass(frozen=True)
class ImageSet:
    """Labelled grey images: `images` (N, 28, 28) uint8, ink bright on black; `labels` (N,) int64, 0 to 9."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class MnistFile:
    """One of the four files: its name unpacked, and the MD5 of it packed (as published) and unpacked."""

    name: str
    md5_gz: str
    md5_raw: str


# Training images, training labels, test images, test labels.
MNIST_FILES = (
    MnistFile("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    MnistFile("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    MnistFile("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    MnistFile("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
)


def load_digits() -> tuple[ImageSet, ImageSet]:
    """The 1,797 real handwritten digits bundled with scikit-learn, as a training and a test set. No download.

    The 8×8 images are scaled to 28×28 (bilinear) and to 8 bits. In the order of the collection, every fifth image of
    each class is for testing: 1,442 and 355 images, the same for everybody.
    """
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise UserError(f"--dataset digits needs scikit-learn: {pip_install('examples', 'scikit-learn')}") from None
    digits = bundled()
    small = torch.from_numpy(digits.images).to(torch.float32).unsqueeze(1) / 16  # inked pixels of a 4×4 cell: 0 to 16
    scaled = F.interpolate(small, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", align_corners=False)
    images = scaled.squeeze(1).mul(255).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        is_test[torch.nonzero(labels == label).flatten()[4::5]] = True
    return ImageSet(images[~is_test], labels[~is_test]), ImageSet(images[is_test], labels[is_test])


def load_mnist(
    folder: Path,
    mirrors: Sequence[str] = MNIST_MIRRORS,
    *,
    show_progress: bool = True,
    echo: Callable[[str], object] = print,
) -> tuple[ImageSet, ImageSet]:
    """MNIST's 60,000 training and 10,000 test images, from the four original files in `folder`, gzipped or raw.

    Absent files are downloaded there. Every file's MD5 is verified; `UserError` names one that is unreadable or is
    something else, with the checksum expected and found, or says what to do when the download fails.
    """
    tensors = []
    for file in MNIST_FILES:
        path = _locate(file, folder, mirrors, show_progress, echo)
        tensors.append(parse_idx(_read_verified(path, file), path, dimensions=1 if "labels" in file.name else 3))
    train_images, train_labels, test_images, test_labels = tensors
    return (
        ImageSet(train_images, train_labels.to(torch.int64)),
        ImageSet(test_images, test_labels.to(torch.int64)),
    )


def _locate(
    file: MnistFile, folder: Path, mirrors: Sequence[str], show_progress: bool, echo: Callable[[str], object]
) -> Path:
    """The path of `file` in `folder`, gzipped if it is there in both forms; downloaded if in neither."""
    try:
        for path in (folder / f"{file.name}.gz", folder / file.name):
            if path.exists():
                return path
        echo(f"{folder} has no {file.name}[.gz]: downloading it")
        folder.mkdir(parents=True, exist_ok=True)
        return fetch(f"{file.name}.gz", folder, file.md5_gz, mirrors, show_progress=show_progress)
    except OSError as error:
        raise UserError(f"cannot use {folder}: {error}; name another folder with --data-dir") from None
    except UserError as error:
        raise UserError(
            f"{error}. Without a network: copy the four MNIST files ({', '.join(f.name for f in MNIST_FILES)}, each "
            f"raw or .gz) into {folder} or name their folder with --data-dir; --dataset digits needs no download"
        ) from None


def _read_verified(path: Path, file: MnistFile) -> bytes:
    """The unpacked contents of `path`, whose checksum is that of `file`."""
    packed = path.suffix == ".gz"
    wanted = file.md5_gz if packed else file.md5_raw
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): expected {file.name} with MD5 {wanted}") from None
    found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if found != wanted:
        raise UserError(
            f"{path} ({len(contents):,} bytes) is damaged or is not the original MNIST file: expected MD5 {wanted}, "
            f"found {found}; delete it to have it downloaded again, or name another folder with --data-dir"
        )
    try:
        return gzip.decompress(contents) if packed else contents
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a readable gzip file: {error}") from None


def parse_idx(contents: bytes, path: Path, dimensions: int) -> Tensor:
    """Read the IDX format: two zero bytes, type code 8 (uint8), the rank, each size as a big-endian uint32, the data.

    Returns a uint8 tensor of rank `dimensions`; anything else raises `UserError`, which names `path`.
    """
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if len(contents) < header or contents[:4] != magic:
        raise UserError(f"{path}: an IDX file of rank {dimensions} begins with {magic!r}, got {contents[:4]!r}")
    sizes = np.frombuffer(contents, ">u4", dimensions, offset=4).tolist()
    if len(contents) != header + math.prod(sizes):
        raise UserError(
            f"{path}: sizes {sizes} ask for {header + math.prod(sizes):,} bytes, the file has {len(contents):,}"
        )
    return torch.from_numpy(np.frombuffer(contents, np.uint8, offset=header).reshape(sizes).copy())
