"""The wheel works outside the checkout: the kernels travel with it, and nothing else does."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support import HANG

ROOT = Path(__file__).resolve().parents[2]

USE = """
import sys
from pathlib import Path
import autograd_bridge, cupyops, kernels_cu, torch
for module in (autograd_bridge, cupyops, kernels_cu):
    assert Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__
assert "__global__" in kernels_cu.source("gelu")
x = torch.ones(3)
assert torch.equal(autograd_bridge.gelu(x), torch.nn.functional.gelu(x))
"""


def run(*arguments: object, cwd: Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python where the checkout is not on its path, but `first` is if given; a failure shows what was printed."""
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != ROOT]
    path = os.pathsep.join([*([str(first)] if first else []), *inherited])
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that no build folder is left in it or found there."""
    pytest.importorskip("build", reason="building a wheel needs the package build")
    try:
        setuptools = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        setuptools = "0"
    if int(setuptools.partition(".")[0]) < 77:
        pytest.skip(f"building without isolation needs setuptools of at least 77, here is {setuptools}")
    copy = tmp_path_factory.mktemp("wheel") / "cupyops"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "data", "runs")
    shutil.copytree(ROOT, copy, ignore=unwanted)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """The wheel, built from the copy."""
    dist = checkout.parent / "dist"
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", dist, checkout, cwd=dist.parent)
    (built,) = dist.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed into."""
    # Not by importing pip, which has setuptools leave distutils to the standard library: Inductor then fails in this process.
    if not any(importlib.metadata.distributions(name="pip")):
        pytest.skip("installing the wheel needs pip")
    folder = tmp_path_factory.mktemp("installed")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    run("-m", "pip", "install", *quiet, "--target", folder, wheel, cwd=folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder with nothing in it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_holds_all_of_the_library_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        metadata = {n.rpartition("/")[2] for n in archive.namelist() if ".dist-info/" in n}
    kept = (".py", ".cu", ".cuh", ".typed", ".h", ".cpp", ".json")
    library = [
        ROOT / "autograd_bridge.py",
        *(p for d in ("kernels_cu", "cupyops", "examples") for p in (ROOT / d).rglob("*") if p.suffix in kept),
    ]
    paths = {p.relative_to(ROOT).as_posix() for p in library}
    assert names == {f"cupyops/{p}" if p.startswith("examples/") else p for p in paths}
    assert {"cupyops/py.typed", "kernels_cu/gelu.cu", "kernels_cu/shared/scalar.cuh"} <= names
    assert {
        "cupyops/simulator/cuda/device.h",
        "cupyops/simulator/module/module.cpp",
        "cupyops/simulator/runtime/scheduler.cpp",
        "cupyops/simulator/counting/counter.cpp",
        "cupyops/simulator/hardware/bulk.cuh",
    } <= names
    assert "LICENSE" in metadata


def test_the_long_description_has_no_link_that_an_index_cannot_follow(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata, _, text = archive.read(name).decode().partition("\n\n")
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "# cupyops" in text
    assert "__global__" in text
    assert "](" in (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert [target for target in re.findall(r"\]\(([^)]+)\)", prose) if not target.startswith("https://")] == []
    assert "[docs/benchmarks.md]" not in text
    assert "docs/benchmarks.md has all sizes" in " ".join(text.split())


def test_a_public_address_gives_project_urls_and_absolute_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, blob = "https://example.org/owner/cupyops", "https://example.org/owner/cupyops/blob/main/"
    code = (
        "import sys; from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
    )
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)

    monkeypatch.setenv("CUPYOPS_PROJECT_URL", home + "/")
    (tmp_path / "made").mkdir()
    made = run("-c", code, tmp_path / "made", cwd=tmp_path).stdout.splitlines()[-1]
    metadata, _, text = (tmp_path / "made" / made / "METADATA").read_text(encoding="utf-8").partition("\n\n")
    assert f"\nProject-URL: Homepage, {home}\n" in metadata
    assert f"\nProject-URL: Documentation, {blob}docs/index.md\n" in metadata
    assert f"[docs/benchmarks.md]({blob}docs/benchmarks.md)" in text
    assert f"]({home}/raw/main/docs/plots/front/gelu.svg)" in text

    monkeypatch.setenv("CUPYOPS_PROJECT_URL", "example.org")
    with pytest.raises(AssertionError, match="CUPYOPS_PROJECT_URL must begin with https://, got 'example.org'"):
        run("-c", code, tmp_path / "made", cwd=tmp_path)


def test_installed_wheel_works_from_an_empty_folder(installed: Path, empty: Path) -> None:
    run("-c", USE, installed, cwd=empty, first=installed)
    assert list(empty.iterdir()) == []


@pytest.mark.simulator
def test_installed_wheel_simulates_its_kernels(installed: Path, empty: Path) -> None:
    use = "import cupyops, numpy\nwith cupyops.simulate(sanitize=True): print(cupyops.gelu(numpy.float32([1])))"
    assert "0.841" in run("-c", use, cwd=empty, first=installed).stdout
    assert list(empty.iterdir()) == []


# Imports all modules of the examples, which may import nothing of a checkout, and lists them.
EXAMPLES = """
import importlib, pkgutil, runpy, sys
import cupyops.examples
found = pkgutil.walk_packages(cupyops.examples.__path__, "cupyops.examples.")
for name in (m.name for m in found if not m.name.endswith("__main__")):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # the packages of the extra adapters may be missing
        assert error.name in ("accelerate", "pytorch_lightning"), error
    print(name)
assert not {"examples", "benchmarks"} & set(sys.modules)
runpy.run_module("cupyops.examples", run_name="__main__")
"""


@pytest.mark.thorough
def test_installed_wheel_has_the_examples(installed: Path, empty: Path) -> None:
    told = run("-c", EXAMPLES, cwd=empty, first=installed).stdout
    for name in ("lenet5", "gpt.model", "own_ops.softmax"):
        assert f"cupyops.examples.{name}\n" in told
    assert "  lenet5 " in told
    assert "Run one with: python -m cupyops.examples.NAME" in told
    assert list(empty.iterdir()) == []


def test_installed_wheel_compiles_its_kernels(installed: Path, empty: Path) -> None:
    pytest.importorskip("cupy", reason="compiling needs CuPy and its NVRTC")
    options = ("--arch", "80", "--kernels", "gelu_forward", "--dtypes", "float32,bfloat16")
    result = run("-m", "cupyops", "compile", *options, cwd=empty, first=installed)
    assert "4 compilations" in result.stdout
    assert "0 failed" in result.stdout


@pytest.mark.thorough
def test_a_script_beside_an_editable_checkout_imports_the_package(checkout: Path, tmp_path: Path) -> None:
    """The folder of the script comes first on the path, and a folder named cupyops in it is not the package."""
    run("-c", "from setuptools import build_meta; build_meta.build_editable('../editable')", cwd=checkout)
    site = tmp_path / "site"
    (editable,) = (checkout.parent / "editable").glob("*.whl")
    with zipfile.ZipFile(editable) as archive:
        archive.extractall(site)
    script = checkout.parent / "script.py"
    # Without -S, the environment's own editable install would be found, too. What it needs, PyTorch for one, is in `packages`.
    packages = str(Path(torch.__file__).parents[1])
    lines = [f"import site, sys; site.addsitedir({str(site)!r}); sys.path.append({packages!r})"]
    lines += ["import cupyops, cupyops.examples, kernels_cu, autograd_bridge; print(cupyops.__file__)"]
    script.write_text("\n".join(lines))
    assert run("-ES", script, cwd=tmp_path).stdout.strip() == str(checkout / "cupyops" / "__init__.py")
