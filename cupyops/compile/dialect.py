"""The version of C++ that a text needs."""

import re
from collections.abc import Iterable, Sequence

from .cpp_library import CONCEPTS
from .cuda_text import scan

__all__ = ["standard_of"]

_DESIGNATED = re.compile(r"[{,]\s*\.[A-Za-z_]\w*\s*=(?!=)")
# g++, and nvcc with it, takes such functions in former versions, too.
_AUTO = re.compile(
    r"\b(?!(?:for|if|while|switch|catch)\b)[A-Za-z_]\w*\s*\((?:[^(){};=]*,)?\s*(?:const\s+)?auto\b[^(){};=]*\)\s*(?:const\s*)?\{"
)
_OF_CPP20 = re.compile(
    rf"{_DESIGNATED.pattern}|{_AUTO.pattern}|\bstd\s*::\s*(?:{'|'.join(sorted(CONCEPTS))})\b|>\s*concept\s+\w+\s*=|(?<=[>)])\s*requires\b|\bconst(?:eval|init)\b"
)


def standard_of(texts: Iterable[str], options: Sequence[str]) -> tuple[str, ...]:
    """Returns the option ``-std=c++20`` for code that no former version of C++ has: concepts, initializers that name a member,
    functions with parameters of the type ``auto``, ``consteval`` and ``constinit``. Returns no option if `options` choose a version.

    Args:
        texts: CUDA C++.
        options: NVRTC options.
    """
    if any(re.match(r"--?std\b", option) for option in options):
        return ()
    return ("-std=c++20",) if any(_OF_CPP20.search(scan(text).bare) for text in texts) else ()
