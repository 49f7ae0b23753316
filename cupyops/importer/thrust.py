"""Thrust's vectors and algorithms over device memory, which host code calls, by PyTorch.

An iterator is a pointer. A function object that is none of Thrust's own runs in Python, for each element.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import device_algorithms  # noqa: F401  its C++ text comes first
from .algorithms import OPERATIONS
from .cuda_devices import on_gpu
from .device_algorithms import array_of, wide
from .memory import DevicePointer, pointer_to
from .numbers import Number
from .tuples import convert
from .vectors import Vector, elements, values_between
from .words import declare, section, word

__all__: list[str] = []

_OBJECTS = (
    *("plus", "minus", "multiplies", "divides", "modulus", "less", "greater", "less_equal", "greater_equal"),
    *("equal_to", "not_equal_to", "logical_and", "logical_or"),
)
section("thrust")
declare(f"""namespace thrust {{ {"".join(f"using std::{name}; " for name in _OBJECTS)}
template <class T = void> struct maximum {{ T operator()(const T&, const T&) const; }};
template <class T = void> struct minimum {{ T operator()(const T&, const T&) const; }};
template <class T> using device_ptr = T*;
template <class T> T* raw_pointer_cast(T* p) {{ return p; }} template <class T> T* device_pointer_cast(T* p) {{ return p; }}
struct execution_policy {{ execution_policy on(cudaStream_t) const; template <class A> execution_policy operator()(A&&) const; }};
extern const execution_policy device, host; namespace cuda {{ extern const execution_policy par, par_nosync; }}
template <class T> struct device_vector {{ using value_type = T; using iterator = T*; using const_iterator = const T*;
  device_vector(); explicit device_vector(size_t); device_vector(size_t, const T&); device_vector(std::initializer_list<T>);
  device_vector(const std::vector<T>&); template <class I, class = std::_iterator<I>> device_vector(I, I);
  device_vector& operator=(const std::vector<T>&); T* begin() const; T* end() const; T* data() const; size_t size() const;
  bool empty() const; void resize(size_t); void resize(size_t, const T&); void clear(); void push_back(const T&);
  T& operator[](size_t) const; T& front() const; T& back() const; }};
template <class T> struct host_vector : std::vector<T> {{ using std::vector<T>::vector; host_vector(const device_vector<T>&);
  host_vector& operator=(const device_vector<T>&); }}; }}""")


word("thrust::maximum", typed=True)(lambda kind=None: max)
word("thrust::minimum", typed=True)(lambda kind=None: min)
for _name in ("raw_pointer_cast", "device_pointer_cast"):
    word(f"thrust::{_name}")(lambda pointer: pointer)


@word("thrust::execution_policy")
class Policy:
    """Where an algorithm runs: after the work of PyTorch's current stream."""

    def on(self, stream: Any) -> "Policy":
        return self

    def operator_call(self, allocator: Any) -> "Policy":
        return self


for _name in ("device", "host", "cuda::par", "cuda::par_nosync"):
    word(f"thrust::{_name}")(Policy())


class DeviceVector:
    """``thrust::device_vector``."""

    def __init__(self, kind: Number, values: list[Any] | None = None) -> None:
        self.kind = kind
        self.tensor = self._made(values or [])

    def _made(self, values: list[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=self.kind.dtype, device="cuda" if on_gpu() else "cpu")

    def begin(self) -> DevicePointer | None:
        return pointer_to(self.tensor, self.kind)

    data = begin

    def end(self) -> DevicePointer | None:
        first = self.begin()
        return None if first is None else first + len(self.tensor)

    def size(self) -> int:
        return len(self.tensor)

    __len__ = size

    def empty(self) -> bool:
        return not len(self.tensor)

    def resize(self, size: int, value: Any = 0) -> None:
        more = torch.full((max(size - len(self.tensor), 0),), value, dtype=self.kind.dtype, device=self.tensor.device)
        self.tensor = torch.cat([self.tensor[:size], more])

    def clear(self) -> None:
        self.tensor = self.tensor[:0].clone()

    def push_back(self, value: Any) -> None:
        self.tensor = torch.cat([self.tensor, self._made([value])])

    def __getitem__(self, index: int) -> Any:
        return self.tensor[index].item()

    def __setitem__(self, index: int, value: Any) -> None:
        self.tensor[index] = value

    def front(self) -> Any:
        return self[0]

    def back(self) -> Any:
        return self[-1]

    def __iter__(self) -> Any:
        return iter(self.tensor.tolist())

    def copy(self) -> "DeviceVector":
        made = DeviceVector(self.kind)
        made.tensor = self.tensor.clone()
        return made

    def assign(self, other: Any) -> None:
        self.tensor = other.tensor.clone() if isinstance(other, DeviceVector) else self._made([*other])


@word("thrust::device_vector", typed=True)
def _device_vector(kind: Any, *given: Any) -> DeviceVector:
    if given and isinstance(given[0], DevicePointer):
        made = DeviceVector(kind)
        made.tensor = array_of(given[0], given[1] - given[0]).to(kind.dtype).clone()
        return made
    return DeviceVector(kind, elements(kind, *given))


@word("thrust::host_vector", typed=True)
def _host_vector(kind: Any, *given: Any) -> Vector:
    if given and isinstance(given[0], DeviceVector):
        given = ([*given[0]],)
    elif given and isinstance(given[0], DevicePointer):
        given = ([*_device_vector(kind, *given)],)
    return Vector(elements(kind, *given), kind)


def _between(first: Any, last: Any) -> torch.Tensor:
    """Returns the elements between two pointers as a tensor: of device memory itself, else a copy."""
    if first is None:
        return torch.empty(0)
    if isinstance(first, DevicePointer):
        return array_of(first, last - first)
    return torch.tensor(values_between(first, last))


def _to(target: Any, values: torch.Tensor) -> Any:
    """Writes elements from a pointer on, and returns the pointer past them."""
    if not len(values):
        return target
    if isinstance(target, DevicePointer):
        array_of(target, len(values)).copy_(values)
    else:
        for i, value in enumerate(values.tolist()):
            target[i] = value
    return target + len(values)


def _algorithm(name: str, *declared: str, typed: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares an algorithm, also with a policy as its first parameter, which the decorated function does not get."""
    text = ""
    for one in declared:
        head, _, parameters = one.partition("(")
        text += f"{head}({parameters}; {head}(const execution_policy&, {parameters}; "

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return function(*(a for a in arguments if not isinstance(a, Policy)))

        word(f"thrust::{name}", text, typed=typed)(call)
        return function

    return keep


def _is(function: Any, name: str) -> bool:
    return getattr(function, "operation", function) is OPERATIONS[name][1]


def _order(keys: torch.Tensor, compare: Any) -> torch.Tensor:
    """Returns the stable order of keys."""
    if compare is None or _is(compare, "less") or _is(compare, "greater"):
        return torch.sort(wide(keys), stable=True, descending=compare is not None and _is(compare, "greater")).indices
    values = keys.tolist()

    def order(i: int, j: int) -> int:
        return -1 if compare(values[i], values[j]) else int(bool(compare(values[j], values[i])))

    ordered = sorted(range(len(values)), key=functools.cmp_to_key(order))
    return torch.tensor(ordered, dtype=torch.int64, device=keys.device)


for _sort in ("sort", "stable_sort"):

    @_algorithm(
        _sort,
        "template <class I> void NAME(I, I)".replace("NAME", _sort),
        f"template <class I, class F> void {_sort}(I, I, F)",
    )
    def _sorted(first: Any, last: Any, compare: Any = None) -> None:
        keys = _between(first, last)
        _to(first, keys[_order(keys, compare)])

    @_algorithm(
        f"{_sort}_by_key",
        f"template <class I, class V> void {_sort}_by_key(I, I, V)",
        f"template <class I, class V, class F> void {_sort}_by_key(I, I, V, F)",
    )
    def _sorted_by_key(first: Any, last: Any, values: Any, compare: Any = None) -> None:
        keys = _between(first, last)
        order = _order(keys, compare)
        moved = _between(values, values + len(keys))[order]
        _to(first, keys[order])
        _to(values, moved)


@_algorithm(
    "sequence",
    "template <class I> void sequence(I, I)",
    "template <class I, class T> void sequence(I, I, T)",
    "template <class I, class T> void sequence(I, I, T, T)",
)
def _sequence(first: Any, last: Any, start: Any = 0, step: Any = 1) -> None:
    values = _between(first, last)
    _to(first, torch.arange(len(values), device=values.device) * step + start)


@_algorithm("fill", "template <class I, class T> void fill(I, I, T)")
def _fill(first: Any, last: Any, value: Any) -> None:
    values = _between(first, last)
    _to(first, torch.full_like(values, value))


@_algorithm("fill_n", "template <class I, class T> I fill_n(I, ptrdiff_t, T)")
def _fill_n(first: Any, count: int, value: Any) -> Any:
    return _to(first, torch.full_like(_between(first, first + count), value))


@_algorithm("copy", "template <class I, class O> O copy(I, I, O)")
def _copy(first: Any, last: Any, target: Any) -> Any:
    return _to(target, _between(first, last).clone())


@_algorithm("copy_n", "template <class I, class O> O copy_n(I, ptrdiff_t, O)")
def _copy_n(first: Any, count: int, target: Any) -> Any:
    return _to(target, _between(first, first + count).clone())


@_algorithm("reverse", "template <class I> void reverse(I, I)")
def _reverse(first: Any, last: Any) -> None:
    _to(first, _between(first, last).flip(0))


def _folded(kind: Any, values: torch.Tensor, start: Any, function: Any) -> Any:
    """Returns ``start + v[0] + v[1] ...``, or the same with another function, in the type of the start."""
    if function is None or _is(function, "plus"):
        if isinstance(kind, Number) and kind.dtype == values.dtype:
            return kind(start + values.sum(dtype=torch.float64 if kind.floating else torch.int64).item())
        function = OPERATIONS["plus"][1]
    for value in values.tolist():
        start = convert(kind, function(start, value))
    return start


@_algorithm(
    "reduce",
    "template <class I> typename std::iterator_traits<I>::value_type reduce(I, I)",
    "template <class I, class T> T reduce(I, I, T)",
    "template <class I, class T, class F> T reduce(I, I, T, F)",
    typed=True,
)
def _reduced(*arguments: Any) -> Any:
    at = next(i for i, a in enumerate(arguments) if a is None or hasattr(a, "offset"))
    kinds, (first, last, *rest) = arguments[:at], arguments[at:]
    kind = kinds[1] if len(kinds) > 1 else kinds[0][1]
    return _folded(kind, _between(first, last), rest[0] if rest else kind(0), rest[1] if len(rest) > 1 else None)


def _scanned(first: Any, last: Any, target: Any, start: Any, function: Any, inclusive: bool) -> Any:
    values = _between(first, last)
    if function is None or _is(function, "plus"):
        sums = wide(values).cumsum(0)
        return _to(target, sums if inclusive else sums - values + start)
    made, total = [], start
    for value in values.tolist():
        if not inclusive:
            made.append(total)
        total = value if inclusive and not made else function(total, value)
        if inclusive:
            made.append(total)
    return _to(target, torch.tensor(made, dtype=values.dtype))


@_algorithm(
    "inclusive_scan",
    "template <class I, class O> O inclusive_scan(I, I, O)",
    "template <class I, class O, class F> O inclusive_scan(I, I, O, F)",
)
def _inclusive(first: Any, last: Any, target: Any, function: Any = None) -> Any:
    return _scanned(first, last, target, None, function, True)


@_algorithm(
    "exclusive_scan",
    "template <class I, class O> O exclusive_scan(I, I, O)",
    "template <class I, class O, class T> O exclusive_scan(I, I, O, T)",
    "template <class I, class O, class T, class F> O exclusive_scan(I, I, O, T, F)",
)
def _exclusive(first: Any, last: Any, target: Any, start: Any = 0, function: Any = None) -> Any:
    return _scanned(first, last, target, start, function, False)


@_algorithm(
    "transform",
    "template <class I, class O, class F> O transform(I, I, O, F)",
    "template <class I, class J, class O, class F> O transform(I, I, J, O, F)",
)
def _transformed(first: Any, last: Any, *rest: Any) -> Any:
    *seconds, target, function = rest
    lists = [_between(first, last).tolist()]
    lists += [_between(second, second + len(lists[0])).tolist() for second in seconds]
    values = [function(*given) for given in zip(*lists, strict=True)]
    return _to(target, torch.tensor(values))


@_algorithm("count", "template <class I, class T> ptrdiff_t count(I, I, T)")
def _count(first: Any, last: Any, value: Any) -> int:
    return int((_between(first, last) == value).sum())


@_algorithm("count_if", "template <class I, class F> ptrdiff_t count_if(I, I, F)")
def _count_if(first: Any, last: Any, function: Any) -> int:
    return sum(map(bool, map(function, _between(first, last).tolist())))


for _end, _place in (("max", torch.argmax), ("min", torch.argmin)):

    @_algorithm(f"{_end}_element", f"template <class I> I {_end}_element(I, I)")
    def _extreme(first: Any, last: Any, place: Any = _place) -> Any:
        values = _between(first, last)
        return first + int(place(wide(values))) if len(values) else last


@_algorithm("unique", "template <class I> I unique(I, I)")
def _unique(first: Any, last: Any) -> Any:
    return _to(first, torch.unique_consecutive(_between(first, last)))


@_algorithm("gather", "template <class M, class I, class O> O gather(M, M, I, O)")
def _gather(first: Any, last: Any, source: Any, target: Any) -> Any:
    places = _between(first, last).long()
    return _to(target, _between(source, source + int(places.max()) + 1)[places]) if len(places) else target


@_algorithm("scatter", "template <class I, class M, class O> void scatter(I, I, M, O)")
def _scatter(first: Any, last: Any, places: Any, target: Any) -> None:
    values = _between(first, last)
    if len(values):
        into = _between(places, places + len(values)).long()
        _between(target, target + int(into.max()) + 1)[into] = values


section()
