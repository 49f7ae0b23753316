"""The lines that install what is missing: they work outside a checkout, and name what pyproject.toml does."""

import shlex
from pathlib import Path

import pytest

from cupyops.compile import toolchain
from cupyops.installing import EXTRAS, pip_install

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_that_of_pyproject() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    assert {name: list(packages) for name, packages in EXTRAS.items()} == {
        name: packages for name, packages in declared.items() if name not in ("test", "dev", "release", "docs")
    }


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_line_reaches_pip_whole_through_a_shell(extra: str) -> None:
    assert shlex.split(pip_install(extra)) == ["pip", "install", *EXTRAS[extra]]


def test_packages_are_picked_by_name() -> None:
    assert pip_install("onnx", "onnxscript") == "pip install 'onnxscript>=0.7'"
    assert pip_install("cuda12", "nvidia-cuda-nvrtc-cu12", "ml_dtypes") == (
        "pip install nvidia-cuda-nvrtc-cu12 'ml_dtypes>=0.5'"
    )
    with pytest.raises(KeyError):
        pip_install("onnx", "matplotlib")


def test_both_cudas_are_told_where_none_is_known() -> None:
    assert pip_install("cuda12") in toolchain.INSTALL
    assert f"beside a PyTorch built for CUDA 13, {pip_install('cuda13')})" in toolchain.INSTALL
    assert toolchain.install_line(12) == pip_install("cuda12")
    assert toolchain.install_line(13) == toolchain.install_line(14) == pip_install("cuda13")
