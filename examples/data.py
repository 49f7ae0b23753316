"""Handwritten digits to train on: the small set bundled with scikit-learn, and MNIST from its four original files."""

import gzip
import hashlib
import http.client
import math
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cupyops.installing import pip_install
from examples.command import UserError, progress, whole_file

# Images --------------------------------------------------------------------------------------------------------------

Batches = Iterable[tuple[Tensor, Tensor]]


class ImageSet(Dataset[tuple[Tensor, int]]):
    """Labelled grey images: `images` (N, 28, 28) uint8, ink bright on black; `labels` (N) int64, 0 to 9.

    An item is an image (1, 28, 28) float32 in [0, 1], and its label.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.to(torch.int64)
        self.classes: list[int] = self.labels.tolist()

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index].unsqueeze(0).to(torch.float32).div_(255), self.classes[index]

    def batches(self, size: int, device: torch.device | str, order: Tensor | None = None) -> Batches:
        """Images (B, 1, 28, 28) and labels (B), batch by batch from a DataLoader, on `device`."""
        sampler = None if order is None else order.tolist()
        # A generator of its own keeps the loader from drawing on, and so moving, the global one.
        loader = DataLoader(self, batch_size=size, sampler=sampler, generator=torch.Generator())
        return ((images.to(device), labels.to(device)) for images, labels in loader)


def load_digits() -> tuple[ImageSet, ImageSet]:
    """The 1,797 real handwritten digits bundled with scikit-learn, as a training and a test set. No download.

    The 8×8 images are scaled to 28×28 (bilinear) and to 8 bits. In the order of the collection, every fifth image of
    each class is for testing: 1,442 and 355 images, the same for everybody.
    """
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise UserError(f"the digits need scikit-learn: {pip_install('examples', 'scikit-learn')}") from None
    digits = bundled()
    small = torch.from_numpy(digits.images).to(torch.float32).unsqueeze(1) / 16  # inked pixels of a 4×4 cell: 0 to 16
    scaled = F.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    images, labels = scaled.squeeze(1).mul(255).round().to(torch.uint8), torch.from_numpy(digits.target)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        is_test[torch.nonzero(labels == label).flatten()[4::5]] = True
    return ImageSet(images[~is_test], labels[~is_test]), ImageSet(images[is_test], labels[is_test])


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The permutation of 0 .. `count` - 1 in which `epoch` visits the samples: a function of its arguments alone.

    A resumed run therefore sees the batches that an uninterrupted one would have seen.
    """
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0])
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))


class MnistFile(NamedTuple):
    """One of MNIST's four files: its name unpacked, and the MD5 of the file packed (as published) and unpacked."""

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
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


def load_mnist(folder: Path, mirrors: Sequence[str] | None = None) -> tuple[ImageSet, ImageSet]:
    """MNIST's 60,000 training and 10,000 test images, from the four original files in `folder`, gzipped or raw.

    Absent files are downloaded there from the first of the `mirrors` that has them. Every file's MD5 is verified.
    Raises `UserError`, which names the file, the checksum expected and found, or what each mirror did.
    """
    tensors = []
    for file in MNIST_FILES:
        path = locate(file, folder, MNIST_MIRRORS if mirrors is None else mirrors)
        tensors.append(parse_idx(read_verified(path, file), path, dimensions=1 if "labels" in file.name else 3))
    return ImageSet(*tensors[:2]), ImageSet(*tensors[2:])


def locate(file: MnistFile, folder: Path, mirrors: Sequence[str]) -> Path:
    """The path of `file` in `folder`, gzipped if both forms are there; downloaded if neither is."""
    try:
        for path in (folder / f"{file.name}.gz", folder / file.name):
            if path.exists():
                return path
        print(f"{folder} has no {file.name}[.gz]: downloading it")
        folder.mkdir(parents=True, exist_ok=True)
        return fetch(f"{file.name}.gz", folder, file.md5_gz, mirrors)
    except OSError as error:
        raise UserError(f"cannot use {folder}: {error}; name another folder with --data-dir") from None
    except UserError as error:
        raise UserError(
            f"{error}. Without a network: copy the four MNIST files ({', '.join(f.name for f in MNIST_FILES)}, each "
            f"raw or .gz) into {folder} or name their folder with --data-dir; --dataset digits needs no download"
        ) from None


def read_verified(path: Path, file: MnistFile) -> bytes:
    """The unpacked contents of `path`, whose checksum is that of `file`."""
    packed = path.suffix == ".gz"
    wanted = file.md5_gz if packed else file.md5_raw
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): expected {file.name} with MD5 {wanted}") from None
    if (found := hashlib.md5(contents, usedforsecurity=False).hexdigest()) != wanted:
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

    Returns a uint8 tensor of rank `dimensions`. Raises `UserError`, which names `path`, for other contents.
    """
    header, magic = 4 + 4 * dimensions, bytes((0, 0, 8, dimensions))
    if len(contents) < header or contents[:4] != magic:
        raise UserError(f"{path}: an IDX file of rank {dimensions} begins with {magic!r}, got {contents[:4]!r}")
    sizes = np.frombuffer(contents, ">u4", dimensions, offset=4).tolist()
    if len(contents) != (wanted := header + math.prod(sizes)):
        raise UserError(f"{path}: sizes {sizes} ask for {wanted:,} bytes, the file has {len(contents):,}")
    return torch.from_numpy(np.frombuffer(contents, np.uint8, offset=header).reshape(sizes).copy())


# Downloads -----------------------------------------------------------------------------------------------------------

# What a mirror can do wrong; ValueError is a malformed URL, or the verdict of `fetch` on the body. Every other OSError
# is about this machine's disk, which the next mirror would not mend.
NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
MIRROR_ERRORS = (*NETWORK, ValueError)


def fetch(name: str, folder: Path, md5: str, mirrors: Sequence[str]) -> Path:
    """Download `name` into `folder` from the first of the `mirrors` (folder URLs) that delivers the checksum `md5`.

    The file appears whole and verified, or not at all. Raises `UserError` with what each mirror did, and `OSError` if
    `folder` cannot be written.
    """
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}"
        try:
            with whole_file(folder / name) as temporary:
                download(url, temporary, name, md5)
            return folder / name
        except MIRROR_ERRORS as error:
            failures.append(f"{url}: {error}")
    raise UserError(f"could not download {name} ({'; '.join(failures) or 'no mirror was given'})")


def download(url: str, target: Path, name: str, md5: str) -> None:
    """Write the body of `url` to `target`; raise `ValueError` if the body is cut short or has another checksum."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(url, timeout=30) as response, target.open("wb") as file:
        size = int(response.headers["Content-Length"]) if response.headers["Content-Length"] else None
        with progress(f"Downloading {name}", size, "B") as advance:
            while chunk := response.read(1 << 18):
                digest.update(chunk)
                done += file.write(chunk)
                advance(len(chunk))
    if size is not None and done != size:
        raise ValueError(f"the connection ended after {done:,} of {size:,} bytes")
    if digest.hexdigest() != md5:
        raise ValueError(f"expected MD5 {md5}, got {digest.hexdigest()}")
