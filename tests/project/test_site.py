"""The documentation site without its packages: every page has its place, no link is broken, and the lists are complete."""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.project import site_lists
from tests.project.site_lists import DOCS, ROOT

yaml = pytest.importorskip("yaml")

PAGES = sorted(DOCS.rglob("*.md"))
LISTED = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
CODE = re.compile(r"^ *(```+).*?^ *\1|``.*?``|`[^`\n]*`", re.DOTALL | re.MULTILINE)
ROOMS = {
    "cupyops": "reference/cupyops.md",
    "cupyops.torch": "reference/cupyops_torch.md",
    "autograd_bridge": "reference/autograd_bridge.md",
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def loaded(name: str) -> Any:
    """Returns a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return document


def pages_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(entry)]


def anchors_in(text: str) -> set[str]:
    """Returns the anchors of a page's headings, where GitHub and the site make the same of a heading."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    ):
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        on_github = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        if on_github == re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip()):
            found.add(on_github)
    return found


def broken_links(page: Path, text: str) -> list[str]:
    """Returns the relative links of a page that lead to no file, or to no heading."""
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", CODE.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = Path(os.path.normpath(page.parent / target)) if target else page
        if not path.exists():
            broken.append(f"{target} is not there")
        elif anchor and path.suffix == ".md" and anchor not in anchors_in(path.read_text(encoding="utf-8")):
            broken.append(f"{target}#{anchor}: there is no such heading")
    return broken


def test_the_navigation_lists_every_page_once() -> None:
    listed = pages_in(site()["nav"])
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_the_navigation_begins_with_the_five_ways_in() -> None:
    assert [next(iter(entry)) for entry in site()["nav"]] == [
        "Quickstart",
        "Tutorials",
        "Guides",
        "Reference",
        "Troubleshooting",
    ]


def test_the_build_takes_warnings_as_errors() -> None:
    document = site()
    assert document["strict"] is True
    assert set(document["validation"].values()) == {"warn"}
    for name in (*document["hooks"], *(f"docs/{css}" for css in document["extra_css"])):
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("page", LISTED, ids=name_of)
def test_no_link_is_broken(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a](nowhere.md)", "nowhere.md is not there"),
        ("[a](kernels.md#nothing)", "kernels.md#nothing: there is no such heading"),
        ("[a](#nothing)", "#nothing: there is no such heading"),
        # GitHub makes `a--b` of this heading, and the site `a-b`.
        ("# A & b\n[a](#a--b)", "#a--b: there is no such heading"),
    ],
)
def test_the_check_tells_a_broken_link(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.md").write_text("# Kernels\n```\n# nothing\n```\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken_links(page, text) == [told]
    assert broken_links(page, f"```\n{text}\n```\n`[a](nowhere.md)`") == []  # code has no links


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_has_every_public_name_once(room: str) -> None:
    text = (DOCS / ROOMS[room]).read_text(encoding="utf-8")
    shown = re.findall(rf"^::: {re.escape(room)}\.(\w+)$", text, re.MULTILINE)
    public = importlib.import_module(room).__all__
    missing = [f"::: {room}.{name}" for name in public if name not in shown]
    assert not missing, "\n".join([f"add to docs/{ROOMS[room]}:", *missing])
    assert sorted(shown) == sorted(public), "a name has two lines, or a line has no public name"
    assert text.count(":::") == len(shown) + 1  # the sentence that explains the lines


def test_the_page_of_headers_names_every_header() -> None:
    headers = {path.name for folder in ("shared", "hardware") for path in (ROOT / "kernels_cu" / folder).glob("*.cuh")}
    text = (DOCS / "headers.md").read_text(encoding="utf-8")
    sections = [re.findall(r"`(.*?)`", section.partition("\n")[0]) for section in text.split("\n## ")[1:]]
    assert sorted(name for names in sections for name in names) == sorted(headers)
    for names in sections:
        # The page of the matrix kernel shows wgmma.cuh at work.
        assert names == ["wgmma.cuh"] or any(f'#include "{name}"' in text for name in names), f"no example of {names}"


def test_the_page_of_variables_lists_every_variable() -> None:
    library, _, others = (
        (DOCS / "environment.md").read_text(encoding="utf-8").partition("## Variables of other packages")
    )
    assert set(re.findall(r"^\| `(CUPYOPS_\w+)`", library, re.MULTILINE)) == site_lists.variables("cupyops")
    of_tests = site_lists.variables("tests", "benchmarks", "examples") - site_lists.variables("cupyops")
    assert set(re.findall(r"^\| `(CUPYOPS_\w+)`", others, re.MULTILINE)) == of_tests


@pytest.mark.parametrize(
    ("name", "made"), [("record", site_lists.table_of_runs), ("architectures", site_lists.table_of_architectures)]
)
def test_the_page_of_compatibility_has_the_tables_of_the_source(name: str, made: Any) -> None:
    table = made()
    assert site_lists.block("compatibility.md", name) == table, f"compatibility.md has another table; paste\n{table}"


def test_links_out_of_the_pages_lead_to_pages_of_the_site() -> None:
    """By the functions of the hook that makes the pages, without mkdocs."""
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
    """By the function of the hook that makes the page, without mkdocs."""
    site_hooks = loaded("site_hooks")
    linked = site_hooks.outside(DOCS / "notebooks.md", DOCS)
    assert linked == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb"))
    first, second = map(site_hooks.text_of, linked)
    assert first.startswith("# A first operator\n")
    for part in ("````cpp\n%%cu\n", 'identifier "fabz" is undefined', "tensor([", "## A gradient"):
        assert part in first
    assert second.count('src="data:image/png;base64,') == 1
    assert "````python\nimport matplotlib.pyplot as plt\n" in second
    cell = {
        "cell_type": "code",
        "source": "1",
        "outputs": [{"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n"]}],
    }
    assert site_hooks.markdown_of({"cells": [cell]}) == "````python\n1\n````\n\n````text\nred\n````\n"


def test_docstrings_become_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the function of the extension that the site's build loads, without the extension's package."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    as_markdown = loaded("site_docstrings").as_markdown
    assert as_markdown("See :class:`.Kernel`::\n\n    code\n") == "See `Kernel`:\n\n    code\n"
    assert as_markdown("Example:\n    >>> 1\n    1\n") == "Examples:\n    >>> 1\n    1\n"
    assert as_markdown(">>> f(1)\n2\n\nText.") == "```pycon\n>>> f(1)\n2\n\n```\n\nText."
    rows = "==  ====\na   b\n==  ====\n1   :func:`.c`\n==  ====\n"
    assert as_markdown(rows) == "| a | b |\n| --- | --- |\n| 1 | `c` |\n\n"
