"""``py::class_`` and ``py::enum_``: Python's classes of the user's structs and enumerations.

In Python, a struct is an object of a class whose attributes and methods convert values as pybind11 does.
"""

from collections.abc import Callable
from typing import Any

from .binding import Arg, Module, bound, call_bound, refusing
from .casters import Parameter, Signature, bound_classes, cast_value, load_value
from .errors import NotTranslated
from .words import declare, word

__all__ = ["Enumeration", "StructClass"]


@word(
    "pybind11::init",
    "template <class... A> struct init { init(); template <class F> init(F f); }; template <class F> init(F) -> init<>;",
    typed=True,
)
class Init:
    """``py::init<A...>()``, a constructor by the types of its parameters, or ``py::init(f)``, a function that makes the object."""

    def __init__(self, *types: Any) -> None:
        self.function = types[0] if types and hasattr(types[0], "signature") else None
        self.types = () if self.function else types


declare("namespace pybind11 { struct dynamic_attr { dynamic_attr(); }; enum class return_value_policy { automatic, automatic_reference,"
        " take_ownership, copy, move, reference, reference_internal }; template <class T> struct keep; }")  # fmt: skip
word("pybind11::dynamic_attr")(lambda: None)
for _name in ("automatic", "automatic_reference", "take_ownership", "copy", "move", "reference", "reference_internal"):
    word(f"pybind11::return_value_policy::{_name}")(None)


@word(
    "pybind11::class_",
    """template <class T, class... O> struct class_ { template <class... X> class_(module_&, const char* name, const X&...);
  template <class... A, class... X> class_& def(init<A...>, const X&...);
  template <class F, class... X> class_& def(const char* name, F&& f, const X&...);
  template <class F, class... X> class_& def_static(const char* name, F&& f, const X&...);
  template <class M, class... X> class_& def_readwrite(const char* name, M T::*, const X&...);
  template <class M, class... X> class_& def_readonly(const char* name, M T::*, const X&...);
  template <class F, class... X> class_& def_property_readonly(const char* name, F&& f, const X&...);
  template <class F, class G> class_& def_property(const char* name, F&& get, G&& set); };""",
    typed=True,
)
class StructClass:
    """The Python class of a struct.

    Attributes:
        struct: the generated class of the struct.
        made: the class whose objects Python has.
    """

    def __init__(self, struct: type, *arguments: Any) -> None:
        module, name = next((m, arguments[i + 1]) for i, m in enumerate(arguments) if isinstance(m, Module))
        self.struct = struct
        self.made: Any = type(name, (), {"__slots__": ("held", "__weakref__"), "__init__": _refuse_to_make})
        bound_classes[struct] = self.made
        module.members[name] = self.made

    def def_(self, name: Any, *arguments: Any) -> "StructClass":
        """Defines a constructor or a method; a second one of the same name is an overload."""
        if isinstance(name, Init):
            self._constructor(name, arguments)
            return self
        function, *extra = arguments
        signed = _of_object(function, self.struct)
        before = getattr(self.made, name, None)
        call = bound(signed, [Arg("self"), *extra] if any(isinstance(e, Arg) for e in extra) else extra, name=name)
        call = call_bound(before, call, name)
        setattr(self.made, name, call)
        return self

    def refuse(self, why: str, *names: str) -> None:
        """Records a definition without a translation, which raises an error where it is called."""
        for name in names or ("__init__",):
            setattr(self.made, name, refusing(why))

    def def_static(self, name: str, function: Callable[..., Any], *extra: Any) -> "StructClass":
        setattr(self.made, name, staticmethod(bound(function, extra, name=name)))
        return self

    def def_readwrite(self, name: str, member: str, *_: Any) -> "StructClass":
        """Defines an attribute, whose values convert to the type of the member."""
        kind = self._type(member)

        def change(self: Any, value: Any) -> None:
            setattr(self.held, member, load_value(kind, value, name))

        setattr(self.made, name, property(lambda self: cast_value(kind, getattr(self.held, member)), change))
        return self

    def def_readonly(self, name: str, member: str, *_: Any) -> "StructClass":
        kind = self._type(member)
        setattr(self.made, name, property(lambda self: cast_value(kind, getattr(self.held, member))))
        return self

    def def_property_readonly(self, name: str, function: Callable[..., Any], *_: Any) -> "StructClass":
        setattr(self.made, name, property(bound(_of_object(function, self.struct), name=name)))
        return self

    def def_property(self, name: str, get: Callable[..., Any], change: Callable[..., Any]) -> "StructClass":
        reads, writes = (bound(_of_object(f, self.struct), name=name) for f in (get, change))
        setattr(self.made, name, property(reads, writes))
        return self

    def _type(self, member: str) -> Any:
        return next(kind for name, kind, *_ in self.struct.fields if name == member)  # type: ignore[attr-defined]

    def _constructor(self, init: Init, extra: tuple[Any, ...]) -> None:
        function: Any = init.function or self._of_types(init.types)
        make = call_bound(getattr(self.made, "_make", None), bound(function, extra, name="__init__"), "__init__")
        self.made._make = staticmethod(make)

        def initialize(self: Any, *given: Any, **keywords: Any) -> None:
            self.held = make(*given, **keywords).held

        self.made.__init__ = initialize

    def _of_types(self, types: tuple[Any, ...]) -> Any:
        """Returns the constructor with parameters of some types."""

        listed = [getattr(self.struct, n) for n in dir(self.struct) if n.startswith("construct_")]
        for found in listed:
            signature = getattr(found, "signature", None)
            if signature is not None and tuple(_plain(p.type) for p in signature.parameters) == tuple(
                map(_plain, types)
            ):
                return _with(found, Signature("__init__", self.struct, signature.parameters))
        fields = self.struct.fields  # type: ignore[attr-defined]
        if (listed and types) or len(types) > len(fields):
            raise NotTranslated(f"py::init of {self.struct.__name__} with the types {types}")
        parameters = tuple(Parameter(f"arg{i}", kind) for i, kind in enumerate(types))
        return _with(self.struct, Signature("__init__", self.struct, parameters))


def _plain(kind: Any) -> Any:
    return kind[1] if isinstance(kind, tuple) and kind[:1] == ("&",) else kind


def _with(function: Any, signature: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.signature = signature  # type: ignore[attr-defined]
    return call


def _of_object(function: Any, struct: type) -> Any:
    """Returns a method as a function whose first parameter is the object. A lambda has it already."""

    signature = getattr(function, "signature", None)
    if signature is None:
        raise NotTranslated(f"{getattr(function, '__name__', function)!r} is bound, and its C++ types are not known")
    if getattr(struct, function.__name__, None) is not function:
        return function
    return _with(
        function, Signature(signature.name, signature.returns, (Parameter("self", struct), *signature.parameters))
    )


def _refuse_to_make(self: Any, *_: Any, **__: Any) -> None:
    raise TypeError(f"{type(self).__name__}: No constructor defined!")


@word(
    "pybind11::enum_",
    "template <class T> struct enum_ { template <class... X> enum_(module_&, const char* name, const X&...);"
    " template <class... X> enum_& value(const char* name, T, const X&...); enum_& export_values(); void finalize(); };"
    " struct arithmetic { arithmetic(); };",
)
class Enumeration:
    """The Python class of an enumeration, whose values are integers with names."""

    def __init__(self, module: Module, name: str, *_: Any) -> None:
        self.module = module
        self.made: Any = type(name, (int,), {"__members__": {}, "__repr__": _shown_value, "name": property(_name_of)})
        module.members[name] = self.made

    def value(self, name: str, value: int, *_: Any) -> "Enumeration":
        self.made.__members__[name] = self.made(value)
        setattr(self.made, name, self.made.__members__[name])
        return self

    def export_values(self) -> "Enumeration":
        self.module.members.update(self.made.__members__)
        return self

    def finalize(self) -> None:
        """Ends a ``py::native_enum``."""


word("pybind11::arithmetic")(lambda: None)
word("pybind11::is_operator", "struct is_operator {};")(lambda: None)


def _name_of(value: Any) -> str:
    return next((n for n, v in type(value).__members__.items() if int(v) == int(value)), "???")


def _shown_value(value: Any) -> str:
    return f"<{type(value).__name__}.{_name_of(value)}: {int(value)}>"
