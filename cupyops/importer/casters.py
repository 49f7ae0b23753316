"""The conversions between Python's values and those of a host function: pybind11's casters, with PyTorch's."""

import operator
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from functools import cache
from types import GeneratorType
from typing import Any

import torch

from . import cublas, standard  # noqa: F401  their C++ text comes first
from .numbers import NUMBERS, Number
from .references import Variable
from .vectors import Vector
from .words import words

__all__ = [
    "REQUIRED",
    "Caster",
    "Parameter",
    "RefusedError",
    "Signature",
    "as_python",
    "bound_classes",
    "cast_value",
    "caster",
    "host",
    "load_value",
    "schema_of",
]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""The default of a parameter that has none."""

Kind = Any
"""A C++ type: a :class:`.numbers.Number`, the Python class of a struct, the spelling of another class, a tuple of a
template's name and its arguments, ``("*", T)`` for a pointer, ``("&", T)`` for a parameter that takes a
:class:`.references.Reference`, or None for ``void``."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a host function. `default` is C++'s default argument, which only calls in C++ leave out."""

    name: str
    type: Kind
    default: Any = REQUIRED


@dataclass(frozen=True)
class Signature:
    """The C++ types of a host function."""

    name: str
    returns: Kind
    parameters: tuple[Parameter, ...]


def host(name: str, returns: Kind, *parameters: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Gives a translated function its attribute ``signature``.

    Args:
        name: the C++ name.
        returns: the type of the result.
        parameters: ``(name, type)`` or ``(name, type, default)`` each.
    """

    def give(function: Any) -> Any:
        function.signature = Signature(name, returns, tuple(Parameter(*p) for p in parameters))
        return function

    return give


# Casters


class RefusedError(Exception):
    """A value has no conversion to the parameter's type."""


@dataclass(frozen=True)
class Caster:
    """The conversions of a C++ type.

    Attributes:
        argument: pybind11's name for the type of an argument.
        result: the same for a result.
        load: converts an argument, or raises RefusedError. Its second argument is whether other types convert.
        cast: converts a result.
        schema: the type in a schema of ``torch.library``; ``""`` if it has none.
    """

    argument: str
    result: str
    load: Callable[[Any, bool], Any]
    cast: Callable[[Any], Any] = lambda value: value
    schema: str = ""


def _has(value: Any, *methods: str) -> bool:
    return any(hasattr(type(value), method) for method in methods)


def _converted(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise RefusedError from problem


def _integer(kind: Number) -> Caster:
    bits = 8 * kind.size
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.signed else (0, (1 << bits) - 1)

    def load(value: Any, convert: bool) -> int:
        if (
            kind.size == 1 and isinstance(value, str) and len(value) == 1
        ):  # `char`, which is a type of its own in C++ only
            value = kind(ord(value))
        if isinstance(value, float):
            raise RefusedError
        try:
            value = operator.index(value)
        except TypeError:
            if not (convert and _has(value, "__int__")):
                raise RefusedError from None
            value = _converted(int, value)
        if not least <= value <= most:
            raise RefusedError
        return int(value)

    return Caster("typing.SupportsInt | typing.SupportsIndex", "int", load, schema="int")


def _floating(kind: Number) -> Caster:
    def load(value: Any, convert: bool) -> float:
        if isinstance(value, float):
            return float(kind(value))
        if not (convert and _has(value, "__float__", "__index__")):
            raise RefusedError
        return float(kind(_converted(float, value)))

    return Caster("typing.SupportsFloat | typing.SupportsIndex", "float", load, schema="float")


def _load_bool(value: Any, convert: bool) -> bool:
    if isinstance(value, bool):
        return value
    if value is None and convert:
        return False
    if not (_has(value, "__bool__") and (convert or type(value).__module__ == "numpy")):
        raise RefusedError
    return _converted(bool, value)


def _load_str(value: Any, _: bool) -> str:
    if isinstance(value, (bytes, bytearray)):
        return _converted(lambda v: v.decode(), value)
    if not isinstance(value, str):
        raise RefusedError
    return value


def _load_scalar(value: Any, _: bool) -> Any:
    # PyTorch's caster has only results. A Scalar in a schema of torch.library takes numbers.
    if not isinstance(value, (bool, int, float, complex)):
        raise RefusedError
    return value


def _load_callable(value: Any, _: bool) -> Any:
    if not callable(value):
        raise RefusedError
    return value


def _instances(kind: type, name: str = "", schema: str = "") -> Caster:
    """Returns the caster of a class whose values are Python objects of `kind`."""

    def load(value: Any, _: bool) -> Any:
        if not isinstance(value, kind):
            raise RefusedError
        return value

    name = name or kind.__name__
    return Caster(name, name, load, schema=schema)


bound_classes: dict[type, Any] = {}
"""The Python classes of structs that ``py::class_`` binds, whose objects have the struct as ``held``."""


def _struct(kind: type) -> Caster:
    """Returns the caster of a struct."""

    def load(value: Any, _: bool) -> Any:
        made = bound_classes.get(kind)
        if made is not None and isinstance(value, made):
            return value.held
        if not isinstance(value, kind):
            raise RefusedError
        return value

    def cast(value: Any) -> Any:
        made = bound_classes.get(type(value))
        if made is None:
            return value
        whole = object.__new__(made)
        whole.held = value
        return whole

    return Caster(kind.__name__, kind.__name__, load, cast)


def load_value(kind: Kind, value: Any, name: str) -> Any:
    """Returns a value of Python as one of a C++ type.

    Raises:
        TypeError: it has no conversion.
    """
    try:
        return caster(kind).load(value, True)
    except RefusedError:
        raise TypeError(f"{name}: wanted {caster(kind).argument}, got {type(value).__name__}") from None


def cast_value(kind: Kind, value: Any) -> Any:
    """Returns a value of a C++ type as Python's."""
    return caster(kind).cast(value)


def _unknown(kind: Kind) -> Caster:
    """Returns the caster of a type that has no Python values."""

    def load(value: Any, _: bool) -> Any:
        raise RefusedError

    name = kind if isinstance(kind, str) else repr(kind)
    return Caster(name, name, load)


_STRING = Caster("str", "str", _load_str, schema="str")
_CALLABLE = Caster("collections.abc.Callable", "collections.abc.Callable", _load_callable)
# The casters of classes by their last names: at::Tensor, torch::Tensor and c10::Tensor are one.
_CLASSES = {
    "Tensor": _instances(torch.Tensor, "torch.Tensor", "Tensor"),
    "ScalarType": _instances(torch.dtype, "torch.dtype", "ScalarType"),
    "Device": _instances(torch.device, "torch.device", "Device"),
    "Layout": _instances(torch.layout, "torch.layout", "Layout"),
    "MemoryFormat": _instances(torch.memory_format, "torch.memory_format", "MemoryFormat"),
    "Generator": _instances(torch.Generator, "torch.Generator", "Generator"),
    "Scalar": Caster("typing.Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]", "int | float", _load_scalar, schema="Scalar"),
    "string": _STRING,
    "basic_string": _STRING,
    "string_view": _STRING,
    "basic_string_view": _STRING,
    "lambda": _CALLABLE,
    "function": _CALLABLE,
    "nullopt_t": _instances(type(None), "None"),
    "none": _instances(type(None), "None"),
    **{n: _instances(object, "object") for n in ("object", "handle")},
    **{k.__name__: _instances(k) for k in (dict, list, tuple, str)},
    "args": _instances(tuple, "args"),
    "kwargs": _instances(dict, "kwargs"),
    **{f"{k.__name__}_": _instances(k) for k in (int, float, bool)},
}  # fmt: skip


def _is_sequence(value: Any, wide: bool) -> bool:
    """Returns whether pybind11 reads a value as ``std::vector``; narrow, as ``ArrayRef``."""
    if not wide:
        return isinstance(value, (list, tuple))
    if isinstance(value, (str, bytes, Mapping, torch.Tensor)):
        return False
    return _has(value, "__getitem__") or isinstance(value, (GeneratorType, Set, ValuesView, map, zip))


def _sequence(kind: Kind, wide: bool, count: int | None = None) -> Caster:
    element = caster(kind)

    def load(value: Any, convert: bool) -> Vector:
        if not _is_sequence(value, wide):
            raise RefusedError
        values = [element.load(v, convert) for v in value]
        if count not in (None, len(values)):
            raise RefusedError
        return Vector(values, kind)

    argument, result = f"collections.abc.Sequence[{element.argument}]", f"list[{element.result}]"
    if count is not None:
        argument, result = (f'typing.Annotated[{t}, "FixedSize({count})"]' for t in (argument, result))
    if not wide:
        argument = result = f"Tuple[{element.result}, ...]"
    made: Callable[[Any], Any] = list if wide else tuple
    schema = f"{element.schema}[]" if element.schema else ""
    return Caster(argument, result, load, lambda value: made(element.cast(v) for v in value), schema)


def _tuple(elements: Sequence[Caster]) -> Caster:
    def load(value: Any, convert: bool) -> tuple[Any, ...]:
        if not _is_sequence(value, True) or len(value) != len(elements):
            raise RefusedError
        return tuple(e.load(v, convert) for e, v in zip(elements, value, strict=True))

    def cast(value: Any) -> tuple[Any, ...]:
        return tuple(e.cast(v) for e, v in zip(elements, value, strict=True))

    argument, result = (", ".join(getattr(e, which) for e in elements) for which in ("argument", "result"))
    schema = f"({', '.join(e.schema for e in elements)})" if all(e.schema for e in elements) else ""
    return Caster(f"tuple[{argument}]", f"tuple[{result}]", load, cast, schema)


def _optional(element: Caster) -> Caster:
    def load(value: Any, convert: bool) -> Any:
        return None if value is None else element.load(value, convert)

    def cast(value: Any) -> Any:
        return None if value is None else element.cast(value)

    schema = f"{element.schema}?" if element.schema else ""
    return Caster(f"{element.argument} | None", f"{element.result} | None", load, cast, schema)


def _mapping(name: str, kinds: tuple[Kind, Kind]) -> Caster:
    made = words()[name].object
    key, element = map(caster, kinds)

    def load(value: Any, convert: bool) -> Any:
        if not isinstance(value, Mapping):
            raise RefusedError
        return made(*kinds, [(key.load(k, convert), element.load(v, convert)) for k, v in value.items()])

    def cast(value: Any) -> dict[Any, Any]:
        return {key.cast(k): element.cast(v) for k, v in value}

    argument = f"collections.abc.Mapping[{key.argument}, {element.argument}]"
    return Caster(argument, f"dict[{key.result}, {element.result}]", load, cast)


def _reference(element: Caster) -> Caster:
    """Returns the caster of a parameter that takes a Reference: pybind11 has it refer to a copy."""
    return Caster(element.argument, element.result, lambda value, convert: Variable(element.load(value, convert)))


@cache
def caster(kind: Kind) -> Caster:
    """Returns the conversions of a C++ type."""
    if kind is None or kind == "void":
        return Caster("None", "None", lambda value, convert: None, lambda value: None, "()")
    if isinstance(kind, Number):
        if kind.name == "bool_":
            return Caster("bool", "bool", _load_bool, bool, "bool")
        return _floating(kind) if kind.floating else _integer(kind)
    if isinstance(kind, type):
        return _struct(kind)
    if isinstance(kind, str):
        return _CLASSES.get(kind.rpartition("::")[2], _CALLABLE if "(" in kind else _unknown(kind))
    name, *inner = kind
    name = name.rpartition("::")[2]
    if name == "&":
        return _reference(caster(inner[0]))
    if name == "*":
        return _optional(_STRING) if inner[0] == NUMBERS["int8"] else _unknown(kind)
    if name in ("vector", "initializer_list", "ArrayRef", "List"):
        return _sequence(inner[0], name != "ArrayRef")
    if name == "array":
        return _sequence(inner[0], True, inner[1])
    if name == "OptionalArrayRef":
        return _optional(_sequence(inner[0], False))
    if name == "optional":
        return _optional(caster(inner[0]))
    if name in ("tuple", "pair"):
        return _tuple([caster(k) for k in inner])
    if name in ("map", "unordered_map"):
        return _mapping(f"std::{name}", (inner[0], inner[1]))
    return _CLASSES.get(name, _unknown(kind))


def schema_of(kind: Kind) -> str:
    """Returns a type in a schema of ``torch.library``; ``""`` if it has none."""
    return caster(kind).schema


def as_python(value: Any) -> Any:
    """Returns a C++ value as Python's, by the value: a default of ``py::arg``, or the result of a function without types."""
    return [as_python(v) for v in value] if isinstance(value, Vector) else value
