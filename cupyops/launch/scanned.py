"""Scans the declaration of a kernel: names, order, shape comments, and the types that need no compiler."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.compile.definitions import split
from cupyops.compile.macros import Macro, expanded
from cupyops.compile.preprocess import CONDITIONALS, Preprocessed, preprocess
from cupyops.dtypes import INTEGERS

from .definitions import ATTRIBUTES, declarations, entry_in, overloads, parameter_types
from .parameter import OPEN, Parameter
from .shape_comments import Piece, foreign_names, shape_comments, shape_of
from .typenames import dtype_of, library_type, may_declare

__all__ = ["Scanned"]

_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "void"))

# Words in a declaration that do not change how an argument is passed.
_QUALIFIERS = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename|enum)\b")
_TENSOR_MAP = re.compile(r"const __grid_constant__ TensorMap (\w+)_map")
_INT64S = re.compile(r"(?:const )?Int64s\s*<\s*(\w+)\s*>\s*(?:const )?(\w+)")
_MACRO = re.compile(r"\s*\w+\s*(?:\(.*\)\s*)?", re.DOTALL)  # that may stand for parameters with their names
_PACK = re.compile(r"(.*\S)\s*\.\.\.\s*(\w+)", re.DOTALL)  # of parameters
_NAMED_WITHIN = re.compile(r"\(\s*[*&]\s*(?:const\s+)?(\w+)\s*\)\s*[\[(]")  # a pointer to a function or to an array
# A type without template arguments, and a pointer to it. Words after the asterisk are `const`, or macros of qualifiers.
_PLAIN = re.compile(r"([\w: ]+?)( [*&](?: \w+)*)?")


class Scanned:
    """The declaration of a kernel in its text.

    Args:
        text: CUDA C++.
        kernel: the kernel's name, also with namespaces and template arguments.
        headers: the texts of the included headers, by name.
        defines: macros that are defined before the text; None if they are not known yet, so that any name may be in a shape.

    Attributes:
        entry: the kernel's C++ name, or None for an ``extern "C"`` function.
        parameters: the parameters as far as the text tells. The type of a parameter is left open if it is neither a number of C
            nor a type of CUDA, and may be declared by a text.
        bases: the type of each parameter without ``const``, pointers and references, as written in the text.

    Raises:
        ValueError: the text has no such kernel or several; or a shape comment may belong to two parameters.
        TypeError: a parameter has no name; or the list of parameters has a directive that is not a condition.
    """

    def __init__(
        self, text: str, kernel: str, headers: Mapping[str, str], defines: Mapping[str, str] | None = None
    ) -> None:
        self.kernel, self.entry = kernel, entry_in(text, kernel)
        self._text, self._headers, self._defines = text, headers, defines
        conditional = any(directive.name in CONDITIONALS for directive in scan(text).directives)
        followed = preprocess(text, headers, defines or {}) if conditional else preprocess("", {}, {})
        try:
            code = scan(followed.compiled("", text))
            first, *others = declarations(code, kernel)
        except ValueError:
            code = scan(text)  # a condition removes the kernel, or the error is of the whole text
            first, *others = declarations(code, kernel)
        types = {parameter_types(code.bare[f.parameters : f.end]) for f in (first, *others)}
        if len(types) > 1 and all(followed.live("", f.start) is not None for f in (first, *others)):
            raise ValueError(
                f"{kernel}: the text has several functions of this name; name one with the types of its parameters: "
                f"{overloads(code, (first, *others))}"
            )
        hidden = self.entry.names if self.entry else frozenset[str]()
        self.declared = frozenset[str]().union(defines or {}, *map(may_declare, (text, *headers.values()))) - hidden
        self.parameters, self.bases = self._read(code, first, followed)
        for other in others:
            if self._read(code, other, followed)[0] != self.parameters:
                lines = " and ".join(str(text.count("\n", 0, f.start) + 1) for f in (first, other))
                raise ValueError(
                    f"{kernel}: the text has different definitions of it (lines {lines}), and only a compiler can "
                    f"decide which one is compiled; declare it once, or give each kernel a name of its own"
                )

    def completed(self, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """Returns the parameters with their types as a launch takes them: arrays alone have shapes and may be None."""
        integers = {p.name for p in parameters if not p.pointer and p.type in (*INTEGERS, OPEN) and p.length is None}
        constants = {*(self._defines or {}), *(self.entry.names if self.entry else ())}
        # The launch runs where its arrays are, so that one array must be given.
        given = any(p.pointer and not p.nullable and not p.optional for p in parameters)
        found = []
        for p in parameters:
            shape = p.shape if p.pointer else None
            if self._defines is not None and shape and foreign_names(self.kernel, p.name, shape, integers, constants):
                shape = None
            optional = p.optional and p.pointer and p.accessor is None and given
            found.append(replace(p, shape=shape, optional=optional, nullable=p.pointer and (p.nullable or optional)))
        return tuple(found)

    def _read(self, code: Code, function: Function, followed: Preprocessed) -> tuple[list[Parameter], list[str]]:
        kernel, start, end = self.kernel, function.parameters, function.end
        if end < 0:
            raise ValueError(f"{kernel}: its list of parameters has no end")
        for directive in code.directives_between(start, end):
            if directive.name not in CONDITIONALS or followed.live("", directive.end) is None:
                line = self._text[directive.start : directive.end].strip()
                raise TypeError(
                    f"{kernel}: `{line}` is in the parameter list, which must be the same in every compilation"
                )
        pieces: list[Piece] = []
        for place, piece in split(code.bare[start:end]):
            at = start + place
            if piece.strip() and piece.split() != ["void"]:
                first = at + len(piece) - len(piece.lstrip())
                places = first, at + len(piece.rstrip()), at + len(piece)
                pieces += [Piece(one, *places) for one in self._listed(piece, function.start)]
        read = [self._parameter(i, piece.declaration) for i, piece in enumerate(pieces)]
        # A type that only the compiler knows may be a pointer.
        pointers = [p.pointer or p.type == OPEN for p, _ in read]
        between = code.comments_between(start, end)
        comments = shape_comments(kernel, self._text, code, end, between, pieces, pointers)
        found = []
        for (p, _), own, comment, pointer in zip(read, pieces, comments, pointers, strict=True):
            shape, nullable = shape_of(kernel, p.name, comment) if pointer and comment else (None, False)
            found.append(replace(p, shape=shape, nullable=nullable, optional=_has_null(own.declaration)))
        return found, [base for _, base in read]

    def _listed(self, declaration: str, place: int) -> Iterator[str]:
        """Yields the parameters of a macro that stands for several, those of a pack, ``const Ts*... xs``, or the one parameter
        of another declaration.

        Raises:
            TypeError: the kernel's name does not give the types of the pack.
        """
        macros = self._macros(place) if _MACRO.fullmatch(declaration) else {}
        if not macros.keys().isdisjoint(re.findall(r"\w+", declaration)):
            yield from (one for _, one in split(expanded(declaration, macros)) if one.strip())
            return
        found = _PACK.fullmatch(declaration.strip())
        if found is None:
            yield declaration
            return
        packs = self.entry.packs() if self.entry else {}
        pack = next((word for word in re.findall(r"\w+", found[1]) if word in packs), "")
        if not pack:
            raise TypeError(
                f"{self.kernel}: `{declaration.strip()}` is a pack of parameters: give their types in the kernel's name, "
                f"{self.kernel.partition('<')[0]}<float, int>"
            )
        for number, argument in enumerate(packs[pack]):
            yield " ".join((re.sub(rf"\b{pack}\b", argument, found[1]), f"{found[2]}{number}"))

    def _macros(self, place: int) -> dict[str, Macro]:
        """Returns the macros that are defined before an offset."""
        found = preprocess(self._text, self._headers, self._defines or {}, place)
        return found.known(self.entry.names if self.entry else frozenset())

    def _parameter(self, position: int, declaration: str) -> tuple[Parameter, str]:
        """Returns a parameter as its declaration reads, and its base."""
        if tensor_map := _TENSOR_MAP.fullmatch(" ".join(declaration.split())):
            return Parameter(f"{tensor_map[1]}_map", "TensorMap", map_of=tensor_map[1]), "TensorMap"
        words = _QUALIFIERS.sub(" ", ATTRIBUTES.sub(" ", split(declaration, "=")[0][1]))
        words = " ".join(re.sub(r"([*&])", r" \1 ", words).split())
        if (vector := _INT64S.fullmatch(words)) and "Int64s" not in self.declared:
            return Parameter(vector[2], "int64", length=vector[1]), ""
        if within := _NAMED_WITHIN.search(words):
            return Parameter(within[1], OPEN), ""
        words, bracket, extents = words.partition("[")
        words = words.strip()
        if self._is_unnamed(words):
            words = f"{words} parameter{position}"
        left, _, name = words.rpartition(" ")
        if not left or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in _WORDS:
            raise TypeError(
                f"{self.kernel}: parameter `{declaration.strip()}` must have a type and a name, and no macros"
            )
        base = re.sub(r"\A(?:const |struct )+|(?: const| \*| &)+\Z", "", left)
        plain = None if "[" in extents else _PLAIN.fullmatch(f"{left} *" if bracket else left)
        found = self._plain(name, plain[1], bool(plain[2])) if plain else None
        # The compiler does not report that an argument by value is const, as that of an accessor may be.
        const = left.startswith("const ") or "const" in left.rpartition(">")[2].split()
        return found or Parameter(name, OPEN, const=const), base

    def _plain(self, name: str, spelled: str, pointer: bool) -> Parameter | None:
        """Returns a parameter whose type is a number of C or of CUDA, or a name that the arrays decide; else None."""
        given = self.entry.arguments() if self.entry else {}
        base = " ".join(word for word in spelled.split() if word != "const")
        const = not pointer or "const" in spelled.split() or given.get(base, "").startswith("const ")
        base = given.get(base, base).removeprefix("const ")
        if base == "void" and pointer:
            return Parameter(name, "uint8", pointer=True, const=const, untyped=True)
        if base not in self.declared and (dtype := dtype_of(base)) is not None:
            return Parameter(name, dtype, pointer=pointer, const=const)
        if not base.isidentifier() or base in self.declared or base in _WORDS or base == "Int64s":
            return None
        return Parameter(name, base, pointer=pointer, const=const, element=library_type(base))

    def _is_unnamed(self, words: str) -> bool:
        """Returns whether a declaration has a type and no name."""
        if words.endswith(("*", "&", ">")) or re.search(r"\*\s*const$", words):
            return True
        base = " ".join(word for word in words.split() if word != "const")
        if " " not in base and "::" in base:
            return True
        known = dtype_of(base) is not None or library_type(base) is not None or base in self.declared
        return known and (" " not in base or base.split()[-1] in _WORDS)


def _has_null(declaration: str) -> bool:
    """Returns whether the default of a parameter is the null pointer."""
    _, *default = split(declaration, "=")
    return bool(default) and default[0][1].strip() in ("nullptr", "NULL", "0", "{}")
