"""From a ``.cu`` text and a choice of types to the final text that NVRTC sees.

The final text holds every byte that matters: a prelude with the types and constants, then the author's text with shared
headers spliced in where it includes them. It is therefore the whole key of the compile cache (with options and
architecture). ``#line`` directives make compiler messages and profilers speak of the author's own file and line.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import kernels_cu

from .dtypes import DTYPES

__all__ = ["assemble"]

# Comments and strings are matched, too, so that an include within one is left alone.
_INCLUDE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[ \t]*"(?P<name>[^"]+)"[^\n]*$',
    re.MULTILINE | re.DOTALL,
)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)

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


def _splice(text: str, filename: str, known: Mapping[str, str], seen: set[str]) -> str:
    """The text with each included header in place of its first inclusion; later inclusions become nothing."""

    def header(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        if name not in known:
            raise ValueError(
                f'{filename}: #include "{name}": no such shared header; there are {", ".join(sorted(known))}. '
                f"System headers are included in angle brackets."
            )
        next_line = text.count("\n", 0, match.end()) + 2
        inner = "" if name in seen else _splice(known[name], name, known, seen)
        return f'{inner}\n#line {next_line} "{filename}"'

    seen.add(filename)
    body = _PRAGMA_ONCE.sub("", _INCLUDE.sub(header, text))
    return f'#line 1 "{filename}"\n{body}'
