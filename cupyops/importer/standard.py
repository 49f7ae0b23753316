"""The rest of C++'s standard library: utilities, functions, owning pointers, locks, and the process.

The other parts are :mod:`.traits`, :mod:`.tuples`, :mod:`.strings`, :mod:`.exceptions`, :mod:`.vectors`,
:mod:`.containers`, :mod:`.algorithms` and :mod:`.mathematics`, which this module imports.
"""

import os
import random
import time
from typing import Any, NoReturn

from . import adapters, algorithms, exceptions, mathematics, strings  # noqa: F401  they declare words
from .containers import Vector
from .references import Element, Pointer, Reference, Variable
from .tuples import construct, convert, copied, default
from .words import declare, word

__all__ = ["Vector", "construct", "convert", "copied", "default"]

# Utilities


@word("std::move", "template <class T> constexpr remove_reference_t<T>&& move(T&&) noexcept;")
@word("std::as_const", "template <class T> constexpr const T& as_const(T&) noexcept;")
def move(x: Any) -> Any:
    return x


@word(
    "std::forward",
    "template <class T> constexpr T&& forward(remove_reference_t<T>&) noexcept;"
    "template <class T> constexpr T&& forward(remove_reference_t<T>&&) noexcept;",
)
def forward(x: Any) -> Any:
    return x


@word("std::swap", "template <class T> void swap(T&, T&); template <class T, size_t n> void swap(T (&)[n], T (&)[n]);")
@word("std::iter_swap", "template <class I, class J> void iter_swap(I, J);")
def swap(a: Any, b: Any) -> None:
    """Swaps the values of two references, containers or structs, or the targets of two pointers."""
    if isinstance(a, Pointer):
        a[0], b[0] = b[0], a[0]
    elif isinstance(a, Reference):
        a.value, b.value = b.value, a.value
    else:
        old = a.copy()
        a.assign(b)
        b.assign(old)


@word("std::exchange", "template <class T, class U = T> T exchange(T&, U&&);", typed=True)
def exchange(kind: Any, _: Any, place: Any, new: Any) -> Any:
    """Returns the old value of a variable, which gets another."""
    if isinstance(place, Reference):
        old, place.value = place.value, convert(kind, new)
    else:
        old = place.copy()
        place.assign(new)
    return old


# Functions


@word(
    "std::function",
    """template <class F> struct function; template <class R, class... A> struct function<R(A...)> { using result_type = R;
  function(); function(nullptr_t); template <class F> function(F); R operator()(A...) const; explicit operator bool() const;
  bool operator==(nullptr_t) const; bool operator!=(nullptr_t) const; };
template <class R, class... A> function(R (*)(A...)) -> function<R(A...)>;
template <class T> struct reference_wrapper { reference_wrapper(T&); operator T&() const; T& get() const; };""",
)
def function(callee: Any = None) -> Any:
    return callee


# Owning pointers are pointers.


def _owning(name: str, more: str) -> str:
    return f"""template <class T> struct {name} {{ using element_type = remove_extent_t<T>; using pointer = element_type*;
  {name}(); {name}(nullptr_t); explicit {name}(pointer); template <class U> {name}(const {name}<U>&); {more}
  element_type& operator*() const; pointer operator->() const; pointer get() const; element_type& operator[](ptrdiff_t) const;
  explicit operator bool() const; void reset(pointer = nullptr); bool operator==(nullptr_t) const; bool operator!=(nullptr_t) const; }};
template <class T, class... A> {name}<T> make_{name.removesuffix("_ptr")}(A&&...);"""


def _owner(pointer: Any = None) -> Any:
    return pointer


word(
    "std::unique_ptr",
    "template <class T> struct default_delete {};" + _owning("unique_ptr", "pointer release();"),
    methods="std.pointer_",
)(_owner)
word("std::shared_ptr", _owning("shared_ptr", "long use_count() const;"), methods="std.pointer_")(_owner)


@word("std::make_unique", typed=True)
@word("std::make_shared", typed=True)
def make_pointer(kind: Any, *arguments: Any) -> Pointer:
    """Returns a pointer to a new object; to the first of `n` for ``T[]``."""
    if isinstance(kind, tuple) and kind[0] == "[]":
        return Pointer(Vector([default(kind[1]) for _ in range(arguments[0])], kind[1]), 0, kind[1])
    return Pointer(Variable(construct(kind, *arguments)), 0, kind)


word("std::pointer_::operator_bool")(lambda p: p is not None)
word("std::pointer_::get")(lambda p: p)
word("std::pointer_::deref")(lambda p: p[0])
word("std::pointer_::value")(lambda p: p[0])
word("std::pointer_::use_count")(lambda p: int(p is not None))


@word("std::pointer_::deref_reference")
def pointed(p: Pointer) -> Element:
    return Element(p, 0)


@word("std::pointer_::reset")
def reset(place: Reference, pointer: Any = None) -> None:
    place.value = pointer


@word("std::pointer_::release")
def release(place: Reference) -> Any:
    old, place.value = place.value, None
    return old


# Locks do nothing: Python's lock is held.


class Lock:
    """A mutex or a lock."""

    def __init__(self, *_: Any) -> None:
        """Takes the mutexes, and does nothing."""

    def lock(self) -> None:
        """Does nothing."""

    unlock = lock

    def try_lock(self) -> bool:
        return True


declare("""namespace std { struct mutex { mutex(); mutex(const mutex&) = delete; void lock(); void unlock(); bool try_lock(); };
using recursive_mutex = mutex; using shared_mutex = mutex; struct once_flag { bool _done; };
template <class M> struct lock_guard { explicit lock_guard(M&); }; template <class M> struct shared_lock { explicit shared_lock(M&); };
template <class M> struct unique_lock { explicit unique_lock(M&); void lock(); void unlock(); };
template <class... M> struct scoped_lock { explicit scoped_lock(M&...); }; }""")
for _name in ("mutex", "lock_guard", "unique_lock", "shared_lock", "scoped_lock"):
    word(f"std::{_name}")(Lock)


@word("std::once_flag")
class OnceFlag:
    done = False

    def copy(self) -> "OnceFlag":
        return self


@word("std::call_once", "template <class F, class... A> void call_once(once_flag&, F&&, A&&...);")
def call_once(flag: OnceFlag, callee: Any, *arguments: Any) -> None:
    if not flag.done:
        callee(*arguments)
        flag.done = True


# Thrust's tuples of functions for both sides.
declare(
    "namespace thrust { using std::tuple; using std::make_tuple; using std::get; using std::tie; using std::pair; using std::make_pair; }"
)

# Clocks.

_RATIOS = {"nanoseconds": 1_000_000_000, "microseconds": 1_000_000, "milliseconds": 1000, "seconds": 1}
_DURATIONS = " ".join(f"using {name} = duration<long, ratio<1, {scale}>>;" for name, scale in _RATIOS.items())
declare(f"""namespace std {{ template <long n, long d = 1> struct ratio {{ static constexpr long num = n, den = d; }};
using milli = ratio<1, 1000>; using micro = ratio<1, 1000000>; using nano = ratio<1, 1000000000>;
namespace chrono {{ template <class R, class P = ratio<1>> struct duration {{
  duration(); duration(double); template <class S, class Q> duration(const duration<S, Q>&);
  R count() const; }}; {_DURATIONS}
struct time_point {{ nanoseconds operator-(const time_point&) const; }};
struct steady_clock {{ static time_point now(); }}; using high_resolution_clock = steady_clock; using system_clock = steady_clock;
template <class D, class R, class P> D duration_cast(const duration<R, P>&); }} }}""")


class Duration:
    """``std::chrono::duration``: nanoseconds, and how they are counted."""

    def __init__(self, kind: Any, ratio: Any, value: Any = 0) -> None:
        self.kind: Any = kind
        self.scale: float = ratio[2] / ratio[1]
        self.nanoseconds: float = value.nanoseconds if isinstance(value, Duration) else value / self.scale * 1e9

    def count(self) -> Any:
        return self.kind(self.nanoseconds * self.scale / 1e9)


class TimePoint:
    """``std::chrono::time_point``: nanoseconds of the clock."""

    def __init__(self, nanoseconds: int = 0) -> None:
        self.nanoseconds = nanoseconds

    def __sub__(self, other: "TimePoint") -> Duration:
        made = Duration(int, ("std::ratio", 1, 1_000_000_000))
        made.nanoseconds = self.nanoseconds - other.nanoseconds
        return made


word("std::ratio")(None)
word("std::chrono::duration", typed=True)(Duration)
word("std::chrono::time_point")(TimePoint)
word("std::chrono::steady_clock")(None)


@word("std::chrono::steady_clock::now")
def now() -> TimePoint:
    return TimePoint(time.perf_counter_ns())


@word("std::chrono::duration_cast", typed=True)
def duration_cast(kind: tuple[Any, ...], *kinds_and_value: Any) -> Duration:
    _, count, ratio = kind
    return Duration(count, ratio, kinds_and_value[-1])


# The process

_random = random.Random(1)


@word("rand", "int rand(); void srand(unsigned); namespace std { using ::rand; using ::srand; }")
def rand() -> int:
    """Returns a random number. It is not the number that the C library would return."""
    return _random.randrange(1 << 31)


@word("srand")
def srand(seed: int) -> None:
    _random.seed(seed)


@word("cupyops::assertion_failed", "void assertion_failed(const char*);")
def assertion_failed(condition: str) -> NoReturn:
    """Ends the program, as assert does.

    Raises:
        AssertionError: always.
    """
    raise AssertionError(f"Assertion `{condition}' failed.")


@word("exit", "[[noreturn]] void exit(int); namespace std { using ::exit; }")
def leave(code: int) -> NoReturn:
    """Ends the process, unless Python catches it.

    Raises:
        SystemExit: always.
    """
    raise SystemExit(code)


@word("abort", "[[noreturn]] void abort(); namespace std { using ::abort; }")
def abort() -> NoReturn:
    """Ends the program.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("abort() was called")


@word("getenv", "char* getenv(const char*); namespace std { using ::getenv; }")
def getenv(name: str) -> str | None:
    return os.environ.get(name)


@word("time", "typedef long time_t; time_t time(time_t*); namespace std { using ::time; using ::time_t; }")
def seconds(place: Any) -> int:
    """Returns the seconds since 1970, and puts them into a place."""
    now = int(time.time())
    if place is not None:
        place[0] = now
    return now


declare("""#define assert(...) ((__VA_ARGS__) ? (void)0 : ::cupyops::assertion_failed(#__VA_ARGS__))
#define RAND_MAX 2147483647
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1""")
declare("#pragma clang force_cuda_host_device end")
