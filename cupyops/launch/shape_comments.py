"""Reads the shapes of arrays from the comments after a kernel's parameters: ``// (M, N)``."""

import re
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from cupyops.compile.cuda_text import Code
from cupyops.errors import nearest

__all__ = ["Piece", "foreign_names", "shape_comments", "shape_of"]

# A shape at the beginning of a comment, also of a documentation comment: ///< (n). The parenthesis of an expression,
# such as (h*w+1)*n, does not begin a shape.
_SHAPE = re.compile(r"(?://[/!]?<?|/\*[*!]?<?)\s*\((?P<terms>[^)]*)\)(?P<nullable>\s+or\s+null\b)?")
# The parenthesis has names, numbers and operators alone, as `(M * N, 2)`; `(optional: may be null)` has words.
_EXPRESSIONS = re.compile(
    r"(?://[/!]?<?|/\*[*!]?<?)\s*\((?:\s*[\w.]+\s*[-+*/,])+\s*[\w.]+\s*\)|[^()]*\(\s*\d+[A-Za-z]\w*\s*\)"
)
_SHAPE_BEGINS = re.compile(r"(?://[/!]?<?|/\*[*!]?<?)\s*\((?![^()]*\)\s*[*+/%]\s*[\w(])")


_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters that have no shape


class Piece(NamedTuple):
    """One parameter in the text: its code, the code's first and last offset, and the offset of the next comma."""

    declaration: str
    first: int
    last: int
    comma: int


def shape_comments(
    kernel: str,
    text: str,
    code: Code,
    end: int,
    comments: Sequence[tuple[int, int]],
    pieces: Sequence[Piece],
    pointers: Sequence[bool],
) -> list[str]:
    """Returns the shape comment of each parameter, or ``""``. A shape comment begins with a parenthesis.

    Raises:
        ValueError: a shape comment may belong to two parameters, or to none.
    """
    found = [""] * len(pieces)
    behind_the_list = _behind_the_list(text, code, end)

    def give(i: int, comment: str) -> None:
        if found[i] and pointers[i] and found[i] != comment:
            raise ValueError(
                f"{kernel}: two comments, `{comment}` and `{found[i]}`, give the shape of one parameter; keep one"
            )
        found[i] = comment

    # The loop runs from the last comment to the first: a parameter with a shape comment after it does not take the
    # comment before it.
    i = len(pieces) - 1
    for place, stop in reversed(comments if pieces else []):
        comment = _visible(text[place:stop])
        if not _SHAPE_BEGINS.match(comment):
            continue
        while i >= 0 and place < pieces[i].first and (i == 0 or place < pieces[i - 1].comma):
            i -= 1
        if i >= 0 and pieces[i].first <= place < pieces[i].comma:
            give(i, comment)
            continue
        # The comment is after the comma of one parameter and before the code of the next.
        before = i if i < 0 or place > pieces[i].comma else i - 1
        after = before + 1
        own = after < len(pieces) and (found[after] or (behind_the_list if after == len(pieces) - 1 else ""))
        if (
            after < len(pieces)
            and pointers[after]
            and not own
            and _stands_above(text, code, place, pieces[after].first)
        ):
            give(after, comment)
            continue
        clear = before >= 0 and "\n" not in text[pieces[before].comma : place]
        if clear and after < len(pieces) and "\n" not in text[place : pieces[after].first]:
            clear = pointers[before] and bool(own or not pointers[after])
        if not clear:
            raise ValueError(
                f"{kernel}: the comment `{comment}` may belong to two parameters, or to none; put it directly behind its "
                f"parameter, before the comma or at the end of the line (only a shape comment begins with a parenthesis)"
            )
        give(before, comment)
    if pieces and not found[-1]:
        found[-1] = behind_the_list
    return found


def _visible(comment: str) -> str:
    """Returns a comment without characters that nobody sees, and with its continued lines joined."""
    joined = re.sub(r"\\[ \t]*\r?\n", " ", comment)
    return "".join(
        c for c in joined if c.isspace() or (unicodedata.category(c) not in ("Cc", "Cf", "Mn") and c not in _FILLERS)
    ).strip()


def _stands_above(text: str, code: Code, place: int, first: int) -> bool:
    """Returns whether the comment at an offset begins a line and ends with this line or a later one, above the parameter at
    another offset."""
    line = text.rfind("\n", 0, place) + 1
    comments = code.comments_between(place, first)
    return not text[line:place].strip() and "\n" in text[comments[0][1] : first]


def _behind_the_list(text: str, code: Code, end: int) -> str:
    """Returns the last parameter's shape comment if it is after the closing parenthesis on the same line, before
    the body, or after the opening brace if no code follows the brace. Returns ``""`` without a shape comment there."""
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    rest = code.bare[end + 1 : line_end]
    until = line_end if not rest.strip(" \t\r{;") else end + 1 + len(rest) - len(rest.lstrip())
    comments = (_visible(text[start:stop]) for start, stop in code.comments_between(end, until))
    return next((c for c in comments if _SHAPE_BEGINS.match(c)), "")


def shape_of(kernel: str, name: str, comment: str) -> tuple[tuple[str, ...] | None, bool]:
    """Returns the shape that a comment gives an array, and whether a call may give None for the array.

    The shape is None for a text in parentheses that is not a shape. If the text has expressions, a warning says so.

    Args:
        kernel: the kernel's name, for messages.
        name: the parameter.
        comment: the comment, with its slashes.
    """
    found = _SHAPE.match(comment)
    terms = tuple(t.strip() for t in found["terms"].split(",") if t.strip()) if found else ()
    if found is None or not all(re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", t) for t in terms):
        if _EXPRESSIONS.match(comment):
            _warn(kernel, name, comment, "which must be names and numbers with commas between them, as in (M, N)")
        return None, False
    return terms, found["nullable"] is not None


def foreign_names(
    kernel: str, name: str, shape: Sequence[str], integers: Iterable[str], known: Collection[str]
) -> bool:
    """Returns whether a shape has names to which no call gives a value, and warns of them.

    A name that resembles an integer parameter's is a misspelling, which the check of the declaration refuses.

    Args:
        kernel: the kernel's name, for messages.
        name: the parameter.
        shape: the names and numbers of its shape.
        integers: the integer parameters of the kernel.
        known: the names of constants.
    """
    integers = set(integers)
    unknown = [t for t in shape if not t.isdigit() and t not in integers and t not in known]
    lower = {name.lower() for name in integers}
    if not unknown or any(word.lower() in lower or nearest(word, integers) for word in unknown):
        return False
    missing = " or ".join(f"`{word}`" for word in unknown)
    _warn(kernel, name, f"({', '.join(shape)})", f"since the kernel has no integer parameter {missing}")
    return True


def _warn(kernel: str, name: str, comment: str, why: str) -> None:
    warnings.warn(f"{kernel}: the comment `{comment}` gives `{name}` no shape to check, {why}", stacklevel=2)
