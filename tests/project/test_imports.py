"""Imports run one way, and importing does nothing; and these checks themselves can fail."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupyops.installing import pip_install

ROOT = Path(__file__).parents[2]
LIBRARY = ("kernels_cu", "cupyops", "autograd_bridge.py")

# Each layer may import itself and the layers before it.
LAYERS = ("kernels_cu", "cupyops", "cupyops.torch", "autograd_bridge", "examples, benchmarks, tests")
OUTERMOST = ("examples", "benchmarks", "tests")
FIRST_WITH_TORCH = LAYERS.index("cupyops.torch")

# The layers -----------------------------------------------------------------------------------------------------------


def layer_of(module: str) -> int | None:
    """The number of a module's layer, or None where it is not the project's."""
    if module.partition(".")[0] in OUTERMOST:
        return len(LAYERS) - 1
    inside = [i for i, name in enumerate(LAYERS) if f"{module}.".startswith(f"{name}.")]
    return max(inside, default=None)


def imported_modules(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, wherever it stands in it, with relative ones made absolute.

    ``from a import b`` counts as ``a.b`` too, since b may be a module.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(a.value)) for a in node.args[:1] if isinstance(a, ast.Constant))


def violations(root: Path) -> list[str]:
    """What runs against the layers in the library under a folder, ``cupyops/ops/gelu.py:3 imports torch``."""
    found: dict[str, None] = {}
    for path in sorted(
        p for name in LIBRARY for p in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ):
        relative = path.relative_to(root)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        own = layer_of(module)
        assert own is not None
        for line, name in imported_modules(path, module):
            other = layer_of(name)
            against = own < FIRST_WITH_TORCH if name.partition(".")[0] == "torch" else other is not None and other > own
            if against:
                found[f"{relative.as_posix()}:{line} imports {name}"] = None
    return list(found)


def test_imports_run_one_way() -> None:
    assert violations(ROOT) == []


def test_the_layer_check_sees_the_whole_library() -> None:
    files = {p.relative_to(ROOT).parts[0] for name in LIBRARY for p in [ROOT / name] if p.exists()}
    assert files == set(LIBRARY)
    edges = {name for p in (ROOT / "cupyops").rglob("*.py") for _, name in imported_modules(p, "cupyops.x")}
    assert {"kernels_cu", "cupyops.launch.kernel", "torch"} <= edges


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("kernels_cu/__init__.py", "import cupyops", "kernels_cu/__init__.py:1 imports cupyops"),
        ("kernels_cu/__init__.py", "import torch", "kernels_cu/__init__.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "import torch", "cupyops/ops/gelu.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "def f():\n    import torch.nn as nn", "cupyops/ops/gelu.py:2 imports torch.nn"),
        ("cupyops/ops/gelu.py", "from torch.nn import functional", "cupyops/ops/gelu.py:1 imports torch.nn"),
        ("cupyops/ops/gelu.py", "from .torch import Operator", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "from . import torch", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/__init__.py", "from . import torch", "cupyops/__init__.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "from cupyops import torch", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "import autograd_bridge", "cupyops/ops/gelu.py:1 imports autograd_bridge"),
        (
            "cupyops/ops/gelu.py",
            "import importlib\nimportlib.import_module('torch')",
            "cupyops/ops/gelu.py:2 imports torch",
        ),
        (
            "cupyops/torch/core/operator.py",
            "from autograd_bridge import gelu",
            "cupyops/torch/core/operator.py:1 imports autograd_bridge",
        ),
        (
            "cupyops/torch/core/operator.py",
            "from tests import conftest",
            "cupyops/torch/core/operator.py:1 imports tests",
        ),
        (
            "cupyops/torch/core/operator.py",
            "import examples.lenet5",
            "cupyops/torch/core/operator.py:1 imports examples.lenet5",
        ),
        ("autograd_bridge.py", "from benchmarks import timing", "autograd_bridge.py:1 imports benchmarks"),
        ("autograd_bridge.py", "import tests.conftest", "autograd_bridge.py:1 imports tests.conftest"),
    ],
)
def test_the_layer_check_tells_a_planted_violation(file: str, text: str, told: str, tmp_path: Path) -> None:
    clean = {
        "kernels_cu/__init__.py": "import re",
        "cupyops/__init__.py": "from .gelu import gelu",
        "cupyops/ops/gelu.py": "import kernels_cu\nfrom .torchlike import x\nimport torchvision",
        "cupyops/torch/__init__.py": "",
        "cupyops/torch/core/operator.py": "import torch\nfrom ..gelu import gelu",
        "autograd_bridge.py": "import torch\nfrom cupyops import torch as mechanism",
    }
    for name, planted in clean.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(planted)
    assert violations(tmp_path) == []
    (tmp_path / file).write_text(text)
    found = violations(tmp_path)
    assert told in found
    assert all(line.startswith(f"{file}:") for line in found)


# What an import does --------------------------------------------------------------------------------------------------

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
    refused."""
    here = folder / "empty"
    here.mkdir()
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUPYOPS_CACHE_DIR": str(folder / "cache")}
    hook = REFUSE.format(names=refuse)
    return subprocess.run(
        [sys.executable, "-c", hook + code],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
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
        assert (
            result.stdout == "ValueError gelu: `x` must be in the memory of a CUDA GPU, got an array in host memory\n"
        )
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
    ("code", "refuse", "file", "line", "told"),
    [
        (WITHOUT_TORCH, ("torch",), "cupyops/ops/gelu.py", "import torch", "No module named 'torch'"),
        (WITHOUT_TORCH, ("torch",), "kernels_cu/__init__.py", "from torch import nn", "No module named 'torch'"),
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
    ],
)
def test_the_import_checks_fail_on_a_planted_fault(
    code: str, refuse: tuple[str, ...], file: str, line: str, told: str, tmp_path: Path
) -> None:
    root = planted(tmp_path, file, line)
    result = run(code, tmp_path, refuse=refuse, root=root)
    assert result.returncode == 1
    assert told in result.stderr


def test_the_planted_copy_is_whole_without_its_fault(tmp_path: Path) -> None:
    result = run(IMPORT_ONLY, tmp_path, root=planted(tmp_path, "autograd_bridge.py", ""))
    assert result.returncode == 0, result.stderr
