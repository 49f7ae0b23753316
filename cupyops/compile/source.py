"""From a ``.cu`` text and a choice of types to the final text that NVRTC sees.

The final text holds every byte that matters: a prelude with the types and constants, then the author's text with shared
headers spliced in where it includes them. It is therefore the whole key of the compile cache (with options and
architecture). ``#line`` directives make compiler messages and profilers speak of the author's own file and line.
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

# How Python passes a few integers by value: `Int64s<3> size` takes a tuple of three.
_INT64S = """\
template <int N> struct Int64s {
    long long v[N];
    __device__ __forceinline__ long long operator[](int i) const { return v[i]; }
};
"""


def assemble(
    text: str,
    filename: str,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    headers: Mapping[str, str] | None = None,
) -> str:
    """The final text for NVRTC.

    Args:
        text: the author's CUDA C++.
        filename: what messages call it.
        types: typedef name to dtype name, ``{"scalar_t": "float16"}``. ``scalar_t`` also defines ``acc_t``.
        constants: macro name to integer.
        headers: texts by name beside the shared ones of ``kernels_cu``, for ``#include "name"``.

    Raises:
        ValueError: an included header is not known (system headers go in angle brackets).
    """
    known = {**kernels_cu.headers(), **(headers or {})}
    filename = filename.replace("\\", "/").replace('"', "'")  # as it can stand in a #line
    lines = ["// Written by cupyops: types and constants of this compilation."]
    lines += sorted({f"#include <{DTYPES[d].header}>" for d in types.values() if DTYPES[d].header})
    lines += [f"typedef {DTYPES[d].c_type} {name};" for name, d in types.items()]
    if "scalar_t" in types:
        lines.append(f"typedef {DTYPES[DTYPES[types['scalar_t']].acc].c_type} acc_t;")
    lines += [f"#define {name} {value}" for name, value in constants.items()]
    return "\n".join(lines) + f"\n{_INT64S}" + _splice(text, filename, known, set())


def included(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a text includes, and those that they include, as far as they are known; warns of a header that the text
    itself includes by a former name."""
    known = {**kernels_cu.headers(), **headers}
    for name, _ in _includes(scan(text)):
        if name in kernels_cu.former_headers() and name not in headers:
            warnings.warn(known[name].splitlines()[0].removeprefix("// "), DeprecationWarning, stacklevel=3)
    found: dict[str, str] = {}
    texts = [text]
    while texts:
        for name, _ in _includes(scan(texts.pop())):
            if name in known and name not in found:
                found[name] = known[name]
                texts.append(known[name])
    return found


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, str]]:
    """The text of a file, and the headers beside it that it includes.

    Raises:
        OSError: one cannot be read.
        ValueError: one is not UTF-8.
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
    """The text with each included header in place of its first inclusion; later inclusions become nothing."""
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
