"""The table of the GPU record in docs/compatibility.md."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
