"""The LLTM cell as extensions have it: in Python, in C++ by PyTorch's operators, and in C++ with CUDA kernels; each a
function (input, weights, bias, old_h, old_cell) -> (new_h, new_cell) with gradients."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.lltm_timing import Cell, python_cell

from . import BuildFailed, Unavailable, find_scripts
from .extension import FOLDER, sources

__all__ = ["cpp_cell", "cuda_cell", "python_cell"]


def cpp_cell() -> Cell:
    """The cell in C++, on any device.

    Raises:
        Unavailable: a C++ compiler or ninja is missing, or it does not build.
    """
    return _function(_module("lltm_cpp"), "lltm_cpp")


def cuda_cell() -> Cell:
    """The cell with CUDA kernels.

    Raises:
        Unavailable: nvcc, a C++ compiler or ninja is missing, or it does not build.
    """
    return _function(_module("lltm_cuda"), "lltm_cuda")


def _function(module: Any, name: str) -> Cell:
    forward_, backward_ = getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            new_h, new_cell, *rest = forward_(*inputs)
            saved = (inputs[1], *rest) if name == "lltm_cpp" else (inputs[1], *rest, new_cell)
            ctx.save_for_backward(*saved)
            return new_h, new_cell

        @staticmethod
        def backward(ctx: Any, grad_h: Tensor, grad_cell: Tensor) -> tuple[Tensor, ...]:
            return tuple(backward_(grad_h, grad_cell, *ctx.saved_tensors))

    apply: Cell = Function.apply
    return apply


@cache
def _module(name: str) -> Any:
    outcome = _outcome(name)
    if isinstance(outcome, Unavailable):
        raise outcome
    return outcome


@cache
def _outcome(name: str) -> Any:
    find_scripts()
    from torch.utils import cpp_extension

    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return Unavailable("a C++ compiler is missing: neither CXX nor PATH leads to one")
    if not cpp_extension.is_ninja_available():
        return Unavailable("ninja is missing")
    folder = tempfile.mkdtemp(prefix="cupyops-peer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    functions = [f"{name}_forward", f"{name}_backward"]
    try:
        if name == "lltm_cpp":
            text = (FOLDER / "lltm.cpp").read_text(encoding="utf-8")
            return cpp_extension.load_inline(name, text, functions=functions, build_directory=folder)
        home = cpp_extension.CUDA_HOME
        if home is None or not (Path(home) / "bin" / "nvcc").is_file():
            return Unavailable("nvcc is missing: neither CUDA_HOME nor PATH leads to one")
        cuda, declarations, _ = sources(("lltm",))
        return cpp_extension.load_inline(name, declarations, cuda, functions=functions, build_directory=folder)
    except Exception as error:
        return BuildFailed(f"load_inline failed: {str(error)[-1500:]}")
