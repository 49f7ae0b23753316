"""A kernel's parameters, read from its declaration in the text, and what a call must give for each.

The declaration is the contract: names, order, ``const``, pointer types, scalar widths and, in the comment behind a
parameter, its shape::

    extern "C" __global__ void scale(
        const scalar_t* __restrict__ x,  // (M, N)
        scalar_t* __restrict__ y,        // (M, N)
        long long M, long long N, acc_t factor)

``// (M, N)`` says that the array is contiguous and holds M·N elements; a pointer with no such comment is a view whose
layout and bounds are the caller's business. The comment stands directly behind the parameter, before the comma or
behind it; one that may mean two parameters, or none, is refused. Pointers to what is not ``const`` are outputs.
``// (N) or null`` lets a call give None, which is a null pointer in the text.
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.dtypes import DTYPES
from cupyops.errors import nearest

__all__ = ["Parameter", "Signature", "code_only", "declarations", "only", "the_kernel"]

_C_TYPES = {d.c_type: d.name for d in DTYPES.values()} | {
    "char": "int8",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "size_t": "uint64",
    "half": "float16",
}
_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "void"))

_SPECIFIERS = frozenset(("extern", "C", "static", "inline", "__global__"))
_BOUNDED = re.compile(r"\b__(?:launch_bounds|maxnreg|cluster_dims|block_size)__\s*\((?:[^()]|\([^()]*\))*\)")
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"Int64s\s*<\s*(\w+)\s*>\s*(\w+)")
_MAP_BYTES = 128
# Behind what begins a comment, also one for documentation: ///< (n).
_SHAPE = re.compile(r"(?://[/!]?<?|/\*[*!]?<?)\s*\((?P<terms>[^)]*)\)(?P<nullable>\s+or\s+null\b)?")
_SHAPE_BEGINS = re.compile(r"(?://[/!]?<?|/\*[*!]?<?)\s*\(")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: as in the text.
        type: a dtype name, or a type of the prelude: ``scalar_t``, ``acc_t``, or a typedef of the author's choice.
        pointer: it is an array.
        const: the kernel only reads it (scalars always are).
        shape: names and numbers whose product is the number of elements, or None for a view.
        length: for ``Int64s<length>`` (a number or a constant's name), else None.
        nullable: a call may give None for this array.
        map_of: for ``const __grid_constant__ TensorMap x_map``, what the copying hardware is told of an array
            (:mod:`cupyops.launch.tensor_map`), the array's name, x; else None.
    """

    name: str
    type: str
    pointer: bool = False
    const: bool = True
    shape: tuple[str, ...] | None = None
    length: str | None = None
    nullable: bool = False
    map_of: str | None = None

    def c_type(self, types: Mapping[str, str]) -> str:
        """The dtype's name under this choice of types."""
        if self.type == "acc_t":
            return DTYPES[types["scalar_t"]].acc
        return types.get(self.type, self.type)


@dataclass(frozen=True)
class Signature:
    """The parameters of one ``__global__`` function, in order."""

    kernel: str
    parameters: tuple[Parameter, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def bindings(self) -> dict[str, tuple[int, ...]]:
        """Each type that the caller's arrays decide, and the positions of the arrays that do: the first that is given
        decides."""
        found: dict[str, list[int]] = {}
        for i, p in enumerate(self.parameters):
            if p.pointer and p.type not in DTYPES and p.type != "acc_t":
                found.setdefault(p.type, []).append(i)
        return {name: tuple(positions) for name, positions in found.items()}

    def packing(
        self, types: Mapping[str, str], constants: Mapping[str, int]
    ) -> tuple[struct.Struct, list[tuple[int, int]]]:
        """How arguments lie in memory: a :class:`struct.Struct` for all values in order, and (offset, size) per
        parameter."""
        codes, fields, offset = [], [], 0
        for p in self.parameters:
            if p.map_of is not None:
                pad = -offset % 64
                codes.append(f"{pad}x{_MAP_BYTES}s")
                fields.append((offset + pad, _MAP_BYTES))
                offset += pad + _MAP_BYTES
                continue
            if p.length is not None:
                count, code, size = int(constants.get(p.length, p.length)), "q", 8
            elif p.pointer:
                count, code, size = 1, "Q", 8
            else:
                dtype = DTYPES[p.c_type(types)]
                if dtype.code is None:
                    raise TypeError(
                        f"{self.kernel}: parameter `{p.name}` is a {dtype.name} by value, which cannot be passed; declare it acc_t or float"
                    )
                count, code, size = 1, dtype.code, dtype.itemsize
            pad = -offset % size
            codes.append(f"{pad}x{count}{code}")
            fields.append((offset + pad, size * count))
            offset += pad + size * count
        return struct.Struct("=" + "".join(codes)), fields

    @classmethod
    def parse(cls, text: str, kernel: str) -> "Signature":
        """Reads the declaration of ``kernel`` from CUDA C++ text.

        Raises:
            ValueError: the text has no such ``__global__`` function (the message names the nearest), or it is not
                ``extern "C"``.
            TypeError: a parameter is of a kind that no Python value stands for.
        """
        code = scan(text)
        first, *others = declarations(code, kernel)
        parameters = _parameters(kernel, text, code, first)
        for other in others:
            if _parameters(kernel, text, code, other) != parameters:
                lines = " and ".join(str(text.count("\n", 0, f.start) + 1) for f in (first, other))
                raise ValueError(
                    f"{kernel}: the text defines it more than once and not alike (lines {lines}), and which one is compiled only "
                    f"a compiler can tell; declare it once, or under a name for each"
                )
        return cls(kernel, parameters)


def the_kernel(text: str) -> str:
    """The name of the one ``__global__`` function of a text.

    Raises:
        ValueError: it has none or several.
    """
    names = list(dict.fromkeys(f.name for f in scan(text).functions))
    if len(names) != 1:
        raise ValueError(f"name the kernel: the text has {', '.join(names) or 'none'}")
    return names[0]


def _check_kind(kernel: str, head: str) -> None:
    """Refuses what a launch cannot be of, before a compiler words it.

    Args:
        head: the declaration up to its parameters.

    Raises:
        ValueError: a template, or a function that returns something.
    """
    if template := re.search(r"\btemplate\s*<(.*)>", head, re.DOTALL):
        types = re.findall(r"\b(?:typename|class)\s+(\w+)", template[1])
        instead = (
            f"scalar_t for {types[0]}, which the arrays of each call decide"
            if types
            else "constants={...} for its numbers"
        )
        raise ValueError(
            f'{kernel}: a kernel that is a template is not taken yet: declare it extern "C" __global__ void {kernel}(...), with '
            f"{instead}"
        )
    words = re.findall(r"\w+\**", _BOUNDED.sub(" ", head))[:-1]  # without the name
    kind = [word for word in words if word not in _SPECIFIERS]
    if "void" not in kind:
        raise ValueError(
            f"{kernel}: a kernel must be void, got {' '.join(kind) or 'no return type'}: declare it "
            f'extern "C" __global__ void {kernel}(...), and write what it makes into an array'
        )


def code_only(text: str) -> str:
    """The text with comments, preprocessor directives, what stands in quotes and what ``#if 0`` takes away as blanks: every
    other character keeps its place."""
    return scan(text).bare


def only(text: str, kernel: str) -> str:
    """The text without its other ``__global__`` functions, each replaced by as many empty lines.

    A text may hold kernels of different types; a compilation chooses types for one of them and takes no longer than
    that one needs.
    """
    code = scan(text)
    kept, at = [], 0
    wanted = [f.start for f in code.functions if f.name == kernel]
    for function in code.functions:
        if function.name == kernel or function.start < at:
            continue
        start, end = function.start, code.end_of_function(function.parameters)
        # Braces or conditions that pair only after preprocessing: rather too much text than too little.
        if bisect_left(wanted, end) > bisect_left(wanted, start) or not _whole(code, start, end):
            continue
        kept += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end
    return "".join(kept) + text[at:]


def _whole(code: Code, start: int, end: int) -> bool:
    """Whether every condition that is opened there is closed there, and no other."""
    depth = 0
    for directive in code.directives_between(start, end):
        depth += directive.name in ("if", "ifdef", "ifndef")
        if depth == 0 and directive.name in ("else", "elif", "elifdef", "elifndef", "endif"):
            return False
        depth -= directive.name == "endif"
    return depth == 0


def declarations(code: Code, kernel: str) -> list[Function]:
    """The definitions of a kernel, else the first prototype.

    Raises:
        ValueError: there is none, it is a template or not void, or it is not ``extern "C"``.
    """
    found = [f for f in code.functions if f.name == kernel]
    if not found:
        names = list(dict.fromkeys(f.name for f in code.functions))
        raise ValueError(
            f"no __global__ function {kernel!r} in the text; it has {', '.join(names) or 'none'}{nearest(kernel, names)}"
        )
    plain = [f for f in found if not f.template]
    decided = (plain or found)[0]
    _check_kind(kernel, code.bare[decided.start : decided.parameters])
    linked = [f for f in plain if f.linkage]
    if not linked:
        raise ValueError(f'{kernel}: declare it extern "C" __global__, so that its name is not mangled')
    # A definition tells more than a prototype, which often leaves the comments out, and may leave its linkage to it.
    return [f for f in linked if f.defined] or [f for f in plain if f.defined] or linked[:1]


def _parameters(kernel: str, text: str, code: Code, function: Function) -> tuple[Parameter, ...]:
    start, end = function.parameters, function.end
    if end < 0:
        raise ValueError(f"{kernel}: its list of parameters has no end")
    if directives := code.directives_between(start, end):
        line = text[directives[0].start : directives[0].end].strip()
        raise TypeError(f"{kernel}: `{line}` stands among its parameters, which must be the same in every compilation")
    pieces, at = [], start
    for piece in code.bare[start:end].split(","):
        if piece.strip():
            first = at + len(piece) - len(piece.lstrip())
            pieces.append(_Piece(piece, first, at + len(piece.rstrip()), at + len(piece)))
        at += len(piece) + 1
    bare = [_parameter(kernel, piece.declaration) for piece in pieces]
    shapes = _shape_comments(kernel, text, code, start, end, pieces, [p.pointer for p in bare])
    return tuple(
        _shaped(kernel, p, comment) if p.pointer and comment else p for p, comment in zip(bare, shapes, strict=True)
    )


class _Piece(NamedTuple):
    """One parameter in the text: where its code begins and ends, and the comma or parenthesis behind it."""

    declaration: str
    first: int
    last: int
    comma: int


def _shape_comments(
    kernel: str, text: str, code: Code, start: int, end: int, pieces: Sequence[_Piece], pointers: Sequence[bool]
) -> list[str]:
    """For each parameter the comment that begins with a parenthesis, or nothing.

    Raises:
        ValueError: one stands where it may mean two parameters, or none.
    """
    found = [""] * len(pieces)
    behind_the_list = _behind_the_list(text, code, end)

    def give(i: int, comment: str) -> None:
        if found[i] and pointers[i] and found[i] != comment:
            raise ValueError(
                f"{kernel}: two comments, `{comment}` and `{found[i]}`, tell the shape of one parameter; keep one"
            )
        found[i] = comment

    # The last first, since what a parameter has behind it says whether a comment before it can be its own.
    i = len(pieces) - 1
    for place, stop in reversed(code.comments_between(start, end) if pieces else []):
        comment = text[place:stop].strip()
        if not _SHAPE_BEGINS.match(comment):
            continue
        while i >= 0 and place < pieces[i].first and (i == 0 or place < pieces[i - 1].comma):
            i -= 1
        if i >= 0 and pieces[i].first <= place < pieces[i].comma:
            give(i, comment)
            continue
        # Behind the comma of one parameter and before the code of the next.
        before = i if i >= 0 and place > pieces[i].comma else i - 1
        after = before + 1
        clear = before >= 0 and "\n" not in text[pieces[before].comma : place]
        if clear and after < len(pieces) and "\n" not in text[place : pieces[after].first]:
            own = found[after] or (behind_the_list if after == len(pieces) - 1 else "")
            clear = pointers[before] and bool(own or not pointers[after])
        if not clear:
            raise ValueError(
                f"{kernel}: the comment `{comment}` does not say whose shape it is; put it directly behind its parameter, "
                f"before the comma or at the end of the line (a comment that is no shape begins with another character than "
                f"a parenthesis)"
            )
        give(before, comment)
    if pieces and not found[-1]:
        found[-1] = behind_the_list
    return found


def _behind_the_list(text: str, code: Code, end: int) -> str:
    """The comment of the last parameter that stands behind the parenthesis on its line: before the body, or behind the brace
    that opens it, where there is no other code."""
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    rest = code.bare[end + 1 : line_end]
    until = line_end if not rest.strip(" \t\r{;") else end + 1 + len(rest) - len(rest.lstrip())
    comments = (text[start:stop].strip() for start, stop in code.comments_between(end, until))
    return next((c for c in comments if _SHAPE_BEGINS.match(c)), "")


def _parameter(kernel: str, declaration: str) -> Parameter:
    words = re.sub(r"\b(?:__restrict__|__restrict|__grid_constant__)\b", " ", declaration)
    words = " ".join(words.replace("*", " * ").split())
    if vector := _INT64S.fullmatch(re.sub(r"\bconst\b", " ", words).strip()):
        return Parameter(vector[2], "int64", length=vector[1])
    if tensor_map := _TENSOR_MAP.fullmatch(" ".join(declaration.split())):
        return Parameter(f"{tensor_map[1]}_map", "TensorMap", map_of=tensor_map[1])
    pointer = "*" in words
    if words.count("*") > 1 or "&" in words or "[" in words:
        raise TypeError(
            f"{kernel}: parameter `{declaration.strip()}`: pass arrays as T*, numbers by value, small tuples as Int64s<N>"
        )
    left, _, name = words.rpartition(" ")
    pointee, _, qualifiers = left.partition("*")
    base = " ".join(w for w in pointee.split() if w != "const")
    if not base or qualifiers.strip() not in ("", "const") or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in _WORDS:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    known = _C_TYPES.get(_integer(base), base)
    if _integer(base) == "long":
        raise TypeError(
            f"{kernel}: parameter `{name}` is a long, which has 8 bytes on some systems and 4 on others; declare it long long or int"
        )
    if known not in DTYPES and (known in _WORDS or not known.isidentifier()):
        raise TypeError(f"{kernel}: parameter `{name}` has type {base!r}, which no Python value stands for")
    return Parameter(
        name,
        known,
        pointer=pointer,
        const=not pointer or "const" in pointee.split(),
    )


def _integer(base: str) -> str:
    """C's many spellings of an integer type as one: ``long long unsigned int`` is ``unsigned long long``."""
    words = base.split()
    if not {"char", "short", "int", "long", "signed", "unsigned"}.issuperset(words):
        return base
    kind = next((k for k in ("char", "short") if k in words), " ".join(["long"] * words.count("long")) or "int")
    if "unsigned" in words and kind != "long":
        return f"unsigned {kind}"
    return "signed char" if kind == "char" else kind


def _shaped(kernel: str, parameter: Parameter, comment: str) -> Parameter:
    found = _SHAPE.match(comment)
    terms = tuple(t.strip() for t in found["terms"].split(",") if t.strip()) if found else ()
    if found is None or not all(re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", t) for t in terms):
        told = f"({found['terms']})" if found else f"in `{comment}`"
        raise ValueError(
            f"{kernel}: the shape {told} of `{parameter.name}` must be names and numbers with commas between them, as in (M, N); "
            f"a comment that is no shape begins with another character than a parenthesis"
        )
    return replace(parameter, shape=terms, nullable=found["nullable"] is not None)
