"""References and pointers of host code.

A variable whose reference or address is taken lives in a :class:`Variable`. ``v[i]`` and ``s.x`` as references are
:class:`Element` and :class:`Member`. All have ``value``, to read and to assign.

A :class:`Pointer` points into memory: a list of values on the host, or a tensor's storage. The null pointer is None.
"""

from typing import Any

from .errors import NotTranslated

__all__ = ["Bits", "Element", "Member", "Pointer", "Reference", "Variable", "flat_row", "taken"]


class Reference:
    """A place that holds a value: ``r.value`` reads, ``r.value = x`` assigns."""

    __slots__ = ()
    value: Any

    # A reference is memory of one element.

    def __getitem__(self, index: int) -> Any:
        if index:
            raise IndexError(f"element {index} after a pointer to one variable")
        return self.value

    def __setitem__(self, index: int, value: Any) -> None:
        if index:
            raise IndexError(f"element {index} after a pointer to one variable")
        self.value = value

    def __len__(self) -> int:
        return 1


class Variable(Reference):
    """A local variable whose reference or address is taken."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Element(Reference):
    """The element of a container, ``v[i]``."""

    __slots__ = ("container", "index")

    def __init__(self, container: Any, index: Any) -> None:
        self.container, self.index = container, index

    @property
    def value(self) -> Any:
        return self.container[self.index]

    @value.setter
    def value(self, value: Any) -> None:
        self.container[self.index] = value


class Member(Reference):
    """The member of a struct, ``s.x``."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    # The members of one type lie one after another: `(&x)[1]` is y.

    def _alike(self) -> list[str]:
        fields = getattr(self.owner, "fields", ())
        start = next((i for i, field in enumerate(fields) if field[0] == self.name), len(fields))
        found = [self.name]
        for name, kind, *_ in fields[start + 1 :]:
            if kind != fields[start][1]:
                break
            found.append(name)
        return found

    def __getitem__(self, index: int) -> Any:
        return getattr(self.owner, self._alike()[index])

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self.owner, self._alike()[index], value)

    def __len__(self) -> int:
        return len(self._alike())

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)

    @value.setter
    def value(self, value: Any) -> None:
        setattr(self.owner, self.name, value)


class Bits(Reference):
    """The bits of a 16-bit float, ``h.x``.

    Attributes:
        whole: the reference to the float.
        kind: its type of numbers.
    """

    __slots__ = ("kind", "whole")

    def __init__(self, whole: Reference, kind: Any) -> None:
        self.whole, self.kind = whole, kind

    @property
    def value(self) -> Any:
        return self.kind.bits(self.whole.value)

    @value.setter
    def value(self, value: Any) -> None:
        self.whole.value = self.kind.of_bits(value)


class Pointer:
    """A pointer of host code into host memory. :class:`.memory.DevicePointer` points into a tensor's storage.

    Attributes:
        memory: a list of values, or a :class:`Reference`.
        offset: where it points, in elements of the memory.
        kind: the type that it points to: a type of :mod:`.numbers`, a Python class of a struct, a C++ spelling, a tuple
            such as ``("*", float32)``, or None for ``void``.
        element: the type of the memory's elements, which a cast keeps.
    """

    __slots__ = ("element", "kind", "memory", "offset")

    def __init__(self, memory: Any, offset: int = 0, kind: Any = None, element: Any = None) -> None:
        self.memory, self.offset, self.kind = memory, offset, kind
        self.element = kind if element is None else element

    def __add__(self, count: int) -> "Pointer":
        self._check()
        return Pointer(self.memory, self.offset + count, self.kind, self.element)

    def __sub__(self, other: Any) -> Any:
        self._check()
        return self.offset - other.offset if isinstance(other, Pointer) else self + -other

    def __getitem__(self, index: int) -> Any:
        return self.memory[self._at(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.memory[self._at(index)] = value

    def _at(self, index: int) -> int:
        self._check()
        place = self.offset + index
        if not 0 <= place < len(self.memory):
            raise IndexError(f"element {place} of memory of {len(self.memory)}")
        return place

    def _check(self) -> None:
        """Raises for the use of host memory as another type. Pointers of all types are equal here."""
        if self.kind is not self.element and self.kind != self.element:
            both = isinstance(self.kind, tuple) and isinstance(self.element, tuple)
            if not both or self.kind[0] != self.element[0]:
                raise NotTranslated(f"host memory of {self.element} used as {self.kind or 'void'}")

    def _place(self) -> tuple[int, int]:
        memory = self.memory
        while isinstance(memory, _Rows):
            memory = memory.rows
        return id(memory), self.offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointer) and self._place() == other._place()

    def __lt__(self, other: "Pointer") -> bool:
        return self.offset < other.offset

    def __le__(self, other: "Pointer") -> bool:
        return self.offset <= other.offset

    def __gt__(self, other: "Pointer") -> bool:
        return self.offset > other.offset

    def __ge__(self, other: "Pointer") -> bool:
        return self.offset >= other.offset

    def __hash__(self) -> int:
        return hash(self._place())

    def cast(self, kind: Any) -> "Pointer":
        """Returns the pointer as one to another type, ``reinterpret_cast<T*>(p)``."""
        own = self.element
        if isinstance(own, tuple) and own[0] == "[]" and len(own) == 3 and self.kind == own and kind != own:
            return flat_row(self, 0, own[2], own[1]).cast(kind)  # rows lie one after another
        return Pointer(self.memory, self.offset, kind, self.element)


def taken(place: Reference) -> Any:
    """Returns the value of a smart pointer that is moved from, which is null then."""
    value, place.value = place.value, None
    return value


class _Rows:
    """An array of arrays, seen as one array of their elements in order.

    Attributes:
        rows: the arrays.
        size: the number of elements of each.
    """

    __slots__ = ("rows", "size")

    def __init__(self, rows: Any, size: int) -> None:
        self.rows, self.size = rows, size

    def __getitem__(self, index: int) -> Any:
        return self.rows[index // self.size][index % self.size]

    def __setitem__(self, index: int, value: Any) -> None:
        self.rows[index // self.size][index % self.size] = value

    def __len__(self) -> int:
        return len(self.rows) * self.size


def flat_row(rows: Any, index: int, size: int, kind: Any) -> Pointer:
    """Returns a pointer to the first element of ``rows[index]``, after which the next row lies.

    Args:
        rows: an array of arrays, or a pointer to an array.
        index: the row.
        size: the elements of a row.
        kind: their type.
    """
    if isinstance(rows, Pointer):
        rows, index = rows.memory, rows.offset + index
    return Pointer(_Rows(rows, size), index * size, kind)
