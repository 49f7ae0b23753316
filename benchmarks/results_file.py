"""The results file: one JSON per machine, with what was measured, on what, and from which commit.

Sections ("add2.device", "gelu.host", "build", "lenet5") carry their own commit and date: each can be measured alone, and
in parts, which :mod:`benchmarks.merging` joins.
"""

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .measure import Findings

__all__ = ["ResultsError", "add", "commit", "default_path", "environment", "load", "new", "save", "validate"]

SCHEMA = 1
ROOT = Path(__file__).resolve().parent.parent
LISTS = ("rows", "host", "build", "lenet5", "skipped")

_TIMES = {"microseconds": float, "p10": float, "p90": float, "samples": int}
_CASE = {"op": str, "variant": str, "direction": str, "dtype": str, "shape": list, "implementation": str}
_ROW = {
    "rows": {**_CASE, **_TIMES, "timer": str, "sets": int, "bytes": int, "gb_per_s": float, "share_of_copy": float},
    "host": {**_CASE, **_TIMES},
    "build": {"implementation": str, "what": str, "cache": str, "seconds": float, "samples": int},
    "lenet5": {"backend": str, "recipe": str, "seed": int, "epochs": int, "accuracy": float},
    "skipped": {"section": str, "what": str, "reason": str, "failed": bool},
}
_TOP = {"schema": int, "environment": dict, "sections": dict, **dict.fromkeys(LISTS, list)}


class ResultsError(ValueError):
    """A results file that cannot be read, used or added to."""


def environment() -> dict[str, Any]:
    """The machine and the versions that decide the numbers."""
    from cupyops.compile import toolchain

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "cupy": toolchain.cupy().__version__,
        "nvrtc": ".".join(map(str, toolchain.nvrtc_version())),
        "triton": version("triton"),
        "liger": version("liger_kernel"),
        "quack": version("quack-kernels"),
        "nvcc": _search(r"release ([\d.]+)", _output("nvcc", "--version")),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def version(distribution: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What the program prints, or None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _search(pattern: str, text: str | None) -> str | None:
    found = re.search(pattern, text or "")
    return found[1] if found else None


def commit() -> tuple[str | None, bool | None]:
    """The commit of the tree this file lies in and whether it has been changed since.

    Where the tree is no checkout, the commit is that of the environment variable CUPYOPS_COMMIT, if set, and whether
    it has been changed is unknown.
    """
    top = _output("git", "rev-parse", "--show-toplevel")
    head = _output("git", "rev-parse", "HEAD")
    if top is not None and head is not None and Path(top).resolve() == ROOT:
        # The results themselves are what a run changes.
        return head, bool(_output("git", "status", "--porcelain", "--", ".", ":!benchmarks/results"))
    return os.environ.get("CUPYOPS_COMMIT") or None, None


def default_path(gpu: str) -> Path:
    """``benchmarks/results/nvidia-h200.json`` for "NVIDIA H200"."""
    return ROOT / "benchmarks" / "results" / (re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json")


def new(environment: dict[str, Any], commit: str | None, dirty: bool | None, copy: dict[str, Any]) -> dict[str, Any]:
    """A document without rows. copy: "gb_per_s" and its spread."""
    return {
        "schema": SCHEMA,
        "environment": environment,
        "commit": commit,
        "dirty": dirty,
        "copy_gb_per_s": copy["gb_per_s"],
        "copy": copy,
        "sections": {},
        **{name: [] for name in LISTS},
    }


def add(document: dict[str, Any], section: str, name: str, findings: Findings) -> None:
    """Put a section's findings into the document's list `name`, and write down of which commit and time they are."""
    document[name] += findings.rows
    skipped = [asdict(entry) for entry in findings.skipped]
    document["skipped"] += [entry for entry in skipped if entry not in document["skipped"]]
    document["sections"][section] = {
        "commit": document["commit"],
        "dirty": document["dirty"],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "copy_gb_per_s": document["copy_gb_per_s"],
    }


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the file, one row a line; whole or not at all."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in value)
            text = f"[\n{rows}\n  ]" if value else "[]"
        else:
            text = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n  ")
        parts.append(f"  {json.dumps(key)}: {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """Read and validate a file.

    Raises:
        ResultsError: it cannot be read, or is not a results file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}") from None
    try:
        validate(document)
    except ResultsError as error:
        raise ResultsError(f"{path} is not a results file: {error}") from None
    valid: dict[str, Any] = document
    return valid


def validate(document: Any) -> None:
    """Check the schema.

    Raises:
        ResultsError: names the first entry that is missing or of another type.
    """
    if not isinstance(document, dict):
        raise ResultsError(f"expected an object, got {type(document).__name__}")
    if document.get("schema") != SCHEMA:
        raise ResultsError(f"`schema` must be {SCHEMA}, got {document.get('schema')!r}")
    _check_keys("the document", document, _TOP)
    for name, keys in _ROW.items():
        for i, row in enumerate(document[name]):
            _check_keys(f"{name}[{i}]", row, keys)


def _check_keys(where: str, entry: Any, keys: dict[str, type]) -> None:
    if not isinstance(entry, dict):
        raise ResultsError(f"{where} must be an object, got {entry!r}")
    for key, kind in keys.items():
        if key not in entry:
            raise ResultsError(f"{where} lacks `{key}`")
        allowed: Sequence[type] = (int, float) if kind is float else (kind,)
        if type(entry[key]) not in allowed:
            raise ResultsError(f"{where}: `{key}` must be of type {kind.__name__}, got {entry[key]!r}")
