"""std::deque, and the container adapters std::stack, std::queue and std::priority_queue."""

from typing import Any

from . import algorithms  # noqa: F401  its C++ text comes first
from .tuples import construct, convert, default
from .vectors import StandardVector, Vector
from .words import word

__all__ = ["PriorityQueue", "Queue", "Stack"]

word(
    "std::deque",
    """template <class T> struct deque : vector<T> { using vector<T>::vector; using value_type = T;
  void push_front(const T&); template <class... A> T& emplace_front(A&&...); void pop_front(); };""",
    typed=True,
)(StandardVector)


class Stack:
    """``std::stack``.

    Attributes:
        kind: the type of the elements.
        items: the elements, of which the last one is at the top.
    """

    def __init__(self, kind: Any, container: Any = None, *given: Any) -> None:
        self.kind = kind
        self.items: Vector[Any] = given[0].copy() if given else Vector([], kind)

    def size(self) -> int:
        return len(self.items)

    def empty(self) -> bool:
        return not self.items

    def push(self, value: Any) -> None:
        self.items.append(convert(self.kind, value))

    def emplace(self, *arguments: Any) -> None:
        self.push(construct(self.kind, *arguments))

    def pop(self) -> None:
        self.items.pop_back()

    def top(self) -> Any:
        return self.items[self._at(-1)]

    def top_reference(self) -> Any:
        return self.items.at_reference(self._at(-1))

    def _at(self, index: int) -> int:
        if not self.items:
            raise IndexError("an element of an empty container")
        return index % len(self.items)

    def copy(self) -> Any:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, items=self.items.copy())
        return made

    def assign(self, other: Any) -> None:
        self.__dict__.update(other.copy().__dict__)


class Queue(Stack):
    """``std::queue``."""

    def pop(self) -> None:
        self.items.pop_front()

    def front(self) -> Any:
        return self.items[self._at(0)]

    def front_reference(self) -> Any:
        return self.items.at_reference(self._at(0))

    back, back_reference = Stack.top, Stack.top_reference


class PriorityQueue(Stack):
    """``std::priority_queue``. The order of equal elements is the library's: here, the newest comes first."""

    def __init__(self, kind: Any, container: Any, order: Any, *given: Any) -> None:
        super().__init__(kind)
        compare = given[0] if given and not isinstance(given[0], Vector) else default(order)
        self.before = compare
        for value in next((v for v in given if isinstance(v, Vector)), ()):
            self.push(value)

    def push(self, value: Any) -> None:
        low, high = 0, len(self.items)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.before(value, self.items[middle]) else (middle + 1, high)
        self.items[low:low] = [convert(self.kind, value)]


_COMMON = "using value_type = T; size_t size() const; bool empty() const; void push(const T&); void pop();"
_COMMON += "template <class... A> void emplace(A&&...);"
word(
    "std::stack",
    f"template <class T, class C = deque<T>> struct stack {{ stack(); explicit stack(const C&); {_COMMON} T& top(); const T& top() const; }};",
    typed=True,
)(Stack)
word(
    "std::queue",
    f"template <class T, class C = deque<T>> struct queue {{ queue(); explicit queue(const C&); {_COMMON}"
    " T& front(); const T& front() const; T& back(); const T& back() const; };",
    typed=True,
)(Queue)
word(
    "std::priority_queue",
    "template <class T, class C = vector<T>, class O = less<T>> struct priority_queue { priority_queue(); explicit priority_queue(O);"
    f" priority_queue(O, const C&); {_COMMON} const T& top() const; }};",
    typed=True,
)(PriorityQueue)
