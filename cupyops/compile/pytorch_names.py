"""Exchanges the headers of PyTorch for the shared header ``pytorch.cuh``, which defines what device code uses of them.

The headers of PyTorch are for the host. A text that uses none of their names in device code loses its directives
(:mod:`.header_list`). In a text that uses such names or may use 16-bit floats, ``pytorch.cuh`` takes their place.
"""

import re
from collections.abc import Mapping
from functools import cache

import kernels_cu

from .cuda_text import scan
from .declarations import WORD
from .system_headers import header

__all__ = ["HEADERS", "foreign", "with_pytorch"]

HEADER = "pytorch.cuh"
_PHILOX = "pytorch_philox.cuh"
HEADERS = (HEADER, "pytorch_math.cuh", "pytorch_threads.cuh", _PHILOX)
_SPACES = r"(?:native|headeronly|cuda|detail|compat|philox|memory|cuda_utils)"
_QUALIFIED = re.compile(rf"(?<![\w:])(?:::\s*)?(?:at|c10|torch)\s*::\s*(?:{_SPACES}\s*::\s*)*(\w+)\b(?!\s*::)")
# A text may also be in the namespace of PyTorch.
_USED = re.compile(r"\bnamespace\s+(?:::\s*)?(?:at|c10|torch)\b")
# Shuffles of PyTorch's type of 16-bit floats, which projects declare beside PyTorch's headers. `pytorch.cuh` has CUDA's type,
# for which CUDA has them.
_SHUFFLES = re.compile(
    r"(?:\b(?:__device__|__inline__|__forceinline__|static|inline)\s+)*\b(?:at|c10)\s*::\s*(?:Half|BFloat16)\s+"
    r"__shfl(?:_up|_down|_xor)?(?:_sync)?\s*\([^()]*\)\s*\{[^{}]*\}"
)
# A 16-bit float of its bits, `at::Half h(0x3C00, at::Half::from_bits())`. CUDA's types are constructed from a struct
# with the bits.
_OF_BITS = re.compile(
    r"([({])((?:[^(),;{}]|\([^()]*\))*),(\s*)(?:(?:::\s*)?(?:at|c10|torch)\s*::\s*)?(Half|BFloat16)\s*::\s*from_bits\s*\(\s*\)(?=\s*[)}])"
)
_BITS = {"Half": "__half_raw", "BFloat16": "__nv_bfloat16_raw"}
_NAMES_SPACE = re.compile(r"\bnamespace\s+(?:\w+\s*=\s*)?\Z")
_DECLARED = re.compile(r"__forceinline__\s+[\w ]+?\b(\w+)\s*\(")
_FLOATS16 = {
    "cuda_fp16.h": re.compile(r"\b(?:Half|half2?|__half2?)\b|cuda_fp16\.h"),
    "cuda_bf16.h": re.compile(r"\b(?:BFloat16|(?:__)?nv_bfloat162?)\b|cuda_bf16\.h"),
}


# A template and the type that a call decides may be a 16-bit float.
_MAY_BE_FLOAT16 = re.compile(r"\btemplate\s*<|\bscalar_t\b")


def with_pytorch(text: str, headers: Mapping[str, str], kernels: str = "") -> tuple[str, dict[str, str], list[str]]:
    """Returns a text and its headers with ``pytorch.cuh`` in place of PyTorch's headers, and the headers of the 16-bit
    floats that ``pytorch.cuh`` reads.

    Args:
        text: CUDA C++ without its host code.
        headers: the texts of the included headers, by name.
        kernels: the names of the kernels with the arguments of their templates.
    """
    texts = {"": text, **headers}
    if not any(_directives(source, headers) for source in texts.values()):
        return text, dict(headers), []
    code = "\n".join([*map(_code, texts.values()), kernels])
    names = _bare_names() | _names() if _USED.search(code) else _bare_names()
    if not (_QUALIFIED.search(code) or _MAY_BE_FLOAT16.search(code) or names & {*WORD.findall(code)}):
        return text, dict(headers), []
    for where, source in texts.items():
        for start, end in reversed(_directives(source, headers)):
            texts[where] = f'{texts[where][:start]}#include "{HEADER}"{texts[where][end:]}'
        for found in reversed([*_SHUFFLES.finditer(scan(texts[where]).bare)]):
            blank = re.sub(r"[^\n]", " ", found[0])
            texts[where] = texts[where][: found.start()] + blank + texts[where][found.end() :]
        texts[where] = _OF_BITS.sub(lambda m: f"{m[1]}{_BITS[m[4]]}{{(unsigned short)({m[2]})}}{m[3]}", texts[where])
    # A text may define a function of PyTorch's headers that it does not include.
    own = sorted(name for name in _functions() if re.search(rf"\b{name}\s*\([^;{{}}]*\)\s*\{{", code))
    known = {name: kernels_cu.headers()[name] for name in HEADERS}
    if own:
        renamed = re.compile(rf"\b({'|'.join(own)})\b")
        texts |= {name: renamed.sub(r"pytorch_\1", source) for name, source in known.items()}
    if re.search(r"\bPhiloxCudaState\b|\bphilox\s*::", code):
        texts[HEADER] = f'{texts.get(HEADER, known[HEADER])}#include "{_PHILOX}"\n'
    words = "\n".join([*texts.values(), kernels])
    floats = [name for name, pattern in _FLOATS16.items() if pattern.search(words)]
    return texts.pop(""), texts, floats


def foreign(code: str) -> list[str]:
    """Returns the names ``at::...`` in code that ``pytorch.cuh`` lacks."""
    return [
        "".join(match[0].split())
        for match in _QUALIFIED.finditer(code)
        if match[1] not in _names() and not _NAMES_SPACE.search(code, max(0, match.start() - 100), match.start())
    ]


def _directives(text: str, headers: Mapping[str, str]) -> list[tuple[int, int]]:
    """Returns the offsets of the directives that include headers of PyTorch."""
    found = [d for d in scan(text).directives if d.header and d.header not in headers]
    return [(d.start, d.end) for d in found if (row := header(d.header)) is not None and row.shared == HEADER]


def _code(text: str) -> str:
    """Returns the code of a text and the texts of its macros."""
    code = scan(text)
    return "\n".join([code.bare, *(d.rest.partition(" ")[2] for d in code.directives if d.name == "define")])


@cache
def _names() -> frozenset[str]:
    """Returns the names that ``pytorch.cuh`` defines in its namespace."""
    code = "\n".join(scan(kernels_cu.headers()[name]).bare for name in HEADERS)
    found = re.findall(
        r"\b(?:struct|class)\s+(?:alignas\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)|\busing\s+(?:::)?(\w+)\s*[=;]|\btypedef\s+\w+\s+(\w+);"
        r"|__forceinline__\s+[\w:<>, ]+?\b(\w+)\(|\bPYTORCH_COMPAT\((\w+)",
        code,
    )
    return frozenset(name for names in found for name in names if name)


@cache
def _bare_names() -> frozenset[str]:
    """Returns the macros and the functions outside namespaces that ``pytorch.cuh`` and its parts define."""
    codes = [scan(kernels_cu.headers()[name]) for name in HEADERS]
    macros = (d.rest.split("(")[0].split()[0] for code in codes for d in code.directives if d.name == "define")
    return _functions() | {macro for macro in macros if not macro.startswith("PYTORCH_")}


@cache
def _functions() -> frozenset[str]:
    """Returns the functions outside namespaces that ``pytorch.cuh`` and its parts define."""
    codes = [scan(kernels_cu.headers()[name]) for name in HEADERS]
    declared = ((code, match) for code in codes for match in _DECLARED.finditer(code.bare))
    return frozenset(match[1] for code, match in declared if code.scope(match.start()) == ())
