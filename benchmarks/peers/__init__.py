"""The implementations that the operators are compared with. A peer that this machine lacks the tools for is left out by
name."""

import importlib
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..choices import IMPLEMENTATIONS, LABELS

__all__ = [
    "IMPLEMENTATIONS",
    "LABELS",
    "LIGER_LONGEST",
    "BuildFailed",
    "Unavailable",
    "compiled",
    "liger_kernels",
    "quack_function",
    "raw_function",
    "triton_kernels",
]


LIGER_LONGEST = 65536  # Liger's norms keep a row in one program, and refuse longer ones


class Unavailable(RuntimeError):
    """A peer needs what this machine does not have; the message says what."""


class BuildFailed(Unavailable):
    """Everything that a peer needs is there, and it did not build."""


def triton_kernels(op: str) -> ModuleType:
    """The module ``benchmarks.peers.<op>_triton``.

    Raises:
        Unavailable: Triton or the C compiler that it needs for its launcher is missing.
    """
    _need_triton()
    return importlib.import_module(f"benchmarks.peers.{op}_triton")


def raw_function(name: str) -> Callable[..., Any]:
    """A function of ``benchmarks.peers.raw_function``.

    Raises:
        Unavailable: CuPy is missing.
    """
    if importlib.util.find_spec("cupy") is None:
        raise Unavailable("CuPy is not installed")
    function: Callable[..., Any] = getattr(importlib.import_module("benchmarks.peers.raw_function"), name)
    return function


def liger_kernels(op: str) -> ModuleType:
    """The module of the package Liger Kernel that holds the operator's kernels.

    Raises:
        Unavailable: the package is missing, or what its Triton kernels need.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        raise Unavailable("liger_kernel is not installed")
    _need_triton()
    return importlib.import_module(f"liger_kernel.ops.{op}")


def quack_function(name: str) -> Callable[..., Any]:
    """A function of the package quack, such as ``softmax``.

    Raises:
        Unavailable: the package is missing, or cannot be imported here.
    """
    if importlib.util.find_spec("quack") is None:
        raise Unavailable("quack is not installed")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module("quack"), name)
    except (ImportError, AttributeError, OSError) as error:
        raise Unavailable(f"quack has no {name} here: {error}") from None
    return function


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through ``torch.compile``, for the one set of shapes and dtypes that it will be called with.

    Static shapes let Inductor vectorise. What was compiled before is forgotten: PyTorch counts the versions of a
    function and gives up after a few.

    Raises:
        Unavailable: Triton, which Inductor generates, or its C compiler is missing.
    """
    _need_triton()
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def _need_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("Triton is not installed")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise Unavailable("Triton needs a C compiler, and neither CC nor gcc nor clang is there")


def find_scripts() -> None:
    """Put the interpreter's own folder of programs on PATH: ninja, installed as a package, lies there."""
    folder = sysconfig.get_path("scripts")
    path = os.environ.get("PATH", "")
    if folder not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([path, folder])
