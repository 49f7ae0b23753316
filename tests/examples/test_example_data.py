"""examples/data.py: accepted data, and the files after a failed download."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import data
from examples.command import UserError
from examples.data import MNIST_FILES, ImageSet, epoch_order, load_digits, load_mnist, parse_idx

TRAIN_COUNT, TEST_COUNT = 12, 5


def idx(*sizes: int) -> bytes:
    """An IDX file of uint8, filled with 0, 1, 2, ... modulo 10."""
    count = functools.reduce(int.__mul__, sizes, 1)
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + bytes(i % 10 for i in range(count))


CONTENTS = [idx(TRAIN_COUNT, 28, 28), idx(TRAIN_COUNT), idx(TEST_COUNT, 28, 28), idx(TEST_COUNT)]


def md5(contents: bytes) -> str:
    return hashlib.md5(contents).hexdigest()


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four small files take MNIST's place; returns their gzipped contents by name."""
    files = dict(zip(MNIST_FILES, CONTENTS, strict=True))
    monkeypatch.setattr(data, "MNIST_FILES", {name: md5(contents) for name, contents in files.items()})
    return {f"{name}.gz": gzip.compress(contents, mtime=0) for name, contents in files.items()}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """``serve(files, cut=N)`` starts a local mirror of `files`, which ends each body N bytes early; returns its URL."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def start(files: dict[str, bytes], cut: int = 0, length: bool = True) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = files.get(self.path.removeprefix("/mnist/"))
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                if length:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - cut])

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/mnist/"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def load(folder: Path, *mirrors: str) -> tuple[ImageSet, ImageSet]:
    return load_mnist(folder, mirrors)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Digits --------------------------------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_scaled() -> None:
    pytest.importorskip("sklearn")
    train, test = load_digits()
    assert (len(train), len(test)) == (1442, 355)
    for part in (train, test):
        assert part.images.shape[1:] == (28, 28)
        assert (part.images.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
        assert (part.images.min(), part.images.max()) == (0, 255)
    shares = test.labels.bincount(minlength=10) / (test.labels.bincount() + train.labels.bincount())
    assert ((shares > 0.19) & (shares <= 0.2)).all()


def test_digits_keep_their_pictures() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    train, _ = load_digits()
    original = torch.from_numpy(sklearn_datasets.load_digits().images[0]) * (255 / 16)
    assert train.labels[0] == sklearn_datasets.load_digits().target[0]
    # Bilinear scaling keeps the mean of the inner cells; a transposed or shuffled picture would not keep the rows'.
    rows = train.images[0].double().unflatten(0, (7, 4)).mean((1, 2))
    scaled_rows = torch.nn.functional.interpolate(original.mean(1)[None, None], size=28, mode="linear")[0, 0]
    torch.testing.assert_close(rows, scaled_rows.unflatten(0, (7, 4)).mean(1), atol=1.0, rtol=0)


def test_digits_and_test_images_do_not_overlap() -> None:
    pytest.importorskip("sklearn")
    train, test = load_digits()
    seen = {bytes(image.numpy()) for image in train.images}
    assert not any(bytes(image.numpy()) in seen for image in test.images)


def test_items_are_images_in_0_to_1_and_batches_follow_the_order() -> None:
    images = torch.arange(3 * 784).reshape(3, 28, 28).to(torch.uint8)
    labels = torch.tensor([5, 6, 7])
    subject = ImageSet(images, labels)
    image, label = subject[1]
    assert (image.shape, image.dtype, label) == ((1, 28, 28), torch.float32, 6)
    assert torch.equal(image[0], images[1] / 255)
    (x, y), (rest, last) = subject.batches(2, "cpu", torch.tensor([2, 0, 1]))
    assert torch.equal(x, images[[2, 0], None] / 255)
    assert (y.tolist(), last.tolist()) == ([7, 5], [6])
    assert torch.equal(rest[0, 0], images[1] / 255)
    assert torch.equal(torch.cat([x for x, _ in subject.batches(2, "cpu")]), images[:, None] / 255)


def test_batches_leave_the_global_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(ImageSet(torch.zeros(3, 28, 28, dtype=torch.uint8), torch.zeros(3)).batches(2, "cpu"))
    assert torch.equal(torch.rand(3), expected)


def test_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    order = epoch_order(3, 4, 1000)
    torch.rand(5)
    assert torch.equal(order, epoch_order(3, 4, 1000))
    assert order.sort().values.tolist() == list(range(1000))
    others = [epoch_order(3, 5, 1000), epoch_order(4, 4, 1000), epoch_order(4, 3, 1000)]
    assert not any(torch.equal(order, other) for other in others)


# The IDX format ------------------------------------------------------------------------------------------------------


def test_idx_sizes_are_big_endian_and_data_row_major() -> None:
    tensor = parse_idx(idx(2, 3, 5))
    assert tensor.tolist() == (torch.arange(30) % 10).reshape(2, 3, 5).tolist()
    assert tensor.dtype == torch.uint8
    tensor[0] = 0  # a copy: the file's bytes are read-only


# Files on disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gz", "raw", "mixed"])
def test_mnist_is_read_gzipped_raw_and_mixed(form: str, tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    for index, (name, packed) in enumerate(small_mnist.items()):
        raw = form == "raw" or (form == "mixed" and index % 2)
        (tmp_path / (name.removesuffix(".gz") if raw else name)).write_bytes(gzip.decompress(packed) if raw else packed)
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (TRAIN_COUNT, TEST_COUNT)
    assert train.images.shape == (TRAIN_COUNT, 28, 28)
    assert train.labels.tolist() == [i % 10 for i in range(TRAIN_COUNT)]
    assert train.labels.dtype == torch.int64


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_foreign_file_is_named_with_both_checksums(suffix: str, tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    for name, packed in small_mnist.items():
        (tmp_path / name).write_bytes(packed)
    name = "t10k-labels-idx1-ubyte"
    (tmp_path / f"{name}.gz").unlink()
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    for words in (
        str(path),
        f"expected MD5 {md5(CONTENTS[3])}",
        f"found {md5(b'<html>not found</html>')}",
        "delete it",
    ):
        assert words in str(caught.value)
    assert path.exists()


def test_one_flipped_bit_is_noticed(tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    for name, packed in small_mnist.items():
        (tmp_path / name).write_bytes(packed)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="train-images-idx3-ubyte.gz is damaged or is not the original"):
        load(tmp_path)


def test_files_and_folders_that_the_system_refuses_are_named(tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").mkdir()
    with pytest.raises(IsADirectoryError, match=r"train-images-idx3-ubyte\.gz"):
        load(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError, match="file/below"):  # and no word of the mirrors
        load(tmp_path / "file" / "below", "http://127.0.0.1:9/")


# Downloads -----------------------------------------------------------------------------------------------------------


def test_absent_files_are_downloaded_once(
    tmp_path: Path, small_mnist: dict[str, bytes], serve: Callable[..., str]
) -> None:
    folder = tmp_path / "new" / "mnist"
    load(folder, serve(small_mnist))
    assert listing(folder) == sorted(small_mnist)
    train, _ = load(folder)  # no mirror: a second download would fail
    assert len(train) == TRAIN_COUNT


def test_only_the_absent_file_is_downloaded(
    tmp_path: Path, small_mnist: dict[str, bytes], serve: Callable[..., str]
) -> None:
    missing = "t10k-images-idx3-ubyte.gz"
    for name, packed in small_mnist.items():
        if name != missing:
            (tmp_path / name).write_bytes(packed)
    load(tmp_path, serve({missing: small_mnist[missing]}))


@pytest.mark.parametrize("fault", ["absent", "closed", "truncated", "truncated without length", "wrong", "no URL"])
def test_next_mirror_takes_over(
    fault: str, tmp_path: Path, small_mnist: dict[str, bytes], serve: Callable[..., str]
) -> None:
    wrong = dict.fromkeys(small_mnist, b"something else")
    first = {
        "absent": lambda: serve({}),
        "closed": lambda: "http://127.0.0.1:9/",
        "truncated": lambda: serve(small_mnist, cut=3),
        "truncated without length": lambda: serve(small_mnist, cut=3, length=False),
        "wrong": lambda: serve(wrong),
        "no URL": lambda: "mirror",
    }[fault]()
    train, _ = load(tmp_path, first, serve(small_mnist))
    assert len(train) == TRAIN_COUNT
    assert listing(tmp_path) == sorted(small_mnist)


@pytest.mark.parametrize(
    ("cut", "body", "words"),
    [(3, None, r"cannot be unpacked: .* ended before"), (0, b"other", f"found {md5(b'other')}")],
)
def test_failed_download_leaves_nothing_and_says_why(
    cut: int,
    body: bytes | None,
    words: str,
    tmp_path: Path,
    small_mnist: dict[str, bytes],
    serve: Callable[..., str],
) -> None:
    url = serve(small_mnist if body is None else dict.fromkeys(small_mnist, body), cut=cut)
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path, url)
    assert listing(tmp_path) == []
    for needed in (url, "Without a network", str(tmp_path), "--dataset digits needs no download"):
        assert needed in str(caught.value)


def test_interrupted_download_leaves_nothing(
    tmp_path: Path, small_mnist: dict[str, bytes], serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(contextlib.nullcontext[None]):
        def __enter__(self) -> Any:
            return self

        def update(self, count: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(data, "Progress", lambda *_: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, serve(small_mnist))
    assert listing(tmp_path) == []


def test_no_mirror_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no mirror was given"):
        load(tmp_path)
