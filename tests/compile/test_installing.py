"""The lines that install what is missing work outside a checkout."""

import importlib.metadata
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cupyops.compile import toolchain
from cupyops.installing import EXTRAS, pip_install
from tests.support import ROOT, install


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


@pytest.mark.thorough
@pytest.mark.network
@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {""}))
def test_an_extra_installs(extra: str, tmp_path: Path) -> None:
    """Each of its packages has a version for this Python that satisfies the extra and constraints.txt."""
    install(tmp_path, "-c", str(ROOT / "constraints.txt"), *EXTRAS[extra])
    installed = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions(path=[str(tmp_path)])}
    wanted = {canonicalize_name(r.name): r.specifier for r in map(Requirement, EXTRAS[extra])}
    assert installed.keys() == wanted.keys()
    assert all(specifier.contains(installed[name], prereleases=True) for name, specifier in wanted.items())
