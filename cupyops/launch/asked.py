"""Asks the compiler about the parameters of a kernel: their types, and the layouts of their classes.

The question for a layout names every word of the text that may be a data member. A class with a bit field or a reference
has no layout here, since their offsets cannot be asked for.

NVRTC answers without a GPU. A machine without NVRTC asks the C++ compiler of the simulator. The answers are in the compile cache, and
in bundles.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cupyops.arrays import host, numpy_dtype
from cupyops.compile import ask, bundle
from cupyops.compile.ask import Field, ParameterType
from cupyops.compile.compiler import answers
from cupyops.compile.cuda_text import scan
from cupyops.compile.toolchain import nvrtc
from cupyops.errors import CompileError, MissingDependencyError

from .definitions import declarations
from .library_types import library_type
from .typenames import data_members, dtype_of

__all__ = ["Asked", "without_body"]

_DEPTH = 8  # classes within one another
_AXES = ("x", "y", "z", "w")  # the members of CUDA's vectors
# A question sees public members alone.
_PRIVATE = re.compile(r"\b(?:private|protected)\b|\bclass\b(?=[^;(){}<>=,]*[{:])")


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
        self._private = any(map(_PRIVATE.search, (source.text, *source.headers.values())))
        self._fields: dict[tuple[int, tuple[str, ...]], tuple[Field, ...]] = {}
        self.parameters = self._told(positions if self._members else ())

    def _told(self, positions: Sequence[int]) -> tuple[ParameterType, ...]:
        """Asks for the parameters, and for the data members of classes, of classes within these, and so on."""
        places: list[tuple[int, tuple[str, ...]]] = [(position, ()) for position in positions]
        try:
            first, *answers = self._answers([ask.parameters_of(), *self._questions(places)])
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
            (first,) = self._answers([ask.parameters_of()])
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
            # Members of different access, or of a class and its bases.
            if of.kind == "m" and (self._private or not self._repeated.isdisjoint(f.name for f in fields)):
                return None  # it may have a member that is not seen
            return _record_of(fields, of.size, lambda f: self._record((*path, f.name), position, f))
        if not path:
            return None
        try:
            (told,) = self._answers([ask.type_of(_element(position, path))])
        except CompileError:
            return None  # the class has no name
        return _of_library(ask.arguments_in(told)[0]) if told else None

    def _answers(self, questions: Sequence[str]) -> tuple[str, ...]:
        """Returns the answers to questions, which are types in C++."""
        source = self._source
        content = [source.identity, sorted(self._types.items()), [*questions], self._members]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
        found = bundle.answers(key)
        if found is None:
            asking = partial(self._asking, questions)
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

    def _asking(self, questions: Sequence[str], twins: Mapping[str, str] | None = None) -> str:
        """Returns the source of questions: the final text without the body of the kernel, and the questions."""
        text, address = self._source.declaration(self._types, twins)
        return text + ask.asking([address], questions, self._members)


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
