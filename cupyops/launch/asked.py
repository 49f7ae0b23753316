"""Asks the compiler about the parameters of a kernel: their types, and the layouts of their classes.

NVRTC answers without a GPU. A machine without NVRTC asks the C++ compiler of the simulator. The answers are in the compile cache, and
in bundles.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cupyops.arrays import host
from cupyops.compile import ask, bundle
from cupyops.compile.ask import Field, ParameterType
from cupyops.compile.compiler import answers
from cupyops.compile.cuda_text import scan
from cupyops.errors import CompileError, MissingDependencyError

from .definitions import declarations
from .elements import difference
from .layouts import of_library, record_of
from .library_types import Element
from .typenames import data_members, without_attributes

__all__ = ["Asked", "without_body"]

_AXES = ("x", "y", "z", "w")  # the members of CUDA's vectors
# A question may name private data. The access of a member does not change its place, and a struct is a class whose members and bases
# are public.
_PRIVATE = re.compile(r"\b(?:private|protected)\b|\bclass\b(?=[^;(){}<>=,]*[{:])")
_ACCESS = re.compile(r"\b(?:private|protected)\b")
_CLASS = re.compile(
    r"(?<!enum )(?<![<,])(?<![<,] )\bclass\b"
    r"(?=(?:(?!\bclass\b)[^;(){}=]|\([^();{}]*\)(?=\s*(?!const\b|noexcept\b|override\b)[A-Za-z_]))*\{)"
)


class Asked:
    """The compiler's answers about the parameters of a kernel for a choice of types.

    Args:
        source: the kernel's source.
        types: the dtypes of the types that the arrays decide.
        positions: the places of the parameters whose classes are asked for.
    """

    def __init__(self, source: Any, types: Mapping[str, str], positions: Sequence[int]) -> None:
        self._source, self._types = source, types
        given = (name for element in source.structs.values() for name in _names(element.record))
        names, self._repeated = data_members((source.text, *source.included().values()))
        names = list(dict.fromkeys((*names, *given, *(_AXES if names else ()))))
        names = [name for name in names if name not in source.defines]
        self._members, self._positions = names, [*positions] if names else []
        texts = "\n".join([source.text, *source.headers.values()])
        self._edited = bool(self._positions) and _PRIVATE.search(texts) is not None
        self.parameters, self._fields = self._told()

    def _told(self) -> tuple[tuple[ParameterType, ...], dict[int, tuple[Field, ...]]]:
        def questions(address: str) -> list[str]:
            listed = (ask.fields_of(ask.element_of(address, i), self._members) for i in self._positions)
            return [ask.parameters_of(address), *listed]

        try:
            types, *fields = self._answers(questions)
            parameters = ask.parameters_in(types)
            if self._edited:
                # The access of the members of a base decides whether members of a class lie in the padding at its end.
                (types,) = self._answers(lambda address: [ask.parameters_of(address)], edited=False)
                parameters, of_edited = ask.parameters_in(types), parameters
                fields = fields if parameters == of_edited else []
                self._positions = self._positions if fields else []
        except CompileError:
            if not self._positions:
                raise
            self._positions, fields = [], []  # a member of which no address can be taken, for one
            (types,) = self._answers(lambda address: [ask.parameters_of(address)], edited=False)
            parameters = ask.parameters_in(types)
        told = (ask.fields_in(answer, self._members) for answer in fields)
        return parameters, dict(zip(self._positions, told, strict=True))

    def record(self, position: int, given: Element | None) -> tuple[Any, int]:
        """Returns the NumPy dtype of the class of a parameter, or None, and its bytes.

        Args:
            position: the place of the parameter.
            given: the layout from Python, which is compared, or None.

        Raises:
            CompileError: the layout from Python is another one.
        """
        size = self.parameters[position].size
        if position not in self._fields:
            return None, size
        fields = self._fields[position]
        if given is not None and given.record is not None:
            fields = tuple(f for f in fields if f.name in given.record.names)
        whole = self.parameters[position]
        record = record_of(fields, size, lambda f: self._inner([f.name], position, f, given))
        if given is None and _hides(fields, size, whole.alignment, self._repeated):
            record = None
        if given is None or given.record is None or record is None:
            return record, size
        if problem := difference(self._source.name, given.name, given.record, record, size):
            raise CompileError(problem)
        return record, size

    def _inner(self, path: list[str], position: int, field: Field, given: Element | None) -> Any:
        """Returns the dtype of a member that is of a class."""

        def item(address: str) -> str:
            found = ask.element_of(address, position)
            for name in path:
                found = ask.item_of(found, name)
            return found

        (told,) = self._answers(lambda address: [ask.fields_of(item(address), self._members)])
        fields = ask.fields_in(told, self._members)
        if fields:
            return record_of(fields, field.size, lambda f: self._inner([*path, f.name], position, f, given))
        try:
            (told,) = self._answers(lambda address: [ask.type_of(item(address))])
        except CompileError:
            return None  # the class has no name
        return of_library(ask.arguments_in(told)[0])

    def _answers(self, questions: Callable[[str], list[str]], edited: bool = True) -> tuple[str, ...]:
        """Returns the answers to questions, which are made for the kernel's address.

        Args:
            edited: the questions are about a text whose classes have no private data.
        """
        source, edited = self._source, edited and self._edited
        content = [source.identity, sorted(self._types.items()), questions("kernel"), self._members, edited]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
        found = bundle.answers(key)
        if found is None:
            asking = partial(self._asking, questions, edited)
            try:
                found = answers(key, asking, source.name, source.options)
            except MissingDependencyError as missing:
                found = self._of_host(asking, missing)
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

    def _asking(
        self, questions: Callable[[str], list[str]], edited: bool, twins: Mapping[str, str] | None = None
    ) -> str:
        """Returns the source of questions: the final text without the body of the kernel, and the questions."""
        text, address = self._source.declaration(self._types, twins)
        return (_public(text) if edited else text) + ask.asking(questions(address), self._members)


def _public(text: str) -> str:
    """Returns a text whose classes have no private data. Lines keep their numbers."""
    text = _ACCESS.sub("public", text)
    found = [match.span() for match in _CLASS.finditer(without_attributes(scan(text).bare))]
    pieces = zip([0, *(end for _, end in found)], [*(start for start, _ in found), len(text)], strict=True)
    return "struct".join(text[start:end] for start, end in pieces)


def _names(record: Any) -> list[str]:
    """Returns the names of the fields of a NumPy dtype, and of the structs in it."""
    if record is None:
        return []
    inner = (record.fields[name][0].base for name in record.names)
    return [*record.names, *(name for dtype in inner if dtype.names for name in _names(dtype))]


def _hides(fields: Sequence[Field], size: int, alignment: int, repeated: frozenset[str]) -> bool:
    """Returns whether a class may have a data member that another one of the same name hides, in a base.

    Args:
        fields: the data members.
        size, alignment: of the class in bytes.
        repeated: the names that several classes have.
    """
    at = 0
    for field in sorted(fields, key=lambda f: f.offset):
        if field.offset - at >= alignment:
            return not repeated.isdisjoint(f.name for f in fields)
        at = max(at, field.offset + field.size * math.prod(field.extents))
    return size - at >= alignment and not repeated.isdisjoint(f.name for f in fields)


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
