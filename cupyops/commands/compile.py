"""``python -m cupyops compile``: any kernel for any architecture, on a machine without a GPU.

What comes out of it is what a launch would load: the same texts, options and compiler. Nothing goes into the cache.
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

# What every shipped kernel is compiled for, as far as the NVRTC at hand goes: Volta to Blackwell.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)

Result = TypeVar("Result")

# Where a kernel that spills registers is at fault; elsewhere ptxas's warning says it.
NO_SPILLS = 90

# Lines that speak of NVRTC's own future, or explain a warning above them.
_NOT_ABOUT_THE_KERNEL = re.compile(r"^Remark:|Architectures prior to .* are deprecated")


@dataclass(frozen=True)
class Job:
    """One compilation.

    Attributes:
        what: kernel, dtypes and constants, ``gelu_forward<float16, TANH=1>``.
        kernel: the function's name.
        dtypes: what the undeclared types stand for; empty where the text leaves none open.
        architecture: 90 for sm_90.
        text: the final text.
        options: for NVRTC, beside :data:`cupyops.compile.compiler.OPTIONS`.
    """

    what: str
    kernel: str
    dtypes: tuple[str, ...]
    architecture: int
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What became of a job: ``what`` to ``architecture`` are its own, the rest is the compiler's.

    Attributes:
        bytes: of the binary.
        registers: of a thread.
        spilled: bytes that a thread stores to and loads from local memory for want of registers.
        milliseconds: what the compilation took.
        warnings: the compiler's, one line each.
        error: why there is no binary, or nothing.
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
        """It spills where no kernel may."""
        return self.spilled > 0 and self.architecture == NO_SPILLS

    @property
    def faulty(self) -> bool:
        """It failed, warned, or spills where no kernel may."""
        return bool(self.error or self.warnings or self.spills_in_vain)


def jobs_for(
    kernels: Sequence[Kernel], architectures: Sequence[int], dtypes: Sequence[str] | None = None, *, met: bool = False
) -> list[Job]:
    """Every kernel with each of its dtypes (or those of them that are listed) for every architecture that it runs on; on
    request also with the types that calls have met."""
    jobs = []
    for kernel in kernels:
        wanted = [*kernel.type_choices(), *(kernel.met.values() if met else ())]
        choices = {tuple(types.items()): types for types in wanted}
        for types in choices.values():
            if dtypes is not None and not set(types.values()) <= set(dtypes):
                continue
            text, what = kernel.final_text(types), kernel.describe(types)
            names = tuple(dict.fromkeys(types.values()))
            jobs += [Job(what, kernel.name, names, a, text, kernel.options) for a in architectures if kernel.runs_on(a)]
    return jobs


def compile_job(job: Job) -> Row:
    """Compiles one."""
    about = (job.what, job.kernel, job.dtypes, job.architecture)
    try:
        binary = compile_text(job.text, job.what, f"sm_{job.architecture}", (*OPTIONS, *job.options))
    except CompileError as error:
        return Row(*about, error=str(error))
    if job.kernel not in binary.resources:
        return Row(
            *about, error=f"the compiler's log does not tell the registers of {job.kernel}:\n{binary.log.strip()}"
        )
    registers, spilled = binary.resources[job.kernel]
    warnings = tuple(w.strip() for w in warnings_in(binary.log) if not _NOT_ABOUT_THE_KERNEL.search(w))
    return Row(*about, len(binary.code), registers, spilled, round(binary.seconds * 1000, 1), warnings)


def compile_all(jobs: Sequence[Job], processes: int) -> Iterator[Row]:
    """Compiles all, in their order; raises as :func:`each`."""
    return each(compile_job, jobs, processes)


def each(function: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """The function of each job, in their order. More than one process pays from some ten jobs on; threads do not help,
    since NVRTC lets in one at a time.

    Raises:
        BrokenExecutor: a process was ended from outside.
    """
    if processes == 1:
        yield from map(function, jobs)
        return
    pool = ProcessPoolExecutor(min(processes, len(jobs)), get_context("spawn"), _leave_interrupts_to_the_parent)
    try:
        with _interrupts_withheld():  # what starts now inherits it: a process that is still importing would tell, too
            results = pool.map(function, jobs)
        yield from results
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_withheld() -> Iterator[None]:
    """A block of code behind which Ctrl-C comes to this thread; at once on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches the whole group of processes, and one of them telling of it is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# The command


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds ``compile`` to the command line."""
    summary = "compile kernels for any architecture, without a GPU"
    parser = commands.add_parser(
        "compile",
        help=summary,
        description=f"C{summary[1:]}: prints size, registers, spilled bytes and time of each.",
        epilog="Exit status: 0 if all compile cleanly, 1 if one fails, warns, or spills registers on sm_90, 2 for what cannot be asked.",
    )
    add_choices(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here, too")
    own = parser.add_argument_group("a text of your own")
    own.add_argument(
        "--file",
        type=Path,
        metavar="FILE.cu",
        help="compile --kernels NAME[,NAME] of this text; scalar_t is each of --dtypes (default: the floating ones); "
        '#include "x.cuh" is looked for beside it',
    )
    own.add_argument(
        "--define",
        type=_definition,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a constant of the text, BLOCK_THREADS=256",
    )
    parser.set_defaults(run=run, parser=parser)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Adds what to compile, for what, and how: ``--arch``, ``--kernels``, ``--dtypes``, ``--jobs``."""
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
        "--jobs", type=_positive, metavar="N", help="processes that compile side by side; default: as pays"
    )


def run(options: argparse.Namespace) -> int:
    """The command: 0 if all went well, 1 if some row is faulty.

    Raises:
        SystemExit: with status 2, for what cannot be asked.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing.
    """
    error = options.parser.error
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
    if options.json and not (options.json.parent.is_dir() and os.access(options.json.parent, os.W_OK)):
        error(f"--json {options.json}: there is no folder {options.json.parent} that can be written to")
    if any("#include <" in job.text for job in jobs):
        cuda_headers()  # its error once, and not once a row
    for architecture in skipped:
        print(f"skipped sm_{architecture}: NVRTC {version} does not compile for it")
    started = time.perf_counter()
    rows = []
    width = max(len(job.what) for job in jobs)
    print(f"{'kernel':{width}}  arch     bytes  registers  spilled        ms", flush=True)
    try:
        for row in compile_all(jobs, options.jobs or sensible_processes(len(jobs))):
            rows.append(row)
            print(format_row(row, width), flush=True)
    except BrokenExecutor:
        missing = jobs[len(rows)].what
        options.parser.exit(
            1, f"{options.parser.prog}: error: a process was ended from outside, near {missing}; try --jobs 1\n"
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
    """What to compile for, and what to skip: one of :data:`ARCHITECTURES` that this NVRTC is too old or too new for.

    Raises:
        ValueError: NVRTC does not know a number and neither does that list, or nothing is left.
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
    """The shipped kernels asked for, or those of ``--file``.

    Raises:
        ValueError: an unknown name, or options that do not go together.
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
    """The kernels declared so far, or those whose names fit one of the patterns.

    Raises:
        ValueError: a pattern that none fits.
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
    """Kernels of a user's text, with the headers that lie beside it."""
    try:
        return [Kernel(path, n, dtypes=dtypes, constants=constants) for n in names]
    except (ValueError, TypeError) as problem:
        raise ValueError(f"--file {path}: {str(problem).removeprefix(f'{path}: ')}") from None


def sensible_processes(jobs: int) -> int:
    """As many as there are cores for, up to 16, but none for fewer than eight jobs: starting one takes as long as
    compiling those."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, 16, jobs // 8))


def format_row(row: Row, width: int) -> str:
    """One line of the table, with warnings and errors under it."""
    start = f"{row.what:{width}}  {f'sm_{row.architecture}':6}"
    if row.error:
        return "\n".join([f"{start}  FAILED", *(f"    {line}" for line in row.error.splitlines())])
    numbers = f"{row.bytes:8}  {row.registers:9}  {row.spilled:7}  {row.milliseconds:8.1f}"
    lines = [f"{start}{numbers}", *(f"    {w}" for w in row.warnings)]
    if row.spills_in_vain:
        lines.append(f"    spills {row.spilled} bytes, which no kernel may on sm_{NO_SPILLS}")
    return "\n".join(lines)


def summarise(rows: Sequence[Row], version: str, seconds: float) -> str:
    """The last line: what was compiled, and what is wrong."""
    failed, warned = sum(bool(r.error) for r in rows), sum(bool(r.warnings) for r in rows)
    spilled = sum(r.spills_in_vain for r in rows)
    wrong = f"{failed} failed, {warned} with warnings, {spilled} with spills on sm_{NO_SPILLS}"
    return f"{len(rows)} compilations by NVRTC {version} in {seconds:.1f} s: {wrong}"


# What the options take


def _list(text: str) -> list[str]:
    words = [w.strip() for w in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"expected a list with commas between, got {text!r}")
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
