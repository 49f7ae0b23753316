"""Published programs with kernels, checked in the simulator compared with their references in PyTorch::

    git clone https://github.com/ScalingIntelligence/KernelBenchLeaderboard board
    python -m benchmarks.checked_kernels board --out checked.json                    # goes on where it stopped
    python -m benchmarks.checked_kernels board --out checked.json --only l2_p44 --again
    python -m benchmarks.checked_kernels board --out checked.json --page docs/checked_kernels.md

The folder has ``docs/assets/solutions/*.py``, each with a class ``ModelNew``; ``docs/assets/problems/*.py``, each with a class
``Model`` and its inputs; and ``docs/assets/raw_data.json``. Each program runs in a process of its own, with the rights of the
user: run nothing that you would not run as a program.

A program runs at cut sizes first: module-level integers of the reference above the cut are halved. If something is found
there, a second run at the largest sizes that are feasible decides, because a program may rely on its sizes.
"""

import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .checked_program import KINDS, Verdict, check

__all__ = ["counts", "effective", "entries", "main", "table"]

RESULTS = Path(__file__).resolve().parent / "results" / "checked_kernels.json"
SECONDS_OF_A_PROGRAM = 400.0


def entries(board: Path) -> dict[str, dict[str, Any]]:
    """Returns the board's entries by the name of the file: problem, model, speedup."""
    rows = json.loads((board / "docs/assets/raw_data.json").read_text(encoding="utf-8"))
    return {
        row["file"]: {
            "problem": f"l{row['level']}_p{int(row['problem_id']) + 1}",
            "model": row["display_name"],
            "speedup": round(float(row["torch_speedup"]), 2),
        }
        for row in rows
    }


def _in_a_process(board: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Checks a program in a process of its own, and returns its row."""
    begin = time.time()
    path = (board / "docs/assets/solutions" / f"{name}.py").resolve()
    problem = (board / "docs/assets/problems" / f"{entry['problem']}.py").resolve()
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.checked_kernels", "--one", str(path), str(problem), str(out)]
        with open(Path(folder) / "said", "w+b") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, cwd=folder, env=environment, start_new_session=True
            )
            try:
                status = f"ends with the status {process.wait(SECONDS_OF_A_PROGRAM)}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = f"takes more than {SECONDS_OF_A_PROGRAM:.0f} s"
            said.seek(0)
            last = said.read()[-300:].decode(errors="replace")
        if out.exists():
            row = json.loads(out.read_text(encoding="utf-8"))
        else:
            row = {"verdict": asdict(Verdict("not judged", " ".join(f"the process {status}: {last}".split())))}
    return {**entry, **row, "seconds": round(time.time() - begin, 1)}


def _versions(board: Path) -> dict[str, str]:
    from importlib import metadata

    import torch

    import cupyops
    from cupyops.simulator import host

    tool = host.compiler()
    head = subprocess.run(["git", "-C", str(board), "rev-parse", "HEAD"], capture_output=True, text=True)
    return {
        "cupyops": cupyops.__version__,
        "libclang": metadata.version("libclang"),
        "board": head.stdout.strip() if head.returncode == 0 else "",
        "torch": torch.__version__,
        "compiler": f"{Path(tool.command[0]).name} {tool.major}",
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.checked_kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("board", type=Path, nargs="?", help="a copy of the repository of the board")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time; default: 2")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help=f"the results; default: {RESULTS.name}"
    )
    parser.add_argument("--page", type=Path, help="write the results into this Markdown page")
    parser.add_argument("--only", nargs="+", metavar="ID", help="starts of file names, or problems such as l2_p44")
    parser.add_argument("--sample", type=int, metavar="N", help="about N programs, evenly spread")
    parser.add_argument("--again", action="store_true", help="run those that the results have, too")
    parser.add_argument("--one", nargs=3, metavar=("PROGRAM", "REFERENCE", "ROW"), help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a compiler."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.one:
        return _one(*map(Path, options.one))
    if options.board is None:
        parser.error("the folder of the board is missing")
    from cupyops.simulator import host

    from .table import between

    if missing := host.missing():
        print(missing, file=sys.stderr)
        return 2
    results: dict[str, Any] = {"versions": {}, "programs": {}, "readings": {}}
    if options.out.exists():
        results |= json.loads(options.out.read_text(encoding="utf-8"))
    listed = entries(options.board)
    wanted = sorted(p.stem for p in (options.board / "docs/assets/solutions").glob("*.py") if p.stem in listed)
    if options.only:
        wanted = [n for n in wanted if n.startswith(tuple(options.only)) or listed[n]["problem"] in options.only]
    if options.sample:
        wanted = wanted[:: max(1, len(wanted) // options.sample)]
    todo = [name for name in wanted if options.again or name not in results["programs"]]
    if todo:
        results["versions"] |= {key: value for key, value in _versions(options.board).items() if value}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(_in_a_process, options.board, name, listed[name]): name for name in todo}
        try:
            for i, future in enumerate(as_completed(futures), 1):
                name, row = futures[future], future.result()
                results["programs"][name] = row
                found = row["verdict"]
                line = "; ".join(found["found"].values()) or found["why"]
                print(
                    f"{i}/{len(todo)} {name[:8]} {row['problem']} {found['word']}, {row['seconds']} s {line[:160]}",
                    flush=True,
                )
                _save(options.out, results)
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            raise
    counted = counts(results)
    print(", ".join(f"{count} {what}" for what, count in counted.items()))
    if options.page is not None:
        options.page.write_text(between(options.page.read_text(encoding="utf-8"), table(results)), encoding="utf-8")
    return 0


def _save(path: Path, results: dict[str, Any]) -> None:
    """Writes the results, a program in a line."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items() if key != "programs"]
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(results["programs"].items())]
    new = path.with_suffix(".new")
    new.write_text("{" + ",\n".join([*parts, '"programs": {\n' + ",\n".join(lines) + "}"]) + "}\n", encoding="utf-8")
    new.replace(path)


def _one(program: Path, reference: Path, out: Path) -> int:
    import warnings

    import torch

    from cupyops import cpp_extension

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpp_extension.fallback = False  # PyTorch's builder would need a compiler, and a GPU

    def report(row: dict[str, Any]) -> None:
        out.write_text(json.dumps(row), encoding="utf-8")

    report(check(program, reference.read_text(encoding="utf-8"), report))
    # Threads and other leftovers of the program no longer matter.
    sys.stdout.flush()
    os._exit(0)


# The page


def effective(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the rows by the name of the file, each with its verdict, or the verdict of somebody who has read the program.

    ``readings`` of the results has, by the name of a file, ``word`` as in :class:`Verdict`, and ``why``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, row in results["programs"].items():
        found = dict(row["verdict"])
        if reading := results.get("readings", {}).get(name):
            found |= {"word": reading["word"], "why": reading["why"], "read": True}
        rows[name] = {**row, "verdict": found}
    return rows


def counts(results: dict[str, Any]) -> dict[str, int]:
    """Returns the counts on the page by their descriptions."""
    rows = effective(results).values()
    words = collections.Counter(row["verdict"]["word"] for row in rows)
    kinds = collections.Counter(
        kind for row in rows if row["verdict"]["word"] == "wrong" for kind in row["verdict"]["found"]
    )
    return {
        "programs": len(rows),
        "are translated whole": sum(bool(row.get("whole")) for row in rows),
        "contain no CUDA text": sum(bool(row.get("empty")) for row in rows),
        "give the values of their reference, and nothing is found": words["right"],
        "are wrong": words["wrong"],
        **{f"wrong: {text}": kinds[kind] for kind, text in KINDS.items() if kinds[kind]},
        "are not judged": words["not judged"],
    }


def _number(problem: str) -> tuple[int, int]:
    level, number = re.findall(r"\d+", problem)
    return int(level), int(number)


def table(results: dict[str, Any]) -> str:
    """Returns the part of the page between its markers: versions, counts and tables."""
    rows = sorted(effective(results).items(), key=lambda item: (_number(item[1]["problem"]), item[0]))
    versions = results["versions"]

    def which(name: str, row: dict[str, Any]) -> str:
        level, number = _number(row["problem"])
        return f"level {level} no. {number} | `{name[:8]}`"

    def line(text: str, most: int = 1000) -> str:
        short = " ".join(text.split())
        short = short if len(short) <= most else f"{short[:most]} ..."
        return re.sub(r"([|*_`<\[\]])", r"\\\1", short)

    def listed(head: str, lines: list[str]) -> str:
        return "\n".join([head, re.sub(r"[^|]+", "---", head), *lines])

    sections = [
        f"The board at the commit {versions.get('board', '')[:8] or 'unknown'}; cupyops {versions.get('cupyops')}, "
        f"PyTorch {versions.get('torch')}, libclang {versions.get('libclang')}, {versions.get('compiler')}.",
        listed("| programs | |", [f"| {count} | {what} |" for what, count in counts(results).items()]),
    ]
    wrong, sized, changing, unjudged = [], [], [], collections.Counter[str]()
    for name, row in rows:
        found, label = row["verdict"], which(name, row)
        if found["word"] == "wrong":
            what = "; ".join(KINDS[kind] for kind in found["found"]) + (
                f": {found['why']}" if found.get("read") else ""
            )
            wrong.append(f"| {label} | {line(what)} | {found['sizes']} | {row['speedup']:.2f} |")
        elif found["word"] == "not judged":
            unjudged[line(found["why"], 300)] += 1
        elif found["why"]:
            sized.append(f"| {label} | {line(found['why'], 300)} |")
        if row.get("overwrites"):
            changing.append(f"level {which(name, row).removeprefix('level ').replace(' | ', ' ')}")
    if wrong:
        head = "| problem | file | what is wrong | at which sizes | speedup that the board lists |"
        sections += ["## Wrong programs", listed(head, wrong)]
    if sized:
        sections += ["## Right, with a reservation", listed("| problem | file | reservation |", sized)]
    if changing:
        sections += ["## Programs that overwrite their input", f"Their reference does not: {', '.join(changing)}."]
    if unjudged:
        reasons = [f"| {count} | {why} |" for why, count in unjudged.items()]
        sections += ["## Not judged", listed("| programs | why |", reasons)]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(main())
