"""Attacks on signed bundles: where signatures are required, only what a trusted key has signed is loaded."""

import hashlib
import sys
from pathlib import Path

import pytest

from cupyops import MissingDependencyError, load_bundle, trust
from cupyops.__main__ import main
from cupyops.compile import bundle, bundle_file, compiler, signing
from cupyops.compile.bundle import find, write_bundle
from cupyops.compile.cache import Binary, DiskCache
from cupyops.simulator import build

from .bundles import VERSIONS, code, entries, key_pair, refused, write_keys


@pytest.fixture
def signed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that the trusted key has signed, where signatures are required."""
    key, public = key_pair(tmp_path, "own")
    write_bundle(path, entries(), VERSIONS, key)
    monkeypatch.setenv("CUPYOPS_REQUIRE_SIGNED", "1")
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(public))
    return path


def loads_where_not_required(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard, the attack succeeds."""
    with monkeypatch.context() as off:
        off.setenv("CUPYOPS_REQUIRE_SIGNED", "0")
        load_bundle(path)
        assert code() is not None
    bundle._loaded.clear()


def test_a_signed_bundle_loads(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_bundle(signed).verified
    assert code() == b"code"
    bundle._loaded.clear()
    monkeypatch.setenv("CUPYOPS_BUNDLE", str(signed))
    assert code() == b"code"


def test_the_same_kernels_and_key_give_the_same_bytes(signed: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_bundle(again, reversed(entries()), VERSIONS, signing.private_key(tmp_path / "own.key"))
    assert again.read_bytes() == signed.read_bytes()


def test_one_of_several_trusted_keys(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [key_pair(tmp_path, name)[0].public_key() for name in ("a", "b")]
    own = signing.private_key(tmp_path / "own.key").public_key()
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(write_keys(tmp_path / "all", *others, own)))
    assert load_bundle(signed).verified


def test_a_bundle_without_a_signature(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(signed, entries(), VERSIONS)
    loads_where_not_required(signed, monkeypatch)
    refused(signed, "the file is not signed, and CUPYOPS_REQUIRE_SIGNED=1 requires a signature by a key of .*own.pub")
    monkeypatch.setenv("CUPYOPS_BUNDLE", str(signed))
    with pytest.raises(ValueError, match="is not signed"):
        find("one", 80, ())


def test_a_signature_that_was_removed(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = signed.read_bytes()
    body = bundle_file._with_comment(content[: -(16 + 64 + 32)], bundle_file._PLAIN)
    signed.write_bytes(body + hashlib.sha256(body).digest())
    loads_where_not_required(signed, monkeypatch)
    refused(signed, "the file is not signed")


def test_a_signature_of_another_bundle(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "evil", entries(b"evil"), VERSIONS, key_pair(tmp_path, "stranger")[0])
    body = (tmp_path / "evil").read_bytes()[: -(64 + 32)] + signed.read_bytes()[-(64 + 32) : -32]
    signed.write_bytes(body + hashlib.sha256(body).digest())
    loads_where_not_required(signed, monkeypatch)
    refused(signed, "the signature is of another content or of another key")


def test_a_signature_by_another_key(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(signed, entries(b"evil"), VERSIONS, key_pair(tmp_path, "stranger")[0])
    loads_where_not_required(signed, monkeypatch)
    refused(signed, "the signature is of another content or of another key")
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(tmp_path / "stranger.pub"))
    assert load_bundle(signed).verified


def test_a_kernel_changed_under_its_signature(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(signed.read_bytes())
    content[content.index(b"PK\3\4") + 10] ^= 1  # the date of a member, which no checksum of the archive has
    content[-32:] = hashlib.sha256(content[:-32]).digest()
    signed.write_bytes(content)
    loads_where_not_required(signed, monkeypatch)
    refused(signed, "the signature is of another content")


def test_a_signature_is_checked_before_the_archive_is_read(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(signed, entries(b"evil"), VERSIONS)
    monkeypatch.setattr(bundle_file, "unpack", lambda content: pytest.fail("the archive is read"))
    refused(signed, "is not signed")


def test_a_signature_for_another_purpose(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that signs other things, too, must not have signed a bundle by chance."""
    key = signing.private_key(tmp_path / "own.key")
    body = signed.read_bytes()[: -(64 + 32)]
    body += key.sign(body)
    signed.write_bytes(body + hashlib.sha256(body).digest())
    refused(signed, "the signature is of another content")
    monkeypatch.setattr(signing, "_PURPOSE", b"")
    assert load_bundle(signed).verified, "without the purpose in the message"


def test_keys_of_another_kind(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, x25519

    for name, key, words in (
        ("curve", ec.generate_private_key(ec.SECP256R1()).public_key(), "must hold Ed25519 keys, got ECPublicKey"),
        ("exchange", x25519.X25519PrivateKey.generate().public_key(), "must hold Ed25519 keys, got X25519PublicKey"),
        ("private", signing.private_key(tmp_path / "own.key"), "must hold public keys alone, got a PRIVATE KEY"),
    ):
        monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(write_keys(tmp_path / name, key)))
        with pytest.raises(ValueError, match=words):
            load_bundle(signed)
        with pytest.raises(ValueError, match=r"must be an Ed25519 private key|is not a PEM file of a private key"):
            signing.private_key(write_keys(tmp_path / name, getattr(key, "public_key", lambda k=key: k)()))
    (tmp_path / "empty").write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="public key 1 cannot be read"):
        load_bundle(signed)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no public key"):
        load_bundle(signed)
    locked = write_keys(tmp_path / "locked", signing.private_key(tmp_path / "own.key"), password=b"word")
    with pytest.raises(ValueError, match="a private key without a password is needed"):
        signing.private_key(locked)


def test_trusted_keys_that_another_user_may_write(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.pub").chmod(0o666)
    monkeypatch.setenv("CUPYOPS_CACHE_SHARED", "1")  # which is of caches, and not of keys
    with pytest.raises(ValueError, match=r"own.pub is not used: .*own.pub can be written by every user"):
        load_bundle(signed)
    assert code() is None
    with monkeypatch.context() as off:
        off.setattr(trust, "problem", lambda about, **more: "")
        assert load_bundle(signed).verified, "without the guard"
    bundle._loaded.clear()
    (tmp_path / "link").symlink_to("own.pub")
    (tmp_path / "own.pub").chmod(0o600)
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(tmp_path / "link"))
    with pytest.raises(ValueError, match="is a symbolic link"):
        load_bundle(signed)
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="absent cannot be read: No such file"):
        load_bundle(signed)
    monkeypatch.delenv("CUPYOPS_TRUSTED_KEYS")
    with pytest.raises(ValueError, match="CUPYOPS_REQUIRE_SIGNED=1 needs CUPYOPS_TRUSTED_KEYS=FILE"):
        load_bundle(signed)


def test_a_bundle_loaded_before_signatures_were_required(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_REQUIRE_SIGNED", "")
    load_bundle(signed)
    assert code() == b"code"
    monkeypatch.setenv("CUPYOPS_REQUIRE_SIGNED", "yes")
    assert code() is None


def test_an_entry_of_the_cache_is_no_signed_kernel(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that no signed bundle contains are compiled in this process, without reading or writing the cache."""
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (12, 9))
    monkeypatch.setattr(compiler, "compile_text", lambda *given: Binary(b"compiled", "", {}, 1.0))
    key = compiler._key("text", "sm_90", compiler.OPTIONS)
    assert DiskCache(tmp_path / "cache").put(key, Binary(b"planted", "", {}, 1.0)).path
    assert compiler.binary_for("text", "k", "sm_90").code == b"compiled"
    monkeypatch.delenv("CUPYOPS_REQUIRE_SIGNED")
    assert compiler.binary_for("text", "k", "sm_90").code == b"planted"
    assert compiler.binary_for("other", "k", "sm_90").path
    monkeypatch.setenv("CUPYOPS_REQUIRE_SIGNED", "1")
    assert compiler.binary_for("third", "k", "sm_90").path is None


def test_the_simulators_cache_has_no_signature(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    assert build._root() != tmp_path / "cache" / "simulator"
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("CUPYOPS_REQUIRE_SIGNED")
    assert build._root() == tmp_path / "cache" / "simulator"


def test_an_older_bundle_with_a_right_signature(signed: Path, tmp_path: Path) -> None:
    """A signature has no date, so an older bundle loads; its kernels are found for the same texts alone."""
    load_bundle(signed)
    assert (code("one"), code("one ")) == (b"code", None)


def test_without_the_package_the_error_says_how_to_install_it(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(MissingDependencyError, match="Install it with: pip install 'cryptography"):
        load_bundle(signed)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_signs_and_verifies(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, public = key_pair(tmp_path, "own")
    verify = ["bundle", "--verify", str(tmp_path / "signed"), "--key"]
    assert main(["bundle", "--sign", str(tmp_path / "own.key"), "--input", str(path), "-o", verify[2]]) == 0
    assert main([*verify, str(public)]) == 0
    assert capsys.readouterr().out == f"{verify[2]}: signed\n{verify[2]}: signed by a key of {public}\n"
    assert main([*verify, str(key_pair(tmp_path, "stranger")[1])]) == 1
    assert "NOT VERIFIED: the signature is of another content or of another key" in capsys.readouterr().out
    assert main(["bundle", "--verify", str(path), "--key", str(public)]) == 1
    assert "NOT VERIFIED: the file is not signed" in capsys.readouterr().out
    # A second signature takes the place of the first.
    assert main(["bundle", "--sign", str(tmp_path / "stranger.key"), "--input", verify[2], "-o", verify[2]]) == 0
    assert main([*verify, str(tmp_path / "stranger.pub")]) == 0
    monkeypatch.setenv("CUPYOPS_REQUIRE_SIGNED", "1")
    monkeypatch.setenv("CUPYOPS_TRUSTED_KEYS", str(tmp_path / "stranger.pub"))
    assert load_bundle(verify[2]).verified


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verify", "kernels"], "--verify FILE and --key KEYS go together"),
        (["--key", "own.pub"], "--verify FILE and --key KEYS go together"),
        (["--verify", "absent", "--key", "own.pub"], "--verify absent: No such file"),
        (["--verify", "kernels", "--key", "own.key"], "must hold public keys alone"),
        (["--input", "kernels", "-o", "x"], "--input FILE goes with --sign KEY"),
        (["--sign", "own.key", "--input", "kernels"], "the following arguments are required: -o/--output"),
        (["--sign", "own.pub", "--input", "kernels", "-o", "x"], "--sign own.pub: own.pub is not a PEM file"),
        (["--sign", "own.key", "--input", "own.pub", "-o", "x"], "is not a bundle of kernels"),
    ],
)
def test_mistakes_of_signing_end_with_one_line(
    arguments: list[str],
    words: str,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key_pair(tmp_path, "own")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as status:
        main(["bundle", *arguments])
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()
