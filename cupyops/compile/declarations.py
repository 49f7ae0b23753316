"""Finds the names that a text declares, and its macros. Macros are not expanded, and conditions are not evaluated."""

import re
from functools import lru_cache

from .cuda_text import scan

__all__ = ["DECLARES", "SPACE_OF_MACRO", "WORD", "declared_names", "macros_of"]

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
# The name that a type, a namespace, a macro or a function declares.
DECLARES = re.compile(
    r"\b(?:struct|class|union|enum|namespace|using|concept|typename|[\w>*&]+)\s+([A-Za-z_]\w*)\s*(?=[={:;<]|\((?!\s*\*))"
)
SPACE_OF_MACRO = re.compile(r"(?:(?:inline\s+)?namespace\b[\w\s:]*\{\s*)+|(?:\}\s*)+|using\s+namespace\s+[\w:]+\s*;")
_MACRO = re.compile(r"(\w+)(\()?(.*)", re.DOTALL)


@lru_cache(256)
def declared_names(text: str) -> frozenset[str]:
    """Returns the names of the types, functions and variables that a text declares in namespaces."""
    code = scan(text)
    return frozenset(m[1] for m in DECLARES.finditer(code.bare) if code.scope(m.start()) is not None)


@lru_cache(256)
def macros_of(text: str) -> dict[str, tuple[bool, str]]:
    """Returns, by the name of each macro of a text, whether the macro has parameters, and its replacement. The replacements of a macro
    with several definitions are joined."""
    found: dict[str, tuple[bool, str]] = {}
    for m in (_MACRO.match(d.rest) for d in scan(text).directives if d.name == "define"):
        if m:
            before = found.get(m[1], (False, ""))
            found[m[1]] = (before[0] or bool(m[2]), f"{before[1]} {m[3]}".strip())
    return found
