"""Python processes that start with PyTorch imported, for tests that need a process of their own and do not test
imports.

An import of PyTorch takes longer than most of what such a process is started for. :func:`run` forks a server, which has
imported it. The server has one thread, has asked for no GPU, and has not imported cupyops. Tests of imports, of the start of
the interpreter (``-W``, ``sitecustomize``) and of variables that PyTorch reads as it is imported start Python by
:mod:`subprocess`.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["run"]

IMPORTED = ("torch", "torch.export")  # what an import of cupyops.torch imports of PyTorch
LIMIT = 1800  # seconds, after which a process hangs


def run(
    arguments: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` with ``-c CODE``, ``-m MODULE`` or a file, as :func:`subprocess.run` does with ``capture_output=True``.

    Args:
        arguments: those after ``python``.
        cwd: the folder in which it runs; by default this process's.
        env: its whole environment; by default this process's.
    """
    command = [str(a) for a in arguments]
    server = _server(os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("stdout", "stderr")]
        asked = {
            "arguments": command,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "printed": [str(path) for path in printed],
        }
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, "the server of processes has ended"
        return subprocess.CompletedProcess(
            [sys.executable, *command], int(status), *(path.read_text(encoding="utf-8") for path in printed)
        )


@cache
def _server(process: int) -> "subprocess.Popen[str]":
    """The server of a process; a forked child gets its own."""
    environment = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONWARNINGS")}
    environment["OMP_NUM_THREADS"] = "1"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, __file__], env=environment, text=True, **pipes)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def _serve() -> dict[str, Any] | None:
    """Forks for each line. Returns what was asked for in the child, and None in the server at the end."""
    del sys.path[0]  # this folder, which has a folder named torch
    for name in IMPORTED:
        __import__(name)
    gc.freeze()  # a collection in a child would copy the memory of what is imported
    gc.set_threshold(20_000, 20, 20)  # as in tests/conftest.py: collections would take a tenth of a child's time
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1, "a child has no thread but the one that forks"
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            return dict(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _become(asked: dict[str, Any]) -> NoReturn:
    """Runs what was asked for, with the streams, the environment and the paths that Python would give it, and ends."""
    status = 1
    try:
        _run(asked)
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    # These are steps of the interpreter's exit. The exit itself would free, and so copy, the server's imports.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def _run(asked: dict[str, Any]) -> None:
    signal.alarm(LIMIT)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    paths = (os.devnull, *asked["printed"])
    for number, path in enumerate(paths):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    how, *rest = asked["arguments"]
    named = how in ("-c", "-m")
    what, *rest = rest if named else (how, *rest)
    first = {"-c": "", "-m": asked["cwd"]}.get(how, str(Path(what).parent))
    path = os.environ.get("PYTHONPATH")
    sys.path[:] = [first, *(path.split(os.pathsep) if path else ()), *sys.path]
    sys.orig_argv = [sys.executable, *asked["arguments"]]
    sys.argv = ["-c" if how == "-c" else what, *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif how == "-c":
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    _main = sys.modules["__main__"]  # lives on where another takes its name
    if (_asked := _serve()) is not None:
        _become(_asked)
