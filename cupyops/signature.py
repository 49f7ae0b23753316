"""A kernel's parameters, read from its declaration in the text, and what a call must give for each.

The declaration is the contract: names, order, ``const``, pointer types, scalar widths and, in the comment behind a
    parameter, its shape::

    extern "C" __global__ void scale(
        const scalar_t* __restrict__ x,  // (M, N)
        scalar_t* __restrict__ y,        // (M, N)
        long long M, long long N, acc_t factor)

``// (M, N)`` says that the array is contiguous and holds M·N elements; a pointer with no such comment is a view whose
layout and bounds are the caller's business. The comment stands directly behind the parameter, before the comma or
behind it. Pointers to what is not ``const`` are outputs. ``// (N) or null`` lets a call give None, which is a null pointer
in the text.
"""

import keyword
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .dtypes import DTYPES, INTEGERS
from .errors import nearest

__all__ = ["Parameter", "Signature"]

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

# What may stand between the start of a declaration and `__global__`, or behind that before the name.
_BOUNDS = r"__(?:launch_bounds|maxnreg|cluster_dims|block_size)__"
_BOUNDED = rf"{_BOUNDS}\s*\((?:[^()]|\([^()]*\))*\)"
_SPECIFIER = rf'(?:extern\s*"C"|\b(?:static|inline|void)\b|template\s*<[^;{{}}]*?>|{_BOUNDED})\s*'
_GLOBAL = re.compile(
    rf"(?P<specifiers>(?:{_SPECIFIER})*)\b__global__\b(?:{_BOUNDED}|[^;{{}}()])*?\b(?P<name>(?!{_BOUNDS}\s*\()\w+)\s*\("
)
_BODY = re.compile(r"[^)]*\)\s*\{")
_EXTERN_C = re.compile(r'extern\s*"C"')
_COMMENT = r"//[^\n]*|/\*.*?\*/"
# A number is its own kind, since C++ puts quotes between digits: 1'000'000.
_NOT_CODE = re.compile(
    rf"{_COMMENT}|\"(?:\\.|[^\"\\\n])*\"|(?P<number>\b\d(?:'?[\w.])*)|'(?:\\.|[^'\\\n])+'"
    rf"|^[ \t]*\#(?:\\.|{_COMMENT}|[^\n\\])*",
    re.DOTALL | re.MULTILINE,
)
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"Int64s\s*<\s*(\w+)\s*>\s*(\w+)")
_MAP_BYTES = 128
_SHAPE = re.compile(r"(?://|/\*)\s*\(([^)\n]*)\)(?P<nullable>\s+or\s+null\b)?")


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
            (:mod:`cupyops.tensor_map`), the array's name, x; else None.
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
        bare = code_only(text)
        found: dict[str, re.Match[str]] = {}
        for match in _GLOBAL.finditer(bare):
            # A definition tells more than a prototype, which often leaves the comments out.
            if match["name"] not in found or _BODY.match(bare, match.end()):
                found[match["name"]] = match
        if kernel not in found:
            raise ValueError(
                f"no __global__ function {kernel!r} in the text; it has {', '.join(found) or 'none'}{nearest(kernel, found)}"
            )
        match = found[kernel]
        _check_kind(kernel, match)
        if not (_EXTERN_C.search(match["specifiers"]) or _inside_extern_c(bare[: match.start()])):
            raise ValueError(f'{kernel}: declare it extern "C" __global__, so that its name is not mangled')
        start = match.end()
        end = bare.find(")", start)
        if end < 0:
            raise ValueError(f"{kernel}: its list of parameters has no end")
        if directive := re.search(r"^[ \t]*#.*", text[start:end], re.MULTILINE):
            raise TypeError(
                f"{kernel}: `{directive[0].strip()}` stands among its parameters, which must be the same in every compilation"
            )
        parameters, at = [], start
        for piece in bare[start:end].split(","):
            stop = at + len(piece)
            if piece.strip():
                parameters.append(
                    _parameter(kernel, piece, _comment_behind(text, bare, at + len(piece.rstrip()), stop))
                )
            at = stop + 1
        return cls(kernel, tuple(parameters))


def the_kernel(text: str) -> str:
    """The name of the one ``__global__`` function of a text.

    Raises:
        ValueError: it has none or several.
    """
    names = list(dict.fromkeys(match["name"] for match in _GLOBAL.finditer(code_only(text))))
    if len(names) != 1:
        raise ValueError(f"name the kernel: the text has {', '.join(names) or 'none'}")
    return names[0]


def _check_kind(kernel: str, declared: re.Match[str]) -> None:
    """Refuses what a launch cannot be of, before a compiler words it.

    Raises:
        ValueError: a template, or a function that returns something.
    """
    if template := re.search(r"\btemplate\s*<(.*)>", declared["specifiers"], re.DOTALL):
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
    before_name = declared[0][
        declared.start("specifiers") - declared.start() : declared.start("name") - declared.start()
    ]
    words = re.sub(rf'{_BOUNDED}|\b(?:__global__|static|inline|extern)\b|"C"', " ", before_name).split()
    if "void" not in words:
        raise ValueError(
            f"{kernel}: a kernel must be void, got {' '.join(words) or 'no return type'}: declare it "
            f'extern "C" __global__ void {kernel}(...), and write what it makes into an array'
        )


def _inside_extern_c(bare: str) -> bool:
    """Whether a block ``extern "C" { ... }`` is open at the end of this code."""
    opened: list[bool] = []
    for match in re.finditer(r'(extern\s*"C"\s*)?\{|\}', bare):
        if match[0] != "}":
            opened.append(match[1] is not None)
        elif opened:
            opened.pop()
    return any(opened)


def _comment_behind(text: str, bare: str, end: int, stop: int) -> str:
    """The comment of a parameter that ends at ``end``: before the comma or parenthesis at ``stop``, or behind it on a
    line without other code."""
    if before := text[end:stop].strip():
        return before
    line_end = text.find("\n", stop)
    behind = slice(stop + 1, line_end if line_end >= 0 else None)
    # Behind the last parameter, the body may begin.
    others = bare[behind].strip(" \t\r" if bare[stop] == "," else " \t\r{;")
    return "" if others else text[behind].lstrip("{; \t")


def code_only(text: str) -> str:
    """The text with comments, preprocessor directives and what stands in quotes as blanks: every other character keeps
    its place."""

    def blank(match: re.Match[str]) -> str:
        if match[0] == '"C"' or match["number"]:
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return _NOT_CODE.sub(blank, text)


def only(text: str, kernel: str) -> str:
    """The text without its other ``__global__`` functions, each replaced by as many empty lines.

    A text may hold kernels of different types; a compilation chooses types for one of them and takes no longer than
    that one needs.
    """
    bare = code_only(text)
    kept, at = [], 0
    found = list(_GLOBAL.finditer(bare))
    wanted = [m.start() for m in found if m["name"] == kernel]
    for match in found:
        if match["name"] == kernel or match.start() < at:
            continue
        end = _end_of_function(bare, match.end())
        if any(match.start() < start < end for start in wanted):
            continue  # braces that pair only after preprocessing: rather too much text than too little
        kept += [text[at : match.start()], "\n" * text.count("\n", match.start(), end)]
        at = end
    return "".join(kept) + text[at:]


def _end_of_function(bare: str, start: int) -> int:
    """Behind the closing brace of the body, or the semicolon of a mere declaration."""
    depth = 0
    for match in re.finditer(r"[{};]", bare[start:]):
        if match[0] == ";" and depth == 0:
            return start + match.end()
        depth += {"{": 1, "}": -1, ";": 0}[match[0]]
        if match[0] == "}" and depth == 0:
            return start + match.end()
    return len(bare)


def _parameter(kernel: str, declaration: str, comment: str) -> Parameter:
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
        shape=_shape(kernel, name, comment) if pointer else None,
        nullable=bool(pointer and (found := _SHAPE.match(comment)) and found["nullable"]),
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


def _shape(kernel: str, name: str, comment: str) -> tuple[str, ...] | None:
    found = _SHAPE.match(comment)
    if found is None:
        return None
    terms = tuple(t.strip() for t in found[1].split(",") if t.strip())
    if not all(re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", t) for t in terms):
        raise ValueError(
            f"{kernel}: the shape ({found[1]}) of `{name}` must be names and numbers with commas between them, as in (M, N); "
            f"a comment that is no shape begins with another character than a parenthesis"
        )
    return terms


def check_declaration(
    signature: Signature, text: str, sizes: Sequence[str], dtypes: Sequence[str], constants: Mapping[str, int]
) -> None:
    """Refuses, before any call, a declaration that no call could fit.

    Args:
        signature: of the kernel.
        text: that it was read from.
        sizes: the parameters that the geometry counts by.
        dtypes: what the caller's arrays may be.
        constants: macro name to integer.

    Raises:
        TypeError: a parameter's type that is not decided by an array, or is decided by a macro as well, or cannot be
            passed by value.
        ValueError: a size that is no integer parameter.
    """
    kernel, bindings = signature.kernel, signature.bindings
    for name in bindings:
        if re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}\b", text, re.MULTILINE):
            raise TypeError(
                f"{kernel}: the text defines {name!r} as a macro; the arrays of a call decide what it is, so leave it undefined"
            )
    numbers = [p for p in signature.parameters if not p.pointer]
    if (arrays := [p for p in signature.parameters if p.pointer]) and all(p.nullable for p in arrays):
        raise TypeError(f"{kernel}: one array at least must not be `or null`, to say which GPU the launch is on")
    for p in signature.parameters:
        if p.map_of is not None:
            if p.map_of not in {a.name for a in arrays}:
                raise TypeError(f"{kernel}: `{p.name}` is the map of an array `{p.map_of}`, and there is none")
            continue
        if p.type == "TensorMap":
            raise TypeError(
                f"{kernel}: declare `{p.name}` as const __grid_constant__ TensorMap, and call it after its array: x_map for x"
            )
        if p.type == "acc_t" and "scalar_t" not in bindings:
            raise TypeError(f"{kernel}: `{p.name}` is an acc_t, which follows scalar_t, and no array is of scalar_t")
        if p.type not in DTYPES and p.type != "acc_t" and p.type not in bindings:
            raise TypeError(
                f"{kernel}: no array of the call decides the type {p.type!r} of `{p.name}`; pass acc_t or a C type by value"
            )
        if p.length is not None and not p.length.isdigit() and p.length not in constants:
            raise TypeError(
                f"{kernel}: the length of `{p.name}`, {p.length}, must be a number or one of the kernel's constants"
            )
    for p in numbers:
        for dtype in (p.type,) if p.type in DTYPES else dtypes if p.type in bindings else ():
            if DTYPES[dtype].code is None:
                raise TypeError(
                    f"{kernel}: `{p.name}` is a {dtype} by value, which cannot be passed; declare it acc_t or float"
                )
    integers = {p.name for p in numbers if p.type in INTEGERS and p.length is None}
    counted = {t for p in signature.parameters for t in p.shape or () if not t.isdigit()}
    for size in (*sizes, *sorted(counted - constants.keys())):
        if size in sizes and (keyword.iskeyword(size) or size in ("min", "unit")):
            raise ValueError(
                f"{kernel}: `{size}` counts threads, and has a name that expressions of Python use; call it `{size}_`"
            )
        if size not in integers:
            raise ValueError(
                f"{kernel}: `{size}` counts threads or elements, but is no integer parameter{nearest(size, integers)}"
            )
