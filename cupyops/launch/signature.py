"""The parameters of a kernel, from its declaration in the text and from the compiler.

The declaration gives the names, the order, ``const``, the pointer types and the scalar widths of the arguments. The
comment after a parameter, or on a line of its own above the parameter, gives its shape::

    extern "C" __global__ void scale(
        const scalar_t* __restrict__ x,  // (M, N)
        scalar_t* __restrict__ y,        // (M, N)
        long long M, long long N, acc_t factor)

``// (M, N)`` means that the array is contiguous and has M·N elements. A pointer without a shape comment is a view,
whose layout and bounds are not checked. A comment after the parameter is before or after the comma. A
shape comment that may belong to two parameters, or to none, raises an error. A comment such as ``// (M * N)``, or with a name
that is not an integer of the kernel, gives no shape, with a warning. Non-``const`` pointers are outputs. With
``// (N) or null`` a call may give None, which is a null pointer in the kernel.

:mod:`.scanned` reads the text. For types that the text does not determine, the compiler is asked (:mod:`.asked`,
:mod:`.told`).
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cupyops.compile.cuda_text import scan
from cupyops.compile.preprocess import CONDITIONALS, preprocess
from cupyops.dtypes import DTYPES, FLOATS, INTEGERS
from cupyops.sharing import computed_once

from .definitions import declarations, entry_in, overloads
from .elements import resolved, unknown_struct
from .library_types import Element, library_type
from .packing import BFloat16Struct
from .parameter import OPEN, Parameter
from .scanned import Names, Scanned
from .shape_comments import foreign_names
from .template import Entry, parameter_types, undecided
from .told import Ask, answered, taken_apart
from .typenames import dtype_of, may_declare

__all__ = ["Parameter", "Signature"]

_MAP_BYTES = 128


@dataclass(frozen=True)
class Signature:
    """The parameters of one ``__global__`` function, in the order of the declaration.

    `entry` is the kernel's C++ name, or None for an ``extern "C"`` function.
    """

    kernel: str
    parameters: tuple[Parameter, ...]
    entry: Entry | None = None

    @computed_once
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @computed_once
    def objects(self) -> tuple[Parameter, ...]:
        """The vectors, structs, textures and surfaces that are passed by value."""
        return tuple(p for p in self.parameters if p.element is not None and not p.pointer)

    @computed_once
    def accessors(self) -> tuple[Parameter, ...]:
        """The packed accessors."""
        return tuple(p for p in self.parameters if p.accessor is not None)

    def nullable(self) -> "Signature":
        """Returns the signature with None allowed for every array. A packed accessor has the sizes of an array, and needs one."""
        found = (replace(p, nullable=True) if p.pointer and p.accessor is None else p for p in self.parameters)
        return replace(self, parameters=tuple(found))

    @property
    def bindings(self) -> dict[str, tuple[int, ...]]:
        """Maps each type that the caller's arrays decide to the positions of its arrays.

        The first array that is not None decides the type.
        """
        found: dict[str, list[int]] = {}
        for i, p in enumerate(self.parameters):
            if p.pointer and p.type not in DTYPES and p.type != "acc_t":
                found.setdefault(p.type, []).append(i)
        return {name: tuple(positions) for name, positions in found.items()}

    def packing(
        self, types: Mapping[str, str], constants: Mapping[str, int]
    ) -> tuple[struct.Struct | BFloat16Struct, list[tuple[int, int]]]:
        """Returns the memory layout of the arguments: a :class:`struct.Struct` that packs all values in order, and the
        (offset, size) of each parameter in bytes."""
        codes, fields, offset = [], [], 0
        values = 0
        bfloat16s: list[int] = []
        for p in self.parameters:
            if p.map_of is not None:
                pad = -offset % 64
                codes.append(f"{pad}x{_MAP_BYTES}s")
                fields.append((offset + pad, _MAP_BYTES))
                offset += pad + _MAP_BYTES
                values += 1
                continue
            count, aligned = 1, p.element.alignment if p.element else 0
            if p.accessor is not None:
                codes.append(f"{-offset % 8}x{p.accessor.packing(constants)[0]}")
                fields.append((offset + -offset % 8, p.accessor.packing(constants)[1]))
                offset = sum(fields[-1])
                values += p.accessor.values(constants)
                continue
            if p.pointer:
                code, size = "Q", 8
            elif p.element is not None and p.element.record is not None:
                code, size = "s", p.element.width
            else:
                dtype = DTYPES[p.c_type(types)]
                count = int(constants.get(p.length, p.length)) if p.length is not None else 1
                bfloat16s += range(values, values + count) if dtype.name == "bfloat16" else ()
                code, size = dtype.code, dtype.itemsize
            pad = -offset % (size if p.pointer or not aligned else aligned)
            codes.append(f"{pad}x{size if code == 's' else count}{code}")
            fields.append((offset + pad, size * count))
            offset += pad + size * count
            values += count
        layout = "=" + "".join(codes)
        return BFloat16Struct(layout, bfloat16s) if bfloat16s else struct.Struct(layout), fields

    @computed_once
    def known(self) -> bool:
        """Whether the types of all parameters are known, without a question to the compiler."""
        return all(p.type != OPEN for p in self.parameters)

    @computed_once
    def structs(self) -> dict[str, Element]:
        """The vectors and structs of the parameters, by name."""
        found = (p.element for p in self.parameters if p.element is not None and not p.element.handle)
        return {e.name.rpartition("::")[2]: e for e in found}

    @classmethod
    def parse(
        cls,
        text: str,
        kernel: str,
        headers: Mapping[str, str] | None = None,
        defines: Mapping[str, str] | None = None,
        structs: Mapping[str, Element] = MappingProxyType({}),
        ask: Ask | None = None,
        dtypes: Sequence[str] = FLOATS,
    ) -> "Signature":
        """Parses the declaration of ``kernel`` in CUDA C++ text.

        Args:
            text: CUDA C++.
            kernel: the kernel's name, also with namespaces and template arguments.
            headers: the texts of the included headers, by name.
            defines: macros that are defined before the text; None if they are not known yet, so that any name may be in a
                shape.
            structs: the layouts of structs that Python gives, by name.
            ask: returns the compiler's answers for a choice of types. It is called if the text has other types than numbers of C and
                names that nothing declares. Without it, such parameters have no type yet: :attr:`known` is False.
            dtypes: the dtypes of the types that the arrays decide.

        Raises:
            ValueError: the text has no ``__global__`` function of this name (the message suggests the closest name).
            TypeError: no Python value can be passed for a parameter.
            CompileError: the compiler refuses the text.
        """
        conditional = any(directive.name in CONDITIONALS for directive in scan(text).directives)
        followed = preprocess(text, headers or {}, defines or {}) if conditional else preprocess("", {}, {})
        try:
            code = scan(followed.compiled("", text))
            first, *others = declarations(code, kernel)
        except ValueError:
            code = scan(text)  # a condition removes the kernel, or the error is of the whole text
            first, *others = declarations(code, kernel)
        entry = entry_in(text, kernel)
        given = entry.arguments() if entry else {}
        hidden = entry.names if entry else frozenset[str]()
        found = preprocess(text, headers or {}, defines or {}, first.start)
        # The declaration may use the constants of the kernel by name.
        numbers = {name for name, value in (defines or {}).items() if value.lstrip("-").isdigit()}
        names = Names(
            found.known(hidden | numbers),
            frozenset[str]().union(*map(may_declare, (text, *(headers or {}).values()))) - hidden,
            given,
            entry.packs() if entry else {},
            structs,
        )
        decided = all(followed.live("", f.start) is not None for f in (first, *others))
        if decided and len({parameter_types(code.bare[f.parameters : f.end]) for f in (first, *others)}) > 1:
            raise ValueError(
                f"{kernel}: the text has several functions of this name; name one with the types of its parameters: "
                f"{overloads(code, (first, *others))}"
            )
        declared = Scanned(kernel, text, code, first, names, followed)
        parameters = declared.parameters(None)
        for other in others:
            if Scanned(kernel, text, code, other, names, followed).parameters(None) != parameters:
                lines = " and ".join(str(text.count("\n", 0, f.start) + 1) for f in (first, other))
                raise ValueError(
                    f"{kernel}: the text has different definitions of it (lines {lines}), and only a compiler can "
                    f"decide which one is compiled; declare it once, or give each kernel a name of its own"
                )
        if ask is not None and any(p.type == OPEN for p in parameters):
            types = entry.parameters if entry else ()
            open_types = [
                p.name for p in types if p.kind == "type" and p.name and p.name not in given and p.default is None
            ]
            words = " ".join(declared.bases())
            if re.search(r"\b(?:scalar_t|acc_t)\b", words) and {"scalar_t", "acc_t"}.isdisjoint(
                names.declared | hidden
            ):
                open_names = ["scalar_t", *open_types]
            else:
                open_names = open_types
            for parameter in types:
                # An array decides T by T* and by Vector<T>*, and not by T::pointer.
                if parameter.name in open_types and not re.search(rf"\b{parameter.name}\b(?!\s*::)", words):
                    raise ValueError(undecided(kernel, entry, parameter))
            found_types = answered(kernel, parameters, declared.bases(), open_names, open_types, ask, dtypes, structs)
            parameters = declared.parameters(found_types)
            for p, base in zip(parameters, declared.bases(), strict=True):
                if p.asked and p.untyped and p.type == "uint8" and p.shape is not None:
                    raise unknown_struct(kernel, p.name, base.removeprefix("struct "))
        integers = {p.name for p in parameters if not p.pointer and p.type in (*INTEGERS, OPEN) and p.length is None}
        constants = {*(defines or {}), *(entry.names if entry else ())}
        parameters = tuple(
            replace(p, shape=None)
            if defines is not None and p.shape and foreign_names(kernel, p.name, p.shape, integers, constants)
            else p
            for p in parameters
        )
        return cls(kernel, tuple(map(resolved, parameters)), entry)

    def compare(self, spellings: Sequence[str], types: Mapping[str, str]) -> str:
        """Returns what is wrong with the types of a compiled kernel's parameters, or ``""``.

        A launch passes the types that were read from the text, and the compiler has the last word about them.

        Args:
            spellings: the types as the compiler spells them, ``float const*``.
            types: the dtypes of the types that the arrays decide.
        """
        for p, spelling in zip(self.parameters, spellings, strict=False):
            depth, _, _, base = taken_apart(spelling)
            dtype, element, decided = p.c_type(types), library_type(base), p.untyped and types.get(p.type)
            has = "uint64" if depth == 2 or "(" in base else dtype_of(base) or (element.dtype if element else None)
            if p.map_of is not None or (p.length is not None and p.element is None):
                continue
            if decided or (p.asked and not p.untyped):
                fits = has in (dtype, None) or p.element is not None
            elif p.asked:
                fits = True
            elif p.untyped:
                fits = depth == 1 and base == "void"
            else:
                fits = (depth > 0) == p.pointer and has == dtype
            if not fits:
                of = "any dtype" if p.untyped and not decided else dtype
                passed = f"an array of {of}" if p.pointer else f"a {of}"
                return f"`{p.name}`: the launch passes {passed}, and the compiler says that it is `{spelling}`"
        return ""
