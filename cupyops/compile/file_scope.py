"""Finds what a text declares outside its kernels: ``__device__`` and ``__constant__`` variables."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .ask import QUESTIONS
from .cuda_text import Code, scan
from .declarations import WORD, macros_of
from .preprocess import Preprocessed, preprocess

__all__ = [
    "DeviceVariable",
    "folded",
    "variables",
    "with_constants_of_classes",
]

_SPACE = re.compile(r"__(?<!\w__)(?:device|constant|managed)__\b")
_ATTRIBUTE = re.compile(r"\b(?:__align__|alignas|__builtin_align__|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_QUALIFIERS = re.compile(
    r"\b(?:__device__|__constant__|__managed__|__restrict__|static|inline|constexpr|const|volatile|extern|struct)\b|\"C\""
)
_DECLARATOR = re.compile(r"(?P<type>[\w\s:<>]*?)(?P<stars>(?:\*\s*)*)\b(?P<name>\w+)\s*(?P<sizes>(?:\[[^\[\]]*\]\s*)*)")
_MARK = re.compile(r"[()\[\]{},;=<>]")
# The words that may lie between `__device__` and the parenthesis of a function. The number of repetitions bounds the
# time of a match.
_HEAD = re.compile(r"(?:[\w\s*&:]|<[\w\s,*&:]{0,99}>|\boperator\[\]){1,400}\(")
_HAS_ATTRIBUTE = re.compile(r"\b(?:__align__|alignas|__builtin_align__|__attribute__)\b")
# Floating constants, `const double a = 2., b = 1. / a;`, whose values call no function. A text may have other names of the types.
_FLOATING = r"(?:(?<=[;{{}}])|^)(\s*(?:(?:static|inline)\s+)*)(const\s+(?:{0})|(?:{0})\s+const)\s+((?:\w+\s*=(?!=)[^;{{}}]*))(?=;)"
_REAL = re.compile(r"\btypedef\s+(?:float|double)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*(?:float|double)\s*;")
_FOLDED = re.compile(r"\b(\w+)\s*=(?!=)")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_OF_CLASS = re.compile(
    r"\bstatic\s+(const)\s+(?!(?:(?:un)?signed|char|short|int|long|bool|size_t|\w*int\d+_t)\b)[\w:]+\s+\w+\s*=(?!=)"
)
_CLASS = re.compile(r"\b(?:struct|class|union)\b(?!\s+\w+\s*[,>=])")  # no parameter of a template
_BODY = re.compile(r"\)\s*(?:(?:const|noexcept|override|final|->.*)\s*)*\Z", re.DOTALL)  # of a function


def folded(text: str, own_code: str) -> str:
    """Returns a text for NVRTC whose floating constants in namespaces are ``constexpr`` if they read one another.

    Args:
        text: the final text.
        own_code: the code of the final text without shared headers, which have no such constants. It is searched first, since it is
            short.

    nvcc folds ``const double b = 1. / a;``. NVRTC takes ``b`` for a variable of the GPU, which code would have to initialize. So
    constants that call functions, which no kernel may read, are left out.
    """
    types = {"float", "double", *(name for match in _REAL.finditer(own_code) for name in match.groups() if name)}
    floating = re.compile(_FLOATING.format("|".join(sorted(types))))
    if not floating.search(own_code):
        return text
    code, macros = scan(text), macros_of(text)
    found, called = list[re.Match[str]](), list[re.Match[str]]()
    of_host = set[str]()
    for match in floating.finditer(code.bare):
        if code.scope(match.start(2)) is None:
            continue
        # A constant that reads such a constant is not one either. Macros are not functions.
        words = {*WORD.findall(_FOLDED.sub(" ", match[3]))}
        if _calls(match[3], macros) or not of_host.isdisjoint(words):
            called.append(match)
            of_host.update(_FOLDED.findall(match[3]))
        else:
            found.append(match)
    names = {name for match in found for name in _FOLDED.findall(match[3])}
    read = {word for match in found for word in WORD.findall(_FOLDED.sub(" ", match[3]))} & names
    for match in reversed(found):
        own = set(_FOLDED.findall(match[3]))
        if not own.isdisjoint(read) or not read.isdisjoint(WORD.findall(_FOLDED.sub(" ", match[3]))):
            text = f"{text[: match.start(2)]}constexpr {match[2].replace('const', '').strip()}{text[match.end(2) :]}"
    return text if not called else _without_unread(text, of_host, macros, floating)


def _without_unread(
    text: str, names: set[str], macros: Mapping[str, tuple[bool, str]], floating: re.Pattern[str]
) -> str:
    """Returns a text without the floating constants of some names, if no other code reads them: the host computes them."""
    bare = scan(text).bare
    own = [match for match in floating.finditer(bare) if not names.isdisjoint(_FOLDED.findall(match[3]))]
    edges = [0, *(edge for match in own for edge in match.span()), len(bare)]
    rest = [bare[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    read = {word for code in (*rest, *(of for _, of in macros.values())) for word in WORD.findall(code)}
    for match in reversed(own if names.isdisjoint(read) else []):
        text = (
            text[: match.start(2)]
            + re.sub(r"[^\n]", " ", match[0][match.start(2) - match.start() :])
            + text[match.end() :]
        )
    return text


def _calls(code: str, macros: Mapping[str, tuple[bool, str]]) -> bool:
    """Returns whether code calls a function, itself or by a macro."""
    of_macros, unread = set[str](), [code]
    while unread:
        for name in _CALL.findall(unread.pop()):
            if name not in macros:
                return True
            if name not in of_macros:
                of_macros.add(name)
                unread.append(macros[name][1].partition(")")[2] if macros[name][0] else macros[name][1])
    return False


def with_constants_of_classes(text: str, own: str) -> str:
    """Returns a text whose constants of types that need not be integers are ``constexpr``: ``static const T zero = T(0);``.

    nvcc takes the value in the class, as g++ once did. The arguments are those of :func:`folded`.
    """
    if not _OF_CLASS.search(own):
        return text
    code = scan(text)
    for match in reversed([*_OF_CLASS.finditer(code.bare)]):
        if code.scope(match.start()) is None and _in_class(code.bare, match.start()):
            text = f"{text[: match.start(1)]}constexpr{text[match.end(1) :]}"
    return text


def _in_class(bare: str, place: int) -> bool:
    """Returns whether the block around an offset is the body of a class."""
    depth = 0
    for at in range(place - 1, -1, -1):
        depth += (bare[at] == "}") - (bare[at] == "{")
        if depth < 0:
            head = bare[max(bare.rfind(c, 0, at) for c in ";{}") + 1 : at]
            return _CLASS.search(head) is not None and not _BODY.search(head)
    return False


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
    seen = 0
    for match in _SPACE.finditer(bare):
        if match.start() < seen or not followed.live("", match.start()):
            continue
        start = max(bare.rfind(c, 0, match.start()) for c in ";{}") + 1
        pieces, end = _pieces(bare, start)
        # Nearly all are functions. Finding the scopes takes as long as the scan, and a function does not need its
        # scope.
        if (not pieces and end < len(bare)) or (scope := code.scope(match.start())) is None:
            continue
        seen = end
        internal = re.search(r"\bstatic\b", pieces[0]) is not None if pieces else False
        # The compiler makes up the symbol of a static variable in a namespace.
        if not pieces or re.search(r"\btemplate\b", pieces[0]) or (internal and scope):
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


def _pieces(bare: str, start: int) -> tuple[list[str], int]:
    """Splits the declaration at an offset into its declarators, without initializers. Returns the offset of its end, too.

    Returns no declarator for a function, and the offset of its parenthesis.
    """
    pieces, depth, begin, cut = [], 0, start, -1
    for match in _MARK.finditer(bare, start):
        c, at = match[0], match.start()
        if c == "(" and depth == 0 and cut < 0:
            return [], at
        if c in "={" and depth == 0 and cut < 0:
            cut = at
        if (c == "<" and cut < 0) or c in "([{":
            depth += 1
        elif (c == ">" and cut < 0) or c in ")]}":
            depth -= 1
        elif c in ",;" and depth <= 0:
            pieces.append(bare[begin : at if cut < 0 else cut])
            begin, cut = at + 1, -1
            if c == ";":
                return pieces, at
    return [], len(bare)
