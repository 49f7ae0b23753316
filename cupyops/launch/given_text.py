"""Checks and completes the text that an author passes: the macros that it needs, the header that has the kernel, and
linked texts."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kernels_cu
from cupyops.compile.cuda_text import scan
from cupyops.compile.preprocess import around, known_macros
from cupyops.compile.project_headers import includes, read
from cupyops.compile.source import included
from cupyops.errors import expected

from .definitions import entry_in, split_name
from .geometry import at_least

__all__ = [
    "LinkedText",
    "check_text",
    "checked_filename",
    "file_name",
    "linked_texts",
    "macros",
    "numbers",
    "prepared",
    "with_header",
]


@dataclass(frozen=True)
class LinkedText:
    """A text that is compiled apart from the kernel's text and linked with it.

    Attributes:
        text: CUDA C++.
        filename: the file name in messages.
        headers: the texts of the headers that lie beside the file, by name.
    """

    text: str
    filename: str
    headers: Mapping[str, str]


def linked_texts(kernel: str, link: Sequence[str | os.PathLike[str]]) -> tuple[LinkedText, ...]:
    """Returns the texts of ``link=``, each a str of CUDA C++ or the path of a file.

    Raises:
        TypeError: `link` is one text, or an element of it is none.
        ValueError: a text looks like a path.
        OSError: a file cannot be read.
    """
    if isinstance(link, (str, os.PathLike)) or not isinstance(link, Sequence):
        got = "one text" if isinstance(link, (str, os.PathLike)) else type(link).__name__
        raise TypeError(expected(kernel, "link", "be a list of texts", got))
    found = []
    for number, given in enumerate(link):
        filename = f"{kernel}_link{number + 1}.cu"
        beside: dict[str, str] = {}
        text: Any = given
        if isinstance(given, os.PathLike):
            filename = checked_filename(kernel, os.path.basename(given))
            text, beside = read(given)
        check_text(text, kernel)
        found.append(LinkedText(text, filename, beside))
    return tuple(found)


def checked_filename(where: str, filename: str) -> str:
    """Returns the file name of a text, which `#line` directives, messages and paths of temporary files have.

    Raises:
        ValueError: it is empty or longer than 255 characters, or has a character that a directive cannot have.
    """
    if (
        not 0 < len(filename) <= 255
        or not filename.isprintable()
        or set('"\\') & set(filename)
        or not filename.strip("./")
    ):
        shown = repr(filename if len(filename) <= 80 else filename[:80] + "...")
        raise ValueError(
            expected(where, "filename", "be the name of a file, without quotes, \\ and line breaks", shown)
        )
    return filename


def check_text(text: object, where: str) -> None:
    """Raises unless the argument is CUDA C++ text.

    Args:
        text: the argument.
        where: what messages begin with.

    A str that looks like a path gets an error of its own, because the error for a text without a kernel would mislead.

    Raises:
        TypeError: `text` is not a str.
        ValueError: `text` looks like a path.
    """
    if not isinstance(text, str):
        raise TypeError(expected(where, "text", "be CUDA C++ as a str, or a Path", type(text).__name__))
    if "\n" in text or "{" in text:
        return
    there = os.path.isfile(text)
    if there or text.endswith((".cu", ".cuh")):
        absent = "" if there else f"; there is no such file in {os.getcwd()}"
        got = f"{text!r}, which looks like a path: give Path({text!r}){absent}"
        raise ValueError(expected(where, "text", "be CUDA C++", got))


def prepared(
    text: str,
    kernel: str | None,
    headers: Mapping[str, str],
    filename: str | None,
    options: Sequence[str],
    constants: Mapping[str, int] | None = None,
) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Returns a text and its headers as :func:`with_header` does, and the options with the undefined macros of the
    conditions around the kernel, such as ``USE_CUDA``, which a build defines.

    Args:
        text: CUDA C++. A text of :mod:`kernels_cu` is read at its first use, and stays as it is.
        kernel: the kernel's name; None for a text of one kernel.
        headers: the texts of the headers, by name.
        filename: the file name of the text in messages.
        options: NVRTC options.
        constants: the kernel's constants.
    """
    if isinstance(text, kernels_cu.Text):
        return text, dict(headers), tuple(options)
    text, known = with_header(text, kernel, headers, filename) if kernel else (text, dict(headers))
    defined: tuple[str, ...] = ()
    if kernel and "#" in text:
        name = split_name(kernel)[0].rpartition("::")[2]
        places = [f.start for f in scan(text).functions if f.name == name]
        defined = around(text, places, included(text, known), known_macros(constants or {}, options))
    options = (*options, *(f"-D{name}" for name in defined))
    return text, known, options


def with_header(
    text: str, kernel: str, headers: Mapping[str, str], filename: str | None = None
) -> tuple[str, dict[str, str]]:
    """Returns a text with the header that has the kernel in place of its ``#include``, and the headers without this one. Returns a
    text that has the kernel itself as it is.

    Args:
        text: CUDA C++.
        kernel: the kernel's name.
        headers: the texts of the headers, by name.
        filename: the file name of the text in messages.
    """
    headers = dict(headers)
    name = split_name(kernel)[0].rpartition("::")[2]

    def has(source: str) -> bool:
        # A declared kernel's text is read when it is first needed, so the text is only searched here.
        return re.search(rf"\b{re.escape(name)}\s*\(", source) is not None and any(
            f.name == name and not f.special for f in scan(source).functions
        )

    while headers and not has(text):
        found = next(
            (
                (header, directive)
                for header, _, directive in includes(text)
                if any(map(has, (headers.get(header, ""), *included(headers.get(header, ""), headers).values())))
            ),
            None,
        )
        if found is None:
            break
        header, directive = found
        line = text.count("\n", 0, directive.end) + 2
        pieces = (f'#line 1 "{header}"', headers[header], f'#line {line} "{filename or file_name(kernel)}"')
        text = text[: directive.start] + "\n".join(pieces) + text[directive.end :]
        headers[header] = ""
    return text, headers


def file_name(name: str) -> str:
    """Returns the file name in messages of a text that was not read from a file."""
    return f"{split_name(name)[0].rpartition('::')[2]}.cu"


def numbers(text: str, name: str) -> dict[str, int]:
    """Returns the numbers that a kernel's name gives for the parameters of a template: 128 in ``softmax<float, 128>``."""
    entry = entry_in(text, name) if "<" in name else None
    return entry.numbers() if entry else {}


def macros(kernel: str, constants: Mapping[str, int], of_geometry: Mapping[str, int]) -> dict[str, int]:
    """Returns the constants of a kernel's launch policy, followed by the given constants.

    Raises:
        ValueError: the name of a constant is not a macro name, or its value is not that of the launch policy.
        TypeError: a value is not an integer.
    """
    found = dict(of_geometry)
    for name, value in constants.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(expected(kernel, "constants", "have names of macros", repr(name)))
        found[name] = number = at_least(kernel, f"constants[{name!r}]", value, None)
        if of_geometry.get(name, number) != number:
            wanted = f"equal the constant of the launch policy, {of_geometry[name]}"
            raise ValueError(expected(kernel, f"constants[{name!r}]", wanted, number))
    return found
