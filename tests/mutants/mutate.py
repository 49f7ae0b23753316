"""Plants typical faults in the kernels, and counts those that the tests without a GPU find.

    python -m tests.mutants.mutate                     # every mutant; 20 minutes on 16 cores
    python -m tests.mutants.mutate --kernels 'gelu*'   # those of kernels with such names
    python -m tests.mutants.mutate --list

Each mutant is one replacement in one text, found token by token (``matching.py``) and made in a copy of the checkout. A
mutant of a shared header is held against one kernel that includes it. The tests that need no GPU run on the copy until the
first failure, those of the default run before the thorough ones; a mutant that nothing notices survives, and is named at the
end with what is known of it (:data:`KNOWN`).
The exit status is 1 where fewer than 95 % are noticed, or one survives that nobody has explained.
"""

import argparse
import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import Queue

from tests.mutants.matching import replace_once
from tests.mutants.mutants import KNOWN, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
# By the stem of a kernel's text, the tests that are about it, most telling first.
TESTS = (
    "tests/kernels/test_simulated_{stem}_kernels.py",
    "tests/kernels/test_simulated_{stem}_forward.py",
    "tests/kernels/test_simulated_{stem}_backward.py",
    "tests/kernels/test_simulated_{stem}_large.py",
    "tests/kernels/test_simulated_{stem}.py",
    "tests/kernels/test_simulated_kernels.py",
    "tests/programs/test_{stem}_kernels.py",
    "tests/programs/test_{stem}_few_rows.py",
    "tests/kernels/test_{stem}.py",
    "tests/operators/test_{stem}.py",
    "tests/cases/{stem}.py",
    "tests/simulator/test_simulator_use.py",
    "tests/simulator/test_simulator_cache.py",
    "tests/operators/test_operators.py",
    "tests/operators/test_check_op.py",
)
WANTED = 0.95
RUNS = ("not thorough", "thorough")
NO_TESTS = 5  # pytest's exit status where -k leaves none
# Seconds for the tests of a mutant, in addition to four times their time without it: a mutant that hangs counts as
# found.
PATIENCE = 60
PROJECT = ("autograd_bridge", "cupyops", "kernels_cu", "tests")  # what the processes import anew
# A process for each run, forked where what takes longest to import is there.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "torch"])


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant: the first test that failed, or none; and its run."""

    mutant: Mutant
    noticed: str
    marks: str
    seconds: float


@dataclass(frozen=True)
class Baseline:
    """The tests of a kernel without a fault: the runs and files that have any, and the time limit of a mutant."""

    files: tuple[tuple[str, str], ...]
    limit: float


def broken(text: str, mutant: Mutant) -> str:
    """The text with its fault; formatting and comments of the text do not matter (``matching.py``).

    Raises:
        ValueError: the text to replace does not occur exactly once.
    """
    try:
        return replace_once(text, mutant.old, mutant.new)
    except ValueError as error:
        raise ValueError(f"{mutant.file}: {error}") from None


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without what a run does not need."""
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "data", "runs")
    return Path(shutil.copytree(ROOT, folder, ignore=unwanted))


def baseline_of(mutant: Mutant, checkout: Path) -> Baseline:
    """Runs the tests of its kernel on the unbroken texts: what fails there would notice nothing.

    Raises:
        RuntimeError: a test fails, or there is none.
    """
    stem = mutant.stem or mutant.kernel.partition("_")[0]
    files, started = [], time.perf_counter()
    for marks, name in itertools.product(RUNS, TESTS):
        if (checkout / (file := name.format(stem=stem))).exists():
            from tests.support import HANG  # imports PyTorch, which --help does not need

            status, told = pytest_of(mutant, marks, file, checkout, HANG)
            if status not in (0, NO_TESTS):
                raise RuntimeError(f"{mutant.kernel}: its tests fail without a fault: {told}")
            files += [(marks, file)] if status == 0 else []
    if not files:
        raise RuntimeError(f"{mutant.kernel}: no test is {mutant.tests}")
    return Baseline(tuple(files), PATIENCE + 4 * (time.perf_counter() - started))


def run(mutant: Mutant, checkout: Path, baseline: Baseline) -> Outcome:
    """Runs the tests on a copy with this fault until the first failure, and restores the copy."""
    path = mutant.path_in(checkout)
    text = path.read_text(encoding="utf-8")
    path.write_text(broken(text, mutant), encoding="utf-8")
    started = time.perf_counter()
    try:
        told = marks = ""
        for marks, file in baseline.files:
            status, told = pytest_of(mutant, marks, file, checkout, baseline.limit)
            if status:
                break
        return Outcome(mutant, told, marks, time.perf_counter() - started)
    finally:
        path.write_text(text, encoding="utf-8")


def pytest_of(mutant: Mutant, marks: str, file: str, checkout: Path, limit: float) -> tuple[int, str]:
    """pytest's exit status for the tests of a kernel in one file, and the first that failed, "" if none did."""
    chosen = f"({mutant.tests}) and not reference and not cuda and not gdb and not ctrl_c"
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-m", marks, "-k", chosen, file]
    with tempfile.NamedTemporaryFile() as output:
        process = PROCESSES.Process(target=_run_pytest, args=(str(checkout), options, output.name))
        process.start()
        process.join(limit)
        if process.exitcode is None:
            process.kill()
            process.join()
            return 1, f"no end within {limit:.0f} s"
        told = Path(output.name).read_text(encoding="utf-8", errors="replace")
    if process.exitcode in (0, NO_TESTS):
        return process.exitcode, ""
    failed = [line.split(" ", 2)[1] for line in told.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return 1, failed[0] if failed else f"pytest ended with {process.exitcode}: {told[-300:]}"


def _run_pytest(checkout: str, options: list[str], output: str) -> None:
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    enter(checkout)
    import pytest
    import torch

    torch.set_num_threads(1)  # `--jobs` processes have the cores among themselves, as the workers of xdist have
    sys.exit(int(pytest.main(options)))


def enter(checkout: str) -> None:
    """Makes this process import the project from a checkout, whatever it has imported of the project already: the
    starting of a process imports this module, and with it the texts that have no fault."""
    os.chdir(checkout)
    os.environ["PYTHONPATH"] = checkout
    sys.path[:] = [checkout, *(p for p in sys.path if p and Path(p) not in (ROOT, ROOT / "tests"))]
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        del sys.modules[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the mutants and prints their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="*", metavar="PATTERN", help="only kernels with such names, as in a shell")
    parser.add_argument("--what", default="", help="only mutants whose description holds these words")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--list", action="store_true", help="print the mutants, run none")
    options = parser.parse_args(argv)
    mutants = [m for m in MUTANTS if fnmatch(m.kernel, options.kernels) and options.what in m.what]
    for mutant in mutants:
        broken(mutant.path_in(ROOT).read_text(encoding="utf-8"), mutant)
    if options.list:
        print("\n".join(f"{m.kernel}: {m.what} ({m.file})" for m in mutants))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        checkouts: Queue[Path] = Queue()
        for i in range(options.jobs):
            checkouts.put(copy_of_checkout(Path(folder) / str(i)))

        unbroken = copy_of_checkout(Path(folder) / "unbroken")
        kinds = {(m.kernel, m.tests): m for m in mutants}

        def one(mutant: Mutant) -> Outcome:
            checkout = checkouts.get()
            try:
                outcome = run(mutant, checkout, baselines[mutant.kernel, mutant.tests])
            finally:
                checkouts.put(checkout)
            told = f"{outcome.noticed} ({outcome.marks})" if outcome.noticed else "SURVIVED"
            print(f"{mutant.kernel}: {mutant.what}: {told} ({outcome.seconds:.0f} s)", flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            made = pool.map(lambda m: baseline_of(m, unbroken), kinds.values())
            baselines = dict(zip(kinds, made, strict=True))
            outcomes = list(pool.map(one, mutants))
    return report(outcomes)


def report(outcomes: Sequence[Outcome]) -> int:
    """Prints counts and survivors; the exit status."""
    survivors = [o.mutant for o in outcomes if not o.noticed]
    for kernel in dict.fromkeys(o.mutant.kernel for o in outcomes):
        own = [o for o in outcomes if o.mutant.kernel == kernel]
        print(f"{kernel}: {sum(bool(o.noticed) for o in own)} of {len(own)} noticed")
    noticed = len(outcomes) - len(survivors)
    print(f"by the default run: {sum(bool(o.noticed) and o.marks == RUNS[0] for o in outcomes)} of {len(outcomes)}")
    print(f"together: {noticed} of {len(outcomes)}, {noticed / max(len(outcomes), 1):.1%}")
    for mutant in survivors:
        print(f"survivor: {mutant.kernel}: {mutant.what}: {KNOWN.get((mutant.kernel, mutant.what), 'NOT EXPLAINED')}")
    explained = all((m.kernel, m.what) in KNOWN for m in survivors)
    return 0 if explained and noticed >= WANTED * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
