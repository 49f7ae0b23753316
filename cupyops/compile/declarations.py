"""Finds the names that a text declares. Macros are not expanded, and conditions are not evaluated."""

import re
from functools import lru_cache

from .cuda_text import scan

__all__ = ["DECLARES", "SPACE_OF_MACRO", "WORD", "declared_names"]

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
# The name that a type, a namespace, a macro or a function declares.
DECLARES = re.compile(
    r"\b(?:struct|class|union|enum|namespace|using|concept|typename|[\w>*&]+)\s+([A-Za-z_]\w*)\s*(?=[={:;<]|\((?!\s*\*))"
)
SPACE_OF_MACRO = re.compile(r"(?:(?:inline\s+)?namespace\b[\w\s:]*\{\s*)+|(?:\}\s*)+|using\s+namespace\s+[\w:]+\s*;")


@lru_cache(256)
def declared_names(text: str) -> frozenset[str]:
    """Returns the names of the types, functions and variables that a text declares in namespaces."""
    code = scan(text)
    return frozenset(m[1] for m in DECLARES.finditer(code.bare) if code.scope(m.start()) is not None)
