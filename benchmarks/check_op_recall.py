"""Which planted faults ``check_op`` finds, and whether it raises an alarm for correct operators::

    python -m benchmarks.check_op_recall --page docs/checking.md       # goes on where it stopped

The operators are those of :mod:`.planted_faults`. Each is checked as a user does, ``check_op(op, samples)``, with all checks.
"""

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

__all__ = ["main", "run", "table"]

RESULTS = Path(__file__).resolve().parent / "results" / "check_op_recall.json"
RIGHT_KIND = "right"  # the kind of those without a fault


def run(kind: str, name: str) -> dict[str, Any]:
    """Checks an operator, and returns its row: the checks that failed, the first message, and the seconds."""
    import torch

    from cupyops.torch import check_op

    from .planted_faults import FAULTS, RIGHT

    torch.set_num_threads(1)
    begin = time.perf_counter()
    op, samples = (RIGHT if kind == RIGHT_KIND else FAULTS[kind])[name]()
    with contextlib.redirect_stdout(io.StringIO()):
        report = check_op(op, samples, raises=False)
    failed = list(dict.fromkeys(row.check for row in report.failed))
    words = " ".join(report.failed[0].words.split())[:200] if failed else ""
    return {"failed": failed, "words": words, "seconds": round(time.perf_counter() - begin, 1)}


def table(results: dict[str, Any]) -> str:
    """Returns the results as Markdown."""
    kinds: dict[str, dict[str, Any]] = {}
    for place, row in results["operators"].items():
        kind, _, name = place.partition(": ")
        kinds.setdefault(kind, {})[name] = row
    right = kinds.pop(RIGHT_KIND, {})
    found = sum(bool(row["failed"]) for rows in kinds.values() for row in rows.values())
    planted = sum(map(len, kinds.values()))
    alarms = [f"{name} (`{row['failed'][0]}`)" for name, row in right.items() if row["failed"]]
    lines = [
        f"cupyops {results['versions']['cupyops']}, PyTorch {results['versions']['torch']}, on a CPU: `check_op` finds {found} of {planted} "
        f"planted faults, and raises an alarm for {len(alarms)} of {len(right)} right operators{': ' if alarms else ''}{', '.join(alarms)}.",
    ]
    missed = [f"{name} ({kind})" for kind, rows in kinds.items() for name, row in rows.items() if not row["failed"]]
    lines += ["", f"Not found: {'; '.join(missed)}."] if missed else []
    counts = ", ".join(f"{kind} ({len(rows)})" for kind, rows in kinds.items())
    lines += ["", f"The faults are of {len(kinds)} kinds: {counts}."]
    return "\n".join(lines) + "\n"


def _versions() -> dict[str, str]:
    import torch

    import cupyops

    return {"cupyops": cupyops.__version__, "torch": torch.__version__}


def _all(todo: Sequence[tuple[str, str]], jobs: int) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(todo, pool.map(run, *zip(*todo, strict=True)), strict=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a compiler."""
    parser = argparse.ArgumentParser("python -m benchmarks.check_op_recall", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time; default: 2")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help=f"the results; default: {RESULTS.name}"
    )
    parser.add_argument("--page", type=Path, help="write the results into this Markdown page")
    parser.add_argument("--only", metavar="WORD", default="", help="operators whose kinds or names have a word")
    parser.add_argument("--again", action="store_true", help="check those that the results have, too")
    options = parser.parse_args(argv)
    from cupyops.simulator import host

    from .planted_faults import FAULTS, RIGHT
    from .table import between

    if missing := host.missing():
        print(missing, file=sys.stderr)
        return 2
    results: dict[str, Any] = {"versions": {}, "operators": {}}
    if options.out.exists():
        results |= json.loads(options.out.read_text(encoding="utf-8"))
    known = results["operators"]
    places = [(kind, name) for kind, rows in {**FAULTS, RIGHT_KIND: RIGHT}.items() for name in rows]
    wanted = [place for place in places if options.only in ": ".join(place)]
    todo = [place for place in wanted if options.again or ": ".join(place) not in known]
    results["versions"] = _versions()
    for place, row in _all(todo, options.jobs) if todo else ():
        known[": ".join(place)] = row
        results["operators"] = {": ".join(p): known[": ".join(p)] for p in places if ": ".join(p) in known}
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(": ".join(place), row["failed"], file=sys.stderr, flush=True)
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(between(page, table(results)), encoding="utf-8")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
