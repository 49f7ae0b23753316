"""Reads the text of an extension: inserts the files that it includes, and splits the text into pieces at file scope.

A piece is a directive, a brace of a namespace, or a declaration. Each piece lists the names that it declares and the
words that it contains. From these lists, :mod:`.device` finds the pieces that the kernels use.
"""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from cupyops.compile.cuda_text import Code, Directive, scan
from cupyops.compile.preprocess import CONDITIONALS, preprocess
from cupyops.compile.system_headers import header, refusal
from cupyops.errors import expected

__all__ = ["WORD", "Joined", "Piece", "behind_template", "joined", "pairs_of", "pieces_of", "without_comments"]

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_INCLUDED = re.compile(r"(?P<quote>[<\"])(?P<name>[^\">]+)[\">]")
_NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b(?P<name>[\w\s:]*)\{|extern\s*\"C\"\s*\{")
_TEMPLATE = re.compile(r"\s*template\s*<")
_TYPE = re.compile(r"(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?)\b")
_CALLED = re.compile(r"(?<![\w:.])(?:\w+\s*::\s*)*(\w+)\s*(?:<[^<>;()]*>\s*)?\(")
# Words that stand before a parenthesis in the head of a function, and are not the function's name.
_NO_NAMES = frozenset(
    ("__launch_bounds__", "__attribute__", "__declspec", "__align__", "alignas", "decltype", "noexcept", "sizeof")
    + ("static_assert", "defined", "if", "for", "while", "switch", "return")
)
# Headers of PyTorch and of the host. The text for NVRTC does not include them.
_HOST = re.compile(
    r"(?:torch|ATen|c10|THC|THCUNN|pybind11|caffe2|sys)/|Python\.h$|cuda\.h$|cuda_runtime|cuda_runtime_api|driver_|"
    r"device_launch_parameters|cuda_profiler|helper_"
)


@dataclass(frozen=True)
class Joined:
    """The text of an extension with the files that it includes.

    Attributes:
        text: the text. Blanks replace code in a conditional whose condition is known to be false.
        missing: the names of included files that were not found.
        origins: for each stretch of the text, its offset, its file, and the line of the file in which the stretch begins.
    """

    text: str
    missing: tuple[str, ...]
    origins: tuple[tuple[int, str, int], ...]

    def where(self, place: int) -> str:
        """Returns the file and the line of an offset, ``lltm.cu:12``."""
        start, name, line = self.origins[bisect_right(self.origins, place, key=lambda origin: origin[0]) - 1]
        return f"{name}:{line + self.text.count(chr(10), start, place)}"


def joined(path: Path, folders: Sequence[Path]) -> Joined:
    """Returns the text of a file with the files that it includes from its folder or from the given folders.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not UTF-8.
    """
    missing: dict[str, None] = {}
    stretches = list(_stretches(path, folders, set(), missing))
    offsets = accumulate((len(text) for text, _, _ in stretches), initial=0)
    origins = tuple((offset, name, line) for offset, (_, name, line) in zip(offsets, stretches, strict=False))
    return Joined(_live("".join(text for text, _, _ in stretches)), tuple(missing), origins)


def _stretches(
    path: Path, folders: Sequence[Path], seen: set[str], missing: dict[str, None]
) -> Iterator[tuple[str, str, int]]:
    """Yields the stretches of text between the included files, each with its file and line."""
    seen.add(os.path.realpath(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(
            expected("from_extension", "path", "name files of UTF-8", f"{path} ({problem.reason})")
        ) from None
    found = preprocess(text, {}, {})
    at = 0
    for directive in scan(text).directives:
        include = _INCLUDED.match(directive.rest) if directive.name == "include" else None
        if include is None:
            continue
        name = include["name"]
        yield text[at : directive.start], path.name, text.count("\n", 0, at) + 1
        at = directive.end
        here = [path.parent] if include["quote"] == '"' else []
        places = (folder / name for folder in (*here, *folders))
        place = None if _HOST.match(name) else next((place for place in places if place.is_file()), None)
        if found.live("", directive.start) is False:
            continue
        if place is not None:
            if os.path.realpath(place) not in seen:
                yield from _stretches(place, folders, seen, missing)
                yield "\n", path.name, text.count("\n", 0, at) + 1
        elif not _HOST.match(name) and header(name) is not None and not refusal(name, simulated=False):
            yield f"#include <{name}>", path.name, text.count("\n", 0, at) + 1
        elif include["quote"] == '"' and not _HOST.match(name) and header(name) is None:
            missing[name] = None
    yield text[at:], path.name, text.count("\n", 0, at) + 1


def _live(text: str) -> str:
    """Returns a text with blanks for the conditionals that are decided, and for the code that they remove."""
    code, found = scan(text), preprocess(text, {}, {})
    blank: list[tuple[int, int]] = []
    opened: list[list[Directive]] = []
    for directive in code.directives:
        if directive.name not in CONDITIONALS:
            continue
        if directive.name in ("if", "ifdef", "ifndef"):
            opened.append([directive])
        elif opened:
            opened[-1].append(directive)
        if directive.name != "endif" or not opened:
            continue
        group = opened.pop()
        states = [found.live("", d.end) for d in group[:-1]]
        if None in states:
            continue
        blank += [(d.start, d.end) for d in group]
        blank += [(d.end, e.start) for d, e, s in zip(group[:-1], group[1:], states, strict=True) if not s]
    for start, end in sorted(blank):
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def pairs_of(bare: str) -> dict[int, int]:
    """Returns the offset of the bracket that closes each ``(``, ``[`` and ``{`` of code."""
    closing = {"(": ")", "[": "]", "{": "}"}
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[][(){}]", bare):
        if match[0] in closing:
            opened.append(match.start())
            continue
        while opened:
            start = opened.pop()
            if closing[bare[start]] == match[0]:
                found[start] = match.start()
                break
    return found


def without_comments(text: str) -> str:
    """Returns the text with blanks in place of its comments. Strings stay."""
    kept, at = [], 0
    for start, end in scan(text).comments:
        kept += [text[at:start], re.sub(r"[^\n]", " ", text[start:end])]
        at = end
    return "".join(kept) + text[at:]


@dataclass(frozen=True)
class Piece:
    """A part of a text at file scope.

    Attributes:
        kind: ``"directive"``; ``"open"`` and ``"close"`` for the braces of a namespace; ``"function"`` for a function with
            or without body; ``"name"`` for types, variables and other declarations.
        start, end: offsets in the text.
        head: offset behind the head of a function: its parameter list is before it, and its body behind it.
        names: the names that the piece declares.
        words: the identifiers in the piece.
        directive: the directive.
    """

    kind: str
    start: int
    end: int
    head: int = 0
    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    directive: Directive | None = None


def pieces_of(text: str) -> list[Piece]:
    """Returns the parts of a text at file scope, in order."""
    return list(_pieces(scan(text)))


def _pieces(code: Code) -> Iterator[Piece]:
    bare, pairs = code.bare, pairs_of(code.bare)
    starts = [d.start for d in code.directives]
    at = 0
    while True:
        found = re.compile(r"\S").search(bare, at)
        begin = found.start() if found else len(bare)
        for directive in code.directives[bisect_left(starts, at) : bisect_left(starts, begin)]:
            yield _directive(directive)
        if found is None:
            return
        if found[0] == "}":
            yield Piece("close", begin, begin + 1)
            at = begin + 1
        elif found[0] == ";":
            at = begin + 1
        elif space := _NAMESPACE.match(bare, begin):
            yield Piece("open", begin, space.end(), names=frozenset(WORD.findall(space["name"] or "")))
            at = space.end()
        else:
            piece = _declaration(bare, pairs, begin)
            yield piece
            at = piece.end


def _directive(directive: Directive) -> Piece:
    if directive.name in ("define", "undef") and (name := WORD.match(directive.rest)):
        words = frozenset(WORD.findall(directive.rest[name.end() :]))
        return Piece("directive", directive.start, directive.end, 0, frozenset([name[0]]), words, directive)
    words = frozenset(WORD.findall(directive.rest)) - {"defined"} if directive.name in CONDITIONALS else frozenset()
    return Piece("directive", directive.start, directive.end, words=words, directive=directive)


def _declaration(bare: str, pairs: dict[int, int], begin: int) -> Piece:
    at, head, end = behind_template(bare, begin), -1, len(bare)
    is_type = _TYPE.match(bare, re.compile(r"\s*").match(bare, at).end()) is not None  # type: ignore[union-attr]
    value = False
    for match in re.compile(r"[][(){};=]").finditer(bare, at):
        place = match.start()
        if place < at:
            continue
        if match[0] == ";":
            end = place + 1
            break
        if match[0] in "}])":
            end = place  # the brace of a namespace, or an unbalanced bracket
            break
        if match[0] == "=":
            value = value or not bare[:place].rstrip().endswith("operator")
            continue
        at = pairs.get(place, len(bare)) + 1
        if match[0] == "{":
            head = place if head < 0 else head
            if not (is_type or value):
                end = at
                break
    words = frozenset(WORD.findall(bare, begin, end))
    before = bare[begin : head if head >= 0 else end]
    if not is_type and not value and (called := _names_of_function(before)):
        return Piece("function", begin, end, head if head >= 0 else end, called, words)
    return Piece("name", begin, end, head if head >= 0 else end, _names(bare[begin:end], before, is_type), words)


def behind_template(bare: str, begin: int) -> int:
    """Returns the offset behind all ``template <...>`` at the beginning of a declaration."""
    while found := _TEMPLATE.match(bare, begin):
        depth, at = 1, found.end()
        while depth and at < len(bare):
            depth += (bare[at] == "<") - (bare[at] == ">")
            at += 1
        begin = at
    return begin


def _names_of_function(head: str) -> frozenset[str]:
    if re.match(r"\s*(?:typedef|using)\b", head):
        return frozenset()
    flat, depth = [], 0
    for c in head[behind_template(head, 0) :]:  # the function's name is not inside parentheses
        depth -= c == ")"
        flat.append(c if depth == 0 else " ")
        depth += c == "("
    return frozenset(name for name in _CALLED.findall("".join(flat)) if name not in _NO_NAMES)


def _names(whole: str, head: str, is_type: bool) -> frozenset[str]:
    head = head[behind_template(head, 0) :]
    words = WORD.findall(head)
    if re.match(r"\s*using\b", head):
        return frozenset(words[1:2] if "=" in head else words[-1:])
    if re.match(r"\s*typedef\b", head) and not is_type:
        return frozenset(words[-1:]) | frozenset(re.findall(r"\(\s*\*\s*(\w+)", head))
    if is_type:
        found = set(
            re.findall(r"(?:struct|class|union|enum)\s+(?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?(\w+)", head)
        )
        found.update(re.findall(r"\}\s*(\w+)", whole)[-1:])
        if "enum" in words:
            found.update(WORD.findall(whole[len(head) :]))
        return frozenset(found - {"class", "struct"})
    before = [re.split(r"[=\[({]", part)[0] for part in head.split(",")]
    return frozenset(names[-1] for part in before if (names := WORD.findall(part)))
