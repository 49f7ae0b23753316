"""<algorithm>, <numeric> and <functional>: functions of iterators, which are pointers.

Stored values have the type of the elements, and a sum has the type of its initial value, as in C++.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from .numbers import Number, divide, quotient, remainder
from .references import Element, Pointer
from .tuples import convert, copied
from .vectors import values_between
from .words import declare, word

__all__ = ["OPERATIONS"]


def _element(iterator: Any) -> Any:
    """Returns the value type of an iterator's type."""
    while isinstance(iterator, tuple) and iterator[0] in ("*", "std::reverse_iterator"):
        iterator = iterator[1]
    return iterator


def _store(first: Any, values: Iterable[Any], kind: Any = None) -> Any:
    """Assigns values to the places from an iterator on, and returns the iterator after them."""
    count = 0
    for value in values:
        first[count] = convert(kind, value)
        count += 1
    return first + count


class BackInserter:
    """``std::back_inserter(v)``: assigned values are appended."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def __setitem__(self, index: int, value: Any) -> None:
        self.container.push_back(convert(getattr(self.container, "kind", None), value))

    def __add__(self, count: int) -> "BackInserter":
        return self


def _operation(name: str, symbol: str, result: str) -> str:
    """Returns the declaration of a function object of two values."""
    return f"""template <class T = void> struct {name} {{ constexpr {result} operator()(const T& a, const T& b) const {{ return a {symbol} b; }} }};
template <> struct {name}<void> {{
  template <class T, class U> constexpr auto operator()(const T& a, const U& b) const {{ return a {symbol} b; }} }};"""


def _divided(a: Any, b: Any) -> Any:
    return quotient(a, b) if isinstance(a, int) and isinstance(b, int) else divide(a, b)


OPERATIONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "plus": ("+", lambda a, b: a + b), "minus": ("-", lambda a, b: a - b), "multiplies": ("*", lambda a, b: a * b),
    "divides": ("/", _divided), "modulus": ("%", remainder), "less": ("<", lambda a, b: a < b),
    "greater": (">", lambda a, b: a > b), "less_equal": ("<=", lambda a, b: a <= b),
    "greater_equal": (">=", lambda a, b: a >= b), "equal_to": ("==", lambda a, b: a == b),
    "not_equal_to": ("!=", lambda a, b: a != b), "logical_and": ("&&", lambda a, b: bool(a and b)),
    "logical_or": ("||", lambda a, b: bool(a or b)),
}  # fmt: skip


def _made(operation: Callable[[Any, Any], Any], compares: bool) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def make(kind: Any = None) -> Callable[[Any, Any], Any]:
        if compares or not isinstance(kind, Number):
            return operation

        def converted(a: Any, b: Any) -> Any:
            return kind(operation(a, b))

        converted.operation = operation  # type: ignore[attr-defined]  # which others compute on whole arrays
        return converted

    return make


for _name, (_symbol, _function) in OPERATIONS.items():
    _compares = any(c in _symbol for c in "<>=&|")
    word(f"std::{_name}", _operation(_name, _symbol, "bool" if _compares else "T"), typed=True)(
        _made(_function, _compares)
    )

declare("""namespace std { struct input_iterator_tag {}; struct output_iterator_tag {};
  struct forward_iterator_tag : input_iterator_tag {}; struct bidirectional_iterator_tag : forward_iterator_tag {};
  struct random_access_iterator_tag : bidirectional_iterator_tag {}; }""")
declare("""namespace std { template <class C> struct _back_inserter { _back_inserter(C&); };
template <class C> _back_inserter<C> back_inserter(C&);
void _runs();  // no constant, whose value clang would tell
template <class I> using _value_of = typename iterator_traits<I>::value_type; using _count = ptrdiff_t; }""")
word("std::back_inserter")(BackInserter)


@word(
    "std::accumulate",
    "template <class I, class T> T accumulate(I, I, T); template <class I, class T, class F> T accumulate(I a, I, T t, F f) { f(t, *a); return t; }",
    typed=True,
)
@word(
    "std::reduce",
    "template <class I, class T> T reduce(I, I, T); template <class I, class T, class F> T reduce(I a, I, T t, F f) { f(t, *a); return t; }",
    typed=True,
)
def accumulate(*arguments: Any) -> Any:
    """Returns ``((start + v[0]) + v[1]) + ...``, or the same with a function in place of ``+``."""
    _, kind, first, last, start, *function = arguments if len(arguments) == 5 else (*arguments[:2], *arguments[3:])
    for value in values_between(first, last):
        start = convert(kind, function[0](start, value) if function else start + value)
    return start


@word("std::inner_product", "template <class I, class J, class T> T inner_product(I, I, J, T);", typed=True)
def inner_product(i: Any, j: Any, kind: Any, first: Any, last: Any, other: Any, start: Any) -> Any:
    for index, value in enumerate(values_between(first, last)):
        start = convert(kind, start + value * other[index])
    return start


@word("std::partial_sum", "template <class I, class O> O partial_sum(I, I, O);", typed=True)
def partial_sum(source: Any, target: Any, first: Any, last: Any, out: Any) -> Any:
    sums: list[Any] = []
    for value in values_between(first, last):
        sums.append(convert(_element(source), sums[-1] + value) if sums else value)
    return _store(out, sums, _element(target))


@word("std::iota", "template <class I, class T> void iota(I, I, T);", typed=True)
def iota(iterator: Any, kind: Any, first: Any, last: Any, start: Any) -> None:
    _store(first, (start + i for i in range(last - first)), _element(iterator))


@word("std::fill", "template <class I, class T> void fill(I, I, const T&);", typed=True)
def fill(iterator: Any, kind: Any, first: Any, last: Any, value: Any) -> None:
    _store(first, [value] * (last - first), _element(iterator))


@word("std::fill_n", "template <class I, class N, class T> I fill_n(I, N, const T&);", typed=True)
def fill_n(iterator: Any, number: Any, kind: Any, first: Any, count: int, value: Any) -> Any:
    return _store(first, [value] * count, _element(iterator))


@word("std::copy", "template <class I, class O> O copy(I, I, O);", typed=True)
def copy(source: Any, target: Any, first: Any, last: Any, out: Any) -> Any:
    return _store(out, values_between(first, last), _element(target))


@word("std::copy_n", "template <class I, class N, class O> O copy_n(I, N, O);", typed=True)
def copy_n(source: Any, number: Any, target: Any, first: Any, count: int, out: Any) -> Any:
    return _store(out, [first[i] for i in range(count)], _element(target))


@word(
    "std::transform",
    """template <class I, class O, class F> O transform(I a, I, O o, F f) { f(*a); return o; }
    template <class I, class J, class O, class F> O transform(I a, I, J b, O o, F f) { f(*a, *b); return o; }""",
    typed=True,
)
def transform(*arguments: Any) -> Any:
    """Stores a function of the elements of a range, or of two."""
    if len(arguments) == 7:
        target, first, last, out, function = arguments[1], *arguments[3:]
        return _store(out, [function(v) for v in values_between(first, last)], _element(target))
    target, first, last, other, out, function = arguments[2], *arguments[4:]
    values = [function(v, other[i]) for i, v in enumerate(values_between(first, last))]
    return _store(out, values, _element(target))


@word("std::for_each", "template <class I, class F> F for_each(I a, I, F f) { f(*a); return f; }")
def for_each(first: Any, last: Any, function: Callable[[Any], Any]) -> Any:
    places = getattr(function, "takes_places", False)  # a lambda that assigns to its argument
    for i, value in enumerate(values_between(first, last)):
        function(Element(first, i) if places else value)
    return function


def _extreme(first: Any, last: Any, better: Callable[[Any, Any], bool]) -> Any:
    best, values = 0, values_between(first, last)
    for i, value in enumerate(values):
        if better(value, values[best]):
            best = i
    return first + best


_TWO_FORMS = (
    "template <class I> constexpr I {0}(I, I);"
    " template <class I, class F> constexpr I {0}(I a, I, F f) {{ _runs(); f(*a, *a); return a; }}"
)


@word("std::max_element", _TWO_FORMS.format("max_element"))
def max_element(first: Any, last: Any, before: Callable[[Any, Any], bool] | None = None) -> Any:
    return _extreme(first, last, lambda a, b: before(b, a) if before else b < a)


@word("std::min_element", _TWO_FORMS.format("min_element"))
def min_element(first: Any, last: Any, before: Callable[[Any, Any], bool] | None = None) -> Any:
    return _extreme(first, last, lambda a, b: before(a, b) if before else a < b)


_PREDICATE = "template <class I, class F> constexpr bool {}(I a, I, F f) {{ _runs(); return f(*a); }}"


@word("std::all_of", _PREDICATE.format("all_of"))
def all_of(first: Any, last: Any, test: Callable[[Any], Any]) -> bool:
    return all(map(test, values_between(first, last)))


@word("std::any_of", _PREDICATE.format("any_of"))
def any_of(first: Any, last: Any, test: Callable[[Any], Any]) -> bool:
    return any(map(test, values_between(first, last)))


@word("std::none_of", _PREDICATE.format("none_of"))
def none_of(first: Any, last: Any, test: Callable[[Any], Any]) -> bool:
    return not any_of(first, last, test)


@word("std::find_if", "template <class I, class F> constexpr I find_if(I a, I, F f) { _runs(); f(*a); return a; }")
def find_if(first: Any, last: Any, test: Callable[[Any], Any]) -> Any:
    for i, value in enumerate(values_between(first, last)):
        if test(value):
            return first + i
    return last


@word("std::find", "template <class I, class T> constexpr I find(I, I, const T&);")
def find(first: Any, last: Any, wanted: Any) -> Any:
    return find_if(first, last, lambda value: value == wanted)


@word("std::count_if", "template <class I, class F> constexpr _count count_if(I a, I, F f) { _runs(); return f(*a); }")
def count_if(first: Any, last: Any, test: Callable[[Any], Any]) -> int:
    return sum(1 for value in values_between(first, last) if test(value))


@word("std::count", "template <class I, class T> constexpr _count count(I, I, const T&);")
def count(first: Any, last: Any, wanted: Any) -> int:
    return count_if(first, last, lambda value: value == wanted)


@word(
    "std::equal", "template <class I, class J> bool equal(I, I, J); template <class I, class J> bool equal(I, I, J, J);"
)
def equal(first: Any, last: Any, other: Any, other_last: Any = None) -> bool:
    if other_last is not None and other_last - other != last - first:
        return False
    return all(value == other[i] for i, value in enumerate(values_between(first, last)))


@word(
    "std::stable_sort",
    "template <class I> void stable_sort(I, I); template <class I, class F> void stable_sort(I a, I, F f) { f(*a, *a); }",
)
@word(
    "std::sort", "template <class I> void sort(I, I); template <class I, class F> void sort(I a, I, F f) { f(*a, *a); }"
)
def sort(first: Any, last: Any, before: Callable[[Any, Any], bool] | None = None) -> None:
    values = values_between(first, last)
    key = functools.cmp_to_key(lambda a, b: -1 if before(a, b) else int(before(b, a))) if before else None
    values.sort(key=key)
    for i, value in enumerate(values):
        first[i] = value


@word("std::reverse", "template <class I> void reverse(I, I);")
def reverse(first: Any, last: Any) -> None:
    for i, value in enumerate(reversed(values_between(first, last))):
        first[i] = value


def _remaining(first: Any, values: list[Any]) -> Any:
    for i, value in enumerate(values):
        first[i] = value
    return first + len(values)


@word("std::unique", "template <class I> I unique(I, I);")
def unique(first: Any, last: Any) -> Any:
    values = values_between(first, last)
    return _remaining(first, [v for i, v in enumerate(values) if i == 0 or v != values[i - 1]])


@word("std::remove", "template <class I, class T> I remove(I, I, const T&);")
def remove(first: Any, last: Any, unwanted: Any) -> Any:
    return _remaining(first, [v for v in values_between(first, last) if v != unwanted])


@word("std::remove_if", "template <class I, class F> I remove_if(I a, I, F f) { f(*a); return a; }")
def remove_if(first: Any, last: Any, test: Callable[[Any], Any]) -> Any:
    return _remaining(first, [v for v in values_between(first, last) if not test(v)])


@word("std::lower_bound", "template <class I, class T> I lower_bound(I, I, const T&);")
def lower_bound(first: Any, last: Any, wanted: Any) -> Any:
    return first + sum(1 for value in values_between(first, last) if value < wanted)


@word("std::upper_bound", "template <class I, class T> I upper_bound(I, I, const T&);")
def upper_bound(first: Any, last: Any, wanted: Any) -> Any:
    return first + sum(1 for value in values_between(first, last) if not wanted < value)


@word("std::distance", "template <class I> constexpr _count distance(I, I);")
def distance(first: Any, last: Any) -> int:
    return len(values_between(first, last)) if not isinstance(first, Pointer) else last - first


@word("std::next", "template <class I> constexpr I next(I, _count = 1);")
def following(iterator: Any, count: int = 1) -> Any:
    return iterator + count if isinstance(iterator, Pointer) else copied(iterator).increment()


@word("std::prev", "template <class I> constexpr I prev(I, _count = 1);")
def preceding(iterator: Any, count: int = 1) -> Any:
    return iterator + -count


@word("std::advance", "template <class I> void advance(I&, _count);")
def advance(place: Any, count: int) -> None:
    if hasattr(place, "assign"):
        place.assign(place + count)
    else:
        place.value = place.value + count
