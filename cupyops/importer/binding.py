"""Calls of translated host functions from Python, as pybind11 makes them.

:func:`bound` converts arguments and results as pybind11 3 does with PyTorch's casters. :class:`Module` is the ``m`` of
``PYBIND11_MODULE``.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import cublas, standard  # noqa: F401  their C++ text comes first
from .casters import REQUIRED, Caster, RefusedError, Signature, as_python, caster
from .errors import NotTranslated
from .references import Reference
from .words import declare, word

__all__ = ["Arg", "KwOnly", "Module", "bound", "call_bound", "refusing"]


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
        self.default = as_python(default)
        return self

    def noconvert(self, on: bool = True) -> "Arg":
        self.converts = not on
        return self

    def none(self, on: bool = True) -> "Arg":
        return self  # no caster of ours gives a null pointer for None where C++ has no optional


@word("pybind11::kw_only", "struct kw_only {};")
class KwOnly:
    """The arguments after it have keywords only."""


@dataclass
class _Argument:
    name: str
    caster: Caster
    default: Any = REQUIRED
    converts: bool = True
    keyword_only: bool = False

    @property
    def rest(self) -> str:
        """``"args"`` or ``"kwargs"`` of an argument that takes what the others leave; ``""``."""
        return self.caster.argument if self.caster.argument in ("args", "kwargs") else ""

    def __str__(self) -> str:
        if self.rest:
            return f"*{self.rest}" if self.rest == "args" else f"**{self.rest}"
        return f"{self.name}: {self.caster.argument}{'' if self.default is REQUIRED else f' = {self.default!r}'}"


@dataclass
class _Overload:
    """A C++ function of a name."""

    function: Callable[..., Any]
    arguments: list[_Argument]
    returns: Caster
    doc: str = ""
    named: bool = False
    positional: int = 0
    rests: frozenset[str] = frozenset()

    def __str__(self) -> str:
        parts: list[str] = []
        for a in self.arguments:
            if a.keyword_only and not {"*", "*args"} & {*parts}:
                parts.append("*")
            parts.append(str(a))
        return f"({', '.join(parts)}) -> {self.returns.result}"

    def values(self, given: tuple[Any, ...], keywords: dict[str, Any], convert: bool) -> list[Any]:
        """Returns the C++ arguments of a call, or raises RefusedError."""
        left = dict(keywords)
        values: list[Any] = []
        if len(given) > self.positional and "args" not in self.rests:
            raise RefusedError
        i = 0
        for a in self.arguments:
            if self.rests and a.rest:
                values.append(given[self.positional :] if a.rest == "args" else left)
                continue
            if i < min(len(given), self.positional) and not a.keyword_only:
                value, i = given[i], i + 1
            else:
                value = left.pop(a.name, a.default) if self.named else a.default
                if value is REQUIRED:
                    raise RefusedError
            values.append(a.caster.load(value, convert and a.converts))
        if left and "kwargs" not in self.rests:
            raise RefusedError
        return values


def _overload(function: Callable[..., Any], extra: Sequence[Any]) -> _Overload:
    signature: Signature | None = getattr(function, "signature", None)
    if signature is None:
        raise NotTranslated(f"{getattr(function, '__name__', function)!r} is bound, and its C++ types are not known")
    found = _Overload(function, [], caster(signature.returns), next((e for e in extra if isinstance(e, str)), ""))
    names: list[tuple[Arg, bool]] = []
    keyword_only = False
    for e in extra:
        keyword_only |= isinstance(e, KwOnly)
        if isinstance(e, Arg):
            names.append((e, keyword_only))
    made_of = [_Argument(f"arg{i}", caster(p.type)) for i, p in enumerate(signature.parameters)]
    plain = [a for a in made_of if not a.rest]
    if names and len(names) != len(plain):
        raise TypeError(f"{signature.name} has {len(plain)} arguments, and {len(names)} py::arg name them")
    found.named = bool(names)
    for made in made_of:
        if names and not made.rest:
            arg, made.keyword_only = names[plain.index(made)]
            made.name, made.default, made.converts = arg.name, arg.default, arg.converts
        found.arguments.append(made)
    found.positional = sum(not a.keyword_only for a in plain)
    found.rests = frozenset(a.rest for a in made_of if a.rest)
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
                except RefusedError:
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

    Arguments convert as by pybind11 with PyTorch's casters. A float is not an ``int``, an integer beyond the C++ type is
    refused, None is an empty ``std::optional`` and no ``at::Tensor``, and a list or a tuple is a ``std::vector``. A
    result that is a ``std::vector`` becomes a list, and an undefined tensor None. Arguments have keywords and defaults
    by ``py::arg`` only; a default of the C++ function holds for calls in C++.

    Args:
        function: a translated function with the attribute ``signature``.
        args: what ``m.def`` has after the function: :class:`Arg` objects, a docstring, :class:`KwOnly`.
        name: the Python name; by default the function's.

    Raises:
        TypeError: raised by a call; no conversion. The message is pybind11's.
    """
    overload = _overload(function, args)
    return _dispatcher(name or function.signature.name, [overload])  # type: ignore[attr-defined]


def call_bound(before: Any, call: Any, name: str) -> Any:
    """Returns a function as Python calls it, with earlier functions of the same name as its overloads."""
    return _dispatcher(name, [*getattr(before, "overloads", []), *call.overloads])


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
        self.members[self.name] = as_python(value)

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
        """Records a statement without a translation. A call of a function that it would define raises the error.

        Args:
            why: the place and the construct. names: the names that it would define.
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
