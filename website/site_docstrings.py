"""Docstrings as the site shows them: reStructuredText roles and literal blocks, as Markdown."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|mod|meth|data|attr|exc|obj):`[~.]*([^`]*)`")
TABLE = re.compile(r"^=+(?: +=+)+\n(?:.+\n)+?=+(?: +=+)+\n(?:.+\n)+?=+(?: +=+)+$", re.MULTILINE)


def table(match: re.Match[str]) -> str:
    """Returns a simple table, whose columns lie below rules of ``=``, as a table of Markdown."""
    rule, *lines = match[0].rstrip().splitlines()
    columns = [(m.start(), m.end()) for m in re.finditer("=+", rule)]
    columns[-1] = (columns[-1][0], max(map(len, lines)))
    rows = [[line[a:b].strip() for a, b in columns] for line in lines if not line.startswith("=")]
    rows.insert(1, ["---"] * len(columns))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def as_markdown(text: str) -> str:
    """Returns a docstring with roles as code, ``::`` as one colon, and doctests in a section of examples."""
    text = TABLE.sub(table, text)  # before the roles: columns are counted in characters
    text = ROLE.sub(r"`\1`", text)
    text = re.sub(r"^::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    # A doctest between paragraphs would be three nested quotations.
    return re.sub(
        r"((?:^(?:>>>|\.\.\.).*\n?(?:^(?!\s*$|>>>|\.\.\.).*\n?)*)+)", r"```pycon\n\1\n```\n", text, flags=re.MULTILINE
    )


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
