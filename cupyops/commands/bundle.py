"""``python -m cupyops bundle``: compiles kernels for listed architectures into one file that loads without NVRTC, signs
such a file, and verifies a signature.

The command needs no GPU. It needs NVRTC to compile, and the package ``cryptography`` to sign and to verify.
"""

import argparse
import importlib
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from cupyops import __version__
from cupyops.compile import bundle_file, signing
from cupyops.compile.bundle import Entry, check, read_file, write_bundle
from cupyops.compile.cache import write
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
        epilog="Exit status: 0 if the file is written or the signature is right, 1 if a kernel does not compile or the "
        "signature is wrong, 2 if the options are invalid.",
    )
    add_choices(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="path of the bundle")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign the bundle with this Ed25519 private key (PEM)")
    parser.add_argument("--input", type=Path, metavar="FILE", help="with --sign: sign this bundle, compile nothing")
    parser.add_argument(
        "--verify", type=Path, metavar="FILE", help="verify the signature of this bundle, and do no more"
    )
    parser.add_argument("--key", type=Path, metavar="KEYS", help="with --verify: the trusted public keys (PEM)")
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
    """Runs the command; returns 0 if the file is written or verified, 1 if a kernel does not compile or the signature is
    wrong.

    Raises:
        SystemExit: with status 2, if the options are invalid.
        MissingDependencyError: CuPy, NVRTC, CUDA's headers or ``cryptography`` are missing.
    """
    error = options.parser.error
    if (options.verify is None) != (options.key is None):
        error("--verify FILE and --key KEYS go together")
    if options.verify:
        return verify(options)
    if options.output is None:
        error("the following arguments are required: -o/--output")
    if options.input and not options.sign:
        error("--input FILE goes with --sign KEY")
    try:
        key = signing.private_key(options.sign) if options.sign else None
    except (OSError, ValueError) as problem:
        error(f"--sign {options.sign}: {words(problem)}")
    if options.input:
        return sign(options, key)
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
        answers = {key: told for kernel in matching(options.kernels) for key, told in kernel.source.answers.items()}
        write_bundle(options.output, entries, {"cupyops": __version__, "nvrtc": version}, key, answers)
        size = options.output.stat().st_size
    except (OSError, ValueError) as problem:
        error(f"--output {options.output}: {words(problem)}")
    names, targets = len({e.what for e in entries}), ", ".join(f"sm_{a}" for a in architectures)
    seconds = time.perf_counter() - started
    print(
        f"{options.output}: {names} kernels for {targets}, {size / 1e6:.1f} MB, by NVRTC {version} in {seconds:.1f} s"
    )
    return 0


def sign(options: argparse.Namespace, key: Any) -> int:
    """Signs the bundle of ``--input``; returns 0.

    Raises:
        SystemExit: with status 2, if a file cannot be read or written, or the input is not a whole bundle.
    """
    try:
        content = read_file(options.input)
        check(options.input, content)
    except (OSError, ValueError) as problem:
        options.parser.error(f"--input {options.input}: {words(problem)}")
    try:
        write(options.output, bundle_file.sign(content, key))
    except OSError as problem:
        options.parser.error(f"--output {options.output}: {words(problem)}")
    print(f"{options.output}: signed")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Verifies the bundle of ``--verify``; returns 0 if one of the keys has signed the file, else 1.

    Raises:
        SystemExit: with status 2, if a file cannot be read, or the file of the keys holds no keys.
    """
    try:
        keys = signing.public_keys(options.key)
    except (OSError, ValueError) as problem:
        options.parser.error(f"--key {options.key}: {words(problem)}")
    try:
        content = read_file(options.verify)
        bundle_file.check_signature(content, keys)
        check(options.verify, content)
    except OSError as problem:
        options.parser.error(f"--verify {options.verify}: {words(problem)}")
    except ValueError as problem:
        print(f"{options.verify}: NOT VERIFIED: {problem}")
        return 1
    print(f"{options.verify}: signed by a key of {options.key}")
    return 0


def words(problem: OSError | ValueError) -> str:
    """Returns the message of an exception, without the path that the caller names."""
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def entry_of(job: Job) -> Entry | str:
    """Compiles one job; returns its entry in the bundle, or the compiler's errors as text."""
    try:
        binary = compile_text(job.text, job.what, f"sm_{job.architecture}", (*OPTIONS, *job.options))
    except CompileError as problem:
        return str(problem)
    return Entry(job.what, job.text, job.options, job.architecture, binary)
