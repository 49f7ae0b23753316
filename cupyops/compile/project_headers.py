"""Reads the headers of a text from the folder of its file and from the folders of the options ``-I``.

These headers are part of the text: their host code is left out, and their types and macros count in a kernel's declaration.
NVRTC itself reads the headers of CUDA and of the libraries in :mod:`.header_list`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .cuda_text import Directive, scan
from .declarations import SPACE_OF_MACRO
from .macros import expanded
from .preprocess import known_macros, preprocess
from .system_headers import folders_in, header, in_text

__all__ = ["headers_in", "includes", "read"]

_MACRO = re.compile(r"\s*[A-Za-z_]\w*\s*")
_MAYBE = re.compile(r"#[ \t]*include\s*(?:/|\\|[A-Za-z_])")
_OPENS = re.compile(r"#[ \t]*define[ \t]+\w+[ \t\\\r\n]+(?:inline\s+)?namespace\b")
_DEFINED = re.compile(r"(\w+)(?!\()\s+(.*)", re.DOTALL)
_OF_WINDOWS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[\"<][^\">\n]*\\[^\">\n]*[\">]", re.MULTILINE)
# CuPy gives its own headers to a RawKernel.
_OF_CUPY = {
    "cupy/complex.cuh": """\
#pragma once
#include <thrust/complex.h>
using thrust::complex;
template <class T> __device__ __forceinline__ bool isnan(complex<T> z) { return isnan(z.real()) || isnan(z.imag()); }
template <class T> __device__ __forceinline__ bool isinf(complex<T> z) { return isinf(z.real()) || isinf(z.imag()); }
template <class T> __device__ __forceinline__ bool isfinite(complex<T> z) { return isfinite(z.real()) && isfinite(z.imag()); }
"""
}
_MARK_OF_BYTES = "\xef\xbb\xbf"
_COMPUTED_DEPTH = 4  # macros within one another that name a header


def read(
    text: str | os.PathLike[str],
    options: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    constants: Mapping[str, int] | None = None,
) -> tuple[str, dict[str, str]]:
    """Returns a text, and by name the texts of its headers in its own folder and in the folders of the options ``-I``.

    A header that another one of these headers includes is one of them. A directive of the text that names a header by a macro,
    ``#include CONFIG``, has the name in the returned text.

    Args:
        text: CUDA C++, or the path of a file.
        options, given: as for :func:`headers_in`.
        constants: macros that are defined before the text.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not UTF-8 outside comments and literals.
    """
    if not isinstance(text, os.PathLike):
        if not isinstance(text, str):
            return text, {}
        return _with_headers(_as_read(text), options, None, given, constants)
    path = Path(text)
    return _with_headers(_text_of(path, "it and what it includes"), options, path.parent, given, constants)


def _with_headers(
    text: str,
    options: Sequence[str],
    folder: Path | None,
    given: Mapping[str, str] | None,
    constants: Mapping[str, int] | None,
) -> tuple[str, dict[str, str]]:
    headers = headers_in(text, options, folder, given)
    # A macro may be defined in a header that another macro names.
    for _ in range(_COMPUTED_DEPTH if _computed(text) else 0):
        known = {**headers, **(given or {})}
        if (named := _named(text, known, known_macros(constants or {}, options))) == text:
            break
        text, headers = named, headers_in(named, options, folder, given)
    text, headers = _with_spaces(text, headers, given or {})
    texts = "\n".join([text, *headers.values()])
    asked = {name: of_cupy for name, of_cupy in _OF_CUPY.items() if name in texts and name not in (given or {})}
    return text, {**asked, **headers}


def _with_spaces(text: str, headers: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Returns a text and headers with the texts of macros that open and close namespaces, ``BEGIN_NAMESPACE``, in place of the
    macros: the name of a kernel has its namespaces. A macro with several definitions stays.

    Args:
        text: CUDA C++.
        headers: the headers from folders.
        given: other headers.
    """
    texts = {"": text, **headers}
    if not any(_OPENS.search(one) for one in (*texts.values(), *given.values())):
        return text, dict(headers)
    bodies: dict[str, list[str]] = {}
    for one in (*texts.values(), *given.values()):
        for directive in scan(one).directives:
            if directive.name == "define" and (macro := _DEFINED.match(directive.rest)):
                bodies.setdefault(macro[1], []).append(" ".join(macro[2].split()))
    spaces = {name: of[0] for name, of in bodies.items() if len(of) == 1 and SPACE_OF_MACRO.fullmatch(of[0])}
    if not spaces:
        return text, dict(headers)
    word = re.compile(rf"\b(?:{'|'.join(map(re.escape, spaces))})\b")
    for where, one in texts.items():
        for found in reversed([*word.finditer(scan(one).bare)]):
            one = f"{one[: found.start()]}{spaces[found[0]]}{one[found.end() :]}"
        texts[where] = one
    return texts.pop(""), texts


def _computed(text: str) -> list[Directive]:
    """Returns the directives of a text that name a header by a macro."""
    if not _MAYBE.search(text):  # a scan of each text at its declaration would take most of the import
        return []
    return [d for d in scan(text).directives if d.name == "include" and _MACRO.fullmatch(d.rest)]


def _named(text: str, headers: Mapping[str, str], defines: Mapping[str, str]) -> str:
    """Returns a text with the names of headers in place of the macros that stand for them where the directives before decide."""
    for directive in reversed(_computed(text)):
        name = expanded(directive.rest, preprocess(text, headers, defines, directive.start).known())
        if re.fullmatch(r'["<][^">]+[">]', name):
            text = f"{text[: directive.start]}#include {name}{text[directive.end :]}"
    return text


def headers_in(
    text: str, options: Sequence[str], folder: Path | None = None, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the texts of the headers that a text includes from folders, directly or through such headers, by name.

    A header is found as a compiler finds it: first in the folder of the including file, then in the text's folder, then in
    the folders of the options. A file has one name. If a header includes the file by another name, its directive in the
    returned text has the file's name.

    Args:
        text: CUDA C++.
        options: NVRTC options.
        folder: where the text lies, or None.
        given: other headers by name, which hide those of the folders.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not UTF-8 outside comments and literals.
    """
    own = [folder] if folder is not None else []
    folders = [*own, *map(Path, folders_in(options))]
    if not folders:
        return {}
    given = given or {}
    found: dict[str, str] = {}
    names: dict[Path, str] = {}  # the name of each file
    todo: list[tuple[str, str, Path | None]] = [("", text, folder), *((n, t, None) for n, t in given.items())]
    while todo:
        where, source, beside = todo.pop(0)
        changes: list[tuple[Directive, str]] = []
        for name, quoted, directive in includes(source):
            if name in given or not in_text(name, quoted):
                continue
            near = [beside] if beside is not None and quoted else []
            file = _file(name, [*near, *folders], [*near, *own])
            if file is None:
                continue
            known = names.get(file)
            if known is None:
                known = names[file] = next(n for n in (name, str(file)) if n not in found and n not in given)
                found[known] = _text_of(file, "a header")
                todo.append((known, found[known], file.parent))
            if known == name:
                continue
            if where in found:
                changes.append((directive, known))
            elif name not in found:
                found[name] = f'#include "{known}"\n'
        for directive, known in reversed(changes):
            source = f'{source[: directive.start]}#include "{known}"{source[directive.end :]}'
        if changes:
            found[where] = source
    return dict(sorted(found.items()))


def includes(text: str) -> Iterator[tuple[str, bool, Directive]]:
    """Yields the headers that a text includes: the name, whether the name is in quotes, and the directive."""
    for directive in scan(text).directives:
        if directive.header:
            yield directive.header, directive.rest[0] == '"', directive


def _file(name: str, folders: Sequence[Path], own: Sequence[Path]) -> Path | None:
    """Returns the file of a header, or None. Only the folders of the text and of its headers have headers of the list."""
    row = header(name)
    if row is not None and row.nowhere:
        return None
    # A library such as CUTLASS has many headers, which NVRTC reads.
    of_text = row is None or (row.host and "/" not in name)
    for folder in folders if of_text else own:
        if (folder / name).is_file():
            return Path(os.path.realpath(folder / name))
    return None


def _as_read(text: str) -> str:
    """Returns a header without a byte order mark (BOM) at its start, and with slashes in place of the backslashes that compilers
    on Windows accept in the names of headers.

    A header that needs no change is returned as the same object, because the class of a shared header must not be lost.
    """
    text = text[1:] if text.startswith("\ufeff") else text
    return _OF_WINDOWS.sub(lambda m: m[0].replace("\\", "/"), text) if _OF_WINDOWS.search(text) else text


def _text_of(file: Path, what: str) -> str:
    """Returns the text of a file. Comments and literals may have any encoding, as for nvcc.

    Raises:
        ValueError: code or a directive is not UTF-8.
    """
    try:
        return _as_read(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as problem:
        text = file.read_text(encoding="latin-1").removeprefix(_MARK_OF_BYTES)  # each byte is a character
        code = scan(text)
        if code.bare.isascii() and all(d.rest.isascii() for d in code.directives):
            return _as_read(text)
        raise ValueError(f"{file}: {what} must be UTF-8 outside comments ({problem.reason})") from None
