"""The functions that make the documentation site, without its packages. `make docs` builds the site."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def loaded(name: str) -> Any:
    """Returns a module of website/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "website" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_out_of_the_pages_lead_to_pages_of_the_site() -> None:
    site_hooks = loaded("site_hooks")

    class File:
        src_uri = "reference/page.md"

    class Page:
        file = File()

    def made(text: str) -> str:
        return site_hooks.on_page_markdown(text, Page(), {}, [])

    assert made("[a](../../examples/own_op.py)") == "[a](../source/examples/own_op_py.md)"
    assert made("[a](../kernels.md#the-declaration)") == "[a](../kernels.md#the-declaration)"
    assert made("```\n[a](../../examples/own_op.py)\n```") == "```\n[a](../../examples/own_op.py)\n```"
    assert site_hooks.outside(DOCS / "examples.md", DOCS) == [
        "examples/README.md",
        "examples/own_op.py",
        "examples/own_ops",
    ]
    assert "](" not in site_hooks.text_of("examples/README.md")
    assert "`softmax.py`" in site_hooks.text_of("examples/own_ops")
    assert site_hooks.text_of("examples/own_op.py").startswith("# `examples/own_op.py`\n\n````python\n")


def test_a_notebook_is_a_page_with_its_cells_and_outputs() -> None:
    site_hooks = loaded("site_hooks")
    linked = site_hooks.outside(DOCS / "notebooks.md", DOCS)
    assert linked == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb"))
    first, inline, second = map(site_hooks.text_of, linked)
    assert first.startswith("# A first operator\n")
    for part in ("````cpp\n%%cu\n", 'identifier "fabz" is undefined', "tensor([", "## A gradient"):
        assert part in first
    for page in (first, inline, second):
        assert page.count('src="data:image/png;base64,') == 1
    assert inline.count('<div class="report">') == first.count('<div class="report">') == 1
    assert "````python\nimport matplotlib.pyplot as plt\n" in second
    cell = {
        "cell_type": "code",
        "source": "1",
        "outputs": [{"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n"]}],
    }
    assert site_hooks.markdown_of({"cells": [cell]}) == "````python\n1\n````\n\n````text\nred\n````\n"


def test_the_front_page_shows_a_cell_of_a_notebook_with_its_report() -> None:
    site_hooks = loaded("site_hooks")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    made = site_hooks.on_page_markdown((DOCS / "index.md").read_text(encoding="utf-8"), page, {}, [])
    assert "<!-- cell:" not in made
    assert "cupyops.explain(transpose, x" in made
    assert made.count('<div class="report"><iframe') == 1
    with pytest.raises(ValueError, match="has 0 headings '## Nothing', and a page shows what is below one"):
        site_hooks.section_of("notebooks/first_operator.ipynb", "Nothing")


def test_a_page_shows_the_text_of_a_puzzle_below_its_link() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="puzzles.md"))
    made = loaded("site_hooks").on_page_markdown((DOCS / "puzzles.md").read_text(encoding="utf-8"), page, {}, [])
    assert "<!-- text -->" not in made
    for path in (ROOT / "examples" / "puzzles").glob("*.cu"):
        assert f"_cu.md)\n\n````cpp\n{path.read_text(encoding='utf-8')}````\n" in made


def test_cuda_in_strings_of_python_is_coloured_as_cuda() -> None:
    token = pytest.importorskip("pygments.token").Token
    lexer = loaded("site_lexer").CudaInPython()
    source = 'text = r"""\n__global__ void k(float* x) { x[0] = 1.5f; }\n"""  # a text\nname = "x"\nf"""{name} __global__"""\n'
    found = list(lexer.get_tokens(source))
    assert "".join(value for _, value in found) == source
    assert (token.Keyword.Reserved, "__global__") in found
    assert (token.Literal.Number.Float, "1.5f") in found
    assert (token.Literal.String.Double, "x") in found
    assert [value for kind, value in found if kind in token.Keyword].count("__global__") == 1, "no text in an f-string"


def test_a_language_that_is_not_known_does_not_undo_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    lexers = pytest.importorskip("pygments.lexers")
    from pygments.lexers import c_cpp, python
    from pygments.util import ClassNotFound

    monkeypatch.setattr(lexers, "_lexer_cache", dict(lexers._lexer_cache))
    monkeypatch.setattr(python, "PythonLexer", python.PythonLexer)
    monkeypatch.setattr(c_cpp, "CppLexer", c_cpp.CppLexer)
    loaded("site_lexer").register()
    with pytest.raises(ClassNotFound):
        lexers.find_lexer_class("a language that nobody knows") or lexers.get_lexer_by_name("gdb")
    lexers.guess_lexer("a text")  # looks at the lexers of all modules
    assert type(lexers.get_lexer_by_name("python")).__name__ == "CudaInPython"
    assert type(lexers.get_lexer_by_name("cpp")).__name__ == "CudaAsCpp"


def test_the_search_finds_guides_before_sources_and_faults_first() -> None:
    site_hooks = loaded("site_hooks")
    names = ("source/examples/own_op_py.md", "reference/cupyops.md", "operators.md", "troubleshooting.md")
    pages = [SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={}) for name in names]
    assert all(site_hooks.on_page_content("html", page, {}, []) == "html" for page in pages)
    boosts = [page.meta["search"]["boost"] for page in pages]
    assert boosts == sorted(set(boosts))


def test_a_message_is_split_into_its_words() -> None:
    """Python and JavaScript split alike by this separator."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    separator = re.findall(r"separator: '(.*)'$", text, re.MULTILINE)[0].replace("''", "'")
    message = (
        "k: 'y' must have dtype float32 (scalar_t, as the arrays), got torch.float64 at `k.cu`:12, element 32 of `part`"
    )
    words = [word for word in re.split(separator, message.removeprefix("k")) if word]
    assert words == ["have", "dtype", "float32", "scalar", "arrays", "torch", "float64", "cu", "element", "part"]


def test_docstrings_become_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    as_markdown = loaded("site_docstrings").as_markdown
    assert as_markdown("See :class:`.Kernel`::\n\n    code\n") == "See `Kernel`:\n\n    code\n"
    assert as_markdown("Example:\n    >>> 1\n    1\n") == "Examples:\n    >>> 1\n    1\n"
    assert as_markdown(">>> f(1)\n2\n\nText.") == "```pycon\n>>> f(1)\n2\n\n```\n\nText."
    rows = "==  ====\na   b\n==  ====\n1   :func:`.c`\n==  ====\n"
    assert as_markdown(rows) == "| a | b |\n| --- | --- |\n| 1 | `c` |\n\n"
