"""Measures how many faults of a suite of kernels with known faults the simulator's sanitizer finds::

    git clone https://github.com/JohnJacobsonIII/HiRace-Artifact-SC24 suite
    python -m benchmarks.race_suite suite --page docs/checking.md       # goes on where it stopped

The folder has ``indigo/indigo_sources/*/*.cu``, the CUDA kernels of the Indigo suite, whose names say which faults were planted;
``indigo/indigo_include``, their header; and ``indigo/input/*.egr``, graphs. Each file is compiled as it is, and its kernel runs on
four graphs with ``simulate(sanitize=True)``.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from .checked_program import kind_of

__all__ = ["bugs_of", "main", "run", "table"]

RESULTS = Path(__file__).resolve().parent / "results" / "race_suite.json"
GRAPHS = ("counterDAG_5n_5e", "DAG_5n_5e", "DAG_100n_200e", "power_law_200n_1000e")
# A thread, a warp or a block for each of 200 nodes.
BLOCKS, THREADS = 256, 64
WORDS = {
    "atomicBug": "a plain access in place of an atomic operation",
    "guardBug": "a plain read that guards an atomic operation",
    "syncBug": "a missing barrier",
    "raceBug": "a plain update by several threads",
    "boundsBug": "an access out of bounds",
}


def bugs_of(name: str) -> tuple[str, ...]:
    """Returns the planted faults that the name of a file says."""
    return tuple(part for part in name.split("_") if part.endswith("Bug"))


def _graph(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets and the neighbours of a graph: the numbers of nodes and edges precede them in the file."""
    numbers = np.fromfile(path, np.int32)
    nodes, edges = (int(n) for n in numbers[:2])
    return numbers[2 : 3 + nodes], numbers[3 + nodes : 3 + nodes + edges]


def run(path: Path, indigo: Path) -> dict[str, Any]:
    """Runs the kernel of a file on all graphs.

    Returns:
        The row of the file: for each graph ``none``, or the kind of what was found; the message, if no fault was planted; or why
        the kernel does not run.
    """
    import cupyops
    from cupyops import Kernel, LaunchError

    row: dict[str, Any] = {"runs": {}}
    try:
        text = path.read_text(encoding="utf-8")
        kernel = Kernel(
            text,
            "test_kernel",
            cupyops.Threads(block=THREADS),
            filename=path.name,
            options=(f"-I{indigo / 'indigo_include'}",),
        )
        for name in GRAPHS:
            offsets, neighbours = _graph(indigo / "input" / f"{name}.egr")
            nodes, size = len(offsets) - 1, max(len(offsets) - 1, len(neighbours))
            random = np.random.default_rng(0)
            data = [random.integers(0, most, size, np.int32) for most in (nodes, len(neighbours))]
            data[0][0] = data[1][0] = 0  # as the suite's own program does
            try:
                with cupyops.simulate(sanitize=True, timeout=60):
                    kernel[BLOCKS * THREADS](offsets, neighbours, *data, nodes)
                row["runs"][name] = "none"
            except LaunchError as error:
                words = " ".join(str(error).split()).partition(" cupyops.save_repro")[0]
                row["runs"][name] = kind_of(words)
                if not bugs_of(path.stem):
                    row["said"] = words
    except Exception as error:  # a kernel that does not run is counted, and its reason is kept
        row["why"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row


def _group(bugs: Sequence[str]) -> str:
    races = [bug for bug in bugs if bug != "boundsBug"]
    if not bugs:
        return "no fault"
    return " and ".join(WORDS[bug] for bug in (*races, *(["boundsBug"] if "boundsBug" in bugs else [])))


def _found(row: dict[str, Any], graphs: Sequence[str] = GRAPHS) -> bool:
    return any(row["runs"].get(graph, "none") != "none" for graph in graphs)


def table(results: dict[str, Any]) -> str:
    """Returns the results as Markdown."""
    groups: dict[str, Counter[str]] = {}
    for name, row in sorted(results["files"].items()):
        word = "not runnable" if "why" in row else "found" if _found(row) else "nothing found"
        groups.setdefault(_group(bugs_of(name)), Counter())[word] += 1
    versions = results["versions"]
    lines = [
        f"The suite at the commit {versions['suite'][:8]}; cupyops {versions['cupyops']}, {versions['compiler']}; {BLOCKS} blocks of "
        f"{THREADS} threads.",
        "",
        "| planted | kernels | found | nothing found | not runnable |",
        "|---|---|---|---|---|",
    ]
    for group in sorted(groups, key=lambda g: (g == "no fault", "bounds" in g, g)):
        counts = groups[group]
        lines.append(
            f"| {group} | {counts.total()} | {counts['found']} | {counts['nothing found']} | {counts['not runnable']} |"
        )
    faulty = [row for name, row in results["files"].items() if bugs_of(name) and "why" not in row]
    clean = [row for name, row in results["files"].items() if not bugs_of(name) and "why" not in row]
    lines += ["", "| graph | faulty kernels found | alarms in kernels without a fault |", "|---|---|---|"]
    lines += [
        f"| `{graph}` | {sum(_found(row, [graph]) for row in faulty)} of {len(faulty)} "
        f"| {sum(_found(row, [graph]) for row in clean)} of {len(clean)} |"
        for graph in GRAPHS
    ]
    lines.append(
        f"| any of the four | {sum(map(_found, faulty))} of {len(faulty)} | {sum(map(_found, clean))} of {len(clean)} |"
    )
    return "\n".join(lines) + "\n"


def _versions(suite: Path) -> dict[str, str]:
    import cupyops
    from cupyops.simulator import host

    tool = host.compiler()
    head = subprocess.run(["git", "-C", str(suite), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "suite": head.stdout.strip() if head.returncode == 0 else "",
        "cupyops": cupyops.__version__,
        "compiler": f"{Path(tool.command[0]).name} {tool.major}",
    }


def _all(todo: Sequence[Path], indigo: Path, jobs: int) -> Iterator[tuple[Path, dict[str, Any]]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(todo, pool.map(run, todo, [indigo] * len(todo)), strict=True)


def _json(results: dict[str, Any]) -> str:
    """Returns the results as JSON, a line for each file."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in results["files"].items())
    return f'{{\n "versions": {json.dumps(results["versions"])},\n "files": {{\n{rows}\n }}\n}}\n'


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a compiler."""
    parser = argparse.ArgumentParser("python -m benchmarks.race_suite", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", type=Path, help="a copy of the repository of the suite")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time; default: 2")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help=f"the results; default: {RESULTS.name}"
    )
    parser.add_argument("--page", type=Path, help="write the results into this Markdown page")
    parser.add_argument("--only", metavar="WORD", default="", help="files whose names have a word")
    parser.add_argument("--again", action="store_true", help="run those that the results have, too")
    options = parser.parse_args(argv)
    from cupyops.simulator import host

    from .table import between

    if missing := host.missing():
        print(missing, file=sys.stderr)
        return 2
    results: dict[str, Any] = {"versions": {}, "files": {}}
    if options.out.exists():
        results |= json.loads(options.out.read_text(encoding="utf-8"))
    indigo = options.suite.resolve() / "indigo"
    wanted = sorted(p for p in indigo.glob("indigo_sources/*/*.cu") if options.only in p.stem)
    todo = [path for path in wanted if options.again or path.stem not in results["files"]]
    results["versions"] = _versions(options.suite)

    def write() -> None:
        results["files"] = dict(sorted(results["files"].items()))
        options.out.write_text(_json(results), encoding="utf-8")

    for count, (path, row) in enumerate(_all(todo, indigo, options.jobs), 1):
        results["files"][path.stem] = row
        if count % 20 == 0:
            write()
            print(f"{count} of {len(todo)}", file=sys.stderr, flush=True)
    write()
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(between(text, table(results)), encoding="utf-8")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
