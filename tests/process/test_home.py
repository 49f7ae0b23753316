"""A home that cannot be written: CuPy makes a folder there when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cupyops.compile.cache import default_folder

pytest.importorskip("cupy")

ROOT = Path(__file__).parents[2]
COMPILE = """
import os, sys
import kernels_cu
from cupyops import MissingDependencyError
from cupyops.compile import toolchain
from cupyops.compile.compiler import compile_text, OPTIONS
try:
    cupy = toolchain.cupy()
except MissingDependencyError as error:
    print("MISSING", error)
    raise SystemExit
assert toolchain.cupy() is cupy
code = compile_text('extern "C" __global__ void k(float* y) { y[0] = 1; }', "k", "sm_80", OPTIONS).code
assert len(code) > 100
print(os.environ.get("CUPY_CACHE_DIR", "unset"), *os.listdir(os.environ["TMPDIR"]))
"""


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Python in a process whose environment has these changes."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("CUPYOPS_CACHE_DIR", "CUPY_CACHE_DIR", "XDG_CACHE_HOME")
    }
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "PYTHONPATH": path, **changes},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(params=["below a file", "below nothing that can be made"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A home in which no folder can be made, not even by root."""
    (tmp_path / "file").touch()
    if request.param == "below a file":
        return str(tmp_path / "file" / "home")
    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc")
    return "/proc/home"


def test_kernels_compile_and_nothing_is_left_behind(home: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run("-c", COMPILE, HOME=home, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unset cupyops-cupy-")
    assert not list(temporary.iterdir())


@pytest.mark.thorough
def test_the_doctor_finds_a_compiler(home: str) -> None:
    done = run("-m", "cupyops", "doctor", HOME=home)
    assert "broke" not in done.stdout + done.stderr, done.stdout
    assert "cupy: " in done.stdout
    assert "compile: " in done.stdout
    assert "export CUPYOPS_CACHE_DIR=FOLDER" in done.stdout


def test_a_folder_of_the_users_own_is_left_alone(home: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (tmp_path / "temporary").mkdir()
    done = run("-c", COMPILE, HOME=home, CUPY_CACHE_DIR=str(own), TMPDIR=str(tmp_path / "temporary"))
    assert done.stdout == f"{own}\n", done.stderr
    assert own.is_dir()


def test_a_folder_of_the_users_own_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    own = str(tmp_path / "file" / "own")
    done = run("-c", COMPILE, CUPY_CACHE_DIR=own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MISSING CUDA kernels need CuPy, and CuPy does not import: CUPY_CACHE_DIR must name")
    assert own in done.stdout
    assert done.stdout.count("\n") == 1
    # The doctor runs a kernel in the simulator, whose runtime takes seconds to compile in a cache that is not the tests'.
    doctor = run("-m", "cupyops", "doctor", CUPY_CACHE_DIR=own, CUPYOPS_CACHE_DIR=str(default_folder()))
    assert doctor.returncode == 0, "kernels run in the simulator"
    assert "CUPY_CACHE_DIR" in doctor.stdout
    assert "broke" not in doctor.stdout
    assert "unset CUPY_CACHE_DIR" in doctor.stdout
    assert "pip" not in doctor.stdout, "what is installed is not at fault"
