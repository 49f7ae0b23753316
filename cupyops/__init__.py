"""CUDA C++ in a ``.cu`` text, compiled at run time by CuPy's NVRTC, launched with every argument checked.

This package works on CuPy's arrays and on whatever exports DLPack; it never imports PyTorch. The operators for PyTorch
are in :mod:`autograd_bridge`. Importing does nothing but define names: no CUDA context, no folder, no compilation.
"""

from . import interrupts  # noqa: F401 - before all that takes time
from .add2 import add2
from .bundle import load_bundle
from .debug import debug_mode, set_debug
from .errors import CompileError, ExportError, LaunchError, MissingDependencyError, TuningError
from .gelu import gelu, gelu_backward
from .geometry import Elementwise, GridStride, Rows, Threads
from .kernel import Kernel
from .layer_norm import add_layer_norm, layer_norm, layer_norm_backward
from .linear import linear, linear_backward
from .linear_gelu import linear_gelu, linear_gelu_backward
from .lltm import lltm_cell, lltm_cell_backward
from .lltm_sequence import lltm_sequence, lltm_sequence_backward
from .simulator import simulate
from .tuned import Tuned
from .warmup import warmup

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
