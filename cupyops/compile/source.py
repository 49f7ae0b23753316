"""Assembles the final text for NVRTC from a ``.cu`` text and a choice of types.

The final text is a prelude with the types and constants, followed by the author's text. The text of each included
shared header replaces its ``#include``. The compile cache hashes the final text, the options, the target and the
compiler's version. ``#line`` directives give compiler messages and profilers the author's file and line.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import kernels_cu
from cupyops.dtypes import DTYPES

from .cuda_text import Code, Directive, scan

__all__ = ["assemble"]

_INCLUDED = re.compile(r'"([^"]+)"')

# A kernel parameter `Int64s<3> size` takes a Python tuple of three integers by value.
_INT64S = """\
template <int N> struct Int64s {
    long long v[N];
    __device__ __forceinline__ long long operator[](int i) const { return v[i]; }
};
"""
_NAMES = frozenset(("N", "v", "i"))


def assemble(
    text: str,
    filename: str,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    headers: Mapping[str, str] | None = None,
) -> str:
    """Returns the final text for NVRTC.

    Args:
        text: the author's CUDA C++.
        filename: the file name of the text in messages.
        types: typedef name to dtype name, ``{"scalar_t": "float16"}``. ``scalar_t`` also defines ``acc_t``.
        constants: macro name to integer.
        headers: header texts by name, for ``#include "name"``, in addition to the shared headers of ``kernels_cu``.

    Raises:
        ValueError: an included header is unknown. System headers are included in angle brackets.
    """
    known = {**kernels_cu.headers(), **(headers or {})}
    filename = filename.replace("\\", "/").replace('"', "'")  # #line allows no backslash and no quote
    lines = ["// Written by cupyops: types and constants of this compilation."]
    lines += sorted({f"#include <{DTYPES[d].header}>" for d in types.values() if DTYPES[d].header})
    lines += [f"typedef {DTYPES[d].c_type} {name};" for name, d in types.items()]
    if "scalar_t" in types:
        lines.append(f"typedef {DTYPES[DTYPES[types['scalar_t']].acc].c_type} acc_t;")
    macros = [f"#define {name} {value}" for name, value in constants.items()]
    # A macro that is a name in Int64s would change it, so Int64s comes first. The texts of all other kernels stay as they
    # are, and with them their entries in caches and bundles.
    first = [_INT64S.rstrip()] if not constants.keys().isdisjoint(_NAMES) else []
    lines += [*first, *macros] if first else [*macros, _INT64S.rstrip()]
    return "\n".join(lines) + "\n" + _splice(text, filename, known, set())


def included(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the known headers that a text includes, directly or through other headers, by name.

    Warns if the text itself includes a header by a former name.
    """
    known = {**kernels_cu.headers(), **headers}
    for name, _ in _includes(scan(text)):
        if name in kernels_cu.former_headers() and name not in headers:
            warnings.warn(known[name].splitlines()[0].removeprefix("// "), DeprecationWarning, stacklevel=4)
    found: dict[str, str] = {}
    texts = [text]
    while texts:
        for name, _ in _includes(scan(texts.pop())):
            if name in known and name not in found:
                found[name] = known[name]
                texts.append(known[name])
    return found


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """Returns the text of a file, and the texts of the included headers that lie in the same folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not UTF-8.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        beside = sorted(p for p in path.parent.iterdir() if p.suffix in (".cuh", ".h"))
        return text, {p.name: p.read_text(encoding="utf-8") for p in beside if f'"{p.name}"' in text}
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path}: it and what it includes must be UTF-8 ({problem.reason})") from None


def _includes(code: Code) -> Iterator[tuple[str, Directive]]:
    for directive in code.directives:
        if directive.name == "include" and (found := _INCLUDED.match(directive.rest)):
            yield found[1], directive


def _splice(text: str, filename: str, known: Mapping[str, str], seen: set[str]) -> str:
    """Returns the text with each first ``#include`` of a header replaced by the header.

    Later ``#include`` lines of the same header are removed.
    """
    seen.add(filename)
    code = scan(text)
    pieces, at, line = [f'#line 1 "{filename}"\n'], 0, 1
    instead = {d.start: name for name, d in _includes(code)}
    for directive in code.directives:
        once = directive.name == "pragma" and directive.rest.split()[:1] == ["once"]
        if not once and directive.start not in instead:
            continue
        pieces.append(text[at : directive.start])
        line += text.count("\n", at, directive.end)
        at = directive.end
        if once:
            pieces.append("\n" * text.count("\n", directive.start, directive.end))
            continue
        name = instead[directive.start]
        if name not in known:
            raise ValueError(
                f'{filename}: #include "{name}": no such shared header; there are {", ".join(sorted(known))}. '
                f"System headers are included in angle brackets."
            )
        if name not in seen:
            pieces.append(_splice(known[name], name, known, seen))
        pieces.append(f'\n#line {line + 1} "{filename}"')
    return "".join(pieces) + text[at:]
