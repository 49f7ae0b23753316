"""The lines that install what is missing work outside a checkout."""

import shlex

import pytest

from cupyops.compile import toolchain
from cupyops.installing import EXTRAS, pip_install


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
