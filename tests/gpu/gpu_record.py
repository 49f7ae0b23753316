"""Runs everything that needs a GPU and writes what it was, so that a machine without one can tell whether kernels have
changed since.

    python -m tests.gpu.gpu_record                 # the suite and the sanitizers; adds or replaces this machine's entry
    python -m tests.gpu.gpu_record --no-sanitizer

The record, ``tests/gpu/gpu_record.json``, holds one entry per CUDA major of CuPy and number of GPUs. Each has hashes of the
kernel texts and of the code that launches them; ``tests/gpu/test_gpu_record.py`` compares them with the tree.
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
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "gpu" / "gpu_record.json"
# What decides what runs on a GPU. Reports, checks, clocks, the command line and the wheel's metadata do not.
LAUNCH_CODE = ("autograd_bridge.py", "cupyops/*.py", "cupyops/torch/*.py")
NOT_LAUNCH_CODE = (
    *("__main__.py", "doctor.py", "compile_command.py", "bundle_command.py", "new_command.py"),
    *("check.py", "check_*.py", "bench*.py", "roofline.py", "timing.py"),
)
PATIENCE = 900  # seconds for a sanitizer
TOOLS = {
    "memcheck": "bounds",
    "racecheck": "race",
    "initcheck": "uninitialised",
    "synccheck": None,
}


def hashes() -> dict[str, str]:
    """By file, byte for byte: kernel texts (their comments declare shapes) and the code that launches them."""
    paths = list((ROOT / "kernels_cu").rglob("*.cu*"))
    for pattern in LAUNCH_CODE:
        paths += (p for p in ROOT.glob(pattern) if not any(p.match(name) for name in NOT_LAUNCH_CODE))
    return {p.relative_to(ROOT).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in sorted(paths)}


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


def run_suite(jobs: int) -> dict[str, Any]:
    """Runs all tests; counts, and the names of what failed and of what was skipped and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        parallel = ["-n", str(jobs)] if jobs > 1 else []
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
        ]
        done = subprocess.run([*command, *parallel, *os.environ.get("CUPYOPS_PYTEST", "").split()], cwd=ROOT)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [
        f"{c.get('classname')}::{c.get('name')}"
        for c in cases
        if c.find("failure") is not None or c.find("error") is not None
    ]
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


def main() -> int:
    """Runs, writes, and returns 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-sanitizer", action="store_true", help="leave compute-sanitizer out")
    parser.add_argument(
        "--jobs", type=int, default=1, help="test processes at once, the sanitizers beside them (needs pytest-xdist)"
    )
    parser.add_argument("--out", type=Path, default=RECORD, help="the record to add to")
    arguments = parser.parse_args()
    about = machine()
    with ThreadPoolExecutor(1) as beside:
        sanitizing = None if arguments.no_sanitizer else beside.submit(sanitize)
        if sanitizing is not None and arguments.jobs == 1:
            sanitizing.result()
        entry = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "machine": about,
            "hashes": hashes(),
            "tests": run_suite(arguments.jobs),
            "sanitizer": {} if sanitizing is None else sanitizing.result(),
        }
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    record[f"cupy for CUDA {about['nvrtc'].partition('.')[0]}, {about['gpus']} GPU"] = entry
    arguments.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    tests, sanitizer = entry["tests"], entry["sanitizer"]
    print(
        f"{tests['passed']} passed, {len(tests['failed'])} failed; sanitizer: {sanitizer or 'not run'}; written to {arguments.out}"
    )
    return 0 if tests["exit_code"] == 0 and all(v == "clean" for v in sanitizer.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
