"""What pages of the site list, read from the source: variables, architectures, recorded runs and messages."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def variables(*folders: str) -> set[str]:
    """Returns the environment variables of this project that the Python files of these folders name."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {name for path in files for name in re.findall(r'"(CUPYOPS_[A-Z_]+)"', path.read_text(encoding="utf-8"))}


def table_of_runs() -> str:
    """Returns the table of the GPU record: a row for each run."""
    record = json.loads((ROOT / "tests" / "gpu" / "gpu_record.json").read_text(encoding="utf-8"))
    head = ["run", "kernels", "GPU", "driver", "Python", "PyTorch", "CuPy", "NVRTC", "tests", "compute-sanitizer"]
    rows = [head, ["---"] * len(head)]
    for _, run in sorted(record["runs"].items()):
        m, tests = run["machine"], run["tests"]
        result = f"{tests['passed']} passed, {len(tests['failed'])} failed, {sum(tests['skipped'].values())} skipped"
        tools = ", ".join(f"{tool} {found}" for tool, found in sorted(run["sanitizer"].items())) or "not run"
        kernels, gpu = "these" if run["tree"] == record["tree"] else "earlier", f"{m['gpus']} × {m['gpu']}"
        rows.append(
            [run["date"], kernels, gpu, m["driver"], m["python"], m["torch"], m["cupy_distribution"] + " " + m["cupy"]]
            + [m["nvrtc"], result, tools]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# The GPUs that people know by name, of each architecture that `python -m cupyops compile` takes by default.
GPUS = {
    70: "V100",
    75: "T4, RTX 20",
    80: "A100",
    86: "A10, RTX 30",
    89: "L4, L40, RTX 40",
    90: "H100, H200",
    100: "B200",
    120: "RTX 50",
}


def table_of_architectures() -> str:
    """Returns the table of the architectures that `python -m cupyops compile` takes by default."""
    from cupyops.commands.compile import ARCHITECTURES

    rows = [["architecture", "GPUs, for example"], ["---", "---"]]
    rows += [[f"sm_{number}", GPUS[number]] for number in ARCHITECTURES]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def block(page: str, name: str) -> str:
    """Returns the part of a page between its markers of this name."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name}: begin -->\n(.*?)\n?<!-- {name}: end -->", text, re.DOTALL)
    assert found, f"{page} has no markers for {name}"
    return found[1]
