"""Asks the compiler for types: of the parameters of a kernel, and of the data members of classes.

A question is a type in C++, such as ``decltype(&a::scale<float>)``. The source of a question (:func:`asking`) instantiates a
template with it. The mangled name of the instance has the type as the compiler understands it, with every typedef, alias, macro,
pack and member type followed. NVRTC returns the mangled name of a name expression, and a C++ compiler for the host that
of ``typeid``. Both use the definitions of ``names/ask.cuh``. They are after the source, need no header, and all their names begin
with ``Cupyops``.
"""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .cpp_library import names_in
from .definitions import split

__all__ = [
    "QUESTIONS",
    "Field",
    "ParameterType",
    "answer_in",
    "arguments_in",
    "asked_in",
    "asking",
    "asking_types",
    "demangled",
    "element_of",
    "fields_in",
    "fields_of",
    "item_of",
    "parameters_in",
    "parameters_of",
    "split_types",
    "type_of",
]

_TOGETHER = 8  # names of data members in a question
QUESTIONS = "cupyops/types"  # the file name of the questions in messages
_ANSWER = "template <class CupyopsAskedT> __device__ char CupyopsAnswer = 0;"
_QUESTION = re.compile(r"^typedef .* (CupyopsQuestion\d+);$", re.MULTILINE)


@dataclass(frozen=True)
class ParameterType:
    """The type of a parameter, as the compiler understands it.

    Attributes:
        spelling: the type in C++, ``float const*``.
        kind: of the element, which is what remains of the type without pointers, references and extents: ``"n"`` for a number
            and for void, ``"e"`` for an enumeration, ``"s"`` for a class, ``"m"`` for one whose members
            differ in access or are those of bases, too, ``"o"`` for a class without data, ``"i"`` for a class
            without a definition.
        element: the type of the number, or the integer type of the enumeration; ``"void"`` for a class.
        size, alignment: of the element in bytes; 0 without a size.
    """

    spelling: str
    kind: str
    element: str
    size: int
    alignment: int


@dataclass(frozen=True)
class Field:
    """A data member of a class.

    Attributes:
        name: the name.
        kind, element, size, alignment: as of a :class:`ParameterType`. The element is what remains without extents.
        offset: in bytes; -1 for a bit field and for a reference, whose offsets cannot be asked for.
        extents: of an array.
    """

    name: str
    kind: str
    element: str
    size: int
    alignment: int
    offset: int
    extents: tuple[int, ...] = ()


def parameters_of(function: int = 0) -> str:
    """Returns the question for the types of the parameters of one of the functions of :func:`asking`."""
    return f"CupyopsAskedParameters<CupyopsAskedFunction{function}>::CupyopsAskedType"


def type_of(given: str) -> str:
    """Returns the question for a type that has a name, whose answer :func:`parameters_in` takes apart in a list."""
    return f"CupyopsAskedTell<{given}>::CupyopsAskedType"


def element_of(position: int) -> str:
    """Returns the type of the elements of a parameter of the first function."""
    plain = "CupyopsAskedParameters<CupyopsAskedFunction0>::CupyopsAskedPlain"
    return f"CupyopsAskedAt<{position}, {plain}>::CupyopsAskedType"


def item_of(element: str, name: str) -> str:
    """Returns the type of a data member of a class, without extents."""
    return f"CupyopsAskedField_{name}<{element}>::CupyopsAskedItem"


def fields_of(element: str, names: Sequence[str]) -> list[str]:
    """Returns the questions which of some names are data members of a class. Few names are in a question: see :func:`demangled`."""
    listed = [f"CupyopsAskedField_{name}<{element}>::CupyopsAskedType" for name in names]
    return [f"CupyopsAskedList<{', '.join(listed[i : i + _TOGETHER])}>" for i in range(0, len(listed), _TOGETHER)]


def asking(functions: Sequence[str], questions: Sequence[str], names: Sequence[str] = ()) -> str:
    """Returns the CUDA C++ that follows a source and asks questions.

    Args:
        functions: expressions of the addresses of the functions that the questions are about.
        questions: types in C++.
        names: the names of data members that the questions have. The questions are compiled without macros of these
        names.
    """
    own = [f"typedef decltype({function}) CupyopsAskedFunction{i};" for i, function in enumerate(functions)]
    lines = [f'\n#line 1 "{QUESTIONS}"', *own, *(f"#undef {name}" for name in names), _ANSWER]
    lines += names_in("ask.cuh").definitions(["CupyopsAskedParameters"])
    return "\n".join([*lines, *(f"CUPYOPS_ASKED_FIELD({name})" for name in names), *_typedefs(questions)])


def asking_types(functions: Sequence[str]) -> str:
    """Returns the CUDA C++ that follows a source and asks for the types of functions, whose addresses are given."""
    return "\n".join([f'\n#line 1 "{QUESTIONS}"', _ANSWER, *_typedefs([f"decltype({f})" for f in functions])])


def _typedefs(questions: Sequence[str]) -> list[str]:
    return [*(f"typedef {question} CupyopsQuestion{i};" for i, question in enumerate(questions)), ""]


def asked_in(source: str) -> list[str]:
    """Returns the name expressions of the questions of a source, in their order."""
    return [f"&CupyopsAnswer<{name}>" for name in _QUESTION.findall(source)]


def answer_in(instance: str) -> str:
    """Returns the answer in the name of an instance, ``CupyopsAnswer<...>``; empty if the name cannot be demangled."""
    return instance.partition("<")[2].rpartition(">")[0].strip()


def parameters_in(answer: str) -> tuple[ParameterType, ...]:
    """Returns the answer to the question of :func:`parameters_of`."""
    return tuple(
        ParameterType(spelling, _character(kind), element, _number(size), _number(alignment))
        for spelling, kind, element, size, alignment in map(arguments_in, arguments_in(answer))
    )


def fields_in(answers: Sequence[str], names: Sequence[str]) -> tuple[Field, ...]:
    """Returns the answers to the questions of :func:`fields_of`.

    Raises:
        ValueError: an answer is too long to be read.
    """
    found = []
    for name, told in zip(names, [one for answer in answers for one in arguments_in(answer)], strict=True):
        if told == "bool":
            found.append(Field(name, "n", "bool", 0, 0, -1))
        elif told != "void":
            kind, element, size, alignment, offset, extents = arguments_in(told)
            counts = tuple(map(_number, arguments_in(extents)))
            found.append(
                Field(name, _character(kind), element, _number(size), _number(alignment), _number(offset), counts)
            )
    return tuple(found)


def _character(told: str) -> str:
    """Returns the character of ``(char)115``, as a demangled name spells it."""
    return chr(int(told.rpartition(")")[2]))


def _number(told: str) -> int:
    """Returns the number of ``112ull``."""
    return int(told.rstrip("ul"))


def arguments_in(instance: str) -> list[str]:
    """Returns the arguments of an instance of a template, ``Pair<float, int>``, or the parameters of a function's type."""
    opening = instance.index("<")
    return split_types(instance[opening + 1 : instance.rindex(">")])


def split_types(listed: str) -> list[str]:
    """Returns the types of a list with commas between them."""
    return [part.strip() for _, part in split(listed) if part.strip()]


def demangled(symbol: str) -> str:
    """Returns the C++ of a mangled name or type, or the name itself if it cannot be demangled.

    The function of the C++ runtime is in every process that has loaded CuPy or a simulated kernel. It refuses names of more than
    1,024 characters.
    """
    for library in (None, "libstdc++.so.6"):
        try:
            demangle = getattr(ctypes.CDLL(library), "__cxa_demangle", None)
        except OSError:
            continue
        if demangle is not None:
            demangle.restype = ctypes.c_char_p
            found = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
            return found.decode(errors="replace") if found else symbol
    return symbol
