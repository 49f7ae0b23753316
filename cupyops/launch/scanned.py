"""Scans the declaration of a kernel: names, order, and the types that the text determines without a compiler."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cupyops.compile.cuda_text import Code, Function
from cupyops.compile.definitions import split
from cupyops.compile.macros import Macro, expanded
from cupyops.compile.preprocess import CONDITIONALS, Preprocessed

from .definitions import ATTRIBUTES
from .library_types import Element, library_type
from .parameter import OPEN, Parameter
from .shape_comments import Piece, shape_comments, shape_of
from .typenames import dtype_of

__all__ = ["Names", "Scanned"]

_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "void"))

# Words in a declaration that do not change how an argument is passed.
_QUALIFIERS = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename)\b")
_ENUM = re.compile(r"\benum (?=\w)")
_ARRAY = re.compile(r"(.*\W)(\w*)\s*\[[^][]*\]", re.DOTALL)
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"Int64s\s*<\s*(\w+)\s*>\s*(\w+)")
_PACK = re.compile(r"(.*\S)\s*\.\.\.\s*(\w+)", re.DOTALL)  # of parameters
_FUNCTION = re.compile(r"[^()]*\(\s*\*\s*(?:const\s+)?(\w+)\s*\)\s*\(.*\)", re.DOTALL)  # a pointer to a function
_NAMED_WITHIN = re.compile(r"\(\s*[*&]\s*(?:const\s+)?(\w+)\s*\)\s*\[")  # a pointer or a reference to an array


@dataclass(frozen=True)
class Names:
    """The meaning of names in a declaration: macros, types that the text may declare, arguments of the kernel's
    template and of its pack, and structs whose layout Python passes."""

    macros: Mapping[str, Macro]
    declared: frozenset[str]
    given: Mapping[str, str]
    packs: Mapping[str, Sequence[str]]
    structs: Mapping[str, Element]


class Scanned:
    """The declaration of a kernel in its text."""

    def __init__(
        self,
        kernel: str,
        text: str,
        code: Code,
        function: Function,
        names: Names,
        followed: Preprocessed,
    ) -> None:
        self._kernel, self._text, self._code, self._end = kernel, text, code, function.end
        start, end = function.parameters, function.end
        if end < 0:
            raise ValueError(f"{kernel}: its list of parameters has no end")
        for directive in code.directives_between(start, end):
            if directive.name not in CONDITIONALS or followed.live("", directive.end) is None:
                line = text[directive.start : directive.end].strip()
                raise TypeError(
                    f"{kernel}: `{line}` is in the parameter list, which must be the same in every compilation"
                )
        listed, self._comments = code.bare[start:end], code.comments_between(start, end)
        self._pieces: list[Piece] = []
        for place, piece in split(listed):
            at = start + place
            if piece.strip() and piece.split() != ["void"]:
                first = at + len(piece) - len(piece.lstrip())
                self._pieces += [
                    Piece(one, first, at + len(piece.rstrip()), at + len(piece))
                    for listed_here in _listed(piece, names.macros)
                    for one in _unpacked(kernel, listed_here, names.packs)
                ]
        self._read = [_parameter(kernel, i, piece.declaration, names) for i, piece in enumerate(self._pieces)]

    def bases(self) -> list[str]:
        """Returns the type of each parameter without ``const``, pointers and references, as written in the text."""
        return [base for _, base in self._read]

    def parameters(self, answered: Sequence[Parameter] | None) -> tuple[Parameter, ...]:
        """Returns the parameters with their shapes.

        Args:
            answered: the parameters with the types of the compiler; None if it is not asked.
        """
        bare = answered or [p for p, _ in self._read]
        # A type that only the compiler knows may be a pointer.
        pointers = [p.pointer or p.type == OPEN for p in bare]
        comments = shape_comments(
            self._kernel, self._text, self._code, self._end, self._comments, self._pieces, pointers
        )
        found = []
        for p, comment in zip(bare, comments, strict=True):
            shape, nullable = shape_of(self._kernel, p.name, comment) if p.pointer and comment else (None, False)
            found.append(replace(p, shape=shape, nullable=nullable))
        # The launch runs where its arrays are, so that one array must be given.
        nulls = [
            p.pointer and p.accessor is None and _has_null(piece.declaration)
            for p, piece in zip(bare, self._pieces, strict=True)
        ]
        if any(p.pointer and not p.nullable and not null for p, null in zip(found, nulls, strict=True)):
            found = [replace(p, nullable=True, optional=True) if n else p for p, n in zip(found, nulls, strict=True)]
        return tuple(found)


def _has_null(declaration: str) -> bool:
    """Returns whether the default of a parameter is the null pointer."""
    _, *default = split(declaration, "=")
    return bool(default) and default[0][1].strip() in ("nullptr", "NULL", "0", "{}")


def _listed(declaration: str, macros: Mapping[str, Macro]) -> list[str]:
    """Returns the parameters of a macro that stands for several, or the one parameter of another declaration."""
    if not declaration.strip().isidentifier():
        return [declaration]
    return [one for _, one in split(expanded(declaration, macros)) if one.strip()]


def _unpacked(kernel: str, declaration: str, packs: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the parameters of a pack, ``const Ts*... xs``, or the one parameter of another declaration.

    Raises:
        TypeError: the kernel's name does not give the types of the pack.
    """
    found = _PACK.fullmatch(declaration.strip())
    if found is None:
        return [declaration]
    pack = next((word for word in re.findall(r"\w+", found[1]) if word in packs), "")
    if not pack:
        raise TypeError(
            f"{kernel}: `{declaration.strip()}` is a pack of parameters: give their types in the kernel's name, "
            f"{kernel.partition('<')[0]}<float, int>"
        )
    name = re.compile(rf"\b{pack}\b")
    return [f"{name.sub(argument, found[1])} {found[2]}{number}" for number, argument in enumerate(packs[pack])]


def _parameter(kernel: str, position: int, declaration: str, names: Names) -> tuple[Parameter, str]:
    """Returns a parameter as its declaration reads, and its type without ``const``, pointers and references. The type of the parameter
    is left open if it is neither a number of C nor a type of CUDA, and may be declared by a text: the compiler is asked."""
    if tensor_map := _TENSOR_MAP.fullmatch(" ".join(declaration.split())):
        return Parameter(f"{tensor_map[1]}_map", "TensorMap", map_of=tensor_map[1]), "TensorMap"
    words = expanded(ATTRIBUTES.sub(" ", split(declaration, "=")[0][1]), names.macros)
    words = _ENUM.sub("", " ".join(re.sub(r"([*&])", r" \1 ", _QUALIFIERS.sub(" ", words)).split()))
    if function := _FUNCTION.fullmatch(words):
        return Parameter(function[1], "uint64"), ""
    if (vector := _INT64S.fullmatch(re.sub(r"\bconst\b", " ", words).strip())) and "Int64s" not in names.declared:
        return Parameter(vector[2], "int64", length=vector[1]), ""
    if within := _NAMED_WITHIN.search(words):
        return Parameter(within[1], OPEN, pointer=True), ""
    if array := _ARRAY.fullmatch(words):  # an array parameter is a pointer
        if "[" in array[1]:
            return Parameter(re.sub(r"\[.*", "", array[1]).split()[-1], OPEN, pointer=True), ""
        words = f"{array[1].rstrip()} * {array[2]}"
    if _is_unnamed(words, names):
        words = f"{words} parameter{position}"
    left, _, name = words.rpartition(" ")
    if not left or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in _WORDS:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    if left.startswith("Int64s") and "*" in left and "Int64s" not in names.declared:
        raise TypeError(f"{kernel}: parameter `{name}` has type {left!r}, for which no Python value can be passed")
    if "<" in left:  # the compiler takes it apart
        outside = left.rpartition(">")[2].split()
        pointer = not {"*", "&"}.isdisjoint(outside)
        base = re.sub(r"\Aconst |(?: const| \*| &)+\Z", "", left)
        return Parameter(name, OPEN, pointer=pointer, const="const" in (left.split()[0], *outside)), base
    # A reference is passed as the address of its object, like a pointer.
    plain = re.sub(r"& &|&", lambda m: m[0] if " " in m[0] else "*", left)
    pointee, star, qualifiers = plain.partition("*")
    pointer, const = bool(star), not star or "const" in pointee.split()
    base = " ".join(word for word in pointee.split() if word != "const")
    if {*qualifiers.split()} - {"const", "*"}:
        raise TypeError(f"{kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros")
    if "&" in plain or plain.count("*") > 2 or "[" in plain:
        raise TypeError(
            f"{kernel}: parameter `{declaration.strip()}`: pass arrays as T*, numbers by value, small tuples as Int64s<N>"
        )
    if plain.count("*") == 2:
        return Parameter(name, "uint64", pointer=True, const="const" in qualifiers.partition("*")[0].split()), base
    given = names.given.get(base, base)
    const, base = const or given.startswith("const "), given.removeprefix("const ")
    if base == "void" and pointer:
        return Parameter(name, "uint8", pointer=True, const=const, untyped=True), base
    declared = base.removeprefix("struct ") in names.declared
    if not declared and (dtype := dtype_of(base)) is not None:
        return Parameter(name, dtype, pointer=pointer, const=const), base
    if not declared and base.isidentifier() and (element := library_type(base)) is not None:
        return Parameter(name, base, pointer=pointer, const=const, element=element), base
    if _WORDS.issuperset(base.split()) or base == "Int64s":
        raise TypeError(f"{kernel}: parameter `{name}` has type {base!r}, for which no Python value can be passed")
    if declared or not base.isidentifier() or base in names.structs:
        return Parameter(name, OPEN, pointer=pointer, const="const" in left.split()), base
    return Parameter(name, base, pointer=pointer, const=const), base


def _is_unnamed(words: str, names: Names) -> bool:
    """Returns whether a declaration has a type and no name."""
    if words.endswith(("*", "&", ">")) or re.search(r"\*\s*const$", words):
        return True
    base = " ".join(word for word in words.split() if word != "const")
    if " " not in base and "::" in base:
        return True
    known = dtype_of(base) is not None or library_type(base) is not None or base in names.declared
    return known and (" " not in base or base.split()[-1] in _WORDS)
