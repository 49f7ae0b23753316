"""The text of a kernel with all that decides what NVRTC makes of the text."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cupyops.compile.preprocess import defines_of
from cupyops.compile.source import assemble, included
from cupyops.errors import CompileError, expected

from .definitions import entry_in, only
from .geometry import at_least
from .locate import located
from .template import numbers_of, split_name

__all__ = ["KernelSource", "check_text", "file_name", "macros", "numbers"]


@dataclass(frozen=True)
class KernelSource:
    """One ``__global__`` function of a CUDA C++ text.

    Attributes:
        text: CUDA C++.
        name: the name of the ``__global__`` function, also with namespaces and template arguments.
        filename: the file name of the text in messages.
        constants: values of macros.
        headers: header texts by name for ``#include "name"``, in addition to the shared headers.
        options: NVRTC options in addition to :data:`cupyops.compile.compiler.OPTIONS`.
        declared_in: the Python file that holds the text, or None.
    """

    text: str
    name: str
    filename: str
    constants: Mapping[str, int]
    headers: Mapping[str, str]
    options: tuple[str, ...]
    declared_in: Any

    def final(self, types: Mapping[str, str], twins: Mapping[str, str] | None = None) -> str:
        """Returns the final text for NVRTC under a choice of types, ``{"scalar_t": "float16"}``.

        Args:
            types: typedef name to dtype name.
            twins: headers by name that replace headers of ``kernels_cu``. The simulator replaces headers with PTX.
        """
        headers = {**(twins or {}), **self.headers}
        entry = entry_in(self.text, self.name)
        text = only(self.text, self.name)
        lane: Any = {"simulated": twins is not None, "options": self.options}
        if entry is None:
            return assemble(text, self.filename, types, self.constants, headers, **lane)
        expression = entry.expression(self.name, types, self.constants)
        return assemble(text, self.filename, types, self.constants, headers, kernel=expression, own=entry.names, **lane)

    @property
    def defines(self) -> dict[str, str]:
        """The macros that the constants and the options ``-D`` define."""
        return defines_of(self.constants, self.options)

    def included(self) -> dict[str, str]:
        """Returns the headers that the text includes, by name."""
        return included(self.text, self.headers)

    def located(self, error: CompileError) -> CompileError:
        """Returns the error with the lines of the Python file that holds the text, in addition to the text's lines."""
        return CompileError(located(str(error), self.filename, self.text, self.declared_in))


def check_text(text: object, where: str) -> None:
    """Raises unless the argument is CUDA C++ text.

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


def file_name(name: str) -> str:
    """Returns the file name in messages of a text that was not read from a file."""
    return f"{split_name(name)[0].rpartition('::')[2]}.cu"


def numbers(text: str, name: str) -> dict[str, int]:
    """Returns the numbers that a kernel's name gives for the parameters of a template: 128 in ``softmax<float, 128>``."""
    entry = entry_in(text, name) if "<" in name else None
    return numbers_of(entry) if entry else {}


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
