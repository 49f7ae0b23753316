"""Packages an exported model for processes without cupyops."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cupyops.errors import expected
from cupyops.launch import driver

from .bodies import replace_operators
from .launches import Launches

__all__ = ["package"]

_LIBRARIES = "aot_inductor.custom_op_libs"


def package(
    exported: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    *,
    architectures: Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Compiles an exported program by AOTInductor to a package that holds the kernels of its operators.

    The package needs neither cupyops nor CuPy nor NVRTC: ``torch::inductor::AOTIModelPackageLoader`` loads it in C++, and
    ``torch._inductor.aoti_load_package(path)`` in Python. The body of each operator is traced once. PyTorch's
    operations in it become Inductor's, and each launch becomes C++ that launches the kernel's binary by the CUDA driver. Grids, numbers
    and shared memory are expressions of the dynamic dimensions. On a CPU, the operators are their references.

    Where a body chooses its steps by a dynamic size, the package has the steps of the example's side, and raises for sizes on the
    other side.

    The machine that makes the package runs Linux and has a C++ compiler, which AOTInductor needs, and for a GPU CUDA's headers.

    Args:
        exported: the result of :func:`torch.export.export`, on the device where the package runs.
        path: the file to write, which ends in ``.pt2``.
        architectures: compute capabilities, such as ``(80, 90)``, for which the package has the binaries of cupyops' kernels. The default
            is that of the current GPU. Inductor compiles its own kernels for the current GPU.
        options: options of Inductor in addition, as for ``torch._inductor.aoti_compile_and_package``.

    Returns:
        The path of the package.

    Raises:
        ExportError: an operator cannot be packaged: its body reads a value of a tensor, fixes a dynamic size, or passes a kernel an
            object that is bound to a process, such as a texture; or a kernel does not run on one of the architectures. The message names the
            operator.
        TypeError: `exported` is not an exported program.
        ValueError: the path does not end in ``.pt2``.
    """
    if not isinstance(exported, torch.export.ExportedProgram):
        wanted = "be an ExportedProgram, which torch.export.export returns"
        raise TypeError(expected("package", "exported", wanted, type(exported).__name__))
    path = os.fspath(path)
    if not path.endswith(".pt2"):
        raise ValueError(expected("package", "path", "end in .pt2", repr(path)))
    if exported.example_inputs is None:
        raise ValueError(expected("package", "exported", "have example inputs", "none"))
    args, kwargs = exported.example_inputs
    tensors = pytree.tree_leaves((args, kwargs, list(exported.state_dict.values())))
    gpus = sorted({x.device.index for x in tensors if isinstance(x, Tensor) and x.is_cuda})
    if architectures is None:
        architectures = sorted({driver.capability(gpu) for gpu in gpus})
    module = exported.module(check_guards=False)
    launches = Launches(architectures)
    try:
        replace_operators(module, launches)
        # The names of the launches mean other kernels in another process.
        settings: dict[str, Any] = {"aot_inductor.package": True, "fx_graph_cache": False, **(options or {})}
        if gpus:
            # Else Inductor first runs the graph in Python.
            settings.setdefault("triton.autotune_at_compile_time", True)
        settings[_LIBRARIES] = [*(settings.get(_LIBRARIES) or ()), *_standard_library(settings)]
        files: Any = torch._inductor.aot_compile(module, args, kwargs, options=settings)
        from torch._inductor.package import package_aoti

        package_aoti(path, files)
    finally:
        launches.close()
    return path


def _standard_library(settings: Mapping[str, Any]) -> list[str]:
    """Returns the name by which the linker finds the shared C++ library, which PyTorch uses.

    A compiler without the library's link ``libstdc++.so`` takes the static library. A package then contains a second C++ library, some of whose
    symbols are bound to PyTorch's. In a Python process, its first use of a locale ends with a segmentation fault or
    ``std::bad_cast``.

    Args:
        settings: options of Inductor, which may name the compiler.
    """
    from torch._inductor import config, cpp_builder

    with config.patch({name: value for name, value in settings.items() if name == "cpp.cxx"}):
        compiler = cpp_builder.get_cpp_compiler()
    asked = [compiler, "-print-file-name=libstdc++.so.6"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    # The compiler answers with the name alone if it has no such file.
    return [":libstdc++.so.6"] if os.path.isabs(found) else []
