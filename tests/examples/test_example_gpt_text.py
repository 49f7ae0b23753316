"""examples/gpt/text.py: the same text gives the same numbers everywhere, and a text that will not do is named."""

from pathlib import Path

import pytest
import torch

from examples.command import UserError
from examples.gpt import text as text_module
from examples.gpt.text import Corpus, Windows, load_corpus, python_sources, read_text
from tests.examples.example_support import CONTEXT, CPU, TEXT, corpus


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n", encoding="utf-8")


pytestmark = pytest.mark.usefixtures("one_thread")

# Numbers -------------------------------------------------------------------------------------------------------------


def test_characters_are_numbered_in_order_and_back() -> None:
    found = corpus()
    assert found.characters == "".join(sorted(set(TEXT)))
    assert found.decode(found.tokens) == TEXT
    assert found.decode(found.encode("größe\n")) == "größe\n"
    assert (found.tokens.dtype, found.encode("red").dtype) == (torch.int32, torch.int64)


def test_characters_beyond_16_bits_are_one_each() -> None:
    found = Corpus("😀a😁" * 4, 1, "faces")
    assert found.characters == "a😀😁"
    assert found.tokens.tolist() == [1, 0, 2] * 4


def test_last_tenth_is_held_out_and_at_least_one_window() -> None:
    found = corpus()
    assert found.held_out == len(TEXT) // 10
    assert found.decode(found.train) + found.decode(found.validation) == TEXT
    short = Corpus("abcd" * 5, 9, "short")
    assert (len(short.train), len(short.validation)) == (10, 10)


def test_other_text_has_another_fingerprint() -> None:
    assert corpus().fingerprint == corpus(8).fingerprint
    assert corpus().fingerprint != Corpus(TEXT + "!", 8, "words").fingerprint


@pytest.mark.parametrize("length", [0, 1, 19])
def test_text_too_short_for_two_windows_is_refused(length: int) -> None:
    with pytest.raises(
        UserError, match=f"tale.txt holds {length} characters; training and validation with --context 9 "
    ):
        Corpus("x" * length, 9, "tale.txt")


def test_prompt_of_an_unknown_character_is_refused() -> None:
    with pytest.raises(UserError, match="--prompt: 'X' does not occur in words"):
        corpus().encode("redX")


# Batches -------------------------------------------------------------------------------------------------------------


def windows(seed: int = 0, size: int = 4) -> Windows:
    return Windows(corpus(), CONTEXT, size, CPU, seed)


def test_targets_follow_their_inputs_and_come_from_the_training_part() -> None:
    subject, found = windows(), corpus()
    learned = found.decode(found.train)
    for _ in range(20):
        inputs, targets = subject.draw()
        assert (inputs.shape, inputs.dtype) == ((4, 16), torch.int64)
        for row, following in zip(inputs, targets, strict=True):
            assert torch.equal(row[1:], following[:-1])
            assert found.decode(row) + found.decode(following[-1:]) in learned


def test_every_window_can_be_drawn_the_first_and_the_last_too() -> None:
    subject = windows()
    subject.train = torch.arange(19, dtype=torch.int32)  # three windows of 16 and the character after
    drawn = {row[0].item() for _ in range(40) for row in subject.draw()[0]}
    assert drawn == {0, 1, 2}


def test_batches_depend_on_the_seed_alone() -> None:
    first, again, other = (windows(seed) for seed in (1, 1, 2))
    list(again.held_out(2))
    torch.rand(5)
    assert torch.equal(first.draw()[0], again.draw()[0])
    assert not torch.equal(first.draw()[0], other.draw()[0])


def test_held_out_windows_are_spread_evenly_and_the_same_each_time() -> None:
    subject, held_out = windows(), corpus().validation.long()
    last = len(held_out) - 17
    expected = [held_out[int(i * last / 7) :][:17] for i in range(8)]
    for _ in range(2):
        inputs, targets = (torch.cat(part) for part in zip(*subject.held_out(2), strict=True))
        assert torch.equal(inputs, torch.stack([window[:-1] for window in expected]))
        assert torch.equal(targets, torch.stack([window[1:] for window in expected]))


# Files ---------------------------------------------------------------------------------------------------------------


def test_sources_are_in_order_and_leave_out_tests_and_installed_packages(tmp_path: Path) -> None:
    kept = ["a.py", "a/b.py", "a/z.py", "b.py", "latest/c.py"]
    put(tmp_path, *reversed(kept), "site-packages/x.py", "dist-packages/y.py", "test/z.py", "a/tests/w.py", "a/n.txt")
    (tmp_path / "folder.py").mkdir()
    assert [p.relative_to(tmp_path).as_posix() for p in python_sources(tmp_path)] == sorted(kept)


def test_standard_library_is_read_alike_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "b.py", "a.py")
    (tmp_path / "c.py").write_bytes(b"# caf\xe9\r\n")
    monkeypatch.setattr(text_module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    found = load_corpus(None, 4)
    assert found.decode(found.tokens) == "# a.py\n\n# b.py\n\n# caf\ufffd\n"
    assert found.source == f"3 files of Python's standard library in {tmp_path}"
    assert load_corpus(None, 4).fingerprint == found.fingerprint


def test_standard_library_without_sources_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UserError, match="there are no Python sources in .*; name another text with --text FILE"):
        load_corpus(None, 4)


def test_standard_library_of_this_python_is_megabytes() -> None:
    found = load_corpus(None, 256)
    assert len(found.tokens) > 3_000_000
    assert len(found.characters) < 1000


def test_line_ends_and_a_byte_order_mark_make_no_characters(tmp_path: Path) -> None:
    path = tmp_path / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read_text(path) == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (None, "--text: {} cannot be read: No such file or directory"),
        (b"", "--text: {} is empty"),
        (b"\xef\xbb\xbf", "--text: {} is empty"),
        (b"caf\xe9 au lait", "--text: {} is not UTF-8: byte 0xe9 at position 3"),
        ("folder", "--text: {} cannot be read: Is a directory"),
        (b"short", "{} holds 5 characters; training and validation with --context 16 need 34"),
    ],
)
def test_text_that_will_not_do_is_named(contents: bytes | str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if contents == "folder":
        path.mkdir()
    elif isinstance(contents, bytes):
        path.write_bytes(contents)
    with pytest.raises(UserError) as caught:
        load_corpus(path, 16)
    assert str(caught.value).startswith(words.format(path))
