"""std::map, std::set and their unordered forms; `Vector` comes from :mod:`.vectors`."""

from collections.abc import Iterator
from typing import Any

from .exceptions import OutOfRangeError
from .numbers import Number
from .references import Element, Pointer
from .tuples import convert, copied, default
from .vectors import ITERATORS, Vector, elements
from .words import declare, word

__all__ = ["Map", "OrderedMap", "OrderedSet", "Set", "Vector"]


class Cursor:
    """An iterator of a map or a set: at a key, or after the last."""

    __slots__ = ("index", "keys", "owner")

    def __init__(self, owner: Any, keys: list[Any], index: int) -> None:
        self.owner, self.keys, self.index = owner, keys, index

    def deref(self) -> Any:
        key = self.keys[self.index]
        return (key, self.owner.items[key]) if isinstance(self.owner, Map) else key

    # A reference to its element is that to the element 0.

    def __getitem__(self, index: int) -> Any:
        return self.deref()

    def __setitem__(self, index: int, value: tuple[Any, Any]) -> None:
        self.owner.items[value[0]] = value[1]

    def increment(self) -> "Cursor":
        self.index += 1
        return self

    def copy(self) -> "Cursor":
        return Cursor(self.owner, self.keys, self.index)

    def assign(self, other: "Cursor") -> None:
        self.owner, self.keys, self.index = other.owner, other.keys, other.index

    def until(self, last: "Cursor") -> list[Any]:
        found, at = [], self.copy()
        while at != last:
            found.append(at.deref())
            at.increment()
        return found

    def _key(self) -> tuple[Any, ...]:
        return (self.keys[self.index],) if self.index < len(self.keys) else ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self.owner is other.owner and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]


class Keys:
    """The common base of maps and sets. `items` has the keys; ordered containers sort them when they are asked."""

    ordered = False

    def __init__(self, items: dict[Any, Any]) -> None:
        self.items = items

    def _keys(self) -> list[Any]:
        return sorted(self.items) if self.ordered else list(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]

    def size(self) -> int:
        return len(self.items)

    def empty(self) -> bool:
        return not self.items

    def clear(self) -> None:
        self.items.clear()

    def reserve(self, count: int) -> None:
        """Does nothing."""

    def count(self, key: Any) -> int:
        return int(key in self.items)

    def contains(self, key: Any) -> bool:
        return key in self.items

    def find(self, key: Any) -> Cursor:
        keys = self._keys()
        return Cursor(self, keys, keys.index(key) if key in self.items else len(keys))

    def begin(self) -> Cursor:
        return Cursor(self, self._keys(), 0)

    def end(self) -> Cursor:
        return Cursor(self, [], 0)

    def places(self) -> Iterator[Element]:
        """Yields references to the elements."""
        keys = self._keys()
        return (Element(Cursor(self, keys, i), 0) for i in range(len(keys)))

    def erase(self, key: Any) -> Any:
        if isinstance(key, Cursor):
            following = key.copy().increment()
            del self.items[key.keys[key.index]]
            return following
        return int(self.items.pop(key, self) is not self)

    def _insert(self, key: Any, value: Any) -> tuple[Cursor, bool]:
        new = key not in self.items
        if new:
            self.items[copied(key)] = copied(value)
        return self.find(key), new

    def copy(self) -> Any:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, items={copied(k): copied(v) for k, v in self.items.items()})
        return made

    def assign(self, other: Any) -> None:
        self.items = other.copy().items


_KEYED = f"""{ITERATORS} size_t size() const; bool empty() const; void clear(); void reserve(size_t);
  size_t count(const K&) const; iterator find(const K&); const_iterator find(const K&) const; size_t erase(const K&);
  iterator erase(iterator); bool operator==(const Self&) const; bool operator!=(const Self&) const;"""


def _keyed(name: str, parameters: str, element: str, members: str) -> str:
    return f"""template <{parameters}> struct {name} {{ using Self = {name}; using key_type = K; using value_type = {element};
  using iterator = _cursor<{element}>; using const_iterator = _cursor<const {element}>; {_KEYED} {name}();
  {name}(initializer_list<{element}>); pair<iterator, bool> insert(const {element}&); {members} }};"""


_MAP = """using mapped_type = V; V& operator[](const K&); V& at(const K&); const V& at(const K&) const;
  template <class A, class B> pair<iterator, bool> emplace(const A&, const B&);
  template <class W> pair<iterator, bool> insert_or_assign(const K&, const W&);"""

declare("""namespace std { template <class T> struct _cursor { using value_type = remove_cv_t<T>; _cursor();
  template <class U> _cursor(const _cursor<U>&); T& operator*() const; T* operator->() const; _cursor& operator++(); _cursor operator++(int);
  template <class U> bool operator==(const _cursor<U>&) const; template <class U> bool operator!=(const _cursor<U>&) const; };
}""")
word("std::_cursor")(Cursor)


@word(
    "std::unordered_map",
    _keyed("unordered_map", "class K, class V, class... More", "pair<const K, V>", _MAP),
    typed=True,
)
class Map(Keys):
    """``std::unordered_map``, in the order of insertion."""

    def __init__(self, key: Any, kind: Any, *values: Any) -> None:
        super().__init__(
            {copied(k): convert(kind, v) for k, v in (values[-1] if values and isinstance(values[-1], list) else ())}
        )
        self.kind = kind

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter([(key, self.items[key]) for key in self._keys()])

    def __getitem__(self, key: Any) -> Any:
        if key not in self.items:
            self.items[copied(key)] = default(self.kind)
        return self.items[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[copied(key)] = value

    def at(self, key: Any) -> Any:
        """Returns a value.

        Raises:
            OutOfRangeError: there is none. It is an IndexError.
        """
        if key not in self.items:
            raise OutOfRangeError("map::at")
        return self.items[key]

    def at_reference(self, key: Any) -> Element:
        self.at(key)
        return Element(self, key)

    def insert(self, item: tuple[Any, Any]) -> tuple[Cursor, bool]:
        return self._insert(item[0], convert(self.kind, item[1]))

    def emplace(self, key: Any, value: Any) -> tuple[Cursor, bool]:
        return self._insert(key, convert(self.kind, value))

    def insert_or_assign(self, key: Any, value: Any) -> tuple[Cursor, bool]:
        place, new = self._insert(key, value)
        self.items[key] = convert(self.kind, value)
        return place, new


@word("std::map", _keyed("map", "class K, class V, class... More", "pair<const K, V>", _MAP), typed=True)
class OrderedMap(Map):
    """``std::map``."""

    ordered = True


_SET = "template <class A> pair<iterator, bool> emplace(const A&); template <class I> {}(I, I);"


@word(
    "std::unordered_set",
    _keyed("unordered_set", "class K, class... More", "K", _SET.format("unordered_set")),
    typed=True,
)
class Set(Keys):
    """``std::unordered_set``, in the order of insertion."""

    def __init__(self, kind: Any, *values: Any) -> None:
        given = [v for v in values if isinstance(v, (list, Pointer, Cursor))]
        super().__init__(dict.fromkeys(elements(kind, *given)) if given else {})
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def insert(self, key: Any) -> tuple[Cursor, bool]:
        return self._insert(convert(self.kind, key) if isinstance(self.kind, Number) else key, None)

    emplace = insert


@word("std::set", _keyed("set", "class K, class... More", "K", _SET.format("set")), typed=True)
class OrderedSet(Set):
    """``std::set``."""

    ordered = True
