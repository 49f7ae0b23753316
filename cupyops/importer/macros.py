"""Expands the macros of a CUDA text: a kernel that a macro declares needs a declaration in the text."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cupyops.compile.cuda_text import Directive

__all__ = ["Macro", "expanded", "macro_of"]

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|'?[\w.])*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\s+|/\*.*?\*/|//[^\n]*|##|<<<|>>>|->|::|.",
    re.DOTALL,
)
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


def expanded(code: str, macros: Mapping[str, Macro]) -> str:
    """Returns code with the texts of macros in place of their uses, as the preprocessor has it, on one line."""
    return "".join(_expanded(_tokens(code), macros, frozenset())).strip()


def _tokens(code: str) -> list[str]:
    """Returns the tokens of code, with one blank for blanks and comments between them."""
    found = (m[0] for m in _TOKEN.finditer(code.replace("\\\n", " ")))
    return [" " if token.isspace() or token[:2] in ("/*", "//") else token for token in found]


def _expanded(tokens: Iterable[str], macros: Mapping[str, Macro], within: frozenset[str]) -> list[str]:
    given, found, at = list(tokens), list[str](), 0
    while at < len(given):
        token = given[at]
        at += 1
        macro = macros.get(token) if token not in within else None
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
        replaced = _replaced(macro, arguments, macros, within)
        found += _expanded(replaced, macros, within | {macro.name})
    return found


def _arguments(tokens: list[str], opening: int) -> tuple[list[list[str]], int]:
    """Returns the arguments in parentheses, and the place behind them."""
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
    macro: Macro, arguments: list[list[str]], macros: Mapping[str, Macro], within: frozenset[str]
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
            found += given[token] if pasted else _expanded(given[token], macros, within)
            found += [""] if pasted and not given[token] else []
        else:
            found.append(token)
        at += 1
    return found
