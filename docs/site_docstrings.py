"""Docstrings as the site shows them: reStructuredText roles and literal blocks, as Markdown."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|mod|meth|data|attr|exc|obj):`[~.]*([^`]*)`")


def as_markdown(text: str) -> str:
    """Returns a docstring with roles as code, ``::`` as one colon, and doctests in a section of examples."""
    text = ROLE.sub(r"`\1`", text)
    text = re.sub(r"^::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    # A doctest that stands among paragraphs would be three nested quotations.
    return re.sub(
        r"((?:^(?:>>>|\.\.\.).*\n?(?:^(?!\s*$|>>>|\.\.\.).*\n?)*)+)", r"```pycon\n\1\n```\n", text, flags=re.MULTILINE
    )


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
