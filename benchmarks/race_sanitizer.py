"""What compute-sanitizer finds on a GPU in the kernels of a suite; :mod:`.race_suite` runs this module.

A process runs many kernels under one tool, each under a name of its own, by which a report names it. Before the kernels, each tool
must report a fault that is planted for it; otherwise nothing is measured.
"""

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["NOT_RUN", "TOOLS", "Part", "Run", "control", "find_sanitizer", "main", "reported", "sanitizer_versions"]

ROOT = Path(__file__).resolve().parents[1]
# What a report of a tool is about.
TOOLS = {"memcheck": "bounds", "racecheck": "race"}
# Without the limit, the tool falls silent after a number of reports. A kernel with an invalid access ends, and the process goes on.
OPTIONS = ("--print-limit", "0", "--show-backtrace", "no", "--destroy-on-device-error", "kernel")
NOT_RUN = "not runnable"
PORT = 49152  # the tool's default, from which it takes the first free one of ten
PATIENCE = 30.0  # seconds for one kernel, its compilation included
GRACE = 10.0  # seconds that processes have to end by themselves
GPU_LOST = 3  # exit code of a process whose GPU refuses further work

PLANTED = """
extern "C" __global__ void planted_bounds(float* y,  // (n)
                                          long long n) { y[n + threadIdx.x] = 1; }
extern "C" __global__ void planted_race(float* y,  // (n)
                                        long long n) {
    __shared__ float s[256];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[255 - threadIdx.x];
}
"""


def find_sanitizer(given: str) -> str | None:
    """Returns the path of compute-sanitizer, or None."""
    return shutil.which(given) or shutil.which(given, path="/usr/local/cuda/bin")


def reported(log: Path) -> dict[str, str]:
    """Returns the names of functions in a log of compute-sanitizer, each with the first line of the first report that has it."""
    found: dict[str, str] = {}
    head = ""
    if not log.exists():
        return found
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.removeprefix("=========")
        if words == line:
            continue
        if not words.startswith("  "):  # the lines that continue a report are indented
            head = words.strip()
        # at sum(float *)+0x90, at void sum<float>(T1 *)+0x90, at sum+0x90 of extern "C"
        for before in words.replace("<", "(").replace("+", "(").split("(")[:-1]:
            found.setdefault(before.rpartition(" ")[2], head)
    return found


def _gpu() -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """Returns a function that copies an array to the GPU, and one that waits for the GPU."""
    import cupy

    # Each array is an allocation of its own, whose end the tool knows.
    cupy.cuda.set_allocator(None)
    return cupy.array, cupy.cuda.Device().synchronize


def control(tool: str) -> None:
    """Launches the kernel whose fault a tool must report."""
    from cupyops import Kernel, Threads

    upload, wait = _gpu()
    kernel = Kernel(PLANTED, f"planted_{TOOLS[tool]}", Threads("n"), dtypes=("float32",))
    kernel(upload(np.zeros(256, np.float32)), 256)
    wait()


def main(argv: Sequence[str]) -> int:
    """Runs kernels in this process, and writes a line of JSON before and after each.

    Args:
        argv: the tool to plant a fault for; or the module of the suite, its folder, the input, the file with the kernels' places and
            names, the file to write, and the time at which to stop.

    Returns:
        0, or `GPU_LOST`: what was not run needs another process.
    """
    if len(argv) == 1:
        control(argv[0])
        return 0
    suite, folder, given, todo = importlib.import_module(argv[0]), Path(argv[1]), argv[2], Path(argv[3])
    out, until = Path(argv[4]), float(argv[5])
    upload, wait = _gpu()
    with out.open("a", encoding="utf-8") as file:

        def say(place: int, state: str) -> None:
            file.write(json.dumps([place, state]) + "\n")
            file.flush()

        for place, name in json.loads(todo.read_text(encoding="utf-8")):
            if time.time() > until:
                return 0
            say(place, "began")
            try:
                kernel, configuration, values = suite.prepared(folder, name, given, place)
                kernel[configuration](*(upload(x) if isinstance(x, np.ndarray) else x for x in values))
                wait()
            except Exception as error:  # a kernel that does not run is counted, and its reason is kept
                say(place, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
                try:
                    upload(np.zeros(1))
                    wait()
                except Exception:
                    return GPU_LOST
                continue
            say(place, "ran")
    return 0


def _command(sanitizer: str, tool: str, log: Path, place: int, arguments: Sequence[Any]) -> list[str]:
    """Returns the command that runs this module under a tool; `place` numbers the processes, each of which gets ports of its own."""
    options = ("--tool", tool, "--log-file", str(log), "--port", str(PORT + 16 * place), *OPTIONS)
    return [sanitizer, *options, sys.executable, "-m", __name__, *map(str, arguments)]


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            _ended(process, GRACE / 2)


class Part:
    """The kernels of one process: those of a shard, with one tool, on one input.

    Attributes:
        tool: the tool.
        given: the input.
    """

    def __init__(self, run: "Run", tool: str, given: str, kernels: dict[int, str], place: int) -> None:
        self.tool, self.given = tool, given
        self._run, self._kernels, self._place = run, kernels, place
        self._turns = 0

    def _file(self, kind: str, turn: int) -> Path:
        return self._run.work / f"{self.tool}-{self._place}-{turn}.{kind}"

    def states(self) -> dict[int, str]:
        """Returns the last state of each kernel that has begun."""
        found: dict[int, str] = {}
        for turn in range(self._turns):
            if (out := self._file("jsonl", turn)).exists():
                for line in out.read_text(encoding="utf-8").split("\n")[:-1]:  # the last one may be half written
                    place, state = json.loads(line)
                    found[place] = state
        return found

    def results(self) -> Iterator[tuple[str, str, str]]:
        """Yields each kernel that ran, what was found, and the words of the report, or why it does not run."""
        said = {word: words for turn in range(self._turns) for word, words in reported(self._file("log", turn)).items()}
        for place, state in self.states().items():
            name = self._kernels[place]
            words = said.get(self._run.suite.function(name, place), "")
            if words:
                yield name, TOOLS[self.tool], words
            elif state != "began":
                yield name, "none" if state == "ran" else NOT_RUN, "" if state == "ran" else state

    def run(self, until: float) -> None:
        """Runs the kernels. A process that ends early or hangs is followed by another one for the rest."""
        while time.time() < until:
            known = self.states()
            todo = [(place, name) for place, name in self._kernels.items() if place not in known]
            if not todo or self._turns > len(self._kernels):
                return
            turn = self._turns
            self._file("json", turn).write_text(json.dumps(todo), encoding="utf-8")
            files = (self._file("json", turn), self._file("jsonl", turn))
            given = (self._run.suite.__name__, self._run.folder, self.given, *files, until)
            command = _command(self._run.sanitizer, self.tool, self._file("log", turn), self._place, given)
            self._turns += 1
            with self._file("txt", turn).open("wb") as words:
                process = subprocess.Popen(
                    command, stdout=words, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
                )
                last, states = time.time(), known
                while not _ended(process, 0.5):
                    if (now := self.states()) != states:
                        last, states = time.time(), now
                    if time.time() - last > PATIENCE or time.time() > until + GRACE:
                        _stop(process)
            if self.states() == known:
                return  # it could not start


def _control(sanitizer: str, tool: str, work: Path) -> str:
    """Returns what is wrong with a tool, or "": it reports the fault that is planted for it."""
    log = work / f"control-{tool}.log"
    command = _command(sanitizer, tool, log, [*TOOLS].index(tool), [tool])
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"{tool} did not end"
    if f"planted_{TOOLS[tool]}" in reported(log):
        return ""
    words = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return f"{tool} did not report the planted fault:\n{words[-1500:]}{done.stdout[-500:]}{done.stderr[-1500:]}"


def sanitizer_versions(sanitizer: str) -> dict[str, str]:
    """Returns the versions of the tool and the GPU."""
    said = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    version = next((line.split()[1] for line in said if line.startswith("Version ")), "")
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        gpu = []
    return {"compute-sanitizer": version, "gpu": gpu[0].strip() if gpu else ""}


@dataclass(frozen=True)
class Run:
    """A run of kernels under compute-sanitizer.

    Attributes:
        sanitizer: the path of compute-sanitizer.
        suite: the module of the suite.
        folder: the folder of the suite.
        jobs: processes at a time.
        until: the time at which the processes end.
        work: a folder for logs.
    """

    sanitizer: str
    suite: Any
    folder: Path
    jobs: int
    until: float
    work: Path

    def parts(self, kernels: Sequence[str]) -> list[Part]:
        """Returns the processes for kernels.

        The kernels are in no order, so that a part of the results has kernels of every kind. The processes of a shard begin at different
        kernels: each compiles some, and finds the others in the cache.
        """
        numbered = list(enumerate(kernels))
        random.Random(0).shuffle(numbered)
        pairs = [(tool, given) for tool in TOOLS for given in self.suite.INPUTS]
        shards = min(max(1, self.jobs // len(pairs)), len(numbered))
        parts: list[Part] = []
        for shard in range(shards):
            own = numbered[shard::shards]
            for turn, (tool, given) in enumerate(pairs):
                begin = turn * len(own) // len(pairs)
                parts.append(Part(self, tool, given, dict([*own[begin:], *own[:begin]]), len(parts)))
        return parts

    def measure(self, kernels: Sequence[str], write: Callable[[dict[str, Any]], None]) -> str:
        """Runs kernels under each tool on each input.

        Args:
            kernels: their names.
            write: called every few seconds with the results, a row for each kernel.

        Returns:
            What is wrong, or "".
        """
        self.work.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(TOOLS)) as pool:
            wrong = [
                words for words in pool.map(lambda tool: _control(self.sanitizer, tool, self.work), TOOLS) if words
            ]
        if wrong:
            return "\n".join(wrong)
        parts = self.parts(kernels)

        def results() -> dict[str, Any]:
            rows: dict[str, Any] = {}
            for part in parts:
                for name, found, words in part.results():
                    row = rows.setdefault(name, {"runs": {}})
                    row["runs"].setdefault(part.given, {})[part.tool] = found
                    if words and (found == NOT_RUN or not self.suite.planted(name)):
                        row.setdefault("said", {}).setdefault(part.tool, words)
            return rows

        with ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(part.run, self.until) for part in parts]
            took = 0.0
            while not all(one.done() for one in waiting):
                time.sleep(1 + 10 * took)  # logs can be long
                begin = time.monotonic()
                write(results())
                took = time.monotonic() - begin
        for one in waiting:
            one.result()
        write(results())
        return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
