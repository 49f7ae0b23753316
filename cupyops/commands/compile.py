"""``python -m cupyops compile``: compiles any kernel for any architecture, on a machine without a GPU.

The command compiles the same texts with the same options and compiler as a launch. It does not write to the cache.
"""

import argparse
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from cupyops import __version__
from cupyops.compile.compiler import OPTIONS, compile_text, supported_architectures, warnings_in
from cupyops.compile.toolchain import cuda_headers, nvrtc_version
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import CompileError, nearest
from cupyops.launch.kernel import Kernel, all_kernels

__all__ = ["ARCHITECTURES", "Job", "Row", "add_parser", "compile_all", "jobs_for"]

# The default architectures, Volta to Blackwell. Architectures that the installed NVRTC does not support are skipped.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)

Result = TypeVar("Result")

# A register spill on this architecture is a fault. On other architectures, ptxas warns of spills (-warn-spills).
NO_SPILLS = 90

# Log lines that announce deprecations of NVRTC, or explain the warning above them.
_NOT_ABOUT_THE_KERNEL = re.compile(r"^Remark:|Architectures prior to .* are deprecated")


@dataclass(frozen=True)
class Job:
    """One compilation.

    Attributes:
        what: kernel, dtypes and constants, such as ``gelu_forward<float16, TANH=1>``.
        kernel: name of the ``__global__`` function.
        dtypes: dtypes of the text's open types such as ``scalar_t``; empty if the text has none.
        architecture: compute capability as a number, 90 for sm_90.
        text: the final text, with headers and type definitions.
        options: options for NVRTC in addition to :data:`cupyops.compile.compiler.OPTIONS`.
        number: the place of the kernel among the kernels of the text.
    """

    what: str
    kernel: str
    dtypes: tuple[str, ...]
    architecture: int
    text: str
    options: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class Row:
    """The result of one compilation; ``what`` to ``architecture`` are those of its :class:`Job`.

    Attributes:
        bytes: size of the binary.
        registers: registers per thread.
        spilled: bytes of register spills per thread, stores plus loads.
        milliseconds: time of the compilation.
        warnings: the compiler's warnings, one line each.
        error: the compiler's errors; empty if the kernel compiles.
    """

    what: str
    kernel: str
    dtypes: tuple[str, ...]
    architecture: int
    bytes: int = 0
    registers: int = 0
    spilled: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()
    error: str = ""

    @property
    def spills_in_vain(self) -> bool:
        """Returns whether the kernel spills registers on sm_90, where spills are a fault."""
        return self.spilled > 0 and self.architecture == NO_SPILLS

    @property
    def faulty(self) -> bool:
        """Returns whether the compilation failed or warned, or the kernel spills registers on sm_90."""
        return bool(self.error or self.warnings or self.spills_in_vain)


def jobs_for(
    kernels: Sequence[Kernel],
    architectures: Sequence[int],
    dtypes: Sequence[str] | None = None,
    *,
    met: bool = False,
) -> list[Job]:
    """Returns the compilations of kernels, for all their dtypes and for the architectures that they support.

    Args:
        dtypes: compile only for these dtypes; by default for all that a kernel declares.
        met: also compile for the types of earlier calls in this process.
    """
    jobs = []
    for kernel in kernels:
        wanted = [*kernel.type_choices(), *(kernel.met.values() if met else ())]
        choices = {tuple(types.items()): types for types in wanted}
        for types in choices.values():
            if dtypes is not None and not set(types.values()) <= set(dtypes):
                continue
            text, what = kernel.final_text(types), kernel.describe(types)
            names = tuple(dict.fromkeys(types.values()))
            number = kernel.source.kernels().index(kernel.name)
            supported = [a for a in architectures if kernel.runs_on(a)]
            jobs += [Job(what, kernel.name, names, a, text, kernel.options, number) for a in supported]
    return jobs


def compile_job(job: Job) -> Row:
    """Compiles one job; a compile error becomes the row's `error`."""
    about = (job.what, job.kernel, job.dtypes, job.architecture)
    try:
        binary = compile_text(job.text, job.what, f"sm_{job.architecture}", (*OPTIONS, *job.options))
    except CompileError as error:
        return Row(*about, error=str(error))
    name = binary.named(job.kernel, job.number)
    if name not in binary.resources:
        return Row(
            *about, error=f"the compiler's log does not report the registers of {job.kernel}:\n{binary.log.strip()}"
        )
    registers, spilled = binary.resources[name]
    milliseconds = round(binary.seconds * 1000, 1)
    warnings = tuple(about_the_kernel(binary.log))
    return Row(*about, len(binary.code), registers, spilled, milliseconds, warnings)


def about_the_kernel(log: str) -> list[str]:
    """Returns the warnings in a compiler's log that are about the text."""
    return [w.strip() for w in warnings_in(log) if not _NOT_ABOUT_THE_KERNEL.search(w)]


def compile_all(jobs: Sequence[Job], processes: int) -> Iterator[Row]:
    """Compiles all jobs; yields the rows in order, and raises as :func:`each`."""
    return each(compile_job, jobs, processes)


def each(function: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """Yields the function's result for each job, in order.

    Several processes save time from about ten jobs on. Threads save none, because NVRTC runs one compilation at a time.

    Raises:
        BrokenExecutor: a worker process was killed.
    """
    if processes == 1:
        yield from map(function, jobs)
        return
    pool = ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        with _interrupts_withheld():  # workers inherit the mask: Ctrl-C while a worker imports would print a traceback
            results = pool.map(function, jobs)
        yield from results
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_withheld() -> Iterator[None]:
    """Blocks SIGINT until the end of the block; on Windows, does nothing."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_interrupts_to_the_parent() -> None:
    """Ignores SIGINT in a worker: Ctrl-C reaches all processes, and only the parent should report it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# The command


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``compile`` to the command line."""
    summary = "compile kernels for any architecture, without a GPU"
    parser = commands.add_parser(
        "compile",
        help=summary,
        description=f"C{summary[1:]}: prints size, registers, spilled bytes and time of each.",
        epilog="Exit status: 0 if all kernels compile cleanly, 1 if one fails, warns, or spills registers on sm_90, "
        "2 if the options are invalid.",
    )
    add_choices(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    own = parser.add_argument_group("a text of your own")
    own.add_argument(
        "--file",
        type=Path,
        metavar="FILE.cu",
        help="compile --kernels NAME[,NAME] of this text; scalar_t is each of --dtypes (default: all floating dtypes); "
        'a header of #include "x.cuh" may lie in the same folder',
    )
    own.add_argument(
        "--define",
        type=_definition,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a constant of the text, such as BLOCK_THREADS=256",
    )
    parser.set_defaults(run=run, parser=parser)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Adds the options ``--arch``, ``--kernels``, ``--dtypes`` and ``--jobs``."""
    names = ",".join(map(str, ARCHITECTURES))
    parser.add_argument(
        "--arch",
        type=_architectures,
        metavar="N[,N]",
        help=f"compute capabilities; default: those of {names} that NVRTC knows",
    )
    parser.add_argument(
        "--kernels",
        type=_list,
        metavar="NAME[,NAME]",
        help="names or patterns such as 'gelu*'; default: every kernel",
    )
    parser.add_argument(
        "--dtypes", type=_dtypes, metavar="NAME[,NAME]", help="default: every dtype that a kernel takes"
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="parallel processes; default: by the number of kernels and cores"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0 if no row is faulty, else 1.

    Raises:
        SystemExit: with status 2, if the options are invalid; with status 1, if a worker process was killed.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing.
    """
    error = options.parser.error
    if options.json and not (options.json.parent.is_dir() and os.access(options.json.parent, os.W_OK)):
        error(f"--json {options.json}: there is no folder {options.json.parent} that can be written to")
    version = ".".join(map(str, nvrtc_version()))
    try:
        architectures, skipped = choose_architectures(options.arch, supported_architectures(), version)
        kernels = choose_kernels(options)
        jobs = jobs_for(kernels, architectures, options.dtypes)
    except OSError as problem:
        error(f"--file {options.file}: {problem.strerror}")
    except ValueError as problem:
        error(str(problem))
    if not jobs:
        error(f"--dtypes {','.join(options.dtypes)}: none of these kernels takes them")
    if any("#include <" in job.text for job in jobs):
        cuda_headers()  # raises here, rather than in every row, if the headers are missing
    for architecture in skipped:
        print(f"skipped sm_{architecture}: NVRTC {version} does not compile for it")
    started = time.perf_counter()
    rows: list[Row] = []
    width = max(len(job.what) for job in jobs)
    print(f"{'kernel':{width}}  arch     bytes  registers  spilled        ms", flush=True)
    try:
        for row in compile_all(jobs, options.jobs or sensible_processes(len(jobs))):
            first = next((r for r in rows if r.error and _cause(r) == _cause(row)), None)
            rows.append(row)
            print(format_row(row, width, first), flush=True)
    except BrokenExecutor:
        missing = jobs[len(rows)].what
        options.parser.exit(
            1, f"{options.parser.prog}: error: a worker process was killed, near {missing}; try --jobs 1\n"
        )
    print(summarise(rows, version, time.perf_counter() - started))
    if options.json:
        document = {
            "cupyops": __version__,
            "nvrtc": version,
            "options": OPTIONS,
            "skipped": skipped,
            "rows": [asdict(r) for r in rows],
        }
        try:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as problem:
            error(f"--json {options.json}: {problem.strerror}")
    return int(any(row.faulty for row in rows))


def choose_architectures(
    wanted: Sequence[int] | None, known: Sequence[int], version: str
) -> tuple[list[int], list[int]]:
    """Returns the architectures to compile for, and the architectures of :data:`ARCHITECTURES` that NVRTC lacks.

    Raises:
        ValueError: an architecture is in neither `known` nor :data:`ARCHITECTURES`, or NVRTC supports none of them.
    """
    wanted = list(dict.fromkeys(wanted or ARCHITECTURES))
    has = f"NVRTC {version} compiles for {', '.join(map(str, known))}"
    for architecture in wanted:
        if architecture not in (*known, *ARCHITECTURES):
            raise ValueError(f"--arch {architecture}: there is no such architecture here; {has}")
    chosen = [a for a in wanted if a in known]
    if not chosen:
        raise ValueError(f"--arch {','.join(map(str, wanted))}: nothing is left to compile for; {has}")
    return chosen, [a for a in wanted if a not in known]


def choose_kernels(options: argparse.Namespace) -> list[Kernel]:
    """Returns the shipped kernels that ``--kernels`` selects, or the kernels of ``--file``.

    Raises:
        ValueError: a name is unknown, or the options contradict one another.
        OSError: the file cannot be read.
    """
    if options.file is not None:
        if not options.kernels:
            raise ValueError("--file needs --kernels NAME[,NAME], the names of the __global__ functions to compile")
        return own_kernels(options.file, options.kernels, options.dtypes or FLOATS, dict(options.define))
    if options.define:
        raise ValueError("--define belongs to --file; the shipped kernels choose their constants themselves")
    return matching(options.kernels)


def matching(patterns: Sequence[str] | None) -> list[Kernel]:
    """Returns all kernels of this process, or the kernels whose names match one of the patterns.

    Raises:
        ValueError: a pattern matches no kernel.
    """
    kernels = all_kernels()
    for pattern in patterns or ():
        if not any(fnmatchcase(k.name, pattern) for k in kernels):
            names = sorted({k.name for k in kernels})
            raise ValueError(
                f"--kernels {pattern}: there is no such kernel{nearest(pattern, names)}; there are {', '.join(names)}"
            )
    return [k for k in kernels if patterns is None or any(fnmatchcase(k.name, p) for p in patterns)]


def own_kernels(path: Path, names: Sequence[str], dtypes: Sequence[str], constants: Mapping[str, int]) -> list[Kernel]:
    """Makes kernels of a user's text and of the headers in its folder.

    Raises:
        ValueError: the text, a name, a dtype or a constant is invalid.
    """
    try:
        return [Kernel(path, n, dtypes=dtypes, constants=constants) for n in names]
    except (ValueError, TypeError) as problem:
        raise ValueError(f"--file {path}: {str(problem).removeprefix(f'{path}: ')}") from None


def sensible_processes(jobs: int) -> int:
    """Returns the number of processes: at most one per core, 16 in total, and one per eight jobs.

    Starting a process takes as long as about eight compilations.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, 16, jobs // 8))


def _cause(row: Row) -> str:
    """Returns the errors of a row without the line that names the dtypes and the architecture."""
    return row.error.partition("\n")[2] or row.error


def format_row(row: Row, width: int, first: Row | None = None) -> str:
    """Returns one line of the table, followed by its warnings or errors. The errors of an earlier row, `first`, are not
    repeated."""
    start = f"{row.what:{width}}  {f'sm_{row.architecture}':6}"
    if first is not None:
        return f"{start}  FAILED as {first.what} for sm_{first.architecture}"
    if row.error:
        return "\n".join([f"{start}  FAILED", *(f"    {line}" for line in row.error.splitlines())])
    numbers = f"{row.bytes:8}  {row.registers:9}  {row.spilled:7}  {row.milliseconds:8.1f}"
    lines = [f"{start}{numbers}", *(f"    {w}" for w in row.warnings)]
    if row.spills_in_vain:
        lines.append(f"    spills {row.spilled} bytes, which no kernel may on sm_{NO_SPILLS}")
    return "\n".join(lines)


def summarise(rows: Sequence[Row], version: str, seconds: float) -> str:
    """Returns the last line: the counts of compilations, failures, warnings and spills."""
    failed, warned = sum(bool(r.error) for r in rows), sum(bool(r.warnings) for r in rows)
    spilled = sum(r.spills_in_vain for r in rows)
    wrong = f"{failed} failed, {warned} with warnings, {spilled} with spills on sm_{NO_SPILLS}"
    return f"{len(rows)} compilations by NVRTC {version} in {seconds:.1f} s: {wrong}"


# Parsers of option values


def _list(text: str) -> list[str]:
    words = [w.strip() for w in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"expected a comma-separated list, got {text!r}")
    return words


def _architectures(text: str) -> list[int]:
    numbers = [re.fullmatch(r"(?:sm_)?(\d{2,3})", w) for w in _list(text)]
    if not all(numbers):
        raise argparse.ArgumentTypeError(f"expected compute capabilities such as 80,90 (for 8.0 and 9.0), got {text!r}")
    return [int(n[1]) for n in numbers if n]


def _dtypes(text: str) -> list[str]:
    for name in _list(text):
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(DTYPES)}, got {name!r}{nearest(name, DTYPES)}"
            )
    return _list(text)


def _definition(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([A-Za-z_]\w*)=(-?\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected NAME=INTEGER, got {text!r}")
    return match[1], int(match[2])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
