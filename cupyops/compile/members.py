"""Finds the device functions of classes that a text defines outside of their classes."""

import re
from functools import lru_cache

from .cuda_text import scan

__all__ = ["is_of_device"]

_OUTSIDE = re.compile(
    r"(?<!\w)([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>\s*)?::\s*(~?[A-Za-z_]\w*|operator\s*[^\s\w(]+|operator\s*\(\s*\))\s*\("
)


@lru_cache(4096)
def is_of_device(head: str, *texts: str) -> bool:
    """Returns whether a function that is defined outside of its class is a device function by its declaration in the class.

    Args:
        head: the code before the body.
        texts: the texts that may have the class.
    """
    found = _OUTSIDE.search(head)
    for text in texts if found else ():
        code = scan(text)
        for opened in re.finditer(rf"\b(?:struct|class)\s+(?:\w+\s+)?{found[1]}\b[^;{{}}()]*\{{", code.bare):  # type: ignore[index]
            body = code.bare[opened.end() : code.end_of_function(opened.end() - 1)]
            if re.search(rf"\b__device__\b[^;{{}}]*?(?<![\w~]){re.escape(found[2])}\s*\(", body):  # type: ignore[index]
                return True
    return False
