"""Importing does nothing: no CUDA context, no folder, no CuPy and no PyTorch before they are needed; and these checks themselves
can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cupyops.installing import pip_install
from tests import preloaded
from tests.support import HANG

ROOT = Path(__file__).parents[2]
LIBRARY = ("kernels_cu", "cupyops", "autograd_bridge.py")

REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""

WITHOUT_TORCH = """
import cupyops, kernels_cu
assert "__global__" in kernels_cu.source("gelu")
import numpy
try:
    cupyops.gelu(numpy.ones(3, numpy.float32))
except (ValueError, cupyops.MissingDependencyError) as error:
    print(type(error).__name__, error)
assert "torch" not in sys.modules
"""

WITHOUT_CUPY = """
import autograd_bridge, cupyops, numpy, torch
x = torch.linspace(-3, 3, 7, requires_grad=True)
y = autograd_bridge.gelu(autograd_bridge.add2(x, x, alpha=2))
assert torch.equal(y, torch.nn.functional.gelu(3 * x)), y
y.sum().backward()
assert x.grad is not None
try:
    cupyops.gelu(numpy.ones(3, numpy.float32))
except cupyops.MissingDependencyError as error:
    print(error)
"""

IMPORT_ONLY = """
import os, sys
import autograd_bridge, cupyops, kernels_cu, torch
loaded = sorted(m for m in sys.modules if m.partition(".")[0] in ("cupy", "cupy_backends"))
assert not loaded, f"importing loads {loaded}"
assert not torch.cuda.is_initialized(), "importing makes a CUDA context"
assert not os.path.exists(os.environ["CUPYOPS_CACHE_DIR"]), "importing makes the cache folder"
"""


def run(
    code: str, folder: Path, *, refuse: tuple[str, ...] = (), root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, in an empty folder, with the project under `root` and without the modules
    refused. PyTorch is imported before, unless it is refused."""
    here = folder / "empty"
    here.mkdir()
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUPYOPS_CACHE_DIR": str(folder / "cache")}
    hook = REFUSE.format(names=refuse)
    if "torch" not in refuse:
        return preloaded.run(["-c", hook + code], cwd=here, env=environment)
    return subprocess.run(
        [sys.executable, "-c", hook + code],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


def planted(folder: Path, file: str, line: str) -> Path:
    """A copy of the library with one more line in a file."""
    for name in LIBRARY:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    with (folder / file).open("a", encoding="utf-8") as text:
        text.write(f"\n{line}\n")
    return folder


@pytest.mark.parametrize("refuse", [("torch",), ("torch", "cupy")], ids=["cupy there", "cupy absent too"])
def test_cupyops_works_without_torch(refuse: tuple[str, ...], tmp_path: Path) -> None:
    result = run(WITHOUT_TORCH, tmp_path, refuse=refuse)
    assert result.returncode == 0, result.stderr
    if "cupy" not in refuse:
        pytest.importorskip("cupy")
        words = (
            "ValueError gelu: `x` must be in the memory of a CUDA GPU, got an array in host memory. On a CPU, kernels "
        )
        assert result.stdout == f"{words}run within `with cupyops.simulate():`\n"
    else:
        assert result.stdout.startswith(
            "MissingDependencyError CUDA kernels need CuPy, and CuPy is not installed. Install it with: pip"
        )


def test_without_cupy_cpu_tensors_work_and_a_launch_asks_for_it(tmp_path: Path) -> None:
    result = run(WITHOUT_CUPY, tmp_path, refuse=("cupy",))
    assert result.returncode == 0, result.stderr
    assert pip_install("cuda12") in result.stdout


@pytest.mark.gpu
def test_without_cupy_a_cuda_tensor_asks_for_it(tmp_path: Path) -> None:
    code = "import autograd_bridge, torch\nautograd_bridge.gelu(torch.ones(3, device='cuda'))"
    result = run(code, tmp_path, refuse=("cupy",))
    assert result.returncode == 1
    assert "MissingDependencyError: CUDA kernels need CuPy" in result.stderr
    assert pip_install("cuda12") in result.stderr


def test_importing_makes_no_context_no_folder_and_compiles_nothing(tmp_path: Path) -> None:
    result = run(IMPORT_ONLY, tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("file", "line"), [("cupyops/ops/gelu.py", "import torch"), ("kernels_cu/__init__.py", "from torch import nn")]
)
def test_the_check_without_torch_fails_on_a_planted_fault(file: str, line: str, tmp_path: Path) -> None:
    result = run(WITHOUT_TORCH, tmp_path, refuse=("torch",), root=planted(tmp_path, file, line))
    assert result.returncode == 1
    assert "No module named 'torch'" in result.stderr


# A check, modules that it does without, a planted line, and the check's message; the last copy has no fault.
FAULTS = [
    (WITHOUT_CUPY, ("cupy",), "cupyops/ops/gelu.py", "import cupy", "No module named 'cupy'"),
    (WITHOUT_CUPY, ("cupy",), "autograd_bridge.py", "import cupy.cuda", "No module named 'cupy'"),
    (
        IMPORT_ONLY,
        (),
        "cupyops/compile/cache.py",
        "default_folder().mkdir(parents=True)",
        "importing makes the cache folder",
    ),
    (IMPORT_ONLY, (), "cupyops/ops/gelu.py", "import sys; sys.modules['cupy'] = None", "importing loads ['cupy']"),
    (
        IMPORT_ONLY,
        (),
        "autograd_bridge.py",
        "torch.cuda.is_initialized = lambda: True",
        "importing makes a CUDA context",
    ),
    (IMPORT_ONLY, (), "autograd_bridge.py", "", ""),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("code", "refuse", "file", "line", "words"), FAULTS, ids=[f[-1] or "none" for f in FAULTS])
def test_the_import_checks_fail_on_planted_faults_and_pass_without(
    code: str, refuse: tuple[str, ...], file: str, line: str, words: str, tmp_path: Path
) -> None:
    result = run(code, tmp_path, refuse=refuse, root=planted(tmp_path, file, line))
    assert (words in result.stderr and result.returncode) if words else not result.returncode, result.stderr
