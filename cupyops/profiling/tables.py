"""Tables of reports for notebooks, as HTML."""

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bar", "cell", "table"]


def cell(text: str, style: str = "", title: str = "") -> str:
    """Returns a cell of a table, with a CSS style, and a text that is shown under the pointer."""
    given = "".join(f' {name}="{escape(value)}"' for name, value in (("style", style), ("title", title)) if value)
    return f"<td{given}>{escape(text)}</td>"


def bar(text: str, share: float, colour: str = "#9cc4f2") -> str:
    """Returns a cell whose coloured part is this share of its width."""
    percent = 100 * min(max(share, 0.0), 1.0)
    shade = f"linear-gradient(to right, {colour} {percent:.1f}%, transparent {percent:.1f}%)"
    return cell(text, f"background:{shade};min-width:14em;text-align:left")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], below: str = "") -> str:
    """Returns a table under a title, with preformatted text below it.

    Args:
        rows: the cells of each row, of :func:`cell` and :func:`bar`.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    words = f"<pre>{escape(below)}</pre>" if below else ""
    return f"<p><b>{escape(title)}</b></p><table><tr>{head}</tr>{body}</table>{words}"
