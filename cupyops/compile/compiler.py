"""NVRTC: from final text to a binary for one architecture, through the cache.

The binary is made by CuPy's NVRTC binding and loaded by :class:`cupy.RawModule`. It is not made by
``RawModule(code=...)``, which appends ``-ftz=true`` to every compilation and so turns float32 subnormals into zero.
"""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from cupyops.errors import CompileError

from .cache import Binary, DiskCache, default_folder
from .toolchain import cuda_headers, header_version, nvrtc, nvrtc_version, reinstall_line

__all__ = ["OPTIONS", "binary_for", "compile_text", "supported_architectures", "target_for"]

# -Xptxas=-v makes the log tell registers and spills.
OPTIONS = ("--std=c++17", "-Xptxas=-v", "-Xptxas=-warn-spills")

_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.MULTILINE)

# Raise it when the meaning of an entry changes.
_CACHE_FORMAT = 1


def supported_architectures() -> tuple[int, ...]:
    """Architectures that this NVRTC compiles for, (70, 75, 80, ...)."""
    return tuple(nvrtc().getSupportedArchs())


def target_for(capability: int) -> str:
    """What to compile for a GPU of compute capability 90 (for 9.0): ``sm_90``; ``compute_121`` (PTX, for the driver)
    for one newer than NVRTC.

    Raises:
        CompileError: the GPU is older than this NVRTC supports.
    """
    known = supported_architectures()
    if capability in known:
        return f"sm_{capability}"
    older = [a for a in known if a < capability]
    if not older:
        version = ".".join(map(str, nvrtc_version()))
        raise CompileError(
            f"NVRTC {version} compiles for sm_{min(known)} and newer, and this GPU is sm_{capability}"
            + (f". Use CuPy for CUDA 12: {reinstall_line(12)}" if nvrtc_version()[0] > 12 else "")
        )
    return f"compute_{max(older)}"


def binary_for(text: str, what: str, target: str, options: Sequence[str] = ()) -> Binary:
    """The binary of a final text, from the cache or compiled now.

    Args:
        text: from :func:`cupyops.compile.source.assemble`.
        what: kernel and dtypes, for messages.
        target: ``sm_90``, ``sm_90a``, or ``compute_90`` for PTX.
        options: added to :data:`OPTIONS`; an ``-arch`` among them stands for the target.

    Raises:
        CompileError: NVRTC rejects the text.
        MissingDependencyError: CuPy, NVRTC or a header that the text needs is not installed.
    """
    options = (*OPTIONS, *options)
    key = _key(text, target, options)
    return DiskCache(default_folder()).get_or_make(key, lambda: compile_text(text, what, target, options))


def _key(text: str, target: str, options: Sequence[str]) -> str:
    # System headers are not part of the text; their folder and NVRTC's version stand for them.
    headers = _headers_identity() if _SYSTEM_HEADER.search(text) else None
    content = json.dumps([_CACHE_FORMAT, text, target, list(options), nvrtc_version(), _nvrtc_build(), headers])
    return hashlib.sha256(content.encode()).hexdigest()[:40]


@cache
def _headers_identity() -> list[object]:
    return [str(cuda_headers()), header_version(cuda_headers())]


@cache
def _nvrtc_build() -> str:
    """NVRTC's exact version where its wheel tells, since (12, 9) names several builds."""
    import importlib.metadata

    for name in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def compile_text(text: str, what: str, target: str, options: Sequence[str]) -> Binary:
    """Compiles without looking at the cache. Arguments and errors as for :func:`binary_for`."""
    compiler = nvrtc()
    flags = [*([] if any(o.startswith("-arch=") for o in options) else [f"-arch={target}"]), *options]
    if nvrtc_version() >= (12, 9):
        # NVRTC's own cache gives the code back without the log, and the registers stand in the log.
        flags.append("--no-cache")
    if _SYSTEM_HEADER.search(text):
        flags.append(f"-I{cuda_headers()}")
    started = time.perf_counter()
    program = compiler.createProgram(text, "cupyops.cu", [], [])
    try:
        try:
            compiler.compileProgram(program, flags)
        except compiler.NVRTCError as error:
            raise CompileError(_explain(what, target, options, _log(compiler, program), text)) from error
        log = _log(compiler, program)
        code = compiler.getPTX(program) if target.startswith("compute_") else compiler.getCUBIN(program)
    finally:
        compiler.destroyProgram(program)
    seconds = time.perf_counter() - started
    return Binary(code.encode() if isinstance(code, str) else code, log, _resources(log), seconds)


def _log(compiler: Any, program: Any) -> str:
    # It comes with C's end of a string.
    return str(compiler.getProgramLog(program)).replace("\0", "")


def _resources(log: str) -> dict[str, tuple[int, int]]:
    """Registers and spilled bytes of each kernel, from what ptxas reports of one after the other."""
    found = {}
    for report in log.split("Compiling entry function '")[1:]:
        name = report.partition("'")[0]
        registers = re.search(r"Used (\d+) registers", report)
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
        found[name] = (int(registers[1]) if registers else -1, sum(map(int, spills)))
    return found


def warnings_in(log: str) -> list[str]:
    """The warnings in a compiler's log, without its report of resources."""
    return [
        line
        for line in log.splitlines()
        if re.match(r"(?:\S.*\(\d+\): |ptxas\s+|nvrtc: )?warning\b", line, re.IGNORECASE)
    ]


def _explain(what: str, target: str, options: Sequence[str], log: str, text: str) -> str:
    """The message of a CompileError: the compiler's words, each with the author's lines around the place."""
    files = lines_by_file(text)
    parts = [
        f"{what} does not compile for {target} (NVRTC {'.'.join(map(str, nvrtc_version()))}, options {' '.join(options)})"
    ]
    shown: set[tuple[str, int]] = set()
    for message in re.finditer(
        r"^(?P<file>\S.*?)\((?P<line>\d+)\): (?P<words>.*(?:error|warning).*)$", log, re.MULTILINE
    ):
        place = message["file"], int(message["line"])
        parts.append(f"{place[0]}:{place[1]}: {message['words']}")
        if place not in shown and place[0] in files:
            shown.add(place)
            lines = files[place[0]]
            near = [number for number in range(place[1] - 2, place[1] + 3) if number in lines]
            parts += [f"{'>' if number == place[1] else ' '} {number:4d} | {lines[number]}" for number in near]
    if len(parts) == 1:
        parts.append(log.strip())
    return "\n".join(parts)


def first_error(message: str) -> str:
    """A CompileError's message up to its first error, with the author's lines around that: a compiler's later errors often
    follow from it."""
    lines = message.splitlines()
    ends = next((i for i, line in enumerate(lines[1:], 2) if re.search(r": (?:\w+ )?error\b", line)), 2)
    while ends < len(lines) and re.match(r"[> ] +\d+ \| ", lines[ends]):
        ends += 1
    # The simulator's last line says whether it is the text that is at fault.
    return "\n".join(lines[:ends] + [line for line in lines[ends:][-1:] if line.startswith("NVRTC accepts the text")])


def lines_by_file(text: str) -> dict[str, dict[int, str]]:
    """The final text's lines by the file and number that ``#line`` gives them."""
    files: dict[str, dict[int, str]] = {}
    name, number = "cupyops.cu", 1
    for line in text.split("\n"):
        if directive := re.match(r'#line (\d+) "([^"]+)"', line):
            number, name = int(directive[1]), directive[2]
        else:
            files.setdefault(name, {})[number] = line
            number += 1
    return files
