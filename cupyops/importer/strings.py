"""std::string, whose values are ``str``, the streams, and printf."""

import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import tuples  # noqa: F401  its C++ text comes first
from .characters import string_at
from .numbers import NUMBERS
from .references import Pointer, Reference
from .words import declare, word, words

__all__ = ["Stream", "formatted", "shown"]

_NOT_FOUND = (1 << 64) - 1

declare(
    """namespace cupyops { struct character { character(char); character(signed char); character(unsigned char); }; }"""
)


@word("cupyops::character")
def character(code: int) -> str:
    """Returns a ``char`` as the text that streams and strings take it for."""
    return chr(code & 255)


_RELATIONS = " ".join(
    f"friend bool operator{o}(const string&, const string&);" for o in ("==", "!=", "<", ">", "<=", ">=")
)


@word(
    "std::string",
    f"""struct string {{ const char* _text; static constexpr size_t npos = -1; using value_type = char;
  constexpr string() : _text("") {{}} constexpr string(const char* s) : _text(s) {{}} string(size_t, char);
  const char* begin() const; const char* end() const;
  size_t size() const; size_t length() const; bool empty() const; const char* c_str() const; const char* data() const;
  const char& operator[](size_t) const; const char& at(size_t) const; const char& back() const; const char& front() const;
  string substr(size_t = 0, size_t = npos) const; int compare(const string&) const;
  size_t find(const string&, size_t = 0) const; size_t find(const ::cupyops::character&, size_t = 0) const;
  size_t rfind(const string&, size_t = npos) const; size_t rfind(const ::cupyops::character&, size_t = npos) const;
  string& operator+=(const string&); string& operator+=(const ::cupyops::character&);
  string& append(const string&); void push_back(::cupyops::character); void pop_back(); void clear(); void reserve(size_t);
  friend string operator+(const string&, const string&); friend string operator+(const string&, const ::cupyops::character&);
  friend string operator+(const ::cupyops::character&, const string&); {_RELATIONS} }};
using string_view = string; inline namespace literals {{ string operator""s(const char*, size_t); }}
string to_string(int); string to_string(unsigned); string to_string(long); string to_string(unsigned long);
string to_string(long long); string to_string(unsigned long long); string to_string(float); string to_string(double);
template <class T> struct hash {{ size_t operator()(const T&) const; }};""",
    methods="std.string_",
)
def string(text: Any = "", code: int = 0) -> str:
    """Returns a string of another, or of a number of equal characters."""
    return text if isinstance(text, str) else chr(code) * text


@word("std::to_string")
def to_string(value: float) -> str:
    return f"{value:f}" if isinstance(value, float) else str(int(value))


def _found(index: int) -> int:
    return index if index >= 0 else _NOT_FOUND


def _code(s: str, index: int) -> int:
    """Returns a character as ``char``, which is signed."""
    code = ord(s[index]) if index < len(s) else 0
    return code - 256 if 127 < code < 256 else code


def _checked(s: str, index: int) -> int:
    if index >= len(s):
        raise words()["std::out_of_range"].object(
            f"basic_string::at: __n (which is {index}) >= this->size() (which is {len(s)})"
        )
    return _code(s, index)


def _change(change: Callable[..., str]) -> Callable[..., Any]:
    def call(place: Reference, *arguments: Any) -> Any:
        place.value = change(place.value, *arguments)
        return place.value

    return call


_METHODS: dict[str, Callable[..., Any]] = {
    "size": len, "length": len, "empty": lambda s: not s, "c_str": str, "data": str,
    "characters": lambda s: [_code(s, i) for i in range(len(s))],
    "subscript": _code, "at": _checked, "front": lambda s: _code(s, 0), "back": lambda s: _code(s, len(s) - 1),
    "substr": lambda s, start=0, count=_NOT_FOUND: s[start : start + count],
    "compare": lambda s, other: (s > other) - (s < other),
    "find": lambda s, part, start=0: _found(s.find(part, start)),
    "rfind": lambda s, part, start=_NOT_FOUND: _found(s.rfind(part, 0, start + len(part))),
    "append": _change(lambda s, other: s + other), "push_back": _change(lambda s, other: s + other),
    "pop_back": _change(lambda s: s[:-1]), "clear": _change(lambda s: ""), "reserve": lambda place, count: None,
}  # fmt: skip
for _name, _method in _METHODS.items():
    word(f"std::string_::{_name}")(_method)


def _number(convert: Callable[[str], Any], pattern: str, name: str) -> Callable[..., Any]:
    def call(text: str, *_: Any) -> Any:
        found = re.match(r"\s*" + pattern, text)
        if not found:
            raise words()["std::invalid_argument"].object(name)
        return convert(found[0])

    return call


_FLOAT = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
declare("namespace std { int stoi(const string&); long stol(const string&); long long stoll(const string&);"
        " unsigned long stoul(const string&); float stof(const string&); double stod(const string&); }"
        " int atoi(const char*); double atof(const char*); namespace std { using ::atoi; using ::atof; }")  # fmt: skip
for _name in ("stoi", "stol", "stoll", "stoul"):
    word(f"std::{_name}")(_number(int, r"[+-]?\d+", _name))
for _name in ("stof", "stod"):
    word(f"std::{_name}")(_number(float, _FLOAT, _name))
word("atoi")(lambda text: int((re.match(r"\s*[+-]?\d+", text) or ["0"])[0]))
word("atof")(lambda text: float((re.match(r"\s*" + _FLOAT, text) or ["0"])[0]))

# PyTorch's names of dtypes where they differ from the capitalised name.
_DTYPES = {
    "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long", "float16": "Half", "float32": "Float",
    "float64": "Double", "bfloat16": "BFloat16", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "complex64": "ComplexFloat", "complex128": "ComplexDouble", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}  # fmt: skip


def shown(value: Any, precision: int = 6, notation: str = "g") -> str:
    """Returns a value as C++'s streams write it."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.{precision}{notation}}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, torch.dtype):
        name = str(value).removeprefix("torch.")
        return _DTYPES.get(name, name.capitalize())
    if isinstance(value, torch.Tensor):
        return str(value)
    return "0" if value is None else str(value)


class Stream:
    """``std::ostream``: ``stream << x`` writes a value, or changes how later ones are written."""

    def __init__(self, target: Callable[[], Any] | None = None) -> None:
        self.target = target
        self.parts: list[str] = []
        self.precision, self.notation, self.base, self.width, self.filler = 6, "g", "d", 0, " "
        self.left = self.words = False

    def __lshift__(self, value: Any) -> "Stream":
        if isinstance(value, Manipulator):
            value.change(self)
            return self
        if isinstance(value, bool) and self.words:
            value = str(value).lower()
        if isinstance(value, int) and not isinstance(value, bool) and self.base != "d":
            value = format(value & (1 << 64) - 1 if value < 0 else value, self.base)
        text = shown(value, self.precision, self.notation)
        self.write(text.ljust(self.width, self.filler) if self.left else text.rjust(self.width, self.filler))
        self.width = 0
        return self

    def write(self, text: str) -> None:
        if self.target is None:
            self.parts.append(text)
        else:
            self.target().write(text)

    def end_line(self) -> None:
        self.write("\n")
        self.flush()

    def flush(self) -> "Stream":
        if self.target is not None:
            self.target().flush()
        return self

    def str(self, text: Any = None) -> Any:
        """Returns what was written; or begins anew with a text."""
        if text is None:
            return "".join(self.parts)
        self.parts = [text] if text else []
        return None

    def set_precision(self, digits: int) -> None:
        self.precision = digits


class Manipulator:
    """``std::endl``, ``std::setprecision(3)``: a change of a stream."""

    def __init__(self, change: Callable[[Stream], Any]) -> None:
        self.change = change


def _setting(**settings: Any) -> Manipulator:
    return Manipulator(lambda stream: stream.__dict__.update(settings))


_MANIPULATORS = {
    "endl": Manipulator(lambda stream: stream.end_line()), "flush": Manipulator(Stream.flush),
    "fixed": _setting(notation="f"), "scientific": _setting(notation="e"), "defaultfloat": _setting(notation="g"),
    "boolalpha": _setting(words=True), "noboolalpha": _setting(words=False), "left": _setting(left=True),
    "right": _setting(left=False), "hex": _setting(base="x"), "dec": _setting(base="d"), "oct": _setting(base="o"),
}  # fmt: skip


@word(
    "std::ostringstream",
    f"""struct _manipulator {{}}; extern const _manipulator {", ".join(_MANIPULATORS)};
_manipulator setprecision(int); _manipulator setw(int); _manipulator setfill(::cupyops::character);
template <class T> inline constexpr bool _is_char = __is_same(T, char) || __is_same(T, signed char) || __is_same(T, unsigned char);
struct ostream {{ template <class T> enable_if_t<!_is_char<T>, ostream&> operator<<(const T&); ostream& operator<<(const ::cupyops::character&);
  ostream& flush(); ostream(const ostream&) = delete; protected: ostream(); }};
struct ostringstream : ostream {{ ostringstream(); string str() const; void str(const string&); }};
using stringstream = ostringstream; extern ostream cout, cerr, clog;""",
)
class StringStream(Stream):
    def __init__(self) -> None:
        super().__init__()


word("std::ostream")(Stream)
word("std::cout")(Stream(lambda: sys.stdout))
word("std::cerr")(Stream(lambda: sys.stderr))
word("std::clog")(Stream(lambda: sys.stderr))
for _name, _manipulator in _MANIPULATORS.items():
    word(f"std::{_name}")(_manipulator)
word("std::setprecision")(lambda digits: _setting(precision=digits))
word("std::setw")(lambda width: _setting(width=width))
word("std::setfill")(lambda filler: _setting(filler=filler))


class File:
    """``stdout`` and ``stderr`` of C: Python's, as they are when something is written."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> None:
        getattr(sys, self.name).write(text)

    def flush(self) -> None:
        getattr(sys, self.name).flush()


_FIELD = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|z|j|t|L)?([diuoxXcsfFeEgGaAp%])")
_PRECISE = re.compile(r"\.(\*|\d+)?")


def formatted(pattern: str, arguments: tuple[Any, ...]) -> str:
    """Returns the text that printf writes."""
    left = list(arguments)

    def field(match: re.Match[str]) -> str:
        flags, width, digits, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(left.pop(0)) if width == "*" else width or ""
        digits = str(left.pop(0)) if digits == "*" else digits
        precision = f".{digits or 0}" if "." in match[0] else ""
        value = left.pop(0)
        if kind in "uoxX" and value < 0:
            value &= (1 << (64 if length in ("l", "ll", "z", "j", "t") else 32)) - 1
        if kind == "c":
            value = chr(value & 255) if isinstance(value, int) else value
        elif kind == "p":
            kind, value = "s", hex(id(value.memory) + value.offset) if isinstance(value, Pointer) else "(nil)"
        elif kind == "s":
            value = "(null)" if value is None else string_at(value)
        elif kind in "diuoxX":
            value = int(value)
        elif kind in "aA":
            kind, value = "s", float(value).hex()
        if kind == "o" or kind in "xX":
            flags = flags.replace("#", "") if value == 0 else flags
        return f"%{flags}{width}{precision}{'d' if kind in 'iu' else kind}" % value

    return _FIELD.sub(field, pattern)


declare("typedef struct _IO_FILE FILE; extern FILE *stdout, *stderr;")
for _name in ("stdout", "stderr"):
    word(_name)(File(_name))


@word("printf", "int printf(const char*, ...); namespace std { using ::printf; }")
def printf(pattern: str, *arguments: Any) -> int:
    return fprintf(File("stdout"), pattern, *arguments)


@word("fprintf", "int fprintf(FILE*, const char*, ...); namespace std { using ::fprintf; }")
def fprintf(file: File, pattern: str, *arguments: Any) -> int:
    """Writes a text to a file, and returns its length."""
    text = formatted(pattern, arguments)
    file.write(text)
    return len(text)


@word("puts", "int puts(const char*);")
def puts(text: str) -> int:
    File("stdout").write(f"{text}\n")
    return len(text) + 1


@word(
    "snprintf",
    "int snprintf(char*, size_t, const char*, ...); int sprintf(char*, const char*, ...); namespace std { using ::snprintf; }",
)
def snprintf(to: Pointer, size: int, pattern: str, *arguments: Any) -> int:
    text = formatted(pattern, arguments)
    for i, code in enumerate([*map(ord, text[: size - 1]), 0] if size else ()):
        to[i] = NUMBERS["int8"](code)
    return len(text)


@word("sprintf")
def sprintf(to: Pointer, pattern: str, *arguments: Any) -> int:
    return snprintf(to, _NOT_FOUND, pattern, *arguments)


declare("size_t strlen(const char*); int strcmp(const char*, const char*); int strncmp(const char*, const char*, size_t);"
        " namespace std { using ::strlen; using ::strcmp; using ::strncmp; }")  # fmt: skip
word("strlen")(len)
word("strcmp")(lambda a, b: (a > b) - (a < b))
word("strncmp")(lambda a, b, count: (a[:count] > b[:count]) - (a[:count] < b[:count]))


@word("fflush", "int fflush(FILE*);")
def fflush(file: File | None = None) -> int:
    for each in [file] if file is not None else [File("stdout"), File("stderr")]:
        each.flush()
    return 0
