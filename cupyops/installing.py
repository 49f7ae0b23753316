"""Commands that install missing packages.

The commands name the packages themselves, not the extras of cupyops: no package index has cupyops, and an extra
can be installed from a checkout only.
"""

import re
import shlex

__all__ = ["EXTRAS", "pip_install"]

# The extras of pyproject.toml; a test compares the two. The key "" holds the required dependencies of cupyops.
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
    "headers12": ("nvidia-cuda-cccl-cu12", "nvidia-curand-cu12", "nvidia-cuda-nvcc-cu12"),
    "headers13": ("nvidia-cuda-cccl>=13,<14", "nvidia-curand>=10.4", "nvidia-cuda-crt>=13,<14"),
    "link12": ("nvidia-nvjitlink-cu12",),
    "link13": ("nvidia-nvjitlink>=13,<14",),
    "simulator": ("ziglang>=0.15", "nvidia-cuda-runtime-cu12", "ml_dtypes>=0.5"),
    "examples": (
        "lightning-fabric>=2.6",
        "matplotlib>=3.8",
        "nvidia-ml-py>=12",
        "scikit-learn>=1.4",
        "tensorboard>=2.16",
    ),
    "adapters": ("accelerate>=1.10", "pytorch-lightning>=2.6"),
    "onnx": ("onnx>=1.18", "onnxruntime>=1.22", "onnxscript>=0.7"),
    "notebooks": ("ipykernel>=6.29", "ipython>=8.20", "matplotlib>=3.8", "nbclient>=0.10"),
    "models": ("timm>=1.0", "transformers>=5"),
    "import": ("libclang>=18",),
    "prove": ("z3-solver>=4.13",),
    "signed": ("cryptography>=42",),
}


def pip_install(extra: str, *names: str) -> str:
    """Returns the shell command that installs the packages of an extra, or only the named packages of that extra.

    >>> pip_install("examples", "matplotlib")
    "pip install 'matplotlib>=3.8'"
    """
    packages = {re.split(r"[<>=!~]", requirement)[0]: requirement for requirement in EXTRAS[extra]}
    return f"pip install {shlex.join(packages[name] for name in names or packages)}"
