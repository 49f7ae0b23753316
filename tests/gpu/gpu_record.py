"""Runs everything that needs a GPU, and records it, so that a machine without one can tell whether compiled code or launches
have changed since.

    python -m tests.gpu.gpu_record                  # the tests that need a GPU, and compute-sanitizer
    python -m tests.gpu.gpu_record --no-sanitizer

The record, ``tests/gpu/gpu_record.json``, holds the ``kernels`` and ``launches`` of the tree that ran last, as
:mod:`tests.gpu.fingerprints` sees them, and ``runs``, one per CUDA major of CuPy and number of GPUs. A run of a tree with the
same texts and launches adds the code that its NVRTC makes. A run of any other tree replaces them, and the earlier runs stay as
runs of another tree. ``tests/gpu/test_gpu_record.py`` compares the record with the tree at hand.

If this machine's last run was of the same texts and launches, and tests failed, only these run again: a correction of a test, or of
code that launches nothing, needs no complete run.
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
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .fingerprints import ARCHITECTURE, PARTS, ROOT, look_at, nvrtc, recorded

RECORD = Path(__file__).with_name("gpu_record.json")
PATIENCE = 900  # seconds for a sanitizer
TOOLS = {
    "memcheck": "bounds",
    "racecheck": "race",
    "initcheck": "uninitialised",
    "synccheck": None,
}


def machine() -> dict[str, Any]:
    """GPU, driver and versions."""
    # First, as in the tests: it may bring an NVRTC of its own, which CuPy then takes.
    import torch  # isort: skip
    import cupy

    from cupyops.compile.toolchain import cupy_distributions

    if torch.cuda.get_device_capability(0) != divmod(ARCHITECTURE, 10):
        raise SystemExit(f"the record is of GPUs sm_{ARCHITECTURE}, and this is a {torch.cuda.get_device_name(0)}")
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
        "nvrtc": nvrtc(),
    }


def run_suite(jobs: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """Runs all tests that need a GPU, or those of the given names. Returns counts, the failed tests, and the reasons of
    skipped ones."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-m", "gpu", *only]
        command += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        # Idle processes take tests from busy ones: with 28 processes, the suite took 228 s on two H200s, and 312 s without.
        command += ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "CUPYOPS_TEST_LARGE": "1"})
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [
        f"{c.get('classname', '').replace('.', '/')}.py::{c.get('name')}"
        for c in cases
        if c.find("failure") is not None or c.find("error") is not None
    ]
    skipped = Counter(s.get("message", "") for c in cases for s in c.findall("skipped"))
    passed = len(cases) - len(failed) - skipped.total()
    return {"passed": passed, "failed": failed, "skipped": skipped, "exit_code": done.returncode}


def both(before: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """Combines the results of :func:`run_suite` with those of the failed tests that ran again."""
    passed = len(before["failed"]) - len(again["failed"])
    if again["passed"] != passed:
        raise SystemExit(
            f"{passed} of the failed tests had to pass, and {again['passed']} did. If one has another name now, take this "
            "machine's run out of the record: then all tests run"
        )
    return {**before, "failed": again["failed"], "exit_code": again["exit_code"], "passed": before["passed"] + passed}


def sanitize() -> dict[str, str]:
    """Returns "clean" or the report of each tool, which first has to find a planted fault."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        return dict.fromkeys(TOOLS, "not run: no compute-sanitizer")
    script = str(ROOT / "tests" / "gpu" / "sanitize.py")

    def verdict(tool: str, fault: str | None) -> str:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, script]
        if tool == "memcheck":
            # The driver is asked for one parameter too many: its refusal confirms the number.
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


def contents() -> str:
    """A hash of the files of this tree of which Python and NVRTC may read some."""
    found = hashlib.sha256()
    paths = [path for part in PARTS for path in ((ROOT / part).rglob("*") if (ROOT / part).is_dir() else [ROOT / part])]
    for path in sorted(path for path in paths if path.suffix in (".cu", ".cuh", ".py")):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def read(path: Path = RECORD) -> dict[str, Any]:
    """The record, or an empty one."""
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def renewed(record: Mapping[str, Any], tree: Mapping[str, Any], name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """A record with a further run.

    Args:
        tree: the result of :func:`.fingerprints.recorded` for the tree that ran.
        name: the machine's. An earlier run of the same name is replaced.
    """
    kernels = tree["kernels"]
    if record.get("tree") == tree["tree"]:
        kernels = {n: record["kernels"][n] | code for n, code in kernels.items()}
    return {**tree, "kernels": kernels, "runs": {**record["runs"], name: {**run, "tree": tree["tree"]}}}


def main() -> int:
    """Runs, writes, and returns 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-sanitizer", action="store_true", help="leave compute-sanitizer out")
    parser.add_argument(
        "--jobs", type=int, default=1, help="test processes at once, the sanitizers beside them (needs pytest-xdist)"
    )
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to renew")
    arguments = parser.parse_args()
    before, about, record = contents(), machine(), read(arguments.out)
    name = f"cupy for CUDA {about['nvrtc'].partition('.')[0]}, {about['gpus']} GPU"
    last = record["runs"].get(name)
    with ThreadPoolExecutor(2) as beside:
        looking = beside.submit(lambda: recorded(look_at()))
        if last and last["tests"]["failed"] and last["tree"] == looking.result()["tree"]:
            tests = both(last["tests"], run_suite(arguments.jobs, last["tests"]["failed"]))
            sanitizer = last["sanitizer"]
        else:
            sanitizing = beside.submit(dict if arguments.no_sanitizer else sanitize)
            if arguments.jobs == 1:
                sanitizing.result()
            tests, sanitizer = run_suite(arguments.jobs), sanitizing.result()
        tree = looking.result()
    if contents() != before:
        raise SystemExit("files of the tree changed while it ran: nobody knows what has run, so nothing is written")
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    run = {"date": date, "machine": about, "tests": tests, "sanitizer": sanitizer}
    content = json.dumps(renewed(record, tree, name, run), indent=1, sort_keys=True)
    arguments.out.write_text(content + "\n")
    print(
        f"{tests['passed']} passed, {len(tests['failed'])} failed; sanitizer: {sanitizer or 'not run'}; "
        f"written to {arguments.out}"
    )
    return 0 if tests["exit_code"] == 0 and all(v == "clean" for v in sanitizer.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
