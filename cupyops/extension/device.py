"""Extracts the device half of an extension: the declarations that its kernels use, directly or not, as a text for NVRTC
and the simulator.

The host half is left out: functions that run on the host, launches, the dispatch over dtypes, bindings and headers of
PyTorch. The text includes ``pytorch.cuh`` instead of PyTorch's headers.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cupyops.compile.cuda_text import Function, scan
from cupyops.compile.preprocess import CONDITIONALS
from cupyops.compile.pytorch_names import bare_names
from cupyops.compile.standard import unknown
from cupyops.errors import CompileError
from cupyops.launch.elements import unknown_struct
from cupyops.launch.kernel_source import signature_of

from .reading import WORD, Joined, Piece, behind_template
from .reads import with_const

__all__ = ["Device", "device_half"]

_ON_GPU = frozenset(("__device__", "__global__", "__constant__", "__managed__", "C10_DEVICE", "C10_HOST_DEVICE"))
_RANDOM = "PyTorch's state of random numbers; pass the seed and the offset as numbers, and draw by <curand_kernel.h>"
_HOST_API = (
    r"\bcuda(?:Stream|Event)_t\b"
    r"|\bcuda(?:Malloc|Free|Memcpy|Memset|Stream|Event|GetLastError|Device)[A-Z]?\w*\s*\("
)
# Regular expressions of code that NVRTC cannot compile, each with the reason.
_REFUSED = (
    (r"\bPhiloxCudaState\b|\bphilox\s*::\s*unpack\b|\bphilox_unpack\b", _RANDOM),
    (
        r"\.\s*operator\s+__(?:half|nv_bfloat16)\b",
        "a conversion of PyTorch's class, and a kernel has the type of CUDA",
    ),
    (r"<<<", "a launch from device code, which is not supported"),
    (r"\b(?:at|torch|c10)\s*::\s*Tensor\b|\bTensor\s*&", "a tensor of PyTorch, which has no form on a GPU"),
    (_HOST_API, "a stream, an event or a call of CUDA's runtime, which is of the host"),
    (r"\bgetCurrentCUDAStream\b", "PyTorch's current stream, which is of the host"),
    (r"\b(?:thrust|cutlass|cute)\s*::", "a library that NVRTC does not have"),
    (
        r"\bTensor(?:Iterator|Info|List\w*)\b|\bIntDivider\b|\bOffsetCalculator\b",
        "a structure of PyTorch's own kernels",
    ),
)
_BIND = re.compile(r"\s*(?:PYBIND11_\w+|TORCH_LIBRARY\w*|TORCH_SELECTIVE\w*|REGISTER_\w+|STABLE_TORCH\w*)\s*\(")


@dataclass(frozen=True)
class Device:
    """The device half of an extension.

    Attributes:
        text: CUDA C++.
        functions: the ``__global__`` functions of the text.
        refused: the names of the ``__global__`` functions that NVRTC cannot compile, each with the reason.
    """

    text: str
    functions: tuple[Function, ...]
    refused: dict[str, str]


def device_half(joined: Joined, pieces: Sequence[Piece]) -> Device:
    """Returns the device half of an extension, from its text with all includes, and the pieces of this text."""
    text = joined.text
    names = list(dict.fromkeys(f.name for f in scan(text).functions if not f.special))
    refused = {name: why for name in names if (why := _refusal(joined, pieces, [name]))}
    kept = _kept(text, pieces, [name for name in names if name not in refused])
    found = _written(text, pieces, kept)
    functions = [f for f in scan(found).functions if not f.special]
    for f in functions:
        try:
            for p in signature_of(found, f.path).parameters:
                if not p.pointer and p.element is not None and p.element.record is not None:
                    raise unknown_struct(f.path, p.name, p.element.name)
        except (CompileError, TypeError, ValueError) as problem:
            refused.setdefault(f.name, str(problem).removeprefix(f"{f.path}: "))
    found = with_const(found, [f for f in functions if f.name not in refused])
    functions = [f for f in scan(found).functions if not f.special and f.name not in refused]
    return Device(found, tuple({f.path: f for f in functions}.values()), refused)


def _refusal(joined: Joined, pieces: Sequence[Piece], roots: Collection[str]) -> str:
    """Returns the reason why NVRTC cannot compile the kernels ``roots``, or ``""``."""
    text = joined.text
    bare = scan(text).bare
    for i in sorted(_kept(text, pieces, roots)):
        piece = pieces[i]
        code = bare[piece.start : piece.end]
        for pattern, why in _REFUSED:
            if found := re.search(pattern, code):
                return f"`{' '.join(found[0].split())}` at {joined.where(piece.start + found.start())} is {why}"
        for place, name in unknown(code):
            return f"`std::{name}` at {joined.where(piece.start + place)} is of the host's library"
    return ""


def _kept(text: str, pieces: Sequence[Piece], roots: Collection[str]) -> set[int]:
    """Returns the indices of the pieces that the kernels ``roots`` use, directly or not."""
    bare = scan(text).bare
    on_gpu = _on_gpu(pieces)

    def usable(piece: Piece) -> bool:
        if piece.kind == "function":
            head = set(WORD.findall(bare, piece.start, piece.head))
            template = re.match(r"\s*template\b(?!\s*<)", bare[piece.start : piece.end])  # an explicit instantiation
            return template is None and ("constexpr" in head or not on_gpu.isdisjoint(head))
        code = bare[piece.start : piece.end]
        return piece.kind == "name" and not _BIND.match(code) and not re.match(r"static_assert\b", code)

    declares: dict[str, list[int]] = {}
    for i, piece in enumerate(pieces):
        if usable(piece) or (piece.directive is not None and piece.directive.name in ("define", "undef")):
            for name in piece.names:
                declares.setdefault(name, []).append(i)
    kept: set[int] = set()
    wanted = list(roots)
    seen = set(wanted)
    while wanted:
        for i in declares.get(wanted.pop(), ()):
            piece = pieces[i]
            if i in kept:
                continue
            if (
                piece.kind == "function"
                and "__global__" in WORD.findall(bare, piece.start, piece.head)
                and piece.names.isdisjoint(roots)
            ):
                continue
            kept.add(i)
            enclosing = _conditions(pieces, i)
            new = piece.words.union(*(pieces[j].words for j in enclosing)) - seen
            seen |= new
            wanted += new
    return kept


def _on_gpu(pieces: Sequence[Piece]) -> set[str]:
    """Returns the words that mark a function for the GPU, such as ``__device__``, and the macros that contain such a
    word."""
    defines = [p for p in pieces if p.directive is not None and p.directive.name == "define"]
    found = set(_ON_GPU)
    while more := {n for p in defines if not found.isdisjoint(p.words) for n in p.names} - found:
        found |= more
    return found


def _marked(head: str, pieces: Sequence[Piece]) -> bool:
    """Returns whether the head of a function has a word such as ``__device__``. nvcc needs none for ``constexpr``
    functions."""
    return not _on_gpu(pieces).isdisjoint(WORD.findall(head))


def _conditions(pieces: Sequence[Piece], at: int) -> list[int]:
    """Returns the indices of the conditional directives around a piece."""
    opened: list[list[int]] = []
    found: list[int] = []
    for i, piece in enumerate(pieces):
        name = piece.directive.name if piece.directive is not None else ""
        if name not in CONDITIONALS:
            continue
        if name in ("if", "ifdef", "ifndef"):
            opened.append([i])
        elif opened:
            opened[-1].append(i)
        if name == "endif" and opened:
            group = opened.pop()
            if group[0] < at < group[-1]:
                found += group
    return found


def _written(text: str, pieces: Sequence[Piece], kept: set[int]) -> str:
    """Returns the text of the pieces that are kept, with the namespaces and conditionals around them."""
    words = {word for i in kept for word in pieces[i].words}
    emitted = set(kept)
    opened: list[int] = []
    for i, piece in enumerate(pieces):
        if piece.kind == "open":
            opened.append(i)
        elif piece.kind == "close" and opened:
            start = opened.pop()
            if any(start < k < i for k in kept):
                emitted |= {start, i}
        if piece.directive is not None and piece.directive.name == "include":
            emitted.add(i)
    for i in list(emitted):
        emitted.update(_conditions(pieces, i))
    lines = [*_includes(text, words), *_license(text)]
    emitted.update(_spaces(text, pieces, emitted, '#include "pytorch.cuh"' in lines))
    for i, piece in enumerate(pieces):
        if i not in emitted:
            continue
        before = pieces[i - 1].end if i else 0
        comment = text[before : piece.start] if piece.kind in ("function", "name") else ""
        if i and "\n" in comment:  # the rest of the previous piece's line belongs to that piece
            comment = comment[comment.index("\n") :]
        comment = "" if i == 0 and _license(text) else comment.strip()
        defines = piece.directive is not None and piece.directive.name == "define"
        if defines and not piece.names.isdisjoint(bare_names()):
            lines.append(f"#undef {next(iter(piece.names))}")
        spaced = piece.kind in ("function", "name") and "\n" in text[piece.start : piece.end]
        own = text[piece.start : piece.end].rstrip()
        if piece.kind == "function" and not _marked(text[piece.start : piece.head], pieces):
            behind = behind_template(own, 0)
            blank = len(own[behind:]) - len(own[behind:].lstrip())
            own = f"{own[: behind + blank]}__host__ __device__ {own[behind + blank :]}"
        lines += [*([""] if spaced else []), *([comment] if comment else []), own]
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", "\n".join(lines))).strip("\n") + "\n"


def _spaces(text: str, pieces: Sequence[Piece], emitted: Collection[int], pytorch: bool) -> Iterator[int]:
    """Yields the indices of the ``using namespace`` directives whose namespaces the text for NVRTC has."""
    known = {"cooperative_groups", "nvcuda", *(("at", "torch", "c10") if pytorch else ())}
    known |= {name for i in emitted if pieces[i].kind == "open" for name in pieces[i].names}
    for i, piece in enumerate(pieces):
        found = re.match(r"using\s+namespace\s+([\w:]+)\s*;", text[piece.start : piece.end])
        if found and set(found[1].split("::")) <= known:
            yield i
        if re.match(r"namespace\s+\w+\s*=", text[piece.start : piece.end]):
            yield i


def _includes(text: str, words: Collection[str]) -> list[str]:
    """Returns the ``#include`` directives that replace those of PyTorch's headers."""
    found = []
    if not {"Half", "half", "__half", "half2", "__half2"}.isdisjoint(words):
        found.append("#include <cuda_fp16.h>")
    if not {"BFloat16", "nv_bfloat16", "__nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"}.isdisjoint(words):
        found.append("#include <cuda_bf16.h>")
    already = {d.rest.strip() for d in scan(text).directives if d.name == "include"}
    found = [line for line in found if line.partition(" ")[2] not in already]
    own = {"at", "torch", "c10", *bare_names()}
    accessors = [word for word in words if "PackedTensorAccessor" in word or word == "TensorInfo"]
    return [*found, *(['#include "pytorch.cuh"'] if accessors or not own.isdisjoint(words) else [])]


def _license(text: str) -> list[str]:
    """Returns the comment at the top of a text that names a license or a right."""
    comments = scan(text).comments
    if not comments or text[: comments[0][0]].strip():
        return []
    start, end = comments[0]
    for other, behind in comments[1:]:
        if text[end:other].strip() or text.count("\n", end, other) > 1:
            break
        end = behind
    found = text[start:end].strip()
    return [found] if re.search(r"(?i)copyright|licen[sc]e|SPDX", found) else []
