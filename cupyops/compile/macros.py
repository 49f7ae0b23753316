"""Expands the macros of a CUDA text, as the preprocessor of C does."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .cuda_text import Directive

__all__ = ["Macro", "expanded", "macro_of", "macros_in"]

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
        body: the tokens of its text.
    """

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[str, ...]


def macro_of(directive: Directive) -> Macro | None:
    """Returns the macro of a directive ``#define``."""
    found = _DEFINITION.match(directive.rest)
    if directive.name != "define" or found is None:
        return None
    listed = None
    if found[2] is not None:
        names = [name.strip() for name in found[3].split(",") if name.strip()]
        listed = tuple("__VA_ARGS__" if name == "..." else name for name in names)
    return Macro(found[1], listed, tuple(_tokens(found[4].strip())))


def macros_in(
    plain: Mapping[str, str | None], functions: Mapping[str, tuple[tuple[str, ...], str]], hidden: frozenset[str]
) -> dict[str, Macro]:
    """Returns the macros of a text by name.

    Args:
        plain: the replacement of each macro without parameters; None for one that is not known.
        functions: the parameters and the replacement of each macro with parameters.
        hidden: names that are not macros.
    """
    found = {name: Macro(name, None, tuple(_tokens(text))) for name, text in plain.items() if text is not None}
    found |= {name: Macro(name, of, tuple(_tokens(text))) for name, (of, text) in functions.items()}
    return {name: macro for name, macro in found.items() if name not in hidden}


def expanded(code: str, macros: Mapping[str, Macro]) -> str:
    """Returns code with macros expanded, as the preprocessor does, on one line."""
    return "".join(_expanded(_tokens(code), macros, frozenset(), itertools.count())).strip()


def _tokens(code: str) -> list[str]:
    """Returns the tokens of code, with one blank for blanks and comments between them."""
    found = (m[0] for m in _TOKEN.finditer(code.replace("\\\n", " ")))
    return [" " if token.isspace() or token[:2] in ("/*", "//") else token for token in found]


def _expanded(
    given: Sequence[str], macros: Mapping[str, Macro], within: frozenset[str], seen: Iterator[int]
) -> list[str]:
    found, at = list[str](), 0
    while at < len(given):
        token = given[at]
        at += 1
        macro = macros.get(token) if token not in within and next(seen) < _MOST else None
        if macro is None:
            found.append(token)
            continue
        arguments: list[list[str]] = []
        if macro.parameters is not None:
            opening = at + (given[at : at + 1] == [" "])
            if given[opening : opening + 1] != ["("]:
                found.append(token)
                continue
            arguments, at = _arguments(given, opening)
        replaced = _replaced(macro, arguments, macros, within, seen)
        found += _expanded(replaced, macros, within | {macro.name}, seen)
    return found


def _arguments(tokens: Sequence[str], opening: int) -> tuple[list[list[str]], int]:
    """Returns the arguments in parentheses, and the place after them."""
    found: list[list[str]] = [[]]
    depth, at = 0, opening
    while at < len(tokens):
        token = tokens[at]
        depth += {"(": 1, ")": -1}.get(token, 0)
        at += 1
        if depth == 0:
            break
        if token == "," and depth == 1:
            found.append([])
        elif not (token == "(" and depth == 1):
            found[-1].append(token)
    return [_stripped(argument) for argument in found], at


def _stripped(tokens: list[str]) -> list[str]:
    start, end = 0, len(tokens)
    while start < end and tokens[start] == " ":
        start += 1
    while end > start and tokens[end - 1] == " ":
        end -= 1
    return tokens[start:end]


def _replaced(
    macro: Macro, arguments: list[list[str]], macros: Mapping[str, Macro], within: frozenset[str], seen: Iterator[int]
) -> list[str]:
    """Returns a macro's text with its arguments, with ``#`` and ``##`` done."""
    names = macro.parameters or ()
    given = dict(zip(names, arguments, strict=False))
    if names and names[-1] == "__VA_ARGS__":
        rest: list[str] = []
        for argument in arguments[len(names) - 1 :]:
            rest += [*([","] if rest else []), *argument]
        given["__VA_ARGS__"] = rest
    body = [
        token for i, token in enumerate(macro.body) if not (token == " " and "##" in macro.body[max(0, i - 1) : i + 2])
    ]
    found: list[str] = []
    at = 0
    while at < len(body):
        token, pasted = body[at], at + 1 < len(body) and body[at + 1] == "##"
        if token == "#" and macro.parameters is not None:
            at += 1 + (body[at + 1 : at + 2] == [" "])
            text = "".join(given.get(body[at], [])) if at < len(body) else ""
            found.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        elif token == "##":
            at += 1
            right = list(given.get(body[at], [body[at]])) if at < len(body) else []
            left = found.pop() if found and found[-1] != " " else ""
            if left == "," and not right:  # `, ## __VA_ARGS__` without arguments
                left = ""
            found += [left + (right[0] if right else ""), *right[1:]] if left != "," else [left, *right]
        elif token in given:
            # An argument beside ## is taken as it is.
            found += given[token] if pasted else _expanded(given[token], macros, within, seen)
            found += [""] if pasted and not given[token] else []
        else:
            found.append(token)
        at += 1
    return found
