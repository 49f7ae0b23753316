"""Hooks of the site's build (`mkdocs.yml`): what a page of the repository needs to be a page of the site.

Pages link to files outside docs/, such as ``../examples/own_op.py``. A file that is linked becomes a page of the site, so
that the link works there as it does in the repository.
"""

import json
import os
import re
import runpy
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")
FENCES = {".cu": "cpp", ".cuh": "cpp", ".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}
CELL = re.compile(r"<!-- cell: (\S+) (.+?) -->")
TEXT = re.compile(r"(\[[^\]]+\]\((?:\.\./)+([\w./-]+)\))<!-- text -->")
CODE = re.compile(r"(```.*?```)", re.DOTALL)
# How much a word of these pages counts in the search; of the others 1.
BOOSTS = {"source/": 0.05, "reference/": 0.5, "tutorials/": 0.5, "benchmarks": 0.3, "lltm": 0.3, "coming_from": 0.3}
BOOSTS |= {"index": 2, "simulator": 2, "debugging": 2, "troubleshooting": 4}
COLOUR = re.compile(r"\x1b\[[\d;]*m")


def outside(page: Path, docs: Path) -> list[str]:
    """Returns the files and folders outside docs/ that a page links to, relative to the repository."""
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    found = (Path(os.path.normpath(page.parent / (up + name))) for up, name, _ in LINK.findall(prose))
    return [path.relative_to(ROOT).as_posix() for path in found if docs not in path.parents]


def page_of(name: str) -> str:
    """Returns the site's page for a file or a folder of the repository."""
    return f"source/{name}" if name.endswith(".md") else f"source/{name.replace('.', '_')}.md"


def text_of(name: str) -> str:
    """Returns the Markdown of that page."""
    path = ROOT / name
    if path.is_dir():
        rows = [f"- `{p.name}`" for p in sorted(path.iterdir()) if p.is_file() and p.suffix in FENCES]
        return "\n".join([f"# `{name}/`", "", "The files of this folder of the repository:", "", *rows, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return f"# `{name}`\n\nThis file of {len(text.splitlines())} lines is in the repository.\n"
    if path.suffix == ".ipynb":
        return markdown_of(json.loads(text))
    if path.suffix == ".md":
        # Links of a file that lies elsewhere lead to files that are not on the site: only their words stay.
        return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)
    return f"# `{name}`\n\n````{FENCES.get(path.suffix, 'text')}\n{text}````\n"


def markdown_of(notebook: dict[str, Any]) -> str:
    """Returns the Markdown of a notebook: its cells, and after each cell the outputs that the notebook keeps."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(fenced(text, "cpp" if text.startswith("%%cu") else "python"))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(
                    f'<img alt="The plot of this cell" src="data:image/png;base64,{data["image/png"].strip()}">'
                )
            elif "text/html" in data:
                parts.append(f'<div class="report">{"".join(data["text/html"])}</div>'.replace("\n", " "))
            else:
                lines = output.get("text") or data.get("text/plain") or "\n".join(output["traceback"])
                parts.append(fenced(COLOUR.sub("", "".join(lines)), "text"))
    return "\n\n".join(parts) + "\n"


def section_of(name: str, heading: str) -> str:
    """Returns the Markdown of a notebook's code below a heading, with the outputs."""
    cells = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
    starts = [i for i, cell in enumerate(cells) if "".join(cell["source"]).startswith(f"## {heading}\n")]
    if len(starts) != 1:
        raise ValueError(f"{name} has {len(starts)} headings '## {heading}', and a page shows what is below one")
    return markdown_of({"cells": [next(cell for cell in cells[starts[0] :] if cell["cell_type"] == "code")]})


def fenced(text: str, language: str) -> str:
    """Returns a block of code."""
    return f"````{language}\n{text.rstrip()}\n````"


def on_config(config: Any) -> Any:
    """Colours the CUDA in blocks of Python, too."""
    runpy.run_path(str(Path(__file__).with_name("site_lexer.py")))["register"]()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for each file outside docs/ that a page links to."""
    from mkdocs.structure.files import File

    docs = Path(config["docs_dir"])
    names = {name for file in files.documentation_pages() for name in outside(Path(file.abs_src_path), docs)}
    for name in sorted(names):
        files.append(File.generated(config, page_of(name), content=text_of(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Directs links to files outside docs/ to those pages. A notebook's cell takes the place of ``<!-- cell: FILE HEADING -->``,
    and after a link with ``<!-- text -->`` the file itself is shown."""
    here = PurePosixPath(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath("docs", here.parent, match[1] + match[2]))
        if target.startswith("docs" + os.sep):
            return match[0]
        return f"]({os.path.relpath(page_of(PurePosixPath(target).as_posix()), here.parent)}{match[3] or ''})"

    markdown = CELL.sub(lambda match: section_of(match[1], match[2]), markdown)
    markdown = TEXT.sub(lambda match: f"{match[1]}\n\n{text_of(match[2]).split(chr(10), 2)[2]}", markdown)
    parts = CODE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Ranks guides before sources in the search, and pages about faults first."""
    boosts = [boost for start, boost in BOOSTS.items() if page.file.src_uri.startswith(start)]
    page.meta.setdefault("search", {"boost": boosts[0] if boosts else 1})
    return html
