"""The C++ names that host code uses of the standard library, CUDA and PyTorch, each with its Python meaning.

A word is declared where it is implemented: the decorator has its C++ declaration, which clang reads, and the Python
object below it runs in its place. A name therefore either has both or is unknown to clang, which reports an error.

Generated code calls a word by its C++ name with dots: ``std::min(a, b)`` is ``std.min(a, b)``.
"""

import keyword
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar

__all__ = [
    "Enumeration",
    "Namespace",
    "Word",
    "constants",
    "declarations",
    "declare",
    "enumeration",
    "known",
    "methods",
    "namespaces",
    "own_namespace",
    "section",
    "word",
    "words",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Word:
    """A C++ name with its Python meaning.

    Attributes:
        name: the qualified C++ name, ``"std::min"``; ``"cudaGetLastError"`` at global scope.
        object: what generated code uses. A function gets the C++ arguments, without those that the call leaves out. A
            non-const reference to a number, a pointer, a string or a tensor is a :class:`.references.Reference`.
        typed: the function gets the template arguments first: a type of numbers (:mod:`.numbers`), the Python class of a
            struct, an integer, or the C++ spelling of another type.
        methods: of a class whose values are other Python objects, such as tensors: the namespace of functions that stand
            for its methods, ``"at"``. ``x.size(0)`` is then ``at.size(x, 0)``. ``""`` if the Python class has the methods.
    """

    name: str
    object: Any
    typed: bool = False
    methods: str = ""


class Namespace(SimpleNamespace):
    """A C++ namespace in generated code. It is also the function of its name: ``at::cuda`` is a namespace and a method of tensors."""

    def __call__(self, *arguments: Any) -> Any:
        return vars(self)["__call__"](*arguments)


_WORDS: dict[str, Word] = {}
_DECLARATIONS: list[tuple[str, frozenset[str]]] = []
_SECTION: frozenset[str] = frozenset()


def section(*names: str) -> None:
    """Has clang read the declarations that follow only for programs with one of these identifiers; without names, for all.

    A program rarely uses these words, and the parse of a header takes time.
    """
    global _SECTION
    _SECTION = frozenset(names)


def declare(text: str) -> None:
    """Adds C++ text to the header of words: macros, aliases, and what needs no Python meaning."""
    _DECLARATIONS.append((text, _SECTION))


def word(name: str, declaration: str = "", *, typed: bool = False, methods: str = "") -> Callable[[T], T]:
    """Declares a C++ name, and gives it the decorated function, class or value.

    Args:
        name: the qualified C++ name.
        declaration: its declarations, all overloads, without the namespaces of `name`; ``""`` if another word's
            declaration has it, as a class has its static methods.
        typed: see :class:`Word`.
        methods: see :class:`Word`.

    Words are declared in the order of the modules' text. A class comes before the functions that use it.
    """
    *spaces, _ = name.split("::")
    if declaration:
        opened = "".join(f"namespace {space} {{ " for space in spaces)
        declare(f"{opened}{declaration}{' }' * len(spaces)}")

    def keep(value: T) -> T:
        assert name not in _WORDS, name
        _WORDS[name] = Word(name, value, typed, methods)
        return value

    return keep


def words() -> dict[str, Word]:
    """Returns all words by their C++ names. :mod:`.tree` and :mod:`.generated` import the modules that declare them."""
    return _WORDS


def declarations(names: Set[str]) -> str:
    """Returns the C++ text of the declarations that a program with these identifiers may use, in their order."""
    return "\n".join(text for text, needs in _DECLARATIONS if not needs or not needs.isdisjoint(names)) + "\n"


def namespaces() -> Iterator[tuple[str, Any]]:
    """Yields the names of generated code with their objects: the namespaces, and the words at global scope."""
    roots: dict[str, Any] = {}
    for name, found in words().items():
        *spaces, last = name.split("::")
        last = f"{last}_" if keyword.iskeyword(last) else last
        place: Any = roots
        for space in spaces:
            inner = (place if isinstance(place, dict) else vars(place)).get(space)
            if inner is None or isinstance(inner, FunctionType):
                function, inner = inner, _OWN.get(space, Namespace)()
                if function is not None:
                    vars(inner)["__call__"] = function
                if isinstance(place, dict):
                    place[space] = inner
                else:
                    setattr(place, space, inner)
            place = inner
        if isinstance(place, dict):
            place[last] = found.object
        elif isinstance(place, Namespace):
            known_space = vars(place).get(last)
            if isinstance(known_space, Namespace) and isinstance(found.object, FunctionType):
                vars(known_space)["__call__"] = found.object
            else:
                setattr(place, last, found.object)
    yield from roots.items()


# The Python classes of namespaces that know more names than the words: `at` has every operator of PyTorch.
_OWN: dict[str, type[Namespace]] = {}


def known(name: str) -> bool:
    """Returns whether a C++ name has a Python meaning: it is a word, or its namespace finds it, as `at` finds operators."""
    return name in words() or ("::" in name and name.partition("::")[0] in _OWN)


def own_namespace(name: str, kind: type[Namespace]) -> None:
    """Makes a namespace of generated code an object whose ``__getattr__`` finds further names."""
    _OWN[name] = kind


class Enumeration(Namespace):
    """A C++ enumeration whose values are other Python objects: the enumerators are words inside it."""

    def __call__(self, value: Any = None) -> Any:
        return value


def enumeration(name: str, values: dict[str, Any], base: str = "int") -> None:
    """Declares an enumeration with its enumerators, in C++'s order from zero."""
    word(name, f"enum class {name.split('::')[-1]} : {base} {{ {', '.join(values)} }};")(Enumeration())
    for enumerator, value in values.items():
        word(f"{name}::{enumerator}")(value)


def constants(kind: str, values: dict[str, tuple[str, Any]]) -> None:
    """Declares constants ``c10::kFloat`` of an enumeration: each with its enumerator and its Python value."""
    listed = ", ".join(f"{name} = {kind}::{enumerator}" for name, (enumerator, _) in values.items())
    declare(f"namespace c10 {{ constexpr {kind} {listed}; }}")
    for name, (_, value) in values.items():
        word(f"c10::{name}")(value)


def methods(space: str, functions: dict[str, Callable[..., Any]]) -> None:
    """Gives the methods of a class whose values are other Python objects their functions."""
    for name, function in functions.items():
        word(f"{space}::{name}")(function)
