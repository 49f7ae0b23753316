"""From the final text, as NVRTC sees it, to C++ that a host compiler takes.

Almost all of that is done by headers. What the preprocessor cannot do is done here: a declaration of shared memory
becomes a reference to memory that the runtime gives each block, and the kernel gets an entry that takes its arguments
as the driver does. Lines keep their numbers.
"""

import re
from collections.abc import Iterator

from cupyops.errors import CompileError
from cupyops.launch.signature import code_only

__all__ = ["translate"]

_SHARED = re.compile(r"\b__shared__\b")
_LINE = re.compile(r'^#line (\d+) "([^"]+)"', re.MULTILINE)
_WORDS = "extern|static|inline|void|__global__|__forceinline__|__noinline__|__host__|__device__"
_OPEN, _CLOSE = "([{", ")]}"


def translate(text: str, kernel: str, what: str) -> str:
    """The C++ of a final text.

    Args:
        text: from :func:`cupyops.compile.source.assemble`.
        kernel: the function's name.
        what: kernel and dtypes, for messages.

    Raises:
        CompileError: a declaration of shared memory of a form that is not covered; the message names the line.
    """
    text = _constants(text)
    bare = code_only(text)
    parts, at = [], 0
    for number, (start, end) in enumerate(_shared_declarations(bare)):
        parts += [text[at:start], _declare(text[start:end], bare[start:end], number, f"{what}: {_place(text, start)}")]
        at = end
    return "".join(parts) + text[at:] + _entry(bare, kernel)


def _constants(text: str) -> str:
    """The prelude's macros as constants, unless a directive of the text asks for them.

    NVRTC reads a template's body only where it is used; a host compiler reads them all, and would find a macro's number
    where the body has a name of its own.
    """
    start = text.find("#line")
    prelude, rest = text[:start], text[start:]
    directives = "\n".join(re.findall(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", rest, re.MULTILINE))

    def constant(match: re.Match[str]) -> str:
        asked = re.search(rf"\b{match[1]}\b", directives)
        return match[0] if asked else f"constexpr auto {match[1]} = {match[2]};"

    return re.sub(r"^#define (\w+) (-?\d+)$", constant, prelude, flags=re.MULTILINE) + rest


def _shared_declarations(bare: str) -> Iterator[tuple[int, int]]:
    """Start and end (behind the semicolon) of each declaration with ``__shared__``."""
    for match in _SHARED.finditer(bare):
        # A colon ends a label or `public:`; two are part of a name.
        start = match.start()
        while start > 0 and bare[start - 1] not in ";{}" and not _is_label(bare, start - 1):
            start -= 1
        start += len(bare[start:]) - len(bare[start:].lstrip())
        depth, end = 0, match.end()
        while end < len(bare) and (depth or bare[end] != ";"):
            depth += (bare[end] in _OPEN) - (bare[end] in _CLOSE)
            end += 1
        yield start, end + 1


def _is_label(bare: str, at: int) -> bool:
    return bare[at] == ":" and bare[at - 1] != ":" and bare[at + 1 : at + 2] != ":"


def _declare(text: str, bare: str, number: int, where: str) -> str:
    """References in place of one declaration of shared memory."""
    code = " ".join(re.sub(r"\b(?:__shared__|static|extern)\b", " ", bare.rstrip(";")).split())
    lines = "\n" * text.count("\n")
    if re.search(r"\bextern\b", bare):
        dynamic = re.fullmatch(r"(.*[\s*&>])(\w+)\s*\[\s*\]", code)
        if dynamic is None:
            raise CompileError(
                f"{where}: the simulator takes dynamic shared memory as `extern __shared__ T name[];`, got `{code}`"
            )
        return f"static {dynamic[1]}* const {dynamic[2]} = CupyopsDynamic();{lines}"
    pieces = _split(code)
    first = _name_at(pieces[0])
    if first is None or any(_name_at(piece) is None for piece in pieces):
        raise CompileError(
            f"{where}: the simulator takes shared variables as `__shared__ T name[sizes], other;`, got `{code}`"
        )
    head = code[: first[0]].rstrip()
    specifier = head.rstrip("*& ")
    names = [piece[slice(*_name_at(piece))] for piece in pieces]  # type: ignore[misc]
    if "{" in specifier:
        # A type defined on the spot: it can be defined once, so its variables are one piece of memory.
        return _reference(f"{number}", code, names) + lines
    declarators = [code[len(specifier) : len(pieces[0])], *pieces[1:]]
    return (
        "".join(
            _reference(f"{number}_{i}", f"{specifier} {d}", [name])
            for i, (d, name) in enumerate(zip(declarators, names, strict=True))
        )
        + lines
    )


def _reference(number: str, declaration: str, names: list[str]) -> str:
    holder = f"CupyopsShared_{number}"
    memory = f"CupyopsMemory_{number}"
    return (
        f"struct {holder} {{ {declaration}; }}; static {holder}& {memory} = *static_cast<{holder}*>(cupyops_shared("
        f'&cupyops_module, "{names[0]}", sizeof({holder}), CupyopsElement<decltype({holder}::{names[0]})>::bytes, '
        f"alignof({holder}))); " + " ".join(f"static auto& {name} = {memory}.{name};" for name in names)
    )


def _split(code: str) -> list[str]:
    """The declarators: what stands between commas that are in no bracket."""
    pieces, depth, start = [], 0, 0
    square = 0
    for i, c in enumerate(code):
        square += (c == "[") - (c == "]")
        depth += (c in "([{" or (c == "<" and not square)) - (c in ")]}" or (c == ">" and not square))
        if c == "," and depth == 0:
            pieces.append(code[start:i])
            start = i + 1
    return [*pieces, code[start:]]


def _name_at(piece: str) -> tuple[int, int] | None:
    """Where the declared name stands: before the first bracket of its sizes, or last."""
    depth = 0
    end = len(piece)
    for i, c in enumerate(piece):
        if c == "[" and depth == 0:
            end = i
            break
        depth += (c in "([{<") - (c in ")]}>")
    found = re.search(r"(?<![\w:.])([A-Za-z_]\w*)\s*$", piece[:end])
    if found is None or re.search(r"[^\]]\s*$", piece[end:]):
        return None
    return found.start(1), found.end(1)


def _place(text: str, position: int) -> str:
    """``gelu.cu:12`` of a position in the final text."""
    before = list(_LINE.finditer(text, 0, position))
    if not before:
        return f"line {text.count(chr(10), 0, position) + 1}"
    last = before[-1]
    return f"{last[2]}:{int(last[1]) + text.count(chr(10), last.end(), position) - 1}"


def _entry(bare: str, kernel: str) -> str:
    """What the runtime calls, and what it is told of the kernel."""
    head = next(
        bare[max(bare.rfind(c, 0, m.start()) for c in ";}") + 1 : m.start()]
        for m in re.finditer(rf"\b{kernel}\s*\(", bare)
        if "__global__" in bare[max(bare.rfind(c, 0, m.start()) for c in ";}") + 1 : m.start()]
    )
    # What is left holds the attributes, or macros of the text that stand for them.
    attributes = re.sub(rf"\b(?:{_WORDS})\b|\"C\"|\btemplate\s*<[^<>]*>", " ", " ".join(head.split()))
    return f"""
#include "attributes.h"
#line 1 "cupyops/simulator/entry"
static constexpr CupyopsAttributes cupyops_attributes = CupyopsAttributes() {attributes};
static void cupyops_entry(void** arguments) {{ cupyops_call(&{kernel}, arguments); }}
extern "C" {{
__attribute__((visibility("hidden"))) uint3 threadIdx, blockIdx;
__attribute__((visibility("hidden"))) dim3 blockDim, gridDim;
__attribute__((visibility("hidden"))) CupyopsModule cupyops_module = {{
    cupyops_entry, &threadIdx, &blockIdx, &blockDim, &gridDim,
    CupyopsParameters<decltype({kernel})>::bytes, CupyopsParameters<decltype({kernel})>::count,
    {{cupyops_attributes.x, cupyops_attributes.y, cupyops_attributes.z}}, cupyops_attributes.threads, 0, 0, {{}}}};
__attribute__((visibility("default"))) CupyopsModule* cupyops_get_module() {{ return &cupyops_module; }}
}}
"""
