"""Follows the directives of a text as far as they can be decided without a compiler.

A condition is true, false or undecided. It is undecided if it reads a macro of the compiler, such as ``__CUDA_ARCH__``,
or a macro that an undecided branch defines. A macro that an undecided branch defines is undecided, too.
"""

import ast
import operator
import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from .cuda_text import CONDITIONALS, Directive, scan
from .declarations import WORD
from .macros import Macro, macro_of
from .system_headers import in_text

__all__ = [
    "CONDITIONALS",
    "OF_COMPILER",
    "Include",
    "Preprocessed",
    "around",
    "defines_of",
    "known_macros",
    "preprocess",
    "undefined_by",
]

_OPTION = re.compile(r"(?:-D|--define-macro=)\s*(\w+)(?:=(.*))?", re.DOTALL)
_UNDEFINED = re.compile(r"(?:-U|--undefine-macro=)\s*(\w+)")
_WORDS = frozenset(("defined", "true", "false"))
_ASKS = re.compile(r"(?:[\w\s()]|&&)*")
# What differs in Python: the operator ! has the precedence of ~, and integers have no suffixes.
_IN_PYTHON = {
    r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))": r" defined.\1\2 ",
    r"&&": " and ",
    r"\|\|": " or ",
    r"!(?!=)": "~",
    r"\b(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]+\b": r"\1",
}
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_COMPARED = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.GtE: operator.ge,
}
_DEPTH = 16  # macros within one another
# Macros that NVRTC defines or that texts have as with nvcc, and those of other compilers.
OF_COMPILER = {"__CUDACC__": "1", "__CUDACC_RTC__": "1", "__NVCC__": "1", "__cplusplus": "201703"}
OF_COMPILER |= {"__GNUC__": "13", "__LP64__": "1"} if sys.platform == "linux" else {}
_OTHER_COMPILERS = frozenset(("__HIP__", "__HIPCC__", "__HIP_PLATFORM_AMD__", "__HIP_DEVICE_COMPILE__"))
# Macros that compilers define on another system.
_OTHER_COMPILERS |= {name for name in ("_WIN32", "_WIN64", "_MSC_VER", "__MINGW32__") if sys.platform != "win32"}
_OTHER_COMPILERS |= {name for name in ("__APPLE__",) if sys.platform != "darwin"}
# Macros with which projects choose another platform than CUDA, as PyTorch's USE_ROCM.
# Macros with which a build asks for checks and messages. Headers do not define them.
_OF_BUILDS = frozenset(("DEBUG", "_DEBUG", "NDEBUG", "VERBOSE", "WARNINGS", "PROFILE", "WIN32", "WINCE"))
_FEATURE = re.compile(r"\b__has_\w+\s*\([^()]*\)")  # whose words are not macros
_OTHER_PLATFORM = re.compile(r"(?:\A|_)(?:HIP|HIPCC|ROCM|AMD|AMDGPU|MUSA|SYCL|OPENCL)(?:_|\Z)|DOXYGEN")


class _AtLeast(int):
    """A number whose minimum is known."""


# The oldest versions that are supported. A comparison with a later version stays undecided, and the compiler evaluates it.
_VERSIONS = {"CUDART_VERSION": _AtLeast(12000), "CUDA_VERSION": _AtLeast(12000), "__CUDACC_VER_MAJOR__": _AtLeast(12)}
_VERSIONS["THRUST_VERSION"] = _AtLeast(200001)


class Include(NamedTuple):
    """An ``#include`` directive: the name, whether it lies in code that is compiled (None: undecided), and the place."""

    name: str
    live: bool | None
    directive: Directive
    where: str


class Preprocessed:
    """The result of :func:`preprocess`.

    Attributes:
        macros: the macros by name; None for a macro that is undecided.
        includes: the ``#include`` directives of the text and of its headers.
    """

    def __init__(
        self, text: str, headers: Mapping[str, str], defines: Mapping[str, str | None], own: frozenset[str]
    ) -> None:
        given = {**OF_COMPILER, **defines}
        self.macros = {name: None if text is None else Macro(name, None, text) for name, text in given.items()}
        self.includes: list[Include] = []
        self._text, self._headers, self._defines, self._own = text, headers, defines, own
        self._states: dict[str, tuple[list[int], list[bool | None]]] = {}

    def live(self, where: str, place: int) -> bool | None:
        """Returns whether the code at an offset is compiled; None if that is undecided.

        Args:
            where: the name of a header, or ``""`` for the text.
            place: the offset.
        """
        offsets, states = self._states.get(where, ([0], [False]))
        return states[max(bisect_right(offsets, place) - 1, 0)]

    def spans(self, where: str, text: str) -> list[tuple[int, int, bool | None]]:
        """Returns the spans of a text between conditional directives: start, end, and whether the code there is compiled."""
        offsets, states = self._states.get(where, ([0], [True]))
        return list(zip(offsets, [*offsets[1:], len(text)], states, strict=True))

    def compiled(self, where: str, text: str) -> str:
        """Returns a text with blanks for what conditions remove."""
        pieces = ((text[start:end], state is False) for start, end, state in self.spans(where, text))
        return "".join(re.sub(r"[^\n]", " ", piece) if gone else piece for piece, gone in pieces)

    def free(self, texts: Mapping[str, str]) -> list[str]:
        """Returns the names in conditions that are neither macros of the texts nor of a compiler.

        Args:
            texts: the text and its headers, by name.
        """
        found: dict[str, None] = {}
        for where, text in texts.items():
            for directive in scan(text).directives:
                # An #elif does not depend on the state of the branch before it.
                read = directive.name.startswith("elif") or self.live(where, directive.start - 1) is not False
                if read and directive.name in CONDITIONALS:
                    found |= dict.fromkeys(WORD.findall(_FEATURE.sub(" ", directive.rest)))
        return [name for name in found if name not in _OF_BUILDS and name not in self._own and self.is_free(name)]

    def with_undecided(self, names: Sequence[str]) -> "Preprocessed":
        """Returns the result for names that may or may not be macros."""
        defines = {**self._defines, **dict.fromkeys(names)}
        found = Preprocessed(self._text, self._headers, defines, self._own.union(names))
        found.follow("", self._text, True)
        return found

    def known(self, hidden: Collection[str] = ()) -> dict[str, Macro]:
        """Returns the macros that are decided, without some names."""
        return {name: macro for name, macro in self.macros.items() if macro is not None and name not in hidden}

    def is_free(self, name: str, sure: bool = True) -> bool:
        """Returns whether neither the texts nor (for certain, if `sure`) a compiler defines a name, and it is not of another platform."""
        known = name in _WORDS or name in _OTHER_COMPILERS or _OTHER_PLATFORM.search(name)
        return not known and name not in self.macros and (not sure or self.is_defined(name) is False)

    def follow(self, where: str, text: str, outer: bool | None, until: int | None = None) -> None:
        """Follows the directives of a text up to an offset."""
        offsets, states = self._states.setdefault(where, ([0], [outer]))
        # For each open conditional: whether the code around it is compiled, whether the current branch is chosen, and
        # whether this branch or an earlier branch is chosen.
        branches: list[tuple[bool | None, bool | None, bool | None]] = []
        now = outer
        for directive in scan(text).directives:
            if until is not None and directive.start > until:
                break
            name, rest = directive.name, directive.rest
            if name in ("if", "ifdef", "ifndef"):
                value = self._condition(name, rest)
                branches.append((now, value, value))
            elif name in ("elif", "elifdef", "elifndef", "else") and branches:
                around, _, taken = branches[-1]
                value = True if name == "else" else self._condition(name.replace("el", "", 1), rest)
                branches[-1] = (around, _all([_not(taken), value]), _any([taken, value]))
            elif name == "endif" and branches:
                now = branches.pop()[0]
                offsets.append(directive.start)
                states.append(now)
                continue
            elif now is False:
                continue
            elif header := directive.header:
                self.includes.append(Include(header, now, directive, where))
                known = header in self._headers and header not in self._states
                if known and in_text(header, rest[0] == '"'):
                    self.follow(header, self._headers[header], now)
            elif name in ("define", "undef") and (word := WORD.match(rest)):
                if name == "define" or now is None:
                    self.macros[word[0]] = macro_of(directive) if now else None
                else:
                    self.macros.pop(word[0], None)
            if name in ("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else"):
                offsets.append(directive.start)
                now = _all(branches[-1][:2]) if branches else outer
                states.append(now)

    def _condition(self, name: str, rest: str) -> bool | None:
        if name != "if":
            defined = self.is_defined(rest.split()[0]) if rest.split() else None
            return defined if name == "ifdef" else _not(defined)
        value = _value(rest, self)
        return None if value is None else value != 0

    def is_defined(self, name: str) -> bool | None:
        """Returns whether a name is a macro; None if that is undecided."""
        if name in self.macros:
            return True if self.macros[name] is not None or name not in self._own else None
        # The names of compilers and of their libraries, and CUDA's names, may be the compiler's.
        known = name in self._own or name in _OTHER_COMPILERS or _OTHER_PLATFORM.search(name)
        return (
            None
            if not known
            and re.match(
                r"__|_(?:[A-Z]+64|[A-Z]+_SOURCE|WIN|MSC|GLIBCXX|LIB|CCCL|CUDA|NV|OPENMP|REENTRANT|STD|POSIX)|CU[A-Z]*_|NV|NDEBUG\b|[A-Z]+_MAX\b",
                name,
            )
            else False
        )

    def number(self, name: str, depth: int) -> int | None:
        """Returns the value of a name in a condition, or None."""
        macro = self.macros.get(name)
        if name in _VERSIONS and name not in self.macros and name not in self._own:
            return _VERSIONS[name]
        if macro is None or macro.parameters is not None or depth > _DEPTH:
            return None if name in self.macros or self.is_defined(name) is None else {"true": 1}.get(name, 0)
        return _value(macro.body, self, depth + 1)


def _value(text: str, given: Preprocessed, depth: int = 0) -> int | None:
    """Returns the value of a condition, or None if it is undecided, as one with an operator that few texts have."""
    try:
        return _evaluated(_parsed(text), given, depth)
    except (ValueError, RecursionError):
        return None


@lru_cache(1024)
def _parsed(text: str) -> ast.expr:
    """Returns a condition as an expression of Python, which has the same operators; ``defined.NAME`` for ``defined(NAME)``.

    Raises:
        ValueError: Python has no such expression.
    """
    if "~" in text:  # which stands for ! below
        raise ValueError(text)
    for of_c, of_python in _IN_PYTHON.items():
        text = re.sub(of_c, of_python, text)
    try:
        return ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(text) from error


def _number(value: bool | None) -> int | None:
    return None if value is None else int(value)


def _evaluated(node: ast.expr, given: Preprocessed, depth: int) -> int | None:
    match node:
        case ast.Constant(value=bool() | None as value):  # `True` and `None` are names in C
            return given.number(str(value), depth)
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return given.number(name, depth)
        case ast.Attribute(ast.Name("defined"), name):
            return _number(given.is_defined(name))
        case ast.BoolOp(op, values):
            found = [None if v is None else v != 0 for v in (_evaluated(value, given, depth) for value in values)]
            return _number(_all(found) if isinstance(op, ast.And) else _any(found))
        case ast.UnaryOp(ast.Invert() | ast.USub() as op, operand):
            value = _evaluated(operand, given, depth)
            return None if value is None else -value if isinstance(op, ast.USub) else int(not value)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            a, b = _evaluated(left, given, depth), _evaluated(right, given, depth)
            return None if a is None or b is None else _ARITHMETIC[type(op)](a, b)
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
            a, b = _evaluated(left, given, depth), _evaluated(right, given, depth)
            if a is None or b is None or isinstance(b, _AtLeast):
                return None
            if isinstance(a, _AtLeast):
                more, less = isinstance(op, (ast.Gt, ast.GtE)), isinstance(op, (ast.Lt, ast.LtE))
                above = a > b if isinstance(op, (ast.Gt, ast.LtE)) else a >= b
                return int(more) if above and (more or less) else None
            return int(_COMPARED[type(op)](a, b))
    raise ValueError(ast.dump(node))


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _all(values: Sequence[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _any(values: Sequence[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def around(text: str, places: Sequence[int], headers: Mapping[str, str], defines: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the macros that nothing defines and whose conditions remove the code at offsets, such as ``USE_CUDA`` of
    ``#ifdef USE_CUDA``. Returns none if the code at an offset may be compiled, or if other conditions remove it.

    Args:
        text: CUDA C++.
        places: the offsets. The conditions are those around the first one.
        headers, defines: as for :func:`preprocess`.
    """
    place = min(places, default=0)
    opened: list[str] = []
    for directive in scan(text).directives_between(0, place):
        if directive.name in ("if", "ifdef", "ifndef"):
            # Only whether such a macro is defined matters, not its value.
            opened.append(directive.rest if directive.name != "ifndef" and _ASKS.fullmatch(directive.rest) else "")
        elif directive.name == "endif":
            del opened[-1:]
        elif directive.name in CONDITIONALS and opened:
            opened[-1] = ""
    followed = preprocess(text, headers, defines)
    if not opened or any(followed.live("", other) for other in places):
        return ()
    # CUDA's headers may define a name such as CUDA_FEATURE. Texts test only their version macros.
    words = [
        name for condition in opened for name in WORD.findall(condition) if name[0] != "_" and "VERSION" not in name
    ]
    names = [name for name in words if followed.is_free(name, sure=False)]
    chosen = preprocess(text, headers, {**dict.fromkeys(names, "1"), **defines})
    return tuple(dict.fromkeys(names)) if chosen.live("", place) else ()


def defines_of(constants: Mapping[str, int], options: Sequence[str]) -> dict[str, str]:
    """Returns the macros that a kernel's constants and the options ``-D`` define."""
    found = {name: str(value) for name, value in constants.items()}
    for option in options:
        if macro := _OPTION.fullmatch(option.strip()):
            found[macro[1]] = "1" if macro[2] is None else macro[2]
    return found


def known_macros(constants: Mapping[str, int], options: Sequence[str]) -> dict[str, str]:
    """Returns the macros of :func:`defines_of`, and the version of C++ if the options choose C++20."""
    version = {"__cplusplus": "202002"} if any(re.match(r"--?std=(?:c|gnu)\+\+2", option) for option in options) else {}
    return {**version, **defines_of(constants, options)}


def undefined_by(options: Sequence[str]) -> frozenset[str]:
    """Returns the macros that the options ``-U`` leave undefined."""
    return frozenset(found[1] for option in options if (found := _UNDEFINED.fullmatch(option.strip())))


def preprocess(
    text: str, headers: Mapping[str, str], defines: Mapping[str, str], until: int | None = None
) -> Preprocessed:
    """Follows the directives of a text and of its headers.

    Args:
        text: CUDA C++.
        headers: the texts of headers, by the name in ``#include "name"``.
        defines: macros that are defined before the text.
        until: the offset at which to stop.
    """
    result = Preprocessed(text, headers, defines, frozenset[str]().union(*map(_defined_in, (text, *headers.values()))))
    result.follow("", text, True, until)
    return result


@lru_cache(512)
def _defined_in(text: str) -> frozenset[str]:
    """Returns the macros that directives of a text define or undefine. Most texts have the same headers."""
    found = (WORD.match(d.rest) for d in scan(text).directives if d.name in ("define", "undef"))
    return frozenset(word[0] for word in found if word)
