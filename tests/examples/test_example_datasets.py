"""examples/datasets.py and download.py: what is accepted as data, and what a failed download leaves behind."""

import functools
import gzip
import hashlib
import http.server
import io
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from examples.console import Progress, UserError
from examples.datasets import MNIST_FILES, MnistFile, load_digits, load_mnist, parse_idx
from examples.download import fetch
from examples.files import whole_file

from examples import datasets, download

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
    packed = {f"{file.name}.gz": gzip.compress(c, mtime=0) for file, c in zip(MNIST_FILES, CONTENTS, strict=True)}
    files = tuple(
        MnistFile(file.name, md5(packed[f"{file.name}.gz"]), md5(contents))
        for file, contents in zip(MNIST_FILES, CONTENTS, strict=True)
    )
    monkeypatch.setattr(datasets, "MNIST_FILES", files)
    return packed


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


def load(folder: Path, *mirrors: str) -> tuple[datasets.ImageSet, datasets.ImageSet]:
    return load_mnist(folder, mirrors, show_progress=False, echo=lambda _: None)


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


# The IDX format ------------------------------------------------------------------------------------------------------


def test_idx_sizes_are_big_endian_and_data_row_major() -> None:
    tensor = parse_idx(idx(2, 3, 5), Path("x"), 3)
    assert tensor.tolist() == (torch.arange(30) % 10).reshape(2, 3, 5).tolist()
    assert tensor.dtype == torch.uint8
    tensor[0] = 0  # a copy: the file's bytes are read-only


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "begins with"),
        (idx(3), "of rank 3 begins with"),
        (b"\0\0\x0d" + idx(2, 3, 5)[3:], "begins with"),  # type code of float32
        (idx(2, 3, 5)[:-1], "ask for 46 bytes, the file has 45"),
        (idx(2, 3, 5) + b"\0", "ask for 46 bytes, the file has 47"),
        (idx(2, 3, 5)[:14], "begins with"),
    ],
)
def test_malformed_idx_is_refused_by_name(contents: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_idx(contents, Path("some/file"), 3)
    assert "some/file" in str(caught.value)


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
    expected = md5(CONTENTS[3] if suffix == "" else small_mnist[f"{name}.gz"])
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    for words in (str(path), f"expected MD5 {expected}", f"found {md5(b'<html>not found</html>')}", "delete it"):
        assert words in str(caught.value)
    assert path.exists()


def test_one_flipped_bit_is_noticed(tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    for name, packed in small_mnist.items():
        (tmp_path / name).write_bytes(packed)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="train-images-idx3-ubyte.gz .* is damaged or is not the original"):
        load(tmp_path)


def test_unreadable_file_is_named(tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").mkdir()
    with pytest.raises(UserError, match="train-images-idx3-ubyte.gz cannot be read .* expected .* with MD5"):
        load(tmp_path)


def test_folder_that_cannot_be_made_is_not_blamed_on_the_mirrors(tmp_path: Path, small_mnist: dict[str, bytes]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot use .*file.*another folder with --data-dir"):
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
    [(3, None, r"ended after \d+ of \d+ bytes|IncompleteRead"), (0, b"other", f"got {md5(b'other')}")],
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
    def interrupt(self: Progress, count: int = 1) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download.Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, serve(small_mnist))
    assert listing(tmp_path) == []


def test_half_file_of_an_earlier_attempt_is_not_used(tmp_path: Path, serve: Callable[..., str]) -> None:
    body = b"abc" * 1000
    with pytest.raises(UserError):
        fetch("file", tmp_path, md5(body), [serve({"file": body}, cut=100)], show_progress=False)
    path = fetch("file", tmp_path, md5(body), [serve({"file": body})], show_progress=False)
    assert path.read_bytes() == body


def test_no_mirror_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no mirror was given"):
        fetch("file", tmp_path, "", [])


# Files and progress --------------------------------------------------------------------------------------------------


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert (target.read_text(), listing(tmp_path)) == ("old", ["file"])
    with whole_file(target) as temporary:
        temporary.write_text("new")
    assert (target.read_text(), listing(tmp_path)) == ("new", ["file"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    pytest.importorskip("tqdm")
    for stream, carriage_return in ((Terminal(), True), (io.StringIO(), False)):
        with Progress("Epoch 1", 4, stream=stream, interval=0.0) as progress:
            progress.advance(3)
        assert "Epoch 1" in stream.getvalue()
        assert ("\r" in stream.getvalue()) is carriage_return
    assert stream.getvalue() == "Epoch 1: 3 of 4 batch\n"


def test_progress_lines_are_rare_and_can_be_silenced() -> None:
    for options in ({"interval": 3600.0}, {"interval": 0.0, "enabled": False}):
        stream = io.StringIO()
        with Progress("Epoch 1", 100, stream=stream, **options) as progress:  # type: ignore[arg-type]
            for _ in range(100):
                progress.advance()
        assert stream.getvalue() == ""
