"""Compiles CUDA C++ from a ``.cu`` text at run time with CuPy's NVRTC, and launches it with every argument checked.

``import cupyops`` imports no PyTorch: the functions here take CuPy arrays and arrays that export DLPack. The PyTorch
operators are in :mod:`autograd_bridge`. The import creates no CUDA context, creates no folder and compiles nothing.
"""

from . import interrupts  # noqa: F401 - before the slow imports, so that Ctrl-C during them prints one line

# isort: split
import sys
from collections.abc import Callable
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any

from . import arrays
from .compile.bundle import load_bundle
from .errors import CompileError, ExportError, LaunchError, MissingDependencyError, TuningError
from .launch.debug import debug_mode, set_debug
from .launch.geometry import Elementwise, GridStride, Rows, Threads
from .launch.kernel import Kernel
from .launch.module import Module
from .launch.repro import save_repro
from .launch.size_expressions import Blocks
from .launch.untraced import register_setting
from .launch.warmup import warmup
from .launch.watch import watch
from .ops import rotary_embedding as _rotary_embedding  # noqa: F401 - declares its kernels
from .ops.add2 import add2
from .ops.gelu import gelu, gelu_backward
from .ops.layer_norm.body import add_layer_norm, layer_norm, layer_norm_backward
from .ops.linear.body import linear, linear_backward
from .ops.linear.fused_gelu import linear_gelu, linear_gelu_backward
from .ops.lltm.cell import lltm_cell, lltm_cell_backward
from .ops.lltm.sequence import lltm_sequence, lltm_sequence_backward
from .profiling.explain import explain
from .simulator import simulate
from .tuning.tuned import Tuned

if TYPE_CHECKING:
    from .importer.starting_file import Extension, from_extension

__all__ = [
    "Blocks",
    "CompileError",
    "Elementwise",
    "ExportError",
    "Extension",
    "GridStride",
    "Kernel",
    "LaunchError",
    "MissingDependencyError",
    "Module",
    "Rows",
    "Threads",
    "Tuned",
    "TuningError",
    "add2",
    "add_layer_norm",
    "debug_mode",
    "explain",
    "from_extension",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "linear_gelu",
    "linear_gelu_backward",
    "lltm_cell",
    "lltm_cell_backward",
    "lltm_sequence",
    "lltm_sequence_backward",
    "load_bundle",
    "save_repro",
    "set_debug",
    "simulate",
    "warmup",
    "watch",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports what needs PyTorch at its first use, because ``import cupyops`` does not import PyTorch."""
    if name in ("Extension", "from_extension"):
        return getattr(import_module("cupyops.importer.starting_file"), name)
    if name in ("cpp_extension", "integrations", "testing", "torch"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Defines the cell magic ``%%cu``, for ``%load_ext cupyops`` in a notebook (:mod:`cupyops.notebook`)."""
    import_module("cupyops.notebook").load(shell)


def _library_of_tensors(kind: type) -> arrays.ArrayLibrary | None:
    """Returns the array library of a PyTorch tensor type, or None for another type.

    The first tensor imports :mod:`cupyops.torch.core.tensors`, which registers PyTorch's tensors.
    """
    if not any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        return None
    import_module("cupyops.torch.core.tensors")
    known = (arrays.LIBRARIES[base] for base in kind.__mro__ if base in arrays.LIBRARIES)
    return next(known, None)


def _tensors_in_use() -> arrays.ArrayLibrary | None:
    """Returns the array library of PyTorch's tensors if PyTorch has used a GPU in this process, else None."""
    torch = sys.modules.get("torch")
    return arrays.LIBRARIES[torch.Tensor] if torch is not None and torch.cuda.is_initialized() else None


def _setting_of_dynamo() -> Callable[[CodeType], None] | None:
    """Returns the function that keeps Dynamo from tracing a code object, or None while PyTorch is not loaded.

    Without the private names, in another version of PyTorch, or while PyTorch is being imported, Dynamo traces launches.
    """
    torch = sys.modules.get("torch")
    frames: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if not hasattr(frames, "set_code_exec_strategy"):
        return None
    skip = frames._FrameAction.SKIP
    return lambda code: frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


register_setting(_setting_of_dynamo)
arrays.register_finder(_library_of_tensors)
arrays.register_in_use(_tensors_in_use)
