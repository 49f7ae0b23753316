"""The lines that install what is missing. They name packages of the index: this one is not on it, so that its own extras
install nothing outside a checkout."""

import re
import shlex

__all__ = ["EXTRAS", "pip_install"]

# As pyproject.toml has them, which a test compares; "" is what cupyops itself depends on.
EXTRAS = {
    "": ("numpy>=2", "torch>=2.9"),
    "cuda12": ("cupy-cuda12x>=14", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "ml_dtypes>=0.5"),
    "cuda13": (
        "cupy-cuda13x>=14",
        "nvidia-cuda-nvrtc>=13,<14",
        "nvidia-cuda-runtime>=13,<14",
        "nvidia-cuda-crt>=13,<14",
        "ml_dtypes>=0.5",
    ),
    "simulator": ("ziglang>=0.13", "nvidia-cuda-runtime-cu12", "ml_dtypes>=0.5"),
    "examples": (
        "lightning-fabric>=2.6",
        "matplotlib>=3.8",
        "nvidia-ml-py>=12",
        "scikit-learn>=1.4",
        "tensorboard>=2.16",
        "tqdm>=4.66",
    ),
    "onnx": ("onnx>=1.18", "onnxruntime>=1.22", "onnxscript>=0.7"),
}


def pip_install(extra: str, *names: str) -> str:
    """The line that installs an extra's packages, or those of them that are named, ready for a shell.

    >>> pip_install("examples", "matplotlib")
    "pip install 'matplotlib>=3.8'"
    """
    packages = {re.split(r"[<>=!~]", requirement)[0]: requirement for requirement in EXTRAS[extra]}
    return f"pip install {shlex.join(packages[name] for name in names or packages)}"
