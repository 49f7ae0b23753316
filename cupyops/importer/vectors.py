"""std::vector, std::array and arrays, whose iterators are pointers."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from .exceptions import OutOfRangeError
from .numbers import NUMBERS
from .references import Element, Pointer
from .tuples import construct, convert, copied, default
from .words import declare, word

__all__ = ["ITERATORS", "ReversePointer", "Vector", "elements", "values_between"]

E = TypeVar("E")


class Vector(list[E]):
    """``std::vector``, ``std::array``, an array, and PyTorch's references to them, with C++'s methods.

    Attributes:
        kind: the type of the elements, as typed words get it; None if it is not known.
    """

    __slots__ = ("kind",)

    def __init__(self, items: Iterable[E] = (), kind: Any = None) -> None:
        super().__init__(items)
        self.kind = kind if kind is not None else getattr(items, "kind", None)

    # A copy has its own elements.

    def copy(self) -> "Vector[E]":
        """Returns a copy, as C++ copies containers: with copies of the elements."""
        return Vector(map(copied, self), self.kind)

    vec = copy

    def slice(self, start: int, count: int | None = None) -> "Vector[E]":
        """Returns `count` elements from `start` on, all by default, as ``c10::ArrayRef`` does."""
        return Vector(self[start:] if count is None else self[start : start + count], self.kind)

    def equals(self, other: "Vector[E]") -> bool:
        return self == other

    def assign(self, first: Any, second: Any = None) -> None:
        """Assigns another container; `first` times the value `second`; or the elements between two pointers."""
        self[:] = elements(self._known_kind(), first, second)

    def swap(self, other: "Vector[E]") -> None:
        self[:], other[:] = other[:], self[:]

    def fill(self, value: E) -> None:
        self[:] = [copied(value) for _ in self]

    # Size

    def size(self) -> int:
        return len(self)

    capacity = length = size

    def empty(self) -> bool:
        return not self

    def reserve(self, count: int) -> None:
        """Does nothing: a list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Does nothing."""

    def resize(self, count: int, *value: E) -> None:
        kind = self._known_kind()
        del self[count:]
        self.extend(copied(value[0]) if value else default(kind) for _ in range(count - len(self)))

    def _known_kind(self) -> Any:
        if self.kind is None and self:
            names = {bool: "bool_", int: "int64", float: "float64"}
            self.kind = NUMBERS.get(names.get(type(self[0]), "")) or {
                torch.Tensor: "at::Tensor",
                str: "std::string",
            }.get(type(self[0]))
        return self.kind

    # Elements

    def at(self, index: int) -> E:
        """Returns an element.

        Raises:
            OutOfRangeError: there is none. It is an IndexError.
        """
        if not 0 <= index < len(self):
            raise OutOfRangeError(
                f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is {len(self)})"
            )
        return self[index]

    def at_reference(self, index: int) -> Element:
        self.at(index)
        return Element(self, index)

    def front(self) -> E:
        return self[0]

    def front_reference(self) -> Element:
        return Element(self, 0)

    def back(self) -> E:
        return self[-1]

    def back_reference(self) -> Element:
        return Element(self, len(self) - 1)

    def push_back(self, value: E) -> None:
        self.append(copied(value))

    def emplace_back(self, *arguments: Any) -> E:
        self.append(construct(self.kind, *arguments) if arguments else default(self._known_kind()))
        return self[-1]

    def pop_back(self) -> None:
        del self[-1]

    # Of ``std::deque``.

    def push_front(self, value: E) -> None:
        self.insert(self.begin(), value)

    def emplace_front(self, *arguments: Any) -> E:
        self.push_front(construct(self.kind, *arguments))
        return self[0]

    def pop_front(self) -> None:
        del self[0]

    # Pointers

    def begin(self) -> Pointer:
        return Pointer(self, 0, self.kind)

    cbegin = data = begin

    def end(self) -> Pointer:
        return Pointer(self, len(self), self.kind)

    cend = end

    def places(self) -> Iterator[Element]:
        """Yields references to the elements."""
        return (Element(self, i) for i in range(len(self)))

    def rbegin(self) -> "ReversePointer":
        return ReversePointer(self, len(self), self.kind)

    crbegin = rbegin

    def rend(self) -> "ReversePointer":
        return ReversePointer(self, 0, self.kind)

    crend = rend

    def insert(self, place: Any, value: Any, last: Any = None) -> Pointer:  # type: ignore[override]
        """Inserts a value, `value` times the value `last`, the elements from `value` to `last`, or those of a list."""
        at = place.offset
        new = [copied(value)] if last is None and not self._is_list(value) else elements(self.kind, value, last)
        self[at:at] = new
        return Pointer(self, at, self.kind)

    def _is_list(self, value: Any) -> bool:
        return (
            isinstance(value, list)
            and not (self and isinstance(self[0], list))
            and not (isinstance(self.kind, tuple) and self.kind[0] in ("std::vector", "std::array", "[]"))
        )

    def emplace(self, place: Any, *arguments: Any) -> Pointer:
        return self.insert(place, construct(self.kind, *arguments))

    def erase(self, first: Any, last: Any = None) -> Pointer:
        start, stop = first.offset, first.offset + 1 if last is None else last.offset
        if stop > len(self):
            raise IndexError(f"element {stop - 1} of memory of {len(self)}")
        del self[start:stop]
        return Pointer(self, start, self.kind)


class ReversePointer(Pointer):
    """``std::reverse_iterator``. `offset` is after the element that it points to."""

    __slots__ = ()

    def _at(self, index: int) -> int:
        return super()._at(-1 - index)

    def __add__(self, count: int) -> "ReversePointer":
        return ReversePointer(self.memory, self.offset - count, self.kind)

    def __sub__(self, other: Any) -> Any:
        return other.offset - self.offset if isinstance(other, Pointer) else self + -other

    def __lt__(self, other: Pointer) -> bool:
        return self.offset > other.offset

    def __le__(self, other: Pointer) -> bool:
        return self.offset >= other.offset

    __hash__ = Pointer.__hash__

    def increment(self) -> "ReversePointer":
        self.offset -= 1
        return self

    def decrement(self) -> "ReversePointer":
        self.offset += 1
        return self

    def deref(self) -> Any:
        return self[0]

    def deref_reference(self) -> Element:
        return Element(self.memory, self._at(0))

    def copy(self) -> "ReversePointer":
        return self + 0

    def assign(self, other: "ReversePointer") -> None:
        self.memory, self.offset = other.memory, other.offset

    def base(self) -> Pointer:
        return Pointer(self.memory, self.offset, self.kind)


def values_between(first: Any, last: Any) -> list[Any]:
    """Returns the elements between two iterators."""
    if hasattr(first, "until"):  # of a map or a set
        return first.until(last)
    return [] if first is None else [first[i] for i in range(last - first)]


def elements(kind: Any, first: Any, second: Any = None) -> list[Any]:
    """Returns copies of a list's elements, of those between two pointers, or `first` times a value."""
    if isinstance(first, Pointer) or hasattr(first, "until"):
        first = values_between(first, second)
    elif isinstance(first, int):
        return [default(kind) if second is None else copied(second) for _ in range(first)]
    return [convert(kind, value) for value in first or ()]


ITERATORS = """iterator begin(); iterator end(); const_iterator begin() const; const_iterator end() const;
  const_iterator cbegin() const; const_iterator cend() const;"""
_ARRAY = f"""using value_type = T; using size_type = size_t; using iterator = T*; using const_iterator = const T*;
  using reference = T&; using const_reference = const T&; {ITERATORS}
  reverse_iterator<T*> rbegin(); reverse_iterator<T*> rend(); reverse_iterator<const T*> rbegin() const;
  reverse_iterator<const T*> rend() const; T* data(); const T* data() const;
  T& at(size_t); const T& at(size_t) const; T& front(); const T& front() const; T& back(); const T& back() const;
  bool operator==(const Self&) const; bool operator!=(const Self&) const; bool operator<(const Self&) const;"""

declare("""namespace std { template <class I> using _iterator = enable_if_t<__is_pointer(I) || __is_class(I)>;
template <class I> struct reverse_iterator { using value_type = remove_cv_t<remove_pointer_t<I>>;
  reverse_iterator(); explicit reverse_iterator(I); remove_pointer_t<I>& operator*() const; I operator->() const;
  remove_pointer_t<I>& operator[](ptrdiff_t) const; reverse_iterator& operator++(); reverse_iterator operator++(int);
  reverse_iterator& operator--(); reverse_iterator operator--(int); reverse_iterator operator+(ptrdiff_t) const;
  reverse_iterator operator-(ptrdiff_t) const; ptrdiff_t operator-(const reverse_iterator&) const; I base() const;
  bool operator==(const reverse_iterator&) const; bool operator!=(const reverse_iterator&) const;
  bool operator<(const reverse_iterator&) const; };
template <class T> struct iterator_traits { using value_type = typename T::value_type; using difference_type = ptrdiff_t; };
template <class T> struct iterator_traits<T*> { using value_type = remove_cv_t<T>; using difference_type = ptrdiff_t; }; }""")


word("std::reverse_iterator")(ReversePointer)
word("std::initializer_list")(Vector)


@word(
    "std::vector",
    f"""template <class T> struct vector {{ using Self = vector; {_ARRAY} vector(); explicit vector(size_t);
  vector(size_t, const T&); vector(initializer_list<T>); template <class I, class = _iterator<I>> vector(I, I);
  vector& operator=(initializer_list<T>); T& operator[](size_t); const T& operator[](size_t) const;
  size_t size() const; size_t capacity() const; bool empty() const; void reserve(size_t); void shrink_to_fit(); void clear();
  void resize(size_t); void resize(size_t, const T&); void push_back(const T&); void push_back(T&&); void pop_back();
  template <class... A> T& emplace_back(A&&...); template <class... A> T* emplace(const T*, A&&...);
  T* insert(const T*, const T&); T* insert(const T*, size_t, const T&); T* insert(const T*, initializer_list<T>);
  template <class I, class = _iterator<I>> T* insert(const T*, I, I);
  T* erase(const T*); T* erase(const T*, const T*); void swap(vector&);
  void assign(size_t, const T&); void assign(initializer_list<T>); template <class I, class = _iterator<I>> void assign(I, I); }};
template <class I> vector(I, I) -> vector<typename iterator_traits<I>::value_type>;""",
    typed=True,
)
class StandardVector(Vector[Any]):
    """The constructor of ``std::vector``. A bare list is an array of unknown element type."""

    __slots__ = ()

    def __new__(cls, kind: Any = None, first: Any = None, second: Any = None) -> Any:
        if isinstance(kind, list):
            return Vector(kind)
        return Vector(elements(kind, first, second), kind)


@word(
    "std::array",
    f"""template <class T, size_t n> struct array {{ using Self = array; T _items[n]; {_ARRAY}
  constexpr T& operator[](size_t i) {{ return _items[i]; }} constexpr const T& operator[](size_t i) const {{ return _items[i]; }}
  constexpr size_t size() const {{ return n; }} constexpr bool empty() const {{ return n == 0; }} void fill(const T&); void swap(array&); }};
template <class T, class... U> array(T, U...) -> array<T, 1 + sizeof...(U)>;
template <class T, size_t n> struct tuple_size<array<T, n>> : integral_constant<size_t, n> {{}};
template <class T, size_t n> struct tuple_size<const array<T, n>> : integral_constant<size_t, n> {{}};
template <size_t i, class T, size_t n> struct tuple_element<i, array<T, n>> {{ using type = T; }};
template <class T> auto begin(T& c) -> decltype(c.begin()); template <class T> auto end(T& c) -> decltype(c.end());
template <class T, size_t n> T* begin(T (&)[n]); template <class T, size_t n> T* end(T (&)[n]);
template <class T, size_t n> constexpr size_t size(const T (&)[n]) {{ return n; }}
template <class T> auto size(const T& c) -> decltype(c.size());
template <class T> auto data(T& c) -> decltype(c.data());""",
    typed=True,
)
class Array(Vector[Any]):
    """The constructor of ``std::array``: the values, or a list of them, and zeros after them."""

    __slots__ = ()

    def __new__(cls, kind: Any, count: int, *values: Any) -> Any:
        nested = len(values) == 1 and isinstance(values[0], list) and count != 1
        given = [convert(kind, v) for v in (values[0] if nested else values)]
        return Vector([*given, *(default(kind) for _ in range(count - len(given)))], kind)


@word("std::begin")
def begin(c: Any) -> Any:
    return c.begin()


@word("std::end")
def end(c: Any) -> Any:
    return c.end()


@word("std::size")
def size(c: Any) -> int:
    return c.size() if hasattr(c, "size") else len(c)


@word("std::data")
def data(c: Any) -> Any:
    return c.data()
