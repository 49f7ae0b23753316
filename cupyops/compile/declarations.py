"""Finds the declarations of a text outside functions and classes, and what each declares.

Macros are not expanded. Where braces match only after preprocessing, the longest branch of each such conditional counts.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .cuda_text import Code, first_branches, scan

__all__ = [
    "ALIAS",
    "CALL",
    "CAPITALS",
    "KEPT",
    "OF_CLASS",
    "SPACE_OF_MACRO",
    "TYPE",
    "WORD",
    "Item",
    "declarations",
    "declared_names",
    "is_function",
    "items_of",
    "macros_of",
    "name_of",
    "plain_head",
]

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
TYPE = re.compile(r"\s*(?:typedef\s+)?(?:struct|class|union|enum)\b")
KEPT = re.compile(
    r"\s*(?:using|concept|typedef|static_assert|_Static_assert|struct|class|union|enum|namespace|extern\s+template|asm)\b"
)
ALIAS = re.compile(
    r"\s*(?:(?:using|concept)\s+(\w+)\s*=|typedef\b[^;]*?(?:\(\s*(?:\w+\s*::\s*)*\*\s*(\w+)\s*\)[^;]*|\b(\w+)\s*(?:\[[^;]*)?);)",
    re.DOTALL,
)
CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
CAPITALS = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_DEPTH = 8  # parentheses within one another
_MARKS = re.compile(r"[;{}()]")
_NAMESPACE = re.compile(r"(?:\s|\[\[[^][]*\]\])*(?:inline\s+)?namespace\b[\w:\s]*\Z|\s*extern\s*\"C(?:\+\+)?\"\s*\Z")
SPACE_OF_MACRO = re.compile(r"(?:(?:inline\s+)?namespace\b[\w\s:]*\{\s*)+|(?:\}\s*)+|using\s+namespace\s+[\w:]+\s*;")
_TEMPLATE = re.compile(r"\s*template\s*<")
_NAME = re.compile(r"(~?(?<!\w)[A-Za-z_]\w*|(?<!\w)operator\s*[^\s(]+)\s*\Z")
_INITIALIZES = re.compile(r"\s*[,{]")
_BEHIND = re.compile(r"[ \t]*(?:(?:\r?\n)+\s*[A-Za-z_#}]|\s*\Z)")  # the next declaration, on another line
_MACRO = re.compile(r"(\w+)(\()?(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[\w\s:<>,*&]*?\b([A-Za-z_]\w*)\s*(?:\[[^][]*\]\s*)*(?:=(?!=)|\{|;)")
# `struct Point origin;` declares a variable, as does `struct Point corners[4] = {...};`.
OF_CLASS = re.compile(
    r"\s*(?:struct|class|union|enum)\s+[A-Za-z_]\w*[\s*]+(?!final\b)([A-Za-z_]\w*)\s*(?:\[[^][]*\]\s*)*[=;]"
)
_CLASS = re.compile(
    r"\s*(?:typedef\s+)?(?:struct|class|union|enum)\b(?:\s+(?:class|struct)\b)?"
    r"(?:\s*(?:__align__|alignas|__builtin_align__)\s*\([^()]*\))?"
    r"(?:\s+_*[A-Z][A-Z0-9_]+\b(?:\s*\([^(){};]*\))?(?=\s+[A-Za-z_]\w*\s*(?:final\s*)?[:{]))?\s*([A-Za-z_]\w*)?"  # a macro for attributes
)


class Item(NamedTuple):
    """A declaration outside functions and classes: its offsets, and the offset of its first brace, or -1."""

    start: int
    end: int
    brace: int


def declarations(
    code: Code, macros: Mapping[str, tuple[bool, str]], compiled: str = "", rank: int = 0
) -> list[Item] | None:
    """Returns the declarations of a text, or None if its braces do not match.

    Args:
        code: the text.
        macros: the macros of :func:`macros_of`.
        compiled: the code of the text with blanks for what conditions remove; ``""`` if no condition is decided.
        rank: the branch of :func:`first_branches` where braces match only after preprocessing.
    """
    found = items_of(_without_spaces(code.bare, macros), macros)
    if found is None and (one := first_branches(code, compiled, rank)) != code.bare:
        found = items_of(one, macros)
    return found


def _without_spaces(bare: str, macros: Mapping[str, tuple[bool, str]]) -> str:
    """Returns code with blanks for macros that open and close namespaces, ``BEGIN_NAMESPACE`` and ``END_NAMESPACE``."""
    names = [name for name, (parameters, text) in macros.items() if not parameters and SPACE_OF_MACRO.fullmatch(text)]
    if not any(name in bare for name in names):
        return bare
    return re.sub(rf"\b(?:{'|'.join(names)})\b", lambda name: " " * len(name[0]), bare)


def items_of(bare: str, macros: Mapping[str, tuple[bool, str]]) -> list[Item] | None:
    """Returns the declarations of a text, or None if its braces do not match."""
    found: list[Item] = []
    start, depth, opened, brace, parentheses = 0, 0, 0, -1, 0
    for match in _MARKS.finditer(bare):
        c, place = match[0], match.start()
        if c == "(":
            parentheses += 1
        elif c == ")":
            parentheses -= 1
            # A macro that expands to declarations, without a semicolon behind it.
            if not depth and not parentheses and brace < 0 and _is_macro_call(bare, start, place, macros):
                found.append(Item(start, place + 1, -1))
                start = place + 1
        elif parentheses > 0:
            continue  # a bracket in a default argument or a lambda
        elif c == "{" and not depth:
            if brace < 0 and _NAMESPACE.match(bare, start, place):
                opened, start = opened + 1, place + 1
                continue
            depth, brace = 1, place if brace < 0 else brace
        elif c == "{":
            depth += 1
        elif c == "}":
            if not depth:
                if not opened or bare[start:place].strip():
                    return None
                opened, start = opened - 1, place + 1
                continue
            depth -= 1
            # Braces of a constructor's list of initializers come before the body.
            if not depth and is_function(bare[start:brace]) and not _INITIALIZES.match(bare, place + 1):
                found.append(Item(start, place + 1, brace))
                start, brace = place + 1, -1
        elif not depth:
            found.append(Item(start, place + 1, brace))
            start, brace = place + 1, -1
        if parentheses < 0:
            return None
    if depth or opened or parentheses or bare[start:].strip():
        return None
    return [
        Item(i.start + len(s) - len(s.lstrip()), i.end, i.brace) for i in found if (s := bare[i.start : i.end]).strip()
    ]


def declared_names(item: str) -> frozenset[str]:
    """Returns the names that a declaration of a type, of an alias, of a function or of a variable declares."""
    plain = plain_head(item)
    found: set[str] = set()
    if (alias := ALIAS.match(plain)) is not None and "{" not in alias[0]:
        found = {name for name in alias.groups() if name}
    elif (variable := OF_CLASS.match(plain)) is not None:
        found = {variable[1]}
    elif (kind := _CLASS.match(plain)) is not None and KEPT.match(plain):
        behind = re.search(r"\}\s*(\w+)\s*;\s*\Z", plain) if re.match(r"\s*typedef\b", plain) else None
        found = {name for name in (kind[1], behind and behind[1]) if name}
    elif not KEPT.match(plain) and "(" in re.split(r"[={]", plain)[0]:
        # The name of an overloaded operator does not occur in the code that calls the operator.
        found = {name for name in [name_of(plain.partition("{")[0])] if name and not name.startswith("operator")}
    elif not KEPT.match(plain) and (variable := _VARIABLE.match(plain)) is not None:
        found = {variable[1]}
    return frozenset(found)


@lru_cache(256)
def macros_of(text: str) -> dict[str, tuple[bool, str]]:
    """Returns, by the name of each macro of a text, whether the macro has parameters, and its replacement.

    Conditions are not evaluated. The replacements of a macro with several definitions are joined, because any of them
    may contain ``__device__``.
    """
    found: dict[str, tuple[bool, str]] = {}
    for m in (_MACRO.match(d.rest) for d in scan(text).directives if d.name == "define"):
        if m:
            before = found.get(m[1], (False, ""))
            found[m[1]] = (before[0] or bool(m[2]), f"{before[1]} {m[3]}".strip())
    return found


def plain_head(head: str) -> str:
    """Returns the head of a declaration without ``template <...>`` and without attributes."""
    while (found := _TEMPLATE.match(head)) is not None:
        depth = parentheses = 0
        for match in re.finditer(r"[<>]=|[<>()]", head[found.end() - 1 :]):
            parentheses += (match[0] == "(") - (match[0] == ")")
            depth += 0 if parentheses or match[0] not in "<>" else 1 if match[0] == "<" else -1
            if not depth and match[0] == ">":
                head = head[found.end() + match.start() :]
                break
        else:
            return head
    return re.sub(
        r"\[\[[^][]*\]\]|\b(?:__attribute__|__declspec|alignas|__align__|__launch_bounds__|__cluster_dims__|__maxnreg__|__block_size__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)",
        " ",
        head,
    )


def is_function(head: str) -> bool:
    """Returns whether a brace behind a head opens the body of a function."""
    plain = plain_head(head)
    if "(" not in plain or (TYPE.match(plain) and not re.search(r"\)\s*(?:const\b|noexcept\b|->|\Z)", plain)):
        return False
    plain = re.sub(r"<[^<>]*>", " ", plain)
    for _ in range(_DEPTH):
        before, plain = plain, re.sub(r"\([^()]*\)", " ", plain)
        if before == plain:
            break
    return "=" not in re.sub(r"operator\s*[=!<>+*/%^&|-]*=", "operator", plain)


def name_of(head: str) -> str:
    """Returns the name that a declaration declares."""
    found = _NAME.search(re.sub(r"<[^<>]*>\s*\Z", "", head.partition("(")[0]).strip())
    return found[1] if found else ""


def _is_macro_call(bare: str, start: int, closing: int, macros: Mapping[str, tuple[bool, str]]) -> bool:
    called = CALL.match(bare, start, closing)
    # The definition of a macro may stand in a header that is missing. A name in capitals then counts as a macro.
    if called is None or not (macros[called[1]][0] if called[1] in macros else CAPITALS.fullmatch(called[1])):
        return False
    return bare.find("(", start) == called.end() - 1 and _BEHIND.match(bare, closing + 1) is not None
