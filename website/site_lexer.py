"""A Pygments lexer for the site: the CUDA texts in Python's strings have CUDA's colours."""

import re
from collections.abc import Iterator
from typing import Any

from pygments import lexers
from pygments.lexers import c_cpp, python
from pygments.lexers.c_like import CudaLexer
from pygments.lexers.python import PythonLexer
from pygments.token import String

CUDA = re.compile(r"__global__|__device__|__shared__")
LITERAL = re.compile(r"(\w*(\"\"\"|'''|\"|'))(.*)(\2)", re.DOTALL)

Tokens = Iterator[tuple[int, Any, str]]


class CudaInPython(PythonLexer):  # type: ignore[misc]
    """Lexes Python, and string literals that contain a CUDA keyword as CUDA C++."""

    def get_tokens_unprocessed(self, text: str, stack: tuple[str, ...] = ("root",)) -> Tokens:
        literal: list[tuple[int, Any, str]] = []
        for index, token, value in super().get_tokens_unprocessed(text, stack):
            if token in String:
                literal.append((index, token, value))
                continue
            yield from _coloured(literal)
            literal.clear()
            yield index, token, value
        yield from _coloured(literal)


def _coloured(literal: list[tuple[int, Any, str]]) -> Tokens:
    text = "".join(value for *_, value in literal)
    found = LITERAL.fullmatch(text) if CUDA.search(text) else None
    if found is None:
        yield from literal
        return
    begin = literal[0][0]
    yield begin, String.Double, found[1]
    for index, token, value in CudaLexer().get_tokens_unprocessed(found[3]):
        yield begin + found.start(3) + index, token, value
    yield begin + found.start(4), String.Double, found[4]


class CudaAsCpp(CudaLexer):  # type: ignore[misc]
    """Lexes C++ as CUDA C++."""

    name = "C++"


def register() -> None:
    """Makes Pygments take these lexers for blocks of Python, and of C++, which is CUDA on this site.

    Pygments finds other lexers only by the entry points of an installed package. The lexers therefore take the place of Pygments'
    own in their modules, which Pygments loads again when it looks for a language that it does not know.
    """
    for module, known, lexer in ((python, "PythonLexer", CudaInPython), (c_cpp, "CppLexer", CudaAsCpp)):
        setattr(module, known, lexer)
        lexers._load_lexers(module.__name__)
