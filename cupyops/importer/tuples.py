"""std::pair, std::tuple and std::optional, whose values are Python tuples, and None or the value.

A method that changes its object gets a reference to it: ``o.reset()`` is ``std.optional_.reset(r)``.
"""

from collections.abc import Callable
from typing import Any

from . import traits  # noqa: F401  its C++ text comes first
from .numbers import Number
from .references import Element, Reference
from .words import word, words

__all__ = ["TupleElement", "construct", "convert", "copied", "default"]


def copied(value: Any) -> Any:
    """Returns a value as C++ copies it: containers and structs are copied, also within a tuple."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    copy: Callable[[], Any] | None = getattr(value, "copy", None)
    return value if copy is None or isinstance(value, type) else copy()


def convert(kind: Any, value: Any) -> Any:
    """Returns a copy of a value, converted to a type if that is a number."""
    return kind(value) if isinstance(kind, Number) else copied(value)


def default(kind: Any) -> Any:
    """Returns the value of ``T()``: zero, an empty container, a null pointer.

    Args:
        kind: the type, as typed words get it.
    """
    if isinstance(kind, (Number, type)):
        return kind()
    name, *arguments = (kind,) if isinstance(kind, str) else kind or ("*",)
    found = words().get(name)
    if found is None:
        return None
    return found.object(*arguments) if found.typed else found.object()


def construct(kind: Any, *arguments: Any) -> Any:
    """Returns the value of ``T(arguments...)``."""
    if not arguments:
        return default(kind)
    if isinstance(kind, type) and not (len(arguments) == 1 and isinstance(arguments[0], kind)):
        return kind(*arguments)
    if len(arguments) == 1:
        return convert(kind, *arguments)
    name, *types = (kind,) if isinstance(kind, str) else kind
    found = words()[name]
    return found.object(*types, *arguments) if found.typed else found.object(*arguments)


class TupleElement(Reference):
    """A reference to an element of a tuple. An assignment replaces the whole tuple in its variable."""

    __slots__ = ("index", "place")

    def __init__(self, place: Reference, index: int) -> None:
        self.place, self.index = place, index

    @property
    def value(self) -> Any:
        return self.place.value[self.index]

    @value.setter
    def value(self, value: Any) -> None:
        old = self.place.value
        self.place.value = (*old[: self.index], value, *old[self.index + 1 :])


def _is_type(kind: Any) -> bool:
    if isinstance(kind, tuple):
        return bool(kind) and isinstance(kind[0], str) and (kind[0] in ("*", "[]") or kind[0] in words())
    return isinstance(kind, (Number, type)) or (isinstance(kind, str) and kind in words())


_COMPARED = " ".join(
    f"template <class U> bool operator{o}(const U&) const;" for o in ("==", "!=", "<", ">", "<=", ">=")
)


@word(
    "std::pair",
    f"""template <class A, class B> struct pair {{ A first; B second; using first_type = A; using second_type = B;
  constexpr pair() {{}} constexpr pair(const A& a, const B& b) : first(a), second(b) {{}}
  template <class C, class D> constexpr pair(const pair<C, D>& p) : first(p.first), second(p.second) {{}} {_COMPARED} }};
template <class A, class B> pair<decay_t<A>, decay_t<B>> make_pair(A&&, B&&);
template <class... T> struct tuple {{ template <class E> static constexpr bool _has = (__is_same(E, T) || ...);
  tuple(); tuple(const T&...);
  template <class... U> tuple(const tuple<U...>&); template <class A, class B> tuple(const pair<A, B>&);
  template <class... U> tuple& operator=(const tuple<U...>&); template <class A, class B> tuple& operator=(const pair<A, B>&);
  {_COMPARED} }};
template <> struct tuple<> {{ tuple(); {_COMPARED} }};
template <class... T> tuple<decay_t<T>...> make_tuple(T&&...);
template <class... T> tuple<T&...> tie(T&...);
template <class T> struct tuple_size;
template <class... T> struct tuple_size<tuple<T...>> : integral_constant<size_t, sizeof...(T)> {{}};
template <class... T> struct tuple_size<const tuple<T...>> : integral_constant<size_t, sizeof...(T)> {{}};
template <class T> inline constexpr size_t tuple_size_v = tuple_size<T>::value;
template <size_t i, class T> struct tuple_element;
template <size_t i, class T> struct tuple_element<i, const T> {{ using type = const typename tuple_element<i, T>::type; }};
template <size_t i, class... T> struct tuple_element<i, tuple<T...>> {{ using type = __type_pack_element<i, T...>; }};
template <size_t i, class A, class B> struct tuple_element<i, pair<A, B>> {{ using type = __type_pack_element<i, A, B>; }};
template <size_t i, class T> using tuple_element_t = typename tuple_element<i, T>::type;
template <size_t i, class T> tuple_element_t<i, T>& get(const T&);
template <class E, class T> enable_if_t<T::template _has<E>, E>& get(const T&);
struct ignore_t {{ template <class T> const ignore_t& operator=(const T&) const; }}; inline constexpr ignore_t ignore{{}};""",
    typed=True,
    methods="std.pair_",
)
def pair(first_type: Any, second_type: Any, *values: Any) -> tuple[Any, Any]:
    """Returns a pair of its two values, of another pair, or of none."""
    return _made((first_type, second_type), values)


def _made(kinds: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    if not values:
        return tuple(map(default, kinds))
    if len(values) != len(kinds):
        (values,) = values
    return tuple(map(convert, kinds, values))


@word("std::tuple", typed=True, methods="std.tuple_")
def tuple_of(*types_and_values: Any) -> tuple[Any, ...]:
    """Returns a tuple of its values, of another tuple, or of none."""
    count = next((i for i, value in enumerate(types_and_values) if not _is_type(value)), len(types_and_values))
    *_, last = types_and_values or (None,)
    if isinstance(last, tuple) and len(last) == len(types_and_values) - 1 <= count:
        count = len(last)  # the other tuple may look like a type
    values = types_and_values[count:]
    if count == 0:
        return copied(values[0]) if len(values) == 1 and isinstance(values[0], tuple) else copied(values)
    return _made(types_and_values[:count], values)


@word("std::pair_::first")
def first(p: tuple[Any, Any]) -> Any:
    return p[0]


@word("std::pair_::second")
def second(p: tuple[Any, Any]) -> Any:
    return p[1]


@word("std::pair_::first_reference")
def first_reference(p: Reference) -> TupleElement:
    return TupleElement(p, 0)


@word("std::pair_::second_reference")
def second_reference(p: Reference) -> TupleElement:
    return TupleElement(p, 1)


@word("std::make_tuple")
@word("std::make_pair")
def make_tuple(*values: Any) -> tuple[Any, ...]:
    return tuple(map(copied, values))


class Tied(tuple[Reference, ...]):
    """The references of ``std::tie(a, b)``."""

    def assign(self, values: tuple[Any, ...]) -> None:
        """Assigns the elements of a tuple to the variables, ``std::tie(a, b) = t``."""
        for place, value in zip(self, values, strict=True):
            if isinstance(place, Reference):
                place.value = copied(value)
            elif place is not None:  # None is std::ignore
                place.assign(value)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(p.value if isinstance(p, Reference) else p for p in self)


@word("std::tie")
def tie(*places: Any) -> Tied:
    return Tied(places)


word("std::ignore")(None)


@word("std::get", typed=True)
def get(which: Any, kind: tuple[Any, ...], value: Any) -> Any:
    """Returns the element of a tuple, a pair or an array, by its index or its type.

    Args:
        which: the index, or the type.
        kind: the type of the whole.
        value: the whole.
    """
    return value[which if isinstance(which, int) else kind.index(which) - 1]


@word("std::get_reference", typed=True)
def get_reference(which: Any, kind: tuple[Any, ...], place: Any) -> Reference:
    """Returns a reference to an element, ``std::get<0>(t) = x``, of a tuple in a place, or of an array."""
    index = which if isinstance(which, int) else kind.index(which) - 1
    return TupleElement(place, index) if isinstance(place, Reference) else Element(place, index)


@word(
    "std::optional",
    f"""struct nullopt_t {{}}; inline constexpr nullopt_t nullopt{{}};
template <class T> struct optional {{ using value_type = T; optional(); optional(nullopt_t); optional(const T&);
  template <class U, class V = decay_t<U>, bool other = !__is_arithmetic(V) && !__is_same(V, T) && !__is_same(V, optional),
    class = enable_if_t<other && __is_convertible(U, T)>> optional(U&&);
  template <class U> optional(const optional<U>&);
  optional& operator=(nullopt_t); optional& operator=(const optional&); bool has_value() const; explicit operator bool() const;
  T& value() const; T& operator*() const; T* operator->() const; T value_or(const T&) const; void reset();
  template <class... A> T& emplace(A&&...); {_COMPARED} }};
template <class T> optional<decay_t<T>> make_optional(T&&);""",
    typed=True,
    methods="std.optional_",
)
def optional(kind: Any, value: Any = None) -> Any:
    return None if value is None else convert(kind, value)


word("std::nullopt")(None)
word("std::nullopt_t")(lambda: None)
word("std::make_optional")(copied)


@word("std::optional_::operator_bool")
@word("std::optional_::has_value")
def has_value(o: Any) -> bool:
    return o is not None


@word("std::optional_::deref")
@word("std::optional_::value")
def value(o: Any) -> Any:
    if o is None:
        raise RuntimeError("bad optional access")
    return o


@word("std::optional_::value_or")
def value_or(o: Any, other: Any) -> Any:
    return copied(other if o is None else o)


@word("std::optional_::reset")
def reset(o: Reference) -> None:
    o.value = None


@word("std::optional_::emplace")
def emplace(o: Reference, value: Any) -> Any:
    o.value = copied(value)
    return o.value
