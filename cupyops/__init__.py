"""CUDA C++ in a ``.cu`` text, compiled at run time by CuPy's NVRTC, launched with every argument checked.

This package works on CuPy's arrays and on whatever exports DLPack; it never imports PyTorch. The operators for PyTorch
are in :mod:`autograd_bridge`. Importing does nothing but define names: no CUDA context, no folder, no compilation.
"""

from cupyops.compile.bundle import load_bundle
from cupyops.launch.debug import debug_mode, set_debug
from cupyops.launch.geometry import Elementwise, GridStride, Rows, Threads
from cupyops.launch.kernel import Kernel
from cupyops.launch.warmup import warmup
from cupyops.ops.add2 import add2
from cupyops.ops.gelu import gelu, gelu_backward
from cupyops.ops.layer_norm.body import add_layer_norm, layer_norm, layer_norm_backward
from cupyops.ops.linear.body import linear, linear_backward
from cupyops.ops.linear.fused_gelu import linear_gelu, linear_gelu_backward
from cupyops.ops.lltm.cell import lltm_cell, lltm_cell_backward
from cupyops.ops.lltm.sequence import lltm_sequence, lltm_sequence_backward
from cupyops.tuning.tuned import Tuned

from . import interrupts  # noqa: F401 - before all that takes time
from .errors import CompileError, ExportError, LaunchError, MissingDependencyError, TuningError
from .simulator import simulate

__all__ = [
    "CompileError",
    "Elementwise",
    "ExportError",
    "GridStride",
    "Kernel",
    "LaunchError",
    "MissingDependencyError",
    "Rows",
    "Threads",
    "Tuned",
    "TuningError",
    "add2",
    "add_layer_norm",
    "debug_mode",
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
    "set_debug",
    "simulate",
    "warmup",
]

__version__ = "0.1.0"
