"""Calls of translated host functions from Python: what pybind11 and ``torch.library`` do with a C++ function.

:func:`bound` converts arguments and results as pybind11 3 does with PyTorch's casters. :class:`Module` is the ``m`` of
``PYBIND11_MODULE``, :class:`Library` that of ``TORCH_LIBRARY``.
"""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field
from functools import cache
from types import GeneratorType
from typing import Any

import torch

from cupyops import simulator

from . import cublas, standard  # noqa: F401  their C++ text comes first
from .errors import NotTranslated
from .numbers import NUMBERS, Number
from .references import Reference, Variable
from .vectors import Vector
from .words import declare, word, words

__all__ = ["REQUIRED", "Arg", "Library", "Module", "Parameter", "Signature", "bound", "host", "library_of", "schema_of"]


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


class _RefusedError(Exception):
    """A value has no conversion to the parameter's type."""


@dataclass(frozen=True)
class _Caster:
    """The conversions of a C++ type.

    Attributes:
        argument: pybind11's name for the type of an argument.
        result: the same for a result.
        load: converts an argument, or raises _RefusedError. Its second argument is whether other types convert.
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
        raise _RefusedError from problem


def _integer(kind: Number) -> _Caster:
    bits = 8 * kind.size
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.signed else (0, (1 << bits) - 1)

    def load(value: Any, convert: bool) -> int:
        if (
            kind.size == 1 and isinstance(value, str) and len(value) == 1
        ):  # `char`, which is a type of its own in C++ only
            value = kind(ord(value))
        if isinstance(value, float):
            raise _RefusedError
        try:
            value = operator.index(value)
        except TypeError:
            if not (convert and _has(value, "__int__")):
                raise _RefusedError from None
            value = _converted(int, value)
        if not least <= value <= most:
            raise _RefusedError
        return int(value)

    return _Caster("typing.SupportsInt | typing.SupportsIndex", "int", load, schema="int")


def _floating(kind: Number) -> _Caster:
    def load(value: Any, convert: bool) -> float:
        if isinstance(value, float):
            return float(kind(value))
        if not (convert and _has(value, "__float__", "__index__")):
            raise _RefusedError
        return float(kind(_converted(float, value)))

    return _Caster("typing.SupportsFloat | typing.SupportsIndex", "float", load, schema="float")


def _load_bool(value: Any, convert: bool) -> bool:
    if isinstance(value, bool):
        return value
    if value is None and convert:
        return False
    if not (_has(value, "__bool__") and (convert or type(value).__module__ == "numpy")):
        raise _RefusedError
    return _converted(bool, value)


def _load_str(value: Any, _: bool) -> str:
    if isinstance(value, (bytes, bytearray)):
        return _converted(lambda v: v.decode(), value)
    if not isinstance(value, str):
        raise _RefusedError
    return value


def _load_scalar(value: Any, _: bool) -> Any:
    # PyTorch's caster has only results. A Scalar in a schema of torch.library takes numbers.
    if not isinstance(value, (bool, int, float, complex)):
        raise _RefusedError
    return value


def _load_callable(value: Any, _: bool) -> Any:
    if not callable(value):
        raise _RefusedError
    return value


def _instances(kind: type, name: str = "", schema: str = "") -> _Caster:
    """Returns the caster of a class whose values are Python objects of `kind`."""

    def load(value: Any, _: bool) -> Any:
        if not isinstance(value, kind):
            raise _RefusedError
        return value

    name = name or kind.__name__
    return _Caster(name, name, load, schema=schema)


bound_classes: dict[type, Any] = {}
"""The Python classes of structs that ``py::class_`` binds, whose objects have the struct as ``held``."""


def _struct(kind: type) -> _Caster:
    """Returns the caster of a struct."""

    def load(value: Any, _: bool) -> Any:
        made = bound_classes.get(kind)
        if made is not None and isinstance(value, made):
            return value.held
        if not isinstance(value, kind):
            raise _RefusedError
        return value

    def cast(value: Any) -> Any:
        made = bound_classes.get(type(value))
        if made is None:
            return value
        whole = object.__new__(made)
        whole.held = value
        return whole

    return _Caster(kind.__name__, kind.__name__, load, cast)


def load_value(kind: Kind, value: Any, name: str) -> Any:
    """Returns a value of Python as one of a C++ type.

    Raises:
        TypeError: it has no conversion.
    """
    try:
        return _caster(kind).load(value, True)
    except _RefusedError:
        raise TypeError(f"{name}: wanted {_caster(kind).argument}, got {type(value).__name__}") from None


def cast_value(kind: Kind, value: Any) -> Any:
    """Returns a value of a C++ type as Python's."""
    return _caster(kind).cast(value)


def call_bound(before: Any, call: Any, name: str) -> Any:
    """Returns a function as Python calls it with those of the same name before it as its overloads."""
    return _dispatcher(name, [*getattr(before, "overloads", []), *call.overloads])


def _unknown(kind: Kind) -> _Caster:
    """Returns the caster of a type that Python has no values of."""

    def load(value: Any, _: bool) -> Any:
        raise _RefusedError

    name = kind if isinstance(kind, str) else repr(kind)
    return _Caster(name, name, load)


_STRING = _Caster("str", "str", _load_str, schema="str")
_CALLABLE = _Caster("collections.abc.Callable", "collections.abc.Callable", _load_callable)
# The casters of classes by their last names: at::Tensor, torch::Tensor and c10::Tensor are one.
_CLASSES = {
    "Tensor": _instances(torch.Tensor, "torch.Tensor", "Tensor"),
    "ScalarType": _instances(torch.dtype, "torch.dtype", "ScalarType"),
    "Device": _instances(torch.device, "torch.device", "Device"),
    "Layout": _instances(torch.layout, "torch.layout", "Layout"),
    "MemoryFormat": _instances(torch.memory_format, "torch.memory_format", "MemoryFormat"),
    "Generator": _instances(torch.Generator, "torch.Generator", "Generator"),
    "Scalar": _Caster("typing.Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]", "int | float", _load_scalar, schema="Scalar"),
    "string": _STRING,
    "basic_string": _STRING,
    "string_view": _STRING,
    "basic_string_view": _STRING,
    "lambda": _CALLABLE,
    "function": _CALLABLE,
    "nullopt_t": _instances(type(None), "None"),
    **{n: _instances(object, "object") for n in ("object", "handle")},
    **{n: _instances(k) for n, k in (("dict", dict), ("list", list), ("str", str), ("int_", int), ("float_", float), ("bool_", bool))},
}  # fmt: skip


def _is_sequence(value: Any, wide: bool) -> bool:
    """Returns whether pybind11 reads a value as ``std::vector``; narrow, as ``ArrayRef``."""
    if not wide:
        return isinstance(value, (list, tuple))
    if isinstance(value, (str, bytes, Mapping, torch.Tensor)):
        return False
    return _has(value, "__getitem__") or isinstance(value, (GeneratorType, Set, ValuesView, map, zip))


def _sequence(kind: Kind, wide: bool, count: int | None = None) -> _Caster:
    element = _caster(kind)

    def load(value: Any, convert: bool) -> Vector:
        if not _is_sequence(value, wide):
            raise _RefusedError
        values = [element.load(v, convert) for v in value]
        if count not in (None, len(values)):
            raise _RefusedError
        return Vector(values, kind)

    argument, result = f"collections.abc.Sequence[{element.argument}]", f"list[{element.result}]"
    if count is not None:
        argument, result = (f'typing.Annotated[{t}, "FixedSize({count})"]' for t in (argument, result))
    if not wide:
        argument = result = f"Tuple[{element.result}, ...]"
    made: Callable[[Any], Any] = list if wide else tuple
    schema = f"{element.schema}[]" if element.schema else ""
    return _Caster(argument, result, load, lambda value: made(element.cast(v) for v in value), schema)


def _tuple(elements: Sequence[_Caster]) -> _Caster:
    def load(value: Any, convert: bool) -> tuple[Any, ...]:
        if not _is_sequence(value, True) or len(value) != len(elements):
            raise _RefusedError
        return tuple(e.load(v, convert) for e, v in zip(elements, value, strict=True))

    def cast(value: Any) -> tuple[Any, ...]:
        return tuple(e.cast(v) for e, v in zip(elements, value, strict=True))

    argument, result = (", ".join(getattr(e, which) for e in elements) for which in ("argument", "result"))
    schema = f"({', '.join(e.schema for e in elements)})" if all(e.schema for e in elements) else ""
    return _Caster(f"tuple[{argument}]", f"tuple[{result}]", load, cast, schema)


def _optional(element: _Caster) -> _Caster:
    def load(value: Any, convert: bool) -> Any:
        return None if value is None else element.load(value, convert)

    def cast(value: Any) -> Any:
        return None if value is None else element.cast(value)

    schema = f"{element.schema}?" if element.schema else ""
    return _Caster(f"{element.argument} | None", f"{element.result} | None", load, cast, schema)


def _mapping(name: str, kinds: tuple[Kind, Kind]) -> _Caster:
    made = words()[name].object
    key, element = map(_caster, kinds)

    def load(value: Any, convert: bool) -> Any:
        if not isinstance(value, Mapping):
            raise _RefusedError
        return made(*kinds, [(key.load(k, convert), element.load(v, convert)) for k, v in value.items()])

    def cast(value: Any) -> dict[Any, Any]:
        return {key.cast(k): element.cast(v) for k, v in value}

    argument = f"collections.abc.Mapping[{key.argument}, {element.argument}]"
    return _Caster(argument, f"dict[{key.result}, {element.result}]", load, cast)


def _reference(element: _Caster) -> _Caster:
    """Returns the caster of a parameter that takes a Reference: pybind11 has it refer to a copy."""
    return _Caster(element.argument, element.result, lambda value, convert: Variable(element.load(value, convert)))


@cache
def _caster(kind: Kind) -> _Caster:
    """Returns the conversions of a C++ type."""
    if kind is None or kind == "void":
        return _Caster("None", "None", lambda value, convert: None, lambda value: None, "()")
    if isinstance(kind, Number):
        if kind.name == "bool_":
            return _Caster("bool", "bool", _load_bool, bool, "bool")
        return _floating(kind) if kind.floating else _integer(kind)
    if isinstance(kind, type):
        return _struct(kind)
    if isinstance(kind, str):
        return _CLASSES.get(kind.rpartition("::")[2], _CALLABLE if "(" in kind else _unknown(kind))
    name, *inner = kind
    name = name.rpartition("::")[2]
    if name == "&":
        return _reference(_caster(inner[0]))
    if name == "*":
        return _optional(_STRING) if inner[0] == NUMBERS["int8"] else _unknown(kind)
    if name in ("vector", "initializer_list", "ArrayRef", "List"):
        return _sequence(inner[0], name != "ArrayRef")
    if name == "array":
        return _sequence(inner[0], True, inner[1])
    if name == "OptionalArrayRef":
        return _optional(_sequence(inner[0], False))
    if name == "optional":
        return _optional(_caster(inner[0]))
    if name in ("tuple", "pair"):
        return _tuple([_caster(k) for k in inner])
    if name in ("map", "unordered_map"):
        return _mapping(f"std::{name}", (inner[0], inner[1]))
    return _CLASSES.get(name, _unknown(kind))


def schema_of(kind: Kind) -> str:
    """Returns a type in a schema of ``torch.library``; ``""`` if it has none."""
    return _caster(kind).schema


def _as_python(value: Any) -> Any:
    """Returns a C++ value as Python's, by the value: a default of ``py::arg``, or the result of a function without types."""
    return [_as_python(v) for v in value] if isinstance(value, Vector) else value


# pybind11

declare("namespace pybind11 {} namespace py = pybind11;")


@word(
    "pybind11::arg",
    "struct arg { explicit arg(const char* name); template <class T> arg& operator=(T&& value);"
    " arg& noconvert(bool on = true); arg& none(bool on = true); };",
)
class Arg:  # fmt: skip
    """A name of an argument, ``py::arg("x")``, with its default."""

    def __init__(self, name: str) -> None:
        self.name, self.default, self.converts = name, REQUIRED, True

    def assign(self, default: Any) -> "Arg":
        self.default = _as_python(default)
        return self

    def noconvert(self, on: bool = True) -> "Arg":
        self.converts = not on
        return self

    def none(self, on: bool = True) -> "Arg":
        return self  # no caster of ours gives a null pointer for None where C++ has no optional


@word("pybind11::kw_only", "struct kw_only {};")
class KwOnly:
    """The arguments behind it have keywords only."""


@dataclass
class _Argument:
    name: str
    caster: _Caster
    default: Any = REQUIRED
    converts: bool = True
    keyword_only: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.caster.argument}{'' if self.default is REQUIRED else f' = {self.default!r}'}"


@dataclass
class _Overload:
    """A C++ function of a name."""

    function: Callable[..., Any]
    arguments: list[_Argument]
    returns: _Caster
    doc: str = ""
    named: bool = False

    def __str__(self) -> str:
        parts: list[str] = []
        for a in self.arguments:
            if a.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(str(a))
        return f"({', '.join(parts)}) -> {self.returns.result}"

    def values(self, given: tuple[Any, ...], keywords: dict[str, Any], convert: bool) -> list[Any]:
        """Returns the C++ arguments of a call, or raises _RefusedError."""
        left = dict(keywords)
        values = []
        if len(given) > sum(not a.keyword_only for a in self.arguments):
            raise _RefusedError
        for i, a in enumerate(self.arguments):
            if i < len(given):
                value = given[i]
            else:
                value = left.pop(a.name, a.default) if self.named else a.default
                if value is REQUIRED:
                    raise _RefusedError
            values.append(a.caster.load(value, convert and a.converts))
        if left:
            raise _RefusedError
        return values


def _overload(function: Callable[..., Any], extra: Sequence[Any]) -> _Overload:
    signature: Signature | None = getattr(function, "signature", None)
    if signature is None:
        raise NotTranslated(f"{getattr(function, '__name__', function)!r} is bound, and its C++ types are not known")
    found = _Overload(function, [], _caster(signature.returns), next((e for e in extra if isinstance(e, str)), ""))
    names: list[tuple[Arg, bool]] = []
    keyword_only = False
    for e in extra:
        keyword_only |= isinstance(e, KwOnly)
        if isinstance(e, Arg):
            names.append((e, keyword_only))
    if names and len(names) != len(signature.parameters):
        raise TypeError(
            f"{signature.name} has {len(signature.parameters)} arguments, and {len(names)} py::arg name them"
        )
    found.named = bool(names)
    for i, p in enumerate(signature.parameters):
        made = _Argument(f"arg{i}", _caster(p.type))
        if names:
            arg, made.keyword_only = names[i]
            made.name, made.default, made.converts = arg.name, arg.default, arg.converts
        found.arguments.append(made)
    return found


def _refusal(name: str, overloads: Sequence[_Overload], given: tuple[Any, ...], keywords: dict[str, Any]) -> TypeError:
    lines = [f"{name}(): incompatible function arguments. The following argument types are supported:"]
    lines += [f"    {i}. {o}" for i, o in enumerate(overloads, 1)]
    invoked = ", ".join(map(repr, given))
    if keywords:
        invoked += f"{'; ' if given else ''}kwargs: {', '.join(f'{k}={v!r}' for k, v in keywords.items())}"
    return TypeError("\n".join([*lines, "", f"Invoked with: {invoked}"]))


def _dispatcher(name: str, overloads: list[_Overload]) -> Callable[..., Any]:
    """Returns the Python function of a name. Overloads are tried in order: first without conversions, if there are several."""
    passes = (False, True) if len(overloads) > 1 else (True,)

    def call(*given: Any, **keywords: Any) -> Any:
        for convert in passes:
            for overload in overloads:
                try:
                    values = overload.values(given, keywords, convert)
                except _RefusedError:
                    continue
                return overload.returns.cast(overload.function(*values))
        raise _refusal(name, overloads, given, keywords)

    call.__name__ = call.__qualname__ = name
    texts = [f"{name}{o}\n" + (f"\n{o.doc}\n" if o.doc else "") for o in overloads]
    if len(texts) > 1:
        texts = [f"{name}(*args, **kwargs)\nOverloaded function.\n", *(f"\n{i}. {t}" for i, t in enumerate(texts, 1))]
    call.__doc__ = "".join(texts)
    call.overloads = overloads  # type: ignore[attr-defined]
    return call


def bound(function: Callable[..., Any], args: Sequence[Any] = (), *, name: str = "") -> Callable[..., Any]:
    """Returns a host function as Python calls it.

    Arguments convert as by pybind11 with PyTorch's casters. A float is no ``int``, an integer beyond the C++ type is
    refused, None is an empty ``std::optional`` and no ``at::Tensor``, and a list or a tuple is a ``std::vector``. Of
    results, a ``std::vector`` is a list, and an undefined tensor None. Arguments have keywords and defaults by
    ``py::arg`` only; a default of the C++ function holds for calls in C++.

    Args:
        function: a translated function with the attribute ``signature``.
        args: what ``m.def`` has behind the function: :class:`Arg` objects, a docstring, :class:`KwOnly`.
        name: the Python name; by default the function's.

    Raises:
        TypeError: raised by a call; no conversion. The message is pybind11's.
    """
    overload = _overload(function, args)
    return _dispatcher(name or function.signature.name, [overload])  # type: ignore[attr-defined]


class _Place(Reference):
    """``m.attr("x")`` and ``m.doc()``, which C++ assigns to."""

    __slots__ = ("members", "name")

    def __init__(self, members: dict[str, Any], name: str) -> None:
        self.members, self.name = members, name

    @property
    def value(self) -> Any:
        return self.members[self.name]

    @value.setter
    def value(self, value: Any) -> None:
        self.members[self.name] = _as_python(value)

    def assign(self, value: Any) -> None:
        self.value = value


word("pybind11::accessor", "struct accessor { template <class T> void operator=(T&& value); };")(_Place)


@word(
    "pybind11::module_",
    "struct module_ { template <class F, class... X> module_& def(const char* name, F&& f, const X&... extra);"
    " accessor attr(const char* name); accessor doc(); module_ def_submodule(const char* name, const char* doc = nullptr); };"
    " using module = module_;",
)
class Module:
    """The module of ``PYBIND11_MODULE``.

    Attributes:
        name: its name.
        members: what it defines: functions as Python calls them, values, modules, and ``__doc__``.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.members: dict[str, Any] = {}

    def def_(self, name: str, function: Callable[..., Any], *extra: Any) -> "Module":
        """Defines a function; a second one of the same name is an overload."""
        before = getattr(self.members.get(name), "overloads", [])
        self.members[name] = _dispatcher(name, [*before, _overload(function, extra)])
        return self

    def refuse(self, why: str, *names: str) -> None:
        """Notes a statement without a translation. What it would define raises where it is called.

        Args:
            why: the place and the construct.
            names: what it would define.
        """
        for name in names:
            self.members.setdefault(name, refusing(why))
        if not names:
            warnings.warn(why, UserWarning, stacklevel=2)

    def attr(self, name: str) -> _Place:
        return _Place(self.members, name)

    def doc(self) -> _Place:
        return _Place(self.members, "__doc__")

    def def_submodule(self, name: str, doc: str | None = None) -> "Module":
        inner = self.members.setdefault(name, Module(f"{self.name}.{name}"))
        if doc:
            inner.members["__doc__"] = doc
        return inner


def refusing(why: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise NotTranslated(why)

    return call


@word("pybind11::call_guard", "template <class... G> struct call_guard {};")
def _call_guard() -> None:
    """A guard around calls: the GIL is Python's matter here."""


word("pybind11::gil_scoped_release", "struct gil_scoped_release { gil_scoped_release(); ~gil_scoped_release(); };")(
    _call_guard
)
word("pybind11::gil_scoped_acquire", "struct gil_scoped_acquire { gil_scoped_acquire(); ~gil_scoped_acquire(); };")(
    _call_guard
)


@word("torch::wrap_pybind_function", "template <class F> F wrap_pybind_function(F f);")
def _wrapped(function: Any) -> Any:
    """PyTorch's translation of errors, which translated functions have anyway."""
    return function


declare("#define PYBIND11_MODULE(name, m) void cupyops_module(pybind11::module_& m)")


# torch.library


@dataclass
class _Operator:
    """An operator of ``torch.library``.

    Attributes:
        schema: with the namespace.
        library: holds the registration.
        functions: the translated functions by dispatch key, ``""`` for all.
        keys: the dispatch keys that PyTorch has a function for.
    """

    schema: str
    library: torch.library.Library
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def register(self, key: str, function: Callable[..., Any]) -> None:
        """Registers a function. A function for CUDA also serves CPU tensors, while kernels are simulated."""
        self.functions[key] = function
        for k in ("CUDA", "CPU") if key == "CUDA" else (key,):
            if k not in self.keys:
                self.keys.add(k)
                self.library.impl(self.schema.partition("(")[0].rpartition("::")[2], self._kernel(k), k)

    def _kernel(self, key: str) -> Callable[..., Any]:
        """Returns the function for a dispatch key, which calls the newest translated one."""
        arguments = torch._C.parse_schema(self.schema).arguments

        def call(*given: Any, **keywords: Any) -> Any:
            # PyTorch leaves out what has its default.
            values = [*given]
            values += [keywords.get(a.name, a.default_value) for a in arguments[len(given) :]]
            # Host code sees host memory as a GPU's then.
            simulated = key == "CPU" and "CUDA" in self.functions and simulator.enabled()
            function = self.functions.get("CUDA" if simulated else key) or self.functions.get("")
            if function is None:
                raise NotImplementedError(
                    f"Could not run '{self.schema.partition('(')[0]}' with arguments from the '{key}' backend. "
                    "cupyops.simulate() runs its CUDA kernels on CPU tensors."
                )
            signature: Signature = function.signature  # type: ignore[attr-defined]
            loaded = [_caster(p.type).load(v, True) for p, v in zip(signature.parameters, values, strict=True)]
            return _caster(signature.returns).cast(function(*loaded))

        return call


_OPERATORS: dict[str, _Operator] = {}


def _schema(name: str, signature: Signature) -> str:
    """Returns the schema that PyTorch infers from a function."""
    casters = [_caster(p.type) for p in signature.parameters]
    result = _caster(signature.returns)
    if not all(c.schema for c in (*casters, result)):
        raise TypeError(f"{name}: the types of {signature.name} have no schema")
    listed = ", ".join(f"{c.schema} _{i}" for i, c in enumerate(casters))
    return f"{name}({listed}) -> {result.schema}"


@word(
    "torch::Library",
    "struct Library { Library& def(const char* schema); template <class F> Library& def(const char* schema, F&& f);"
    " template <class F> Library& impl(const char* name, F&& f);"
    " template <class K, class F> Library& impl(const char* name, K key, F&& f); };",
)
class Library:
    """The library of ``TORCH_LIBRARY``, which registers operators with ``torch.library``.

    A program that is loaded again replaces the functions of its operators.

    Args:
        namespace: the namespace of the operators.
        key: the dispatch key of ``TORCH_LIBRARY_IMPL``; ``""`` for all.
    """

    def __init__(self, namespace: str, key: str = "") -> None:
        self.namespace, self.key = namespace, key

    def def_(self, schema: str, *extra: Any) -> "Library":
        """Defines an operator by its schema, with a function for all keys or without one."""
        function = next((e for e in extra if hasattr(e, "signature")), None)
        if "(" not in schema:
            if function is None:
                raise TypeError(f"{schema}: neither a schema nor a function")
            schema = _schema(schema, function.signature)
        schema = schema if "::" in schema.partition("(")[0] else f"{self.namespace}::{schema}"
        name = schema.partition("(")[0]
        known = _OPERATORS.get(name)
        if known is not None and str(torch._C.parse_schema(known.schema)) != str(torch._C.parse_schema(schema)):
            raise RuntimeError(f"{name} has been defined with another schema: {known.schema}")
        if known is None:
            library = torch.library.Library(self.namespace, "FRAGMENT")
            library.define(schema.partition("::")[2])
            _OPERATORS[name] = _Operator(schema, library)
        if function is not None:
            _OPERATORS[name].register("", function)
        return self

    def impl(self, name: str, *what: Any) -> "Library":
        """Registers a function for a dispatch key: ``impl(name, f)`` or ``impl(name, key, f)``."""
        *keys, function = what
        key = str(getattr(keys[0], "name", keys[0])).rpartition("::")[2] if keys else self.key
        name = name if "::" in name else f"{self.namespace}::{name}"
        if name not in _OPERATORS:
            raise RuntimeError(f"{name} is implemented, and not defined")
        _OPERATORS[name].register(key, function)
        return self


def library_of(function: str) -> Library:
    """Returns the library for a function that ``TORCH_LIBRARY`` and its like declare, by the function's name."""
    namespace, key, _ = function.removeprefix("cupyops_library_").rsplit("__", 2)
    return Library(namespace, key)


# The arguments may be macros, such as TORCH_EXTENSION_NAME. A namespace may have several blocks.
declare("""
#define CUPYOPS_LIBRARY_NAMED(ns, key, n, m) static void cupyops_library_##ns##__##key##__##n(torch::Library& m)
#define CUPYOPS_LIBRARY(ns, key, n, m) CUPYOPS_LIBRARY_NAMED(ns, key, n, m)
#define TORCH_LIBRARY(ns, m) CUPYOPS_LIBRARY(ns, , __COUNTER__, m)
#define TORCH_LIBRARY_FRAGMENT(ns, m) CUPYOPS_LIBRARY(ns, , __COUNTER__, m)
#define TORCH_LIBRARY_IMPL(ns, key, m) CUPYOPS_LIBRARY(ns, key, __COUNTER__, m)
#define TORCH_FN(f) (f)
""")
