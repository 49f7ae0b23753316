"""Asks the compiler about the parameters of a kernel: their types, and the layouts of their classes.

The question for a layout names every word of the text that may be a data member. A class with a bit field or a reference
has no layout here, since their offsets cannot be asked for.

NVRTC answers without a GPU. A machine without NVRTC asks the C++ compiler of the simulator. The answers are in the compile cache, and
in bundles. :func:`answered` gives the parameters the types of the answers.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cupyops.arrays import host, numpy_dtype
from cupyops.compile import ask, bundle
from cupyops.compile.ask import Field, ParameterType
from cupyops.compile.compiler import answers
from cupyops.compile.cuda_text import scan
from cupyops.compile.toolchain import nvrtc
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError, MissingDependencyError

from .accessors import accessor_of
from .definitions import declarations, undecided
from .elements import of_bytes, without_data
from .parameter import OPEN, Parameter
from .scanned import Scanned
from .typenames import Element, complex_of, data_members, dtype_of, library_type, taken_apart, without_attributes

__all__ = ["Asked", "answered", "without_body"]

_DEPTH = 8  # classes within one another
_AXES = ("x", "y", "z", "w")  # the members of CUDA's vectors
# A question may name private data. Access specifiers do not change the layout of a class, so they are removed, and a class is declared
# as a struct, whose members and bases are public.
_PRIVATE = re.compile(r"\b(?:private|protected)\b|\bclass\b(?=[^;(){}<>=,]*[{:])")
_ACCESS = re.compile(r"\b(?:private|protected)\b")
_CLASS = re.compile(
    r"(?<!enum )(?<![<,])(?<![<,] )\bclass\b"
    r"(?=(?:(?!\bclass\b)[^;(){}=]|\([^();{}]*\)(?=\s*(?!const\b|noexcept\b|override\b)[A-Za-z_]))*\{)"
)
_UNDEFINED = re.compile(
    r"identifier \"(\w+)\" is undefined|unknown type name '(\w+)'"
    r"|'(\w+)' (?:was not declared|has not been declared|does not name a type)"
)


class Asked:
    """The compiler's answers about the parameters of a kernel for a choice of types.

    Args:
        source: the kernel's source.
        types: the dtypes of the types that the arrays decide.
        positions: the places of the parameters whose classes are asked for.

    Attributes:
        parameters: the types of the parameters.
    """

    def __init__(self, source: Any, types: Mapping[str, str], positions: Sequence[int]) -> None:
        self._source, self._types = source, types
        names, self._repeated = data_members((source.text, *source.included().values()))
        self._members = list(dict.fromkeys((*names, *(_AXES if names else ()))))
        texts = (source.text, *source.headers.values())
        self._edited = bool(self._members) and any(map(_PRIVATE.search, texts))
        self._fields: dict[tuple[int, tuple[str, ...]], tuple[Field, ...]] = {}
        self.parameters = self._told(positions if self._members else ())

    def _told(self, positions: Sequence[int]) -> tuple[ParameterType, ...]:
        """Asks for the parameters, and for the data members of classes, of classes within these, and so on."""
        places: list[tuple[int, tuple[str, ...]]] = [(position, ()) for position in positions]
        try:
            first, *answers = self._answers([ask.parameters_of(), *self._questions(places)])
            if self._edited and places:
                # The access of the members of a base decides whether members of a class lie in the padding at its end.
                (unedited,) = self._answers([ask.parameters_of()], edited=False)
                if _extents(unedited) != _extents(first):
                    return ask.parameters_in(unedited)
            while places:
                count = len(answers) // len(places)
                for i, place in enumerate(places):
                    self._fields[place] = ask.fields_in(answers[i * count : (i + 1) * count], self._members)
                places = [
                    (position, (*path, f.name))
                    for position, path in places
                    for f in self._fields[position, path]
                    if f.kind in "sm" and len(path) < _DEPTH
                ]
                answers = [*self._answers(self._questions(places))] if places else []
        except (CompileError, ValueError):
            if not positions:
                raise
            self._fields = {}  # for example, a member whose address cannot be taken
            (first,) = self._answers([ask.parameters_of()], edited=False)
        if not first:
            raise CompileError(
                f"{self._source.name}: the names of the types of its parameters are too long to be demangled (1,024 characters): "
                f"pass a struct that is no instance of a template"
            )
        return ask.parameters_in(first)

    def _questions(self, places: Sequence[tuple[int, tuple[str, ...]]]) -> list[str]:
        return [question for place in places for question in ask.fields_of(_element(*place), self._members)]

    def record(self, position: int) -> Any:
        """Returns the NumPy dtype of the class of a parameter, or None if it is not known."""
        return self._record((), position, self.parameters[position])

    def _record(self, path: tuple[str, ...], position: int, of: ParameterType | Field) -> Any:
        """Returns the dtype of the class of a parameter or of a member, or None."""
        if fields := self._fields.get((position, path), ()):
            # Members of a class and of its bases: one may have the name of another, which is not seen.
            if of.kind == "m" and not self._repeated.isdisjoint(f.name for f in fields):
                return None
            return _record_of(fields, of.size, lambda f: self._record((*path, f.name), position, f))
        if not path:
            return None
        try:
            (told,) = self._answers([ask.type_of(_element(position, path))])
        except CompileError:
            return None  # the class has no name
        return _of_library(ask.arguments_in(told)[0]) if told else None

    def _answers(self, questions: Sequence[str], edited: bool = True) -> tuple[str, ...]:
        """Returns the answers to questions.

        Args:
            questions: types in C++.
            edited: the questions are about a text whose classes have no private data.
        """
        source, edited = self._source, edited and self._edited
        content = [source.identity, sorted(self._types.items()), [*questions], self._members, edited]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
        found = bundle.answers(key)
        if found is None:
            asking = partial(self._asking, questions, edited)
            try:
                nvrtc()
            except MissingDependencyError as missing:
                found = self._of_host(asking, missing)
            else:
                found = answers(key, asking, source.name, source.options)
        source.answers[key] = found
        return found

    def _of_host(self, asking: Callable[..., str], missing: MissingDependencyError) -> tuple[str, ...]:
        try:
            return host().answers(asking(host().twins()), self._source.name, self._source.options)
        except MissingDependencyError:
            raise MissingDependencyError(
                f"{self._source.name}: the types of its parameters are asked of a compiler, and there is neither NVRTC ({missing}) nor "
                f"a C++ compiler for the simulator"
            ) from missing

    def _asking(self, questions: Sequence[str], edited: bool, twins: Mapping[str, str] | None = None) -> str:
        """Returns the source of questions: the final text without the body of the kernel, and the questions."""
        text, address = self._source.declaration(self._types, twins)
        return (_public(text) if edited else text) + ask.asking([address], questions, self._members)


def _extents(answer: str) -> list[tuple[str, int, int]]:
    return [(p.spelling, p.size, p.alignment) for p in ask.parameters_in(answer)] if answer else []


def _public(text: str) -> str:
    """Returns a text whose classes have no private data. Lines keep their numbers."""
    text = _ACCESS.sub("public", text)
    found = [match.span() for match in _CLASS.finditer(without_attributes(scan(text).bare))]
    pieces = zip([0, *(end for _, end in found)], [*(start for start, _ in found), len(text)], strict=True)
    return "struct".join(text[start:end] for start, end in pieces)


def _element(position: int, path: Sequence[str]) -> str:
    """Returns the type of the elements of a parameter, or of a member of theirs, in C++."""
    found = ask.element_of(position)
    for name in path:
        found = ask.item_of(found, name)
    return found


def _record_of(fields: Sequence[Field], size: int, inner: Callable[[Field], Any]) -> Any:
    """Returns the NumPy dtype of a class, or None if it has no fields or a field has no dtype.

    Args:
        fields: the data members, in the order of the text.
        size: of the class in bytes.
        inner: returns the dtype of a member that is of a class, or None.
    """
    import numpy

    names, formats, offsets = [], [], []
    for field in sorted(fields, key=lambda field: field.offset):
        if field.offset < 0:
            return None
        dtype = inner(field) if field.kind in "sm" else _dtype(field)
        if field.kind == "o":
            continue  # no data
        if dtype is None:
            return None
        try:
            formats.append(numpy.dtype((dtype, field.extents)) if field.extents else dtype)
        except ValueError:
            return None  # NumPy has no dtype of so many bytes
        names.append(field.name)
        offsets.append(field.offset)
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return numpy.dtype(layout) if names else None


def _dtype(field: Field) -> Any:
    """Returns the dtype of a number or of an address, or None. The dtype of an address also records the dtype of the
    array there, and whether kernels only read it."""
    import numpy

    pointed, star, qualifiers = field.element.rpartition("*")
    if "(" in field.element:  # a pointer to a function
        return numpy.dtype("u8") if field.size == 8 else None
    if star and {"const", "volatile", "restrict", "__restrict", "__restrict__"}.issuperset(qualifiers.split()):
        return numpy.dtype("u8", metadata={"pointer": (dtype_of(pointed) or "", "const" in pointed.split())})
    dtype = dtype_of(field.element)
    return None if dtype is None else numpy_dtype(dtype)


def _of_library(spelling: str) -> Any:
    """Returns the dtype of a class of a library within a struct, or None: an array of its numbers."""
    import numpy

    element = library_type(spelling)
    if element is None or element.record is not None:
        return None if element is None else element.record
    return numpy.dtype((numpy_dtype(element.dtype), (element.width,)))


def without_body(text: str, kernel: str) -> str:
    """Returns a text whose kernel has an empty body. The types of the parameters do not depend on the body."""
    code = scan(text)
    for function in sorted(declarations(code, kernel), key=lambda f: -f.start):
        end = code.end_of_function(function.parameters)
        opening = code.bare.find("{", function.end, end)
        if opening < 0 or code.directives_between(opening, end):
            continue  # a prototype; or the compiler alone knows where the body ends
        text = text[: opening + 1] + "\n" * text.count("\n", opening, end) + "}" + text[end:]
    return text


def answered(scanned: Scanned, asking: Callable[..., Asked], dtypes: Sequence[str]) -> list[Parameter]:
    """Returns the parameters of a declaration with the types that the compiler reports. It is asked only for open types.

    Args:
        scanned: the declaration.
        asking: :meth:`.KernelSource.ask`.
        dtypes: the dtypes of the types that the arrays decide.

    Raises:
        TypeError, ValueError: no Python value can be passed for a parameter, or no array decides a type.
        CompileError: the compiler refuses the text.
    """
    kernel, parameters, bases = scanned.kernel, scanned.parameters, scanned.bases
    places = [i for i, p in enumerate(parameters) if p.type == OPEN]
    if not places:
        return parameters
    low = next((d for d in dtypes if d in ("float16", "bfloat16")), dtypes[0])
    high = next(d for d in (*reversed(dtypes), "float32", "float64") if d not in (low, "float16", "bfloat16"))
    of_template = _types_of_template(scanned)
    words = {word for base in bases for word in re.findall(r"\w+", base)}
    plain = [p.type for p in parameters if p.type not in (*DTYPES, OPEN, "TensorMap") and p.element is None]
    known = scanned.declared | (scanned.entry.names if scanned.entry else frozenset())
    usual = {"scalar_t", "acc_t"} & words if known.isdisjoint(("scalar_t", "acc_t")) else ()
    by_arrays = [*dict.fromkeys("scalar_t" if name == "acc_t" else name for name in (*plain, *usual, *of_template))]
    first: CompileError | None = None
    while True:
        lowest = dict.fromkeys(by_arrays, low)
        try:
            told = asking(lowest, places)
            break
        except CompileError as error:
            first = first or error
            # No declaration of these names is compiled (one may be in a branch that a condition removes): the arrays
            # decide them.
            names = {name for found in _UNDEFINED.findall(str(error)) for name in found if name} & words - {*by_arrays}
            if not names:
                raise first from None
            by_arrays += sorted({"scalar_t" if name == "acc_t" else name for name in names})
    if len(told.parameters) != len(parameters):
        raise TypeError(
            f"{kernel}: the text shows {len(parameters)} parameters, and the compiler sees {len(told.parameters)}: "
            f"declare each parameter without a macro for several"
        )
    lows = list(parameters)
    for i in places:
        lows[i] = _told(kernel, parameters[i], bases[i], told.parameters[i], partial(told.record, i))
    found = list(lows)
    for name in by_arrays:
        try:
            types = asking({**lowest, name: high}).parameters
        except CompileError:
            continue  # the text takes one dtype alone
        for i in places:
            p = lows[i]
            if types[i] == told.parameters[i]:
                continue
            if not p.pointer and types[i].kind in "sm":
                raise _follows(kernel, p, bases[i])
            q = _told(kernel, p, bases[i], types[i], lambda: None)
            if p in (q, replace(q, accessor=p.accessor)):
                continue
            if (p.type, replace(q, type=p.type)) == (low, p) and q.type == high:
                found[i] = replace(p, type=name)
            elif name == "scalar_t" and (p.type, q.type) == (DTYPES[low].acc, DTYPES[high].acc) and not p.pointer:
                found[i] = replace(p, type="acc_t")
            elif p.pointer:
                spelled = bases[i] if bases[i] and not bases[i].isidentifier() else f"decltype({p.name})"
                found[i] = replace(p, type=spelled, untyped=True, element=None, accessor=None)
            else:
                raise _follows(kernel, p, bases[i])
    return found


def _follows(kernel: str, p: Parameter, base: str) -> TypeError:
    return TypeError(
        f"{kernel}: parameter `{p.name}` has type {base!r}, which follows from the dtype of the arrays: declare scalar_t, acc_t or a C "
        f"type, or give the arguments of the template in the kernel's name"
    )


def _types_of_template(scanned: Scanned) -> list[str]:
    """Returns the parameters of the kernel's template that the arrays decide.

    Raises:
        ValueError: no parameter of the kernel has such a type.
    """
    if scanned.entry is None:
        return []
    given = scanned.entry.arguments()
    found = [
        p for p in scanned.entry.parameters if p.kind == "type" and p.name not in ("", *given) and p.default is None
    ]
    for parameter in found:
        # An array decides T by T* and by Vector<T>*, and not by T::pointer.
        if not re.search(rf"\b{parameter.name}\b(?!\s*::)", " ".join(scanned.bases)):
            raise ValueError(undecided(scanned.kernel, scanned.entry, parameter))
    return [p.name for p in found]


def _told(kernel: str, p: Parameter, base: str, answer: ParameterType, record: Callable[[], Any]) -> Parameter:
    """Returns a parameter with the type that the compiler reports."""
    depth, pointer_const, const, spelled = taken_apart(answer.spelling)
    if depth > 2 or answer.spelling.endswith("&&") or (depth == 2 and "(" in answer.spelling):
        of = f"{kernel}: parameter `{p.name}` is of type `{answer.spelling}`"
        raise TypeError(f"{of}: pass arrays as T*, numbers by value, small tuples as Int64s<N>")
    pointer = depth > 0
    plain = Parameter(
        p.name, "uint8", pointer, const or not pointer, p.shape, None, p.nullable, optional=p.optional, asked=True
    )
    if depth == 2:
        return replace(plain, type="uint64", const=pointer_const)
    if "(" in spelled.partition("<")[0]:  # a pointer to a function
        return replace(plain, type="uint64", pointer=False, const=True)
    if pointer and spelled == "void":
        return replace(plain, untyped=True)
    if not pointer and (found := accessor_of(spelled)) is not None:
        of, accessor = found
        plain = replace(plain, pointer=True, const=p.const or of.endswith(" const"))
        of = of.removesuffix(" const")
        if (dtype := dtype_of(of)) is not None:
            return replace(plain, type=dtype, accessor=accessor)
        if (number := complex_of(of)) is not None:
            return replace(plain, type=number.dtype, accessor=replace(accessor, paired=True), element=number)
        raise TypeError(f"{kernel}: parameter `{p.name}` has elements of {of!r}, which is no dtype")
    if (dtype := dtype_of(spelled) or (dtype_of(answer.element) if answer.kind == "e" else None)) is not None:
        rows = re.search(r"\(\*\)\s*((?:\[\d+\])+)\Z", answer.spelling)
        if rows is None:
            return replace(plain, type=dtype)
        width = math.prod(map(int, re.findall(r"\d+", rows[1])))  # a pointer to arrays, as of typedef float vec3[3]
        return replace(plain, type=dtype, element=Element(base, dtype, width, DTYPES[dtype].itemsize))
    if spelled.startswith("Int64s<") and not pointer:
        return replace(plain, type="int64", length=spelled[7:].rstrip(">ul"))
    if (element := library_type(spelled)) is not None:
        return replace(plain, type=element.dtype, element=replace(element, name=base or element.name))
    of = base if base.isidentifier() and not spelled.isidentifier() else spelled
    if answer.kind == "o":
        empty = Element(of, "uint8", answer.size, answer.alignment, without_data(answer.size))
        return replace(plain, element=empty)
    layout = record() if answer.kind in "sm" else None
    if pointer and layout is None and (p.shape is None or answer.kind == "i"):
        return replace(plain, untyped=True)
    if answer.kind in "sm":
        layout = of_bytes(answer.size) if layout is None else layout
        return replace(plain, element=Element(of, "uint8", answer.size, min(answer.alignment, 16), layout))
    raise TypeError(
        f"{kernel}: parameter `{p.name}` has type {answer.spelling!r}, for which no Python value can be passed"
    )
