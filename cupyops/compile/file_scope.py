"""Finds what a text declares outside its kernels: ``__device__`` and ``__constant__`` variables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .ask import QUESTIONS
from .cuda_text import Code, scan
from .definitions import split
from .preprocess import Preprocessed, preprocess

__all__ = [
    "DeviceVariable",
    "variables",
]

_SPACE = re.compile(r"__(?<!\w__)(?:device|constant|managed)__\b")
_ATTRIBUTE = re.compile(r"\b(?:__align__|alignas|__builtin_align__|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_QUALIFIERS = re.compile(
    r"\b(?:__device__|__constant__|__managed__|__restrict__|static|inline|constexpr|const|volatile|extern|struct)\b|\"C\""
)
_DECLARATOR = re.compile(r"(?P<type>[\w\s:<>]*?)(?P<stars>(?:\*\s*)*)\b(?P<name>\w+)\s*(?P<sizes>(?:\[[^\[\]]*\]\s*)*)")
# The words that may lie between `__device__` and the parenthesis of a function. The number of repetitions bounds the
# time of a match.
_HEAD = re.compile(r"(?:[\w\s*&:]|<[\w\s,*&:]{0,99}>|\boperator\[\]){1,400}\(")
_HAS_ATTRIBUTE = re.compile(r"\b(?:__align__|alignas|__builtin_align__|__attribute__)\b")


@dataclass(frozen=True)
class DeviceVariable:
    """A ``__device__``, ``__constant__`` or ``__managed__`` variable of a text.

    Attributes:
        name: the name in C++, with its namespaces: ``physics::gravity``.
        symbol: the name in the compiled code.
        type: the C type of an element.
        pointer: the variable, or each element of the array, is a pointer.
        sizes: the expressions between the brackets of an array.
        constant: the variable is a ``__constant__`` one, which kernels only read.
    """

    name: str
    symbol: str
    type: str
    pointer: bool
    sizes: tuple[str, ...]
    constant: bool = False


@lru_cache(64)
def variables(text: str) -> dict[str, DeviceVariable]:
    """Returns the device variables that a text declares in namespaces, by name.

    A variable in code of which only a compiler can decide whether it is compiled is left out. Left
    out are also templates, static variables in namespaces, and arrays that another text defines with their size.
    """
    text = text.partition(f'#line 1 "{QUESTIONS}"')[0]
    if _functions_alone(text):
        return {}
    followed = preprocess(text, {}, {})
    return {v.name: v for v in _variables(scan(text), followed)}


def _functions_alone(text: str) -> bool:
    """Returns True if a search by regular expressions shows that every ``__device__`` belongs to a function.

    Most texts declare no variable, and a scan of a final text takes milliseconds.
    """
    for match in _SPACE.finditer(text):
        head = _HEAD.match(text, match.end())
        if head is None or _HAS_ATTRIBUTE.search(head[0]):
            return False
    return True


def _variables(code: Code, followed: Preprocessed) -> Iterator[DeviceVariable]:
    bare = _ATTRIBUTE.sub(lambda m: " " * len(m[0]), code.bare)
    end = 0
    for match in _SPACE.finditer(bare):
        # Nearly all are functions, whose scopes take as long as the scan.
        if match.start() < end or not followed.live("", match.start()) or _HEAD.match(bare, match.end()):
            continue
        if (scope := code.scope(match.start())) is None:
            continue
        start = max(bare.rfind(c, 0, match.start()) for c in ";{}") + 1
        end = code.end_of_function(match.start())
        while bare[end - 1] != ";" and end < len(bare):  # the end of an initializer in braces
            end = code.end_of_function(end)
        # Each declarator without its initializer.
        pieces = [split(piece, "=")[0][1].partition("{")[0] for _, piece in split(bare[start : end - 1])]
        # The compiler makes up the symbol of a static variable in a namespace.
        internal = re.search(r"\bstatic\b", pieces[0]) is not None and scope
        if internal or re.search(r"\btemplate\b", pieces[0]):
            continue
        outside = re.search(r"\bextern\b(?!\s*\"C\")", pieces[0]) is not None
        of_c = re.search(r"\bextern\s*\"C\"", pieces[0]) is not None
        base = ""
        for i, piece in enumerate(pieces):
            found = _DECLARATOR.fullmatch(" ".join(_QUALIFIERS.sub(" ", piece).split()))
            if found is None:
                break
            base = " ".join(found["type"].split()) if i == 0 else base
            sizes = tuple(size.strip() for size in re.findall(r"\[([^\[\]]*)\]", found["sizes"]))
            if not base or (outside and "" in sizes):
                break
            name = "::".join((*scope, found["name"]))
            symbol = found["name"] if of_c or not scope else _mangled(scope, found["name"])
            yield DeviceVariable(name, symbol, base, bool(found["stars"]), sizes, "__constant__" in pieces[0])


def _mangled(scope: tuple[str, ...], name: str) -> str:
    """Returns the symbol of a variable in namespaces, by the Itanium C++ ABI."""
    spaces = "".join(f"{len(space)}{space}" for space in scope)
    return f"_ZN{spaces}{len(name)}{name}E"
