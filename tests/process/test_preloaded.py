"""A program runs in a process of tests.preloaded as in a new process of Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parents[2]
TOLD = """
import os, sys
print(__name__, sys.argv, sys.path[:2], os.getcwd(), sorted(os.environ), repr(sys.stdin.read()), flush=True)
os.write(2, b"to stderr\\n")
"""
ENDS = {
    "of the code": "pass",
    "of a number": "import sys; sys.exit(3)",
    "of words": "import sys; sys.exit('words')",
    "of an error": "1 / 0",
    "of a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "of a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('done'))).start()",
    "of what is registered": "import atexit; atexit.register(print, 'registered')",
}


def both(folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """The answers of the two kinds of processes."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "ONLY": "here"}
    options = {"env": environment, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    fresh = subprocess.run([sys.executable, *arguments], cwd=folder, check=False, **options)
    return [preloaded.run(arguments, cwd=folder, env=environment), fresh]


@pytest.mark.parametrize("how", ["-c", "-m", "a file"])
def test_arguments_paths_environment_and_streams_are_those_of_python(how: str, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    first = {"-c": ["-c", TOLD], "-m": ["-m", "told"], "a file": [str(tmp_path / "told.py")]}[how]
    ours, pythons = both(tmp_path, *first, "one", "--two")
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, pythons.stdout, "to stderr\n")


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_under_python(end: str, tmp_path: Path) -> None:
    ours, pythons = both(tmp_path, "-c", ENDS[end])
    assert (ours.returncode, ours.stdout) == (pythons.returncode, pythons.stdout)
    assert ours.stderr.splitlines()[-1:] == pythons.stderr.splitlines()[-1:]


def test_a_process_begins_without_this_project_and_without_what_another_left(tmp_path: Path) -> None:
    ask = "import sys; print([m for m in ('torch', 'cupyops', 'cupy', 'planted') if m in sys.modules])"
    preloaded.run(["-c", "import sys; sys.modules['planted'] = sys"], cwd=tmp_path)
    assert preloaded.run(["-c", ask], cwd=tmp_path).stdout == "['torch']\n"
    here = preloaded.run(["-c", "import cupyops; print(cupyops.__file__)"], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert Path(here.stdout.strip()).parent == ROOT / "cupyops"
