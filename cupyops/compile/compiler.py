"""Compiles a final text, the result of :func:`cupyops.compile.source.assemble`, with NVRTC and the compile cache.

CuPy's NVRTC binding compiles the text, and :class:`cupy.RawModule` loads the binary. ``RawModule(code=...)`` does not
compile the text: it adds ``-ftz=true`` to the options, which flushes float32 subnormals to zero.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from cupyops.errors import CompileError

from . import linking, signing
from .ask import QUESTIONS, answer_in, asked_in, demangled
from .cache import Binary, DiskCache, default_folder
from .folded import folded
from .source import named_kernels
from .standard import for_libraries
from .system_headers import folders_in, folders_of, found_in
from .toolchain import header_version, nvrtc, nvrtc_version, reinstall_line

__all__ = [
    *(
        "FEWER_BLOCKS",
        "OPTIONS",
        "STANDARD",
        "answers",
        "binary_for",
        "check",
        "compile_text",
        "first_error",
    ),
    *("supported_architectures", "target_for"),
]

# With -Xptxas=-v the log reports registers and spills.
OPTIONS = ("--std=c++17", "-Xptxas=-v", "-Xptxas=-warn-spills")

FEWER_BLOCKS = "FEWER_BLOCKS"  # a macro of a text; see binary_for
STANDARD = re.compile(r"--?std=(\S+)")  # the option that chooses a version of C++
_INT128 = re.compile(r"\b__u?int128(?:_t)?\b")  # NVRTC has them with an option, and nvcc has them
_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)

_KERNEL = re.compile(r"\b__global__\s(?:[^;{}()]|\([^()]*\))*?\b(?!__\w+__\b)(\w+)\s*\(")
_NARROWED, _TOLERANT = "error: invalid narrowing conversion", "-diag-suppress=2361"
_UNMARKED = re.compile(r"without (?:execution|memory) space annotations")

# NVRTC then reads a source, and generates no code.
_READ_ONLY = "-fdevice-syntax-only"
# The target of questions. The same kernel has the same signature on every GPU, and the compilation for a GPU compares it.
_ASKED = "compute_90"

_PLACE = re.compile(r"^(\S.*?)\((\d+)\): ", re.MULTILINE)
_ERROR = re.compile(r"\b(?:error|fatal)\b(?! detected)")
_NVRTC_TAKES_IT = "NVRTC accepts the text"

# Increment when the format of an entry changes.
_CACHE_FORMAT = 1


def supported_architectures() -> tuple[int, ...]:
    """Returns the architectures that the installed NVRTC compiles for, (70, 75, 80, ...)."""
    return tuple(nvrtc().getSupportedArchs())


def target_for(capability: int) -> str:
    """Returns the compilation target of a compute capability: ``sm_90`` for 90, which stands for 9.0.

    For a GPU newer than NVRTC the target is PTX of the newest known architecture, such as ``compute_121``. The driver
    compiles the PTX.

    Raises:
        CompileError: the GPU is older than the installed NVRTC supports.
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
    """Returns the binary of a final text from the cache, or compiles the text.

    Only the compiler knows how many blocks fit a multiprocessor without spilled registers. A text with the macro
    :data:`FEWER_BLOCKS`, which its ``__launch_bounds__`` subtract from the blocks that it wishes for, is compiled with 0, and
    then with more until no register is spilled, or the text refuses the number.

    With ``CUPYOPS_REQUIRE_SIGNED=1`` the cache is neither read nor written.

    Args:
        text: the result of :func:`cupyops.compile.source.assemble`.
        what: kernel and dtypes, for messages.
        target: ``sm_90``, ``sm_90a``, or ``compute_90`` for PTX.
        options: NVRTC options in addition to :data:`OPTIONS`. An ``-arch`` option replaces the target.

    Raises:
        CompileError: NVRTC rejects the text.
        MissingDependencyError: CuPy, NVRTC or a CUDA header of the text is not installed.
    """
    options = (*OPTIONS, *options)
    return _kept(text, target, options, lambda: compile_text(text, what, target, options))


def _kept(text: str, target: str, options: Sequence[str], make: Callable[[], Binary]) -> Binary:
    """Returns the binary of the cache, or what `make` returns."""
    if signing.required():
        # An entry of the cache has no signature. Every process compiles the kernels that no signed bundle has.
        return make()
    return DiskCache(default_folder()).get_or_make(_key(text, target, options), make)


def answers(key: str, make: Callable[[], str], what: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns NVRTC's answers to questions (:mod:`.ask`), from the cache or by a compilation without code.

    Args:
        key: a hash of what decides the answers, beside NVRTC and the headers of CUDA.
        make: returns the source with the questions, which is assembled if the cache has no answers.
        what: the kernel, for messages.
        options: NVRTC options in addition to :data:`OPTIONS`.

    Raises:
        CompileError: NVRTC rejects the source.
        MissingDependencyError: CuPy, NVRTC or a CUDA header of the source is not installed.
    """
    # The definitions of the questions need C++14.
    kept = [option for option in options if not re.fullmatch(r"--?std=\S*(?:03|11)", option)]
    asked = (*OPTIONS, *kept, _READ_ONLY)
    return _kept(key, _ASKED, asked, lambda: compile_text(make(), what, _ASKED, asked, instances=False)).types


def check(text: str, what: str, options: Sequence[str], decides: Callable[[str], str] = str) -> None:
    """Raises if NVRTC refuses a final text, and generates no code. The errors are those of :func:`binary_for`.

    That a text is accepted is kept in the cache.

    Args:
        text, what, options: as for :func:`binary_for`.
        decides: returns what of the text decides the answer. Texts that have it in common are compiled once.
    """
    linked = linking.is_linked(text, options)
    asked = (*OPTIONS, *options, _READ_ONLY)
    for one in linking.parts(text):
        read = partial(compile_text, one, what, _ASKED, asked, relocatable=linked)
        _kept(decides(one), _ASKED, (*asked, f"linked={linked}"), read)


def _key(text: str, target: str, options: Sequence[str]) -> str:
    # The text does not contain the system headers. The key contains their folder and version instead.
    names = _SYSTEM_HEADER.findall(text)
    headers = _headers_identity(tuple(dict.fromkeys(names))) if names else None
    content = json.dumps([_CACHE_FORMAT, text, target, list(options), nvrtc_version(), _nvrtc_build(), headers])
    return hashlib.sha256(content.encode()).hexdigest()[:40]


@cache
def _headers_identity(names: tuple[str, ...]) -> list[object]:
    """Returns the identity of the headers: the paths and versions of their folders."""
    # A folder without a version belongs to a package, and an update of the package renews the folder.
    return [part for f in folders_of(names) for part in (str(f), header_version(f) or f.stat().st_mtime_ns)]


@cache
def _nvrtc_build() -> str:
    """Returns the version of NVRTC's wheel, or ``""`` without a wheel.

    Several builds share a version such as (12, 9).
    """
    import importlib.metadata

    for name in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def compile_text(
    text: str, what: str, target: str, options: Sequence[str], *, relocatable: bool = False, instances: bool = True
) -> Binary:
    """Compiles a final text without the cache. The arguments and errors are those of :func:`binary_for`.

    Args:
        relocatable: the text is one of several that :mod:`cupyops.compile.linking` links.
        instances: the templates of the kernels are instantiated.
    """
    if linking.is_linked(text, options) and not relocatable:
        one = partial(compile_text, relocatable=True)
        return linking.compile_linked(text, what, target, options, one, resources_in)
    compiled = partial(_by_standard, text, what, target, relocatable=relocatable, instances=instances)
    binary, fewer = compiled(options), 0
    while FEWER_BLOCKS in text and any(spilled for _, spilled in binary.resources.values()):
        fewer += 1
        try:
            binary = compiled((*options, f"-D{FEWER_BLOCKS}={fewer}"))
        except CompileError:  # the text has no fewer blocks
            break
    return binary


def _by_standard(
    text: str, what: str, target: str, options: Sequence[str], relocatable: bool, instances: bool
) -> Binary:
    try:
        return _compiled(text, what, target, options, relocatable, instances)
    except CompileError as error:
        # g++, and nvcc with it, accepts much of C++20 under earlier standards, such as designated initializers.
        if sum(1 for option in options if STANDARD.fullmatch(option)) > 1:
            raise
        try:
            return _compiled(text, what, target, (*options, "--std=c++20"), relocatable, instances)
        except CompileError:
            raise error from error.__cause__


def _compile(compiler: Any, program: Any, flags: Sequence[str]) -> None:
    """Compiles a program, first without NVRTC's declarations of textures and of the CUDA runtime: they take a fifth to a third of the
    time, and few texts use one."""
    if nvrtc_version() >= (12, 9):
        try:
            compiler.compileProgram(program, [*flags, "-minimal"])
            return
        except compiler.NVRTCError:
            log = _log(compiler, program)
            if _UNMARKED.search(log) or _NARROWED in log:  # which declarations do not change
                raise
    compiler.compileProgram(program, flags)


def _compiled(text: str, what: str, target: str, options: Sequence[str], relocatable: bool, instances: bool) -> Binary:
    compiler = nvrtc()
    flags = [*([] if any(o.startswith("-arch=") for o in options) else [f"-arch={target}"]), *options]
    versions = [flag for flag in flags if STANDARD.fullmatch(flag)]
    flags = [flag for flag in flags if flag not in versions[:-1]]  # NVRTC warns of a second one
    if nvrtc_version() >= (12, 9):
        # NVRTC's own cache returns the code without the log, and the log reports the registers.
        flags.append("--no-cache")
    if relocatable:
        flags.append("-rdc=true")
    if _INT128.search(text):
        flags.append("--device-int128")
    names = _SYSTEM_HEADER.findall(text)
    # NVRTC reads the headers of libraries in these folders, and they include the host's headers.
    libraries = for_libraries() if folders_in(options) else {}
    of_host = {name.encode(): libraries[name].encode() for name in libraries if not found_in(options, name)}
    if names or of_host:
        flags += [f"-I{folder}" for folder in folders_of([*names, *(["cuda/std/limits"] if of_host else [])])]
    started = time.perf_counter()
    program = compiler.createProgram(text, "cupyops.cu", [*of_host.values()], [*of_host])
    named = [name for name, _ in named_kernels(text)] if instances else []
    asked = asked_in(text)
    try:
        for name in (*named, *asked):
            compiler.addNameExpression(program, name)
        try:
            _compile(compiler, program, flags)
        except compiler.NVRTCError as error:
            log = _log(compiler, program)
            if _UNMARKED.search(log) and "-default-device" not in options:
                # nvcc compiles functions without __device__ for the host, and kernels do not use them. NVRTC refuses a
                # member function or a variable of this kind, unless it may compile them for the GPU. Nor may one be
                # marked __host__.
                again = (*options, "-default-device")
                unmarked = re.sub(r"\b__host__\b", " " * len("__host__"), text)
                return _compiled(unmarked, what, target, again, relocatable, instances)
            if _NARROWED in log and _TOLERANT not in options:
                # nvcc takes braces that narrow a number for a constructor.
                return _compiled(text, what, target, (*options, _TOLERANT), relocatable, instances)
            if (constant := folded(text, log)) != text:
                return _compiled(constant, what, target, options, relocatable, instances)
            raise CompileError(_explain(what, target, options, log)) from error
        log = _log(compiler, program)
        types = tuple(answer_in(demangled(compiler.getLoweredName(program, name))) for name in asked)
        if _READ_ONLY in options:
            return Binary(b"", log, {}, time.perf_counter() - started, types=types)
        entry = " ".join(compiler.getLoweredName(program, name) for name in named) or None
        kind = "LTOIR" if linking.with_lto(options) else "PTX" if target.startswith("compute_") else "CUBIN"
        code = getattr(compiler, f"get{kind}")(program)
    finally:
        compiler.destroyProgram(program)
    seconds = time.perf_counter() - started
    resources = resources_in(log)
    # NVRTC compiles a prototype to a binary without a kernel, which fails when it is loaded.
    reported = kind == "CUBIN" and not relocatable and "-Xptxas=-v" in flags
    if reported and "ptxas info" in log and not resources and (declared := _KERNEL.search(text)):
        raise CompileError(
            f"{what}: no text defines `{declared[1]}`, which the text declares; give the text that defines it in link="
        )
    return Binary(code.encode() if isinstance(code, str) else code, log, resources, seconds, entry=entry, types=types)


def _log(compiler: Any, program: Any) -> str:
    # The log ends with the null character of a C string.
    return str(compiler.getProgramLog(program)).replace("\0", "")


def resources_in(log: str) -> dict[str, tuple[int, int]]:
    """Returns the registers and spilled bytes of each kernel from the reports of ptxas in the log."""
    found = {}
    for report in log.split("Compiling entry function '")[1:]:
        name = report.partition("'")[0]
        registers = re.search(r"Used (\d+) registers", report)
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
        found[name] = (int(registers[1]) if registers else -1, sum(map(int, spills)))
    return found


def warnings_in(log: str) -> list[str]:
    """Returns the warnings in a compiler's log, without the reports of registers and spills."""
    return [
        line
        for line in log.splitlines()
        if re.match(r"(?:\S.*\(\d+\): |ptxas\s+|nvrtc: )?warning\b", line, re.IGNORECASE)
    ]


def _explain(what: str, target: str, options: Sequence[str], log: str) -> str:
    """Returns the message of a CompileError: the errors of NVRTC's log, each with its line and a caret."""
    given = " ".join(option for option in options if option != _READ_ONLY)
    parts = [part for part in _PLACE.sub(r"\1:\2: ", log.strip()).split("\n\n") if _ERROR.search(part)]
    # An error in the questions follows from an error in the text.
    own = [part for part in parts if not part.startswith((f"{QUESTIONS}:", "__nv_name_map:"))]
    head = f"{what} does not compile for {target} (NVRTC {'.'.join(map(str, nvrtc_version()))}, options {given})"
    return "\n".join([head, *(own or parts or [log.strip()])])


def first_error(message: str) -> str:
    """Returns a CompileError's message up to the first error and its source lines.

    Later errors often follow from the first.
    """
    lines = message.splitlines()
    ends = next((i for i, line in enumerate(lines[1:], 2) if re.search(r": (?:\w+ )?error\b", line)), 2)
    while ends < len(lines) and lines[ends].startswith(("  ", "> ")):
        ends += 1
    # A further line says that NVRTC accepts a text which the simulator does not compile.
    further = dict.fromkeys(line for line in lines[ends:] if line.startswith(_NVRTC_TAKES_IT))
    return "\n".join([*lines[:ends], *further])
