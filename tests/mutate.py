"""Breaks the kernels in ways that people break kernels in, and counts what the tests that need no GPU notice.

    python -m tests.mutate                     # every mutant; some twenty minutes on two cores
    python -m tests.mutate --kernels gelu      # those of kernels whose names begin so
    python -m tests.mutate --list

Each mutant is one replacement in one text, made in a copy of the checkout. A mutant of a shared header is held against
one kernel that includes it. The lanes without a GPU run on the copy until the first failure; a mutant that nothing
notices survives, and is named at the end with what is known of it (:data:`KNOWN`). The exit status is 1 where fewer
than 95 % are noticed, or one survives that nobody has explained.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

try:
    from mutants import KNOWN, MUTANTS, Mutant
except ImportError:
    from tests.mutants import KNOWN, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
# By the stem of a kernel's text, the tests that are about it, most telling first.
TESTS = (
    "tests/test_simulated_kernels.py",
    "tests/test_{stem}.py",
    "tests/test_simulator_use.py",
    "tests/test_operators.py",
)
WANTED = 0.95
LIMIT = 900  # seconds for the tests of one mutant: one that hangs has been noticed


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the first test that failed, or nothing."""

    mutant: Mutant
    noticed: str
    seconds: float


def broken(text: str, mutant: Mutant) -> str:
    """The text with its fault.

    Raises:
        ValueError: what is to be replaced does not stand there exactly once.
    """
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times; once is wanted")
    return text.replace(mutant.old, mutant.new)


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without what a run does not need."""
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "data", "runs")
    return Path(shutil.copytree(ROOT, folder, ignore=unwanted))


def check_baseline(mutants: Sequence[Mutant], checkout: Path) -> None:
    """Runs the tests of each kernel on the unbroken texts: what fails there would notice nothing.

    Raises:
        RuntimeError: a test fails.
    """
    for tests, mutant in {(m.stem, m.tests): m for m in mutants}.items():
        if failure := first_failure(mutant, checkout):
            raise RuntimeError(f"{mutant.kernel}: its tests fail without a fault: {failure} (of {tests[1]})")


def run(mutant: Mutant, checkout: Path) -> Outcome:
    """Runs the tests on a copy with this fault, and mends the copy."""
    path = checkout / "kernels_cu" / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(broken(text, mutant), encoding="utf-8")
    started = time.perf_counter()
    try:
        return Outcome(mutant, first_failure(mutant, checkout), time.perf_counter() - started)
    finally:
        path.write_text(text, encoding="utf-8")


def first_failure(mutant: Mutant, checkout: Path) -> str:
    """The first test that fails, "" if none does."""
    stem = mutant.kernel.partition("_")[0] if not mutant.stem else mutant.stem
    files = [f for name in TESTS if (checkout / (f := name.format(stem=stem))).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = f"{mutant.tests} and not reference and not cuda and not gdb and not ctrl_c"
    try:
        done = subprocess.run(
            [*command, "-k", chosen.removeprefix(" and ")],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT} s"
    if done.returncode == 0:
        return ""
    failed = [line.split(" ", 2)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the mutants and prints what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="only kernels whose names begin so")
    parser.add_argument("--what", default="", help="only mutants whose description holds these words")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--list", action="store_true", help="print the mutants, run none")
    options = parser.parse_args(argv)
    mutants = [m for m in MUTANTS if m.kernel.startswith(options.kernels) and options.what in m.what]
    for mutant in mutants:
        broken((ROOT / "kernels_cu" / mutant.file).read_text(encoding="utf-8"), mutant)
    if options.list:
        print("\n".join(f"{m.kernel}: {m.what} ({m.file})" for m in mutants))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        checkouts: Queue[Path] = Queue()
        for i in range(options.jobs):
            checkouts.put(copy_of_checkout(Path(folder) / str(i)))

        check_baseline(mutants, copy_of_checkout(Path(folder) / "unbroken"))

        def one(mutant: Mutant) -> Outcome:
            checkout = checkouts.get()
            try:
                outcome = run(mutant, checkout)
            finally:
                checkouts.put(checkout)
            told = outcome.noticed or "SURVIVED"
            print(f"{mutant.kernel}: {mutant.what}: {told} ({outcome.seconds:.0f} s)", flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(one, mutants))
    return report(outcomes)


def report(outcomes: Sequence[Outcome]) -> int:
    """Prints counts and survivors; the exit status."""
    survivors = [o.mutant for o in outcomes if not o.noticed]
    for kernel in dict.fromkeys(o.mutant.kernel for o in outcomes):
        own = [o for o in outcomes if o.mutant.kernel == kernel]
        print(f"{kernel}: {sum(bool(o.noticed) for o in own)} of {len(own)} noticed")
    noticed = len(outcomes) - len(survivors)
    print(f"together: {noticed} of {len(outcomes)}, {noticed / max(len(outcomes), 1):.1%}")
    for mutant in survivors:
        print(f"survivor: {mutant.kernel}: {mutant.what}: {KNOWN.get((mutant.kernel, mutant.what), 'NOT EXPLAINED')}")
    explained = all((m.kernel, m.what) in KNOWN for m in survivors)
    return 0 if explained and noticed >= WANTED * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
