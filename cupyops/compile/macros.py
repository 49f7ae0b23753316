"""Expands the macros of a CUDA text, as the preprocessor of C does."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .cuda_text import Directive

__all__ = ["Macro", "expanded", "macro_of"]

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'?[\w.])*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\s+|/\*.*?\*/|//[^\n]*|##|<<<|>>>|->|::|.",
    re.DOTALL,
)
_MOST = 1 << 14  # tokens, after which macros are not expanded: those of one another may double with each
_DEFINITION = re.compile(r"\s*([A-Za-z_]\w*)(\(([^()]*)\))?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Macro:
    """A macro.

    Attributes:
        name: its name.
        parameters: their names; None for a macro without parentheses.
        body: its text.
    """

    name: str
    parameters: tuple[str, ...] | None
    body: str


def macro_of(directive: Directive) -> Macro | None:
    """Returns the macro of a directive ``#define``; None for another directive."""
    found = _DEFINITION.match(directive.rest)
    if directive.name != "define" or found is None:
        return None
    listed = None
    if found[2] is not None:
        names = [name.strip() for name in found[3].split(",") if name.strip()]
        listed = tuple("__VA_ARGS__" if name == "..." else name for name in names)
    return Macro(found[1], listed, found[4].strip())


def expanded(code: str, macros: Mapping[str, Macro]) -> str:
    """Returns code with macros expanded, as the preprocessor does, on one line."""
    return _expanded(code, macros, frozenset(), itertools.count()).strip()


def _tokens(code: str) -> list[str]:
    """Returns the tokens of code, with one blank for blanks and comments between them."""
    found = (m[0] for m in _TOKEN.finditer(code.replace("\\\n", " ")))
    return [" " if token.isspace() or token[:2] in ("/*", "//") else token for token in found]


def _expanded(code: str, macros: Mapping[str, Macro], within: frozenset[str], seen: Iterator[int]) -> str:
    tokens, found, at = _tokens(code), list[str](), 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        macro, arguments = macros.get(token) if token not in within and next(seen) < _MOST else None, list[str]()
        if macro is not None and macro.parameters is not None:
            opening = at + (tokens[at : at + 1] == [" "])
            if tokens[opening : opening + 1] == ["("]:
                arguments, at = _arguments(tokens, opening)
            else:
                macro = None
        if macro is None:
            found.append(token)
            continue
        replaced = _replaced(macro, arguments, lambda argument: _expanded(argument, macros, within, seen))
        found.append(f" {_expanded(replaced, macros, within | {macro.name}, seen)} ")
    return "".join(found)


def _arguments(tokens: Sequence[str], opening: int) -> tuple[list[str], int]:
    """Returns the arguments in parentheses, and the place after them."""
    found, depth, at = [""], 1, opening + 1
    while depth and at < len(tokens):
        token = tokens[at]
        depth += (token == "(") - (token == ")")
        at += 1
        if token == "," and depth == 1:
            found.append("")
        elif depth:
            found[-1] += token
    return [argument.strip() for argument in found], at


def _replaced(macro: Macro, arguments: list[str], expand: Callable[[str], str]) -> str:
    """Returns a macro's text with its arguments, with ``#`` and ``##`` done."""
    names = macro.parameters or ()
    given = dict(zip(names, arguments, strict=False))
    if names[-1:] == ("__VA_ARGS__",):
        given["__VA_ARGS__"] = ", ".join(arguments[len(names) - 1 :])
    tokens, found = _tokens(macro.body), ""
    beside = (tokens[max(i - 1, 0) : i + 2] for i in range(len(tokens)))
    body = [t for t, near in zip(tokens, beside, strict=True) if t != " " or not ("##" in near or near[0] == "#")]
    for i, token in enumerate(body):
        before, behind = body[max(i - 1, 0) : i], body[i + 1 : i + 2]
        if token in given and before == ["#"]:
            found += '"' + given[token].replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif token in given:
            # An argument beside ## is taken as it is.
            found += given[token] if "##" in (*before, *behind) else f" {expand(given[token])} "
        elif token == "," and behind == ["##"] and not given.get("__VA_ARGS__", "..."):
            continue  # `, ## __VA_ARGS__` without arguments
        elif token != "##" and not (token == "#" and behind and behind[0] in given):
            found += token
    return found
