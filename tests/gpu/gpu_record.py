"""Runs everything that needs a GPU and writes what it was, so that a machine without one can tell whether compiled code or
launches have changed since.

    python -m tests.gpu.gpu_record                 # on a GPU: the suite and the sanitizers; adds or replaces this machine's run
    python -m tests.gpu.gpu_record --no-sanitizer
    python -m tests.gpu.gpu_record --again         # after a mend: the tests that failed in this machine's run
    python -m tests.gpu.gpu_record --fingerprint   # then, with the pinned NVRTC, on any machine: what it was that has run
    python -m tests.gpu.gpu_record --texts         # after an edit that changes no compiled code: what the edited texts compile to

The record, ``tests/gpu/gpu_record.json``, holds ``runs``, one per CUDA major of CuPy and number of GPUs, and ``fingerprints``
of the trees that they ran: :mod:`tests.gpu.fingerprints` says what those are, and what they do not see.
``tests/gpu/test_gpu_record.py`` compares them with the tree at hand.

A run holds a hash of its tree's bytes. Fingerprints are taken of a tree that has the same hash, and of no other, so that
nothing is said to have run that has not.

``texts`` of the record are texts that have other tokens than what has run, and the compiled code of something that has run. The
tests compile no text whose code the record holds, and some of ``texts`` again.

``--again`` is for faults of tests and of code that launches nothing. What passes then counts as passed, and the run holds
the hash of the mended tree, too. Fingerprints of the mended tree are taken only if they are those of the tree that ran in
full: take these first, in a checkout of it.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .fingerprints import (
    Compiled,
    Fingerprints,
    Seen,
    changes,
    compiled,
    fingerprints,
    installed_nvrtc,
    look_at,
    pinned_nvrtc,
)

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("gpu_record.json")
# What fingerprints are taken of.
TREE = ("autograd_bridge.py", "cupyops", "examples/own_ops", "kernels_cu")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".py")
PATIENCE = 900  # seconds for a sanitizer
TOOLS = {
    "memcheck": "bounds",
    "racecheck": "race",
    "initcheck": "uninitialised",
    "synccheck": None,
}


def tree_hash(root: Path = ROOT) -> str:
    """Of the bytes of all kernels and all code that launches them, and of where they lie."""
    found = hashlib.sha256()
    for path in sorted(
        p for name in TREE for p in ((root / name).rglob("*") if (root / name).is_dir() else [root / name])
    ):
        if path.suffix in SUFFIXES and path.is_file():
            content = path.read_bytes()
            found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """GPU, driver and versions."""
    # First, as in the tests: it may bring an NVRTC of its own, which CuPy then takes.
    import torch  # isort: skip
    import cupy

    from cupyops.compile.toolchain import cupy_distributions, nvrtc_version

    smi = shutil.which("nvidia-smi")
    driver = (
        subprocess.run(
            [smi, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout
        if smi
        else ""
    )
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "driver": driver.splitlines()[0].strip() if driver else "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "cupy_distribution": ", ".join(cupy_distributions()) or "unknown",
        "nvrtc": ".".join(map(str, nvrtc_version())),
    }


def run_suite(jobs: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """Runs all tests that need a GPU, or those of the given names; counts, and the names of what failed and of what was skipped and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Idle processes take tests from busy ones: with 28 processes, the suite took 228 s on two H200s, and 312 s without.
        parallel = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            # The other tests need no GPU.
            "-m",
            "gpu",
            # It holds the tree against the last record, and this makes the next.
            *(
                f"--ignore={Path(__file__).with_name(name)}"
                for name in ("test_gpu_record.py", "test_gpu_record_file.py")
            ),
            *sorted({name.partition("::")[0].replace(".", "/") + ".py" for name in only}),
        ]
        done = subprocess.run([*command, *parallel, *os.environ.get("CUPYOPS_PYTEST", "").split()], cwd=ROOT)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    if only:
        cases = [c for c in cases if _name(c) in only]
    failed = [_name(c) for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped: dict[str, int] = {}
    for case in cases:
        if (skip := case.find("skipped")) is not None:
            skipped[skip.get("message", "")] = skipped.get(skip.get("message", ""), 0) + 1
    return {
        "passed": len(cases) - len(failed) - sum(skipped.values()),
        "failed": failed,
        "skipped": skipped,
        "exit_code": done.returncode,
    }


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def run_again(run: dict[str, Any], tree: str, found: Mapping[str, Any]) -> None:
    """Moves what passed from the failed tests of a run to its passed ones, and notes the tree on which it passed.

    Args:
        run: an entry of the record; changed in place.
        tree: the hash of the mended tree.
        found: what :func:`run_suite` gave for the run's failed tests.
    """
    tests = run["tests"]
    passed = len(tests["failed"]) - len(found["failed"])
    if found["passed"] != passed:
        raise SystemExit(f"{passed} of the failed tests had to pass, and {found['passed']} did: a name has changed")
    tests.update(passed=tests["passed"] + passed, failed=found["failed"], exit_code=int(bool(found["failed"])))
    run["again"] = tree


def sanitize() -> dict[str, str]:
    """By tool, "clean" or what it said, each after it has shown that it finds a planted fault."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        return dict.fromkeys(TOOLS, "not run: no compute-sanitizer")
    script = str(ROOT / "tests" / "gpu" / "sanitize.py")

    def verdict(tool: str, fault: str | None) -> str:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, script]
        if tool == "memcheck":
            # The driver is asked for one parameter more than there should be, and says no: that is the check.
            command[3:3] = ["--report-api-errors", "no"]
        if fault is not None and subprocess.run([*command, "--plant", fault], capture_output=True).returncode != 9:
            return f"did not find the planted fault ({fault})"
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"no end within {PATIENCE} s"
        return "clean" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]

    with ThreadPoolExecutor() as pool:  # a process each
        return dict(zip(TOOLS, pool.map(verdict, TOOLS, TOOLS.values()), strict=True))


def read(path: Path = RECORD) -> dict[str, Any]:
    """The record, or an empty one."""
    return json.loads(path.read_text()) if path.exists() else {"runs": {}, "fingerprints": {}}


def write(record: dict[str, Any], path: Path) -> None:
    """With no fingerprints but those of trees that have run."""
    trees = {tree for run in record["runs"].values() for tree in _trees(run)}
    record["fingerprints"] = {tree: found for tree, found in record["fingerprints"].items() if tree in trees}
    if texts := {nvrtc: _not_run_as_such(record, nvrtc, texts) for nvrtc, texts in record.pop("texts", {}).items()}:
        record["texts"] = texts
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _trees(run: Mapping[str, Any]) -> list[str]:
    """The tree that ran in full, and the mended one on which the tests that had failed ran."""
    return [run[key] for key in ("tree", "again") if key in run]


def known_code(record: Mapping[str, Any], nvrtc: str) -> dict[str, str]:
    """Hashes of compiled code, by those of texts and options, that the record holds of this NVRTC."""
    return {**record.get("texts", {}).get(nvrtc, {}), **_ran(record, nvrtc)}


def _ran(record: Mapping[str, Any], nvrtc: str) -> dict[str, str]:
    """Of these, what has run with these tokens."""
    found = (Fingerprints(**f) for f in record["fingerprints"].values() if f.get("nvrtc") == nvrtc)
    return {key: code for f in found for key, code in f.code.items()}


def _not_run_as_such(record: Mapping[str, Any], nvrtc: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The texts that have other tokens than what has run, and the code of something that has run."""
    ran = _ran(record, nvrtc)
    codes = set(ran.values())
    return {key: code for key, code in texts.items() if key not in ran and code in codes}


def add_texts(path: Path, root: Path = ROOT) -> str:
    """Adds the texts of the tree at hand that have other tokens than what has run, and the same code; says how many there are.

    Raises:
        SystemExit: the NVRTC at hand is not the pinned one, or it warns of a kernel.
    """
    record, pinned = read(path), pinned_nvrtc()
    made, seen = _compiled(record, root)
    found = _not_run_as_such(record, pinned, made.code)
    record["texts"] = {pinned: found}
    write(record, path)
    codes = {*_ran(record, pinned).values()}
    new = sum(code not in codes for code in made.code.values())
    told = f"{len(found)} texts of {len(seen.sources)} kernels have other tokens than what has run, and the same code"
    return "\n".join([f"{told}; the code of {new} has not run; written to {path}", *made.spills])


def _compiled(record: Mapping[str, Any], root: Path) -> tuple[Compiled, Seen]:
    """The code of every kernel of a tree, and what was seen of the tree.

    Raises:
        SystemExit: the NVRTC at hand is not the pinned one, or it warns of a kernel.
    """
    if installed_nvrtc() != pinned_nvrtc():
        raise SystemExit(
            f"fingerprints are of NVRTC {pinned_nvrtc()}, and CuPy has loaded {installed_nvrtc()}: "
            f"pip install -c constraints.txt nvidia-cuda-nvrtc-cu12"
        )
    seen = look_at(root)
    made = compiled(seen.sources, known_code(record, pinned_nvrtc()))
    if made.faults:
        raise SystemExit(f"no kernel may be warned of: {'; '.join(made.faults)}")
    return made, seen


def fingerprint(path: Path, root: Path = ROOT) -> str:
    """Adds the fingerprints of the tree at hand, and says what it did.

    Raises:
        SystemExit: no run of the record was made on these bytes; the NVRTC at hand is not the pinned one, or it warns of a
            kernel; or some tests alone ran on these bytes, and the fingerprints differ from those of
            the tree on which all ran. The tests compile no text with the tokens of one that has fingerprints.
    """
    record, tree = read(path), tree_hash(root)
    runs = [name for name, run in record["runs"].items() if tree in _trees(run)]
    if not runs:
        made = ", ".join(f"'{name}' on {run['tree']}" for name, run in record["runs"].items()) or "none"
        raise SystemExit(
            f"no run of {path} was made on this tree ({tree}), so nothing is known to have run: there are {made}. Run "
            f"`python -m tests.gpu.gpu_record` on a GPU first, or check out what has run"
        )
    made, seen = _compiled(record, root)
    found = fingerprints(seen, made.code, pinned_nvrtc())
    for whole in {record["runs"][name]["tree"] for name in runs} - {tree}:
        if whole not in record["fingerprints"]:
            raise SystemExit(f"take the fingerprints of {whole} first, in a checkout of it: there all tests ran")
        if changed := changes(Fingerprints(**record["fingerprints"][whole]), found, seen):
            raise SystemExit(f"all tests ran on {whole}, and since then this has changed: {'; '.join(changed[:6])}")
    record["fingerprints"][tree] = found._asdict()
    write(record, path)
    told = f"fingerprints of {len(seen.sources)} kernels, which ran as {', '.join(runs)}; written to {path}"
    return "\n".join([told, *made.spills])


def main() -> int:
    """Runs, writes, and returns 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-sanitizer", action="store_true", help="leave compute-sanitizer out")
    parser.add_argument(
        "--jobs", type=int, default=1, help="test processes at once, the sanitizers beside them (needs pytest-xdist)"
    )
    parser.add_argument("--again", action="store_true", help="the failed tests of this machine's run alone")
    parser.add_argument("--fingerprint", action="store_true", help="run nothing: fingerprints of the tree that has run")
    parser.add_argument(
        "--texts", action="store_true", help="run nothing: the edited texts whose compiled code has run"
    )
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to add to")
    arguments = parser.parse_args()
    if arguments.fingerprint:
        print(fingerprint(arguments.out))
        return 0
    if arguments.texts:
        print(add_texts(arguments.out))
        return 0
    about, tree = machine(), tree_hash()
    name = f"cupy for CUDA {about['nvrtc'].partition('.')[0]}, {about['gpus']} GPU"
    if arguments.again:
        return _again(arguments.out, name, tree, arguments.jobs)
    with ThreadPoolExecutor(1) as beside:
        sanitizing = None if arguments.no_sanitizer else beside.submit(sanitize)
        if sanitizing is not None and arguments.jobs == 1:
            sanitizing.result()
        entry = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "machine": about,
            "tree": tree,
            "tests": run_suite(arguments.jobs),
            "sanitizer": {} if sanitizing is None else sanitizing.result(),
        }
    if tree_hash() != tree:
        raise SystemExit("the tree changed while it ran: nobody knows what has run, so nothing is written")
    record = read(arguments.out)
    record["runs"][name] = entry
    write(record, arguments.out)
    tests, sanitizer = entry["tests"], entry["sanitizer"]
    print(
        f"{tests['passed']} passed, {len(tests['failed'])} failed; sanitizer: {sanitizer or 'not run'}; written to {arguments.out}. "
        "Then, with the pinned NVRTC: python -m tests.gpu.gpu_record --fingerprint"
    )
    return 0 if tests["exit_code"] == 0 and all(v == "clean" for v in sanitizer.values()) else 1


def _again(path: Path, name: str, tree: str, jobs: int) -> int:
    record = read(path)
    failed = record["runs"].get(name, {}).get("tests", {}).get("failed")
    if not failed:
        raise SystemExit(f"{path} has no run '{name}' with a failed test")
    run_again(record["runs"][name], tree, run_suite(jobs, failed))
    write(record, path)
    left = record["runs"][name]["tests"]["failed"]
    print(f"{len(failed) - len(left)} of {len(failed)} passed; written to {path}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
