"""What the simulator's sanitizer, and compute-sanitizer on a GPU, find in kernels whose faults are known::

    git clone https://github.com/JohnJacobsonIII/HiRace-Artifact-SC24 suite
    python -m benchmarks.race_suite suite --page docs/known_faults.md   # goes on where it stopped
    python -m benchmarks.race_suite suite --compute-sanitizer --jobs 16 --page docs/known_faults.md   # on a GPU

The suites are those of :mod:`.race_indigo` and :mod:`.race_hecbench`; the folder says which one it is. Each kernel runs on each input
of its suite, with ``simulate(sanitize=True)``, or under each tool of :mod:`.race_sanitizer`.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from . import race_hecbench, race_indigo
from .checked_program import kind_of
from .race_sanitizer import NOT_RUN, TOOLS, Run, find_sanitizer, sanitizer_versions

__all__ = ["RESULTS", "main", "page", "run", "table"]

RESULTS = Path(__file__).resolve().parent / "results"
# By suite, the results of the simulator and of compute-sanitizer.
FILES = {
    race_indigo: (RESULTS / "race_suite.json", RESULTS / "race_suite-nvidia-h200.json"),
    race_hecbench: (RESULTS / "race_programs.json", RESULTS / "race_programs-nvidia-h200.json"),
}
SECONDS = 60.0  # of a simulated launch


def run(suite: Any, folder: Path, name: str) -> dict[str, Any]:
    """Runs a kernel on all inputs in the simulator.

    Returns:
        The row of the kernel: for each input ``none``, or the kind of what was found; the message, if no fault was planted; or why
        the kernel does not run.
    """
    import cupyops
    from cupyops import LaunchError

    row: dict[str, Any] = {"runs": {}}
    try:
        for given in suite.INPUTS:
            kernel, configuration, arguments = suite.prepared(folder, name, given, 0)
            try:
                with cupyops.simulate(sanitize=True, timeout=SECONDS):
                    kernel[configuration](*arguments)
                row["runs"][given] = "none"
            except LaunchError as error:
                words = " ".join(str(error).split()).partition(" cupyops.save_repro")[0]
                row["runs"][given] = kind_of(words)
                if not suite.planted(name):
                    row["said"] = words
    except Exception as error:  # a kernel that does not run is counted, and its reason is kept
        row["why"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return row


def _state(row: dict[str, Any] | None, inputs: Sequence[str]) -> str:
    """Returns ``found``, ``none``, or why nothing is said of a kernel on some inputs."""
    if row is None or "why" in row:
        return NOT_RUN
    kinds = {row["runs"].get(given, NOT_RUN) for given in inputs}
    return "found" if kinds - {"none", NOT_RUN} else NOT_RUN if NOT_RUN in kinds else "none"


def _of_tools(suite: Any, results: dict[str, Any], tools: Sequence[str]) -> dict[str, Any]:
    """Returns the rows of compute-sanitizer in the form of the simulator's, with what any of the tools found."""

    def kind(found: dict[str, str]) -> str:
        kinds = {found.get(tool, NOT_RUN) for tool in tools}
        return min(kinds - {"none", NOT_RUN}, default=NOT_RUN if NOT_RUN in kinds else "none")

    return {
        name: {"runs": {given: kind(row["runs"].get(given, {})) for given in suite.INPUTS}}
        for name, row in results["files"].items()
    }


def _cell(rows: Sequence[dict[str, Any] | None], inputs: Sequence[str]) -> str:
    states = [_state(row, inputs) for row in rows]
    rest = states.count(NOT_RUN)
    return f"{states.count('found')}{f' ({rest} not runnable)' if rest else ''}"


def table(suite: Any, results: dict[str, Any], sanitized: dict[str, Any] | None = None) -> str:
    """Returns the results of a suite as Markdown.

    Args:
        suite: its module.
        results: those of the simulator.
        sanitized: those of compute-sanitizer.
    """
    versions = results["versions"]
    columns = {"the simulator": results["files"]}
    words = (
        f"{suite.TITLE} at the commit {versions['suite'][:8]}; cupyops {versions['cupyops']}, {versions['compiler']}"
    )
    if sanitized is not None:
        columns |= {f"`{tool}`": _of_tools(suite, sanitized, [tool]) for tool in TOOLS}
        columns["either tool"] = _of_tools(suite, sanitized, tuple(TOOLS))
        words += (
            f"; compute-sanitizer {sanitized['versions']['compute-sanitizer']} on one {sanitized['versions']['gpu']}"
        )
    groups: dict[str, list[str]] = {}
    for name in sorted(results["files"]):
        groups.setdefault(suite.planted(name), []).append(name)

    def cells(names: Sequence[str], inputs: Sequence[str]) -> str:
        return " | ".join(_cell([rows.get(name) for name in names], inputs) for rows in columns.values())

    lines = [f"{words}.", "", f"| fault | kernels | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    lines += [
        f"| {group or 'none'} | {len(groups[group])} | {cells(groups[group], suite.INPUTS)} |"
        for group in sorted(groups, key=lambda g: (not g, "bounds" in g, g))
    ]
    if len(suite.INPUTS) > 1:
        faulty = [name for name in results["files"] if suite.planted(name)]
        clean = [name for name in results["files"] if not suite.planted(name)]
        for title, names in (
            (f"found of {len(faulty)} faulty kernels", faulty),
            (f"alarms in {len(clean)} kernels without a fault", clean),
        ):
            if names is clean and cells(names, suite.INPUTS) == " | ".join("0" for _ in columns):
                lines += ["", f"There are no {title}, on any input."]
                continue
            lines += ["", f"| {title} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
            lines += [f"| on `{given}` | {cells(names, [given])} |" for given in suite.INPUTS]
            lines.append(f"| on any of them | {cells(names, suite.INPUTS)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Returns the committed results of all suites as Markdown."""
    found = [(suite, _read(ours), _read(theirs)) for suite, (ours, theirs) in FILES.items()]
    return "\n".join(
        table(suite, ours, theirs if theirs["files"] else None) for suite, ours, theirs in found if ours["files"]
    )


def _commit(folder: Path) -> str:
    """Returns the commit of a suite, or "": its folder may lie in another repository."""
    asked = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "HEAD"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split("\n")
    return said[1].strip() if len(said) > 1 and Path(said[0]).resolve() == folder.resolve() else ""


def _versions(folder: Path) -> dict[str, str]:
    import cupyops
    from cupyops.simulator import host

    tool = host.compiler()
    return {
        "suite": _commit(folder),
        "cupyops": cupyops.__version__,
        "compiler": f"{Path(tool.command[0]).name} {tool.major}",
    }


def _row(module: str, folder: Path, name: str) -> dict[str, Any]:
    return run(importlib.import_module(module), folder, name)


def _all(suite: Any, folder: Path, todo: Sequence[str], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        rows = pool.map(_row, [suite.__name__] * len(todo), [folder] * len(todo), todo)
        yield from zip(todo, rows, strict=True)


def _json(results: dict[str, Any]) -> str:
    """Returns the results as JSON, a line for each kernel."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in results["files"].items())
    return f'{{\n "versions": {json.dumps(results["versions"])},\n "files": {{\n{rows}\n }}\n}}\n'


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"versions": {}, "files": {}}
    return found | (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def _todo(suite: Any, options: argparse.Namespace, ended: Collection[str]) -> list[str]:
    wanted = [name for name in suite.names(options.suite.resolve()) if options.only in name]
    return [name for name in wanted if options.again or name not in ended]


Write = Callable[[dict[str, Any]], None]


def _sanitize(suite: Any, options: argparse.Namespace, results: dict[str, Any], write: Write) -> str:
    """Runs kernels under compute-sanitizer, and returns what is wrong, or ""."""
    sanitizer = find_sanitizer(options.compute_sanitizer)
    if sanitizer is None:
        return f"{options.compute_sanitizer} is not here: it comes with the CUDA toolkit. Give its path"
    results["versions"] = {"suite": _commit(options.suite), **sanitizer_versions(sanitizer)}
    # Those that the time limit has cut off run again.
    ended = [
        name
        for name, row in results["files"].items()
        if all(len(row["runs"].get(given, {})) == len(TOOLS) for given in suite.INPUTS)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        work = options.logs or Path(scratch)
        until = time.time() + options.seconds
        todo = _todo(suite, options, ended)
        return Run(sanitizer, suite, options.suite.resolve(), options.jobs, until, work.resolve()).measure(todo, write)


def _simulate(suite: Any, options: argparse.Namespace, results: dict[str, Any], write: Write) -> str:
    """Runs kernels in the simulator, and returns what is wrong, or ""."""
    from cupyops.simulator import host

    if missing := host.missing():
        return missing
    results["versions"] = _versions(options.suite)
    todo, rows = _todo(suite, options, results["files"]), {}
    for count, (name, row) in enumerate(_all(suite, options.suite.resolve(), todo, options.jobs), 1):
        rows[name] = row
        if count % 20 == 0:
            write(rows)
            print(f"{count} of {len(todo)}", file=sys.stderr, flush=True)
    write(rows)
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a suite, without a compiler, or without a working compute-sanitizer."""
    parser = argparse.ArgumentParser("python -m benchmarks.race_suite", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", type=Path, help="a copy of the repository of the suite")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time; default: 2")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the results; default: a file in benchmarks/results")
    parser.add_argument("--page", type=Path, help="write the committed results into this Markdown page")
    parser.add_argument("--only", metavar="WORD", default="", help="kernels whose names have a word")
    parser.add_argument("--again", action="store_true", help="run those that the results have, too")
    parser.add_argument(
        "--compute-sanitizer",
        nargs="?",
        const="compute-sanitizer",
        metavar="PATH",
        help="run compute-sanitizer on a GPU in place of the simulator",
    )
    parser.add_argument("--seconds", type=float, default=600, help="compute-sanitizer's processes end; default: 600")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep compute-sanitizer's logs")
    options = parser.parse_args(argv)
    suite = next((suite for suite in FILES if suite.here(options.suite)), None)
    if suite is None:
        print(f"{options.suite} has none of the suites: {', '.join(s.TITLE for s in FILES)}", file=sys.stderr)
        return 2
    sanitizing = options.compute_sanitizer is not None
    out = options.out or FILES[suite][sanitizing]
    results = _read(out)

    def write(rows: dict[str, Any]) -> None:
        results["files"] = dict(sorted({**results["files"], **rows}.items()))
        out.write_text(_json(results), encoding="utf-8")

    if wrong := (_sanitize if sanitizing else _simulate)(suite, options, results, write):
        print(wrong, file=sys.stderr)
        return 2
    if options.page:
        from .table import between

        options.page.write_text(between(options.page.read_text(encoding="utf-8"), page()), encoding="utf-8")
    ours = _read(FILES[suite][0]) if sanitizing else results
    theirs = results if sanitizing else _read(FILES[suite][1])
    print(table(suite, ours, theirs if theirs["files"] else None) if ours["files"] else f"{out} has the results.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
