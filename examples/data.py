"""Handwritten digits to train on: the small set bundled with scikit-learn, and MNIST from its four original files."""

import gzip
import hashlib
import http.client
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .command import Progress, UserError, write_whole

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
        # With a generator of its own, the loader does not advance PyTorch's global generator.
        loader = DataLoader(self, batch_size=size, sampler=sampler, generator=torch.Generator())
        return ((images.to(device), labels.to(device)) for images, labels in loader)


def load_digits() -> tuple[ImageSet, ImageSet]:
    """The 1,797 real handwritten digits bundled with scikit-learn, as a training and a test set. No download.

    The 8×8 images are scaled to 28×28 (bilinear) and to 8 bits. Every fifth image of each class, in the order of the
    data set, is for testing. The sets have 1,442 and 355 images and do not depend on a seed.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
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


# MNIST ---------------------------------------------------------------------------------------------------------------

# Training images, training labels, test images, test labels: each file's name, and the MD5 of its contents unpacked.
MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


def load_mnist(folder: Path, mirrors: Sequence[str] | None = None) -> tuple[ImageSet, ImageSet]:
    """MNIST's 60,000 training and 10,000 test images, from the four original files in `folder`, gzipped or raw.

    Absent files are downloaded there from the first of the `mirrors` (folder URLs) that has them. Every file's MD5 is
    verified. Raises `UserError`. The message names the file and both checksums, or the error of each mirror.
    """
    wanted = MNIST_MIRRORS if mirrors is None else mirrors
    tensors = [parse_idx(read_mnist(name, folder, wanted)) for name in MNIST_FILES]
    return ImageSet(*tensors[:2]), ImageSet(*tensors[2:])


def read_mnist(name: str, folder: Path, mirrors: Sequence[str]) -> bytes:
    """The contents of one of the `MNIST_FILES`, unpacked; downloaded if `folder` has it neither gzipped nor raw.

    A downloaded file gets its name only after it is complete and verified.
    """
    packed = folder / f"{name}.gz"
    for path in (packed, folder / name):
        if path.exists():
            try:
                return unpack(path.read_bytes(), MNIST_FILES[name])
            except ValueError as error:
                mend = "delete it to have it downloaded again, or name another folder with --data-dir"
                raise UserError(f"{path} is damaged or is not the original MNIST file: {error}; {mend}") from None
    print(f"{folder} has no {name}[.gz]: downloading it")
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}.gz"
        try:
            body = download(url)
            contents = unpack(body, MNIST_FILES[name])
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: of `unpack`, or a malformed URL
            failures.append(f"{url}: {error}")
        else:
            write_whole(packed, body)
            return contents
    raise UserError(
        f"could not download {packed.name} ({'; '.join(failures) or 'no mirror was given'}). Without a network: copy the "
        f"four MNIST files ({', '.join(MNIST_FILES)}, each raw or .gz) into {folder} or name their folder with "
        "--data-dir; --dataset digits needs no download"
    )


def download(url: str) -> bytes:
    """The body of `url`."""
    body = bytearray()
    with urllib.request.urlopen(url, timeout=30) as response:
        size = int(response.headers["Content-Length"] or 0) or None
        with Progress(f"Downloading {url.rsplit('/', 1)[1]}", size, "B") as bar:
            while chunk := response.read(1 << 18):
                body += chunk
                bar.update(len(chunk))
    return bytes(body)


def unpack(contents: bytes, md5: str) -> bytes:
    """`contents`, unpacked if they are gzipped. Raises `ValueError` if they are damaged or have another checksum."""
    try:
        raw = gzip.decompress(contents) if contents.startswith(b"\x1f\x8b") else contents
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{len(contents):,} bytes that cannot be unpacked: {error}") from None
    if (found := hashlib.md5(raw, usedforsecurity=False).hexdigest()) != md5:
        raise ValueError(f"expected MD5 {md5} when unpacked, found {found}")
    return raw


def parse_idx(contents: bytes) -> Tensor:
    """The uint8 tensor of a verified file, in the IDX format: two zero bytes, a type code, the rank, each size as a
    big-endian uint32, the data."""
    rank = contents[3]
    sizes = np.frombuffer(contents, ">u4", rank, offset=4).tolist()
    return torch.from_numpy(np.frombuffer(contents, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy())
