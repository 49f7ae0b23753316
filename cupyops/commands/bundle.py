"""``python -m cupyops bundle``: compiles kernels for listed architectures into one file that loads without NVRTC.

The command needs NVRTC, and no GPU.
"""

import argparse
import importlib
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from cupyops import __version__
from cupyops.compile.bundle import Entry, write_bundle
from cupyops.compile.compiler import OPTIONS, compile_text, supported_architectures
from cupyops.compile.toolchain import cuda_headers, nvrtc_version
from cupyops.errors import CompileError

from .compile import Job, add_choices, choose_architectures, each, jobs_for, matching, sensible_processes

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``bundle`` to the command line."""
    summary = "compile kernels into one file that loads without NVRTC"
    parser = commands.add_parser(
        "bundle",
        help=summary,
        description=f"C{summary[1:]} (CUPYOPS_BUNDLE=FILE, or cupyops.load_bundle) and without a folder to write to.",
        epilog="Exit status: 0 if the file is written, 1 if a kernel does not compile, 2 if the options are invalid.",
    )
    add_choices(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="path of the bundle")
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="import this module first: the bundle has its kernels, and compiles them for the types of its calls, "
        "which may be calls on meta tensors or in the simulator",
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0 if the file is written, 1 if a kernel does not compile.

    Raises:
        SystemExit: with status 2, if the options are invalid.
        MissingDependencyError: CuPy, NVRTC or CUDA's headers are missing.
    """
    error = options.parser.error
    version = ".".join(map(str, nvrtc_version()))
    for name in options.module:
        try:
            importlib.import_module(name)
        except ImportError as problem:
            error(f"--module {name}: {problem}")
    try:
        architectures, skipped = choose_architectures(options.arch, supported_architectures(), version)
        jobs = jobs_for(matching(options.kernels), architectures, options.dtypes, met=True)
    except ValueError as problem:
        error(str(problem))
    if skipped and options.arch:
        # A missing architecture would fail on the target machine, which has no NVRTC to compile it.
        error(f"--arch {','.join(map(str, skipped))}: NVRTC {version} does not compile for it")
    if not jobs:
        error("none of these kernels takes these dtypes on these architectures")
    if any("#include <" in job.text for job in jobs):
        cuda_headers()
    started = time.perf_counter()
    entries, failed = [], 0
    try:
        for job, made in zip(jobs, each(entry_of, jobs, options.jobs or sensible_processes(len(jobs))), strict=True):
            if isinstance(made, Entry):
                entries.append(made)
            else:
                failed += 1
                print(f"{job.what} for sm_{job.architecture}: FAILED\n{made}", flush=True)
    except BrokenExecutor:
        error("a worker process was killed; try --jobs 1")
    if failed:
        print(f"{failed} of {len(jobs)} kernels do not compile; nothing is written")
        return 1
    try:
        write_bundle(options.output, entries, {"cupyops": __version__, "nvrtc": version})
        size = options.output.stat().st_size
    except OSError as problem:
        error(f"--output {options.output}: {problem.strerror}")
    names, targets = len({e.what for e in entries}), ", ".join(f"sm_{a}" for a in architectures)
    seconds = time.perf_counter() - started
    print(
        f"{options.output}: {names} kernels for {targets}, {size / 1e6:.1f} MB, by NVRTC {version} in {seconds:.1f} s"
    )
    return 0


def entry_of(job: Job) -> Entry | str:
    """Compiles one job; returns its entry in the bundle, or the compiler's errors as text."""
    try:
        binary = compile_text(job.text, job.what, f"sm_{job.architecture}", (*OPTIONS, *job.options))
    except CompileError as problem:
        return str(problem)
    return Entry(job.what, job.text, job.options, job.architecture, binary)
