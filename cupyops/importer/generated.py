"""The names that generated code uses besides those that stand for C++'s."""

from functools import cache
from typing import Any

from . import autograd, classes, cublas, device_algorithms, functional, python_objects, random_state, standard, thrust  # noqa: F401  their import declares the words
from .casters import host
from .characters import char_at, distance, moved, string_at
from .errors import NotTranslated
from .memory import DevicePointer
from .numbers import NUMBERS, divide, quotient, remainder
from .references import Bits, Element, Member, Pointer, Reference, Variable, flat_row, taken
from .tuples import TupleElement, copied
from .words import namespaces

__all__ = ["Struct", "assign", "names", "pointer_cast", "throw"]


class Struct:
    """A struct of the user. Generated classes have `fields`: the names, the types and the offsets of the members.

    Attributes:
        references: the names of the members that are references, which a copy shares.
    """

    fields: tuple[tuple[Any, ...], ...] = ()
    references: frozenset[str] | set[str] = frozenset()

    def __init__(self, *values: Any) -> None:
        for (name, *_), value in zip(self.fields, values, strict=False):
            setattr(self, name, value)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the struct's ``operator()``, as algorithms do."""
        return self.operator_call(*arguments)

    operator_call: Any = None  # of a struct that has one

    def values(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name, *_ in self.fields)
        return tuple(v.value if isinstance(v, Reference) else v for v in values)

    def copy(self) -> "Struct":
        """Returns a copy, as C++ makes one for an argument by value."""
        made = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(made, name, value if name in self.references else copied(value))
        return made

    @classmethod
    def part(cls, whole: "Struct") -> "Struct":
        """Returns a copy of the part of a derived object that its base class has."""
        made = object.__new__(cls)
        for name, *_ in cls.fields:
            value = getattr(whole, name)
            setattr(made, name, value if name in cls.references else copied(value))
        return made

    def assign(self, other: "Struct") -> "Struct":
        """Takes the values of another one."""
        self.__dict__.update(other.copy().__dict__)
        return self

    assign_base = assign

    def as_argument(self) -> tuple[Any, ...]:
        """Returns the nested tuple that a launch passes by value."""
        return tuple(v.as_argument() if hasattr(v, "as_argument") else v for v in self.values())


def assign(place: Any, value: Any) -> Any:
    """Assigns to a reference, and returns the value, as C++'s assignment does."""
    if isinstance(place, Reference):
        place.value = value
    else:
        place.assign(value)
    return value


def address_of(pointer: Pointer | None) -> int:
    """Returns a pointer as an integer, ``reinterpret_cast<int64_t>(p)``."""
    if pointer is not None and not isinstance(pointer, DevicePointer):
        raise NotTranslated("the address of a variable of host code")
    return 0 if pointer is None else pointer.address()


def pointer_cast(pointer: Pointer | None, kind: Any) -> Pointer | None:
    """Returns a pointer as one to another type. The null pointer stays null."""
    if isinstance(pointer, str):
        raise NotTranslated("a text as memory of another type")
    return None if pointer is None else pointer.cast(kind)


def throw(error: BaseException | None = None) -> Any:
    """Raises, where C++ throws inside an expression."""
    if error is None:
        raise RuntimeError("throw without an exception")
    raise error


def names(kernels: Any) -> dict[str, Any]:
    """Returns the globals of a program's generated code."""
    return {**_shared(), "kernels": kernels, "statics": {}}


@cache
def _shared() -> dict[str, Any]:
    own: tuple[Any, ...] = (
        Bits,
        Element,
        Member,
        NotTranslated,
        Pointer,
        Struct,
        TupleElement,
        Variable,
        address_of,
        assign,
        char_at,
        copied,
        distance,
        divide,
        flat_row,
        host,
        moved,
        pointer_cast,
        quotient,
        remainder,
        string_at,
        taken,
        throw,
    )
    return {**dict(namespaces()), **NUMBERS, **{x.__name__: x for x in own}, "left_out": object()}


def __getattr__(name: str) -> Any:
    """Returns a name of generated code, for a file that has such code: ``from cupyops.importer.generated import at, std``."""
    try:
        return _shared()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
