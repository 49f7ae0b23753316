"""A program that is known is not compiled again, and one that differs in anything that decides its code is."""

import pytest

from tests import compiled
from tests.compiled import compile_unknown

TEXT = 'extern "C" __global__ void k(float* y) { y[0] = 1; }'
FLAGS = ("--std=c++17", "-Xptxas=-v")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """TEXT is known, for sm_90 with FLAGS."""
    pytest.importorskip("cupy")
    monkeypatch.setattr(compiled, "asked", set())
    assert compile_unknown(TEXT, "k", "sm_90", FLAGS) is not None
    found = frozenset(compiled.asked)
    assert len(found) == 1
    monkeypatch.setattr(compiled, "known", lambda: found)


def test_a_comment_is_compiled() -> None:
    assert compile_unknown(f"// one\n{TEXT}", "another", "sm_90", FLAGS) is None


@pytest.mark.parametrize("what", ["text", "target", "flag", "header", "version"])
def test_a_change_is_not_compiled(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, target, flags = TEXT, "sm_90", FLAGS
    if what == "text":
        text = TEXT.replace("= 1", "= 2")
    elif what == "target":
        target = "sm_80"
    elif what == "flag":
        flags = ("--std=c++20", *FLAGS[1:])
    elif what == "header":
        monkeypatch.setattr(compiled.compiler, "for_libraries", lambda: {"a.h": ""})
        monkeypatch.setattr(compiled.compiler, "folders_in", lambda options: ["folder"])
    else:
        monkeypatch.setattr(compiled, "versions", lambda: ["another"])
    assert compile_unknown(text, "k", target, flags) is not None


def test_a_folder_that_is_no_packages_counts_as_known(tmp_path: object) -> None:
    """Its headers are no part of the hash."""
    for _ in range(2):
        assert compile_unknown(TEXT, "k", "sm_90", (*FLAGS, f"-I{tmp_path}")) is not None


def test_a_fault_in_the_text_is_taken_for_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(compiled.compiler.CompileError, match="undeclared"):
        compile_unknown(TEXT.replace("= 1", "= undeclared"), "k", "sm_90", FLAGS)
