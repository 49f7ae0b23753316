"""What the command line can be asked for, by name: read by its parser, which imports nothing that takes long."""

from typing import Literal

from cupyops.ops.registry import families

__all__ = ["DTYPE_NAMES", "EXTRA", "FORMS", "IMPLEMENTATIONS", "LABELS", "OPERATORS", "RECIPES", "SIZES", "Form"]

# ``benchmarks.lltm`` measures steps by a command of its own.
OPERATORS = families("elements", "rows", "products")
# What is measured only when asked for, into a file of its own: operators of examples and documentation.
EXTRA = ("own_ops", "tutorial")
SIZES = tuple(2**k for k in (10, 16, 20, 24, 28))
DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")  # the last in rows of its own
RECIPES = ("default", "fast")  # of lenet5

LABELS = {
    "ours": "cupyops",
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "triton": "Triton",
    "liger": "Liger",
    "extension": "C++ extension",
    "dlpack": "cupyops through DLPack",
    "function": "autograd.Function, RawKernel",
}
IMPLEMENTATIONS = tuple(LABELS)

Form = Literal["short", "largest", "all"]  # of tables
FORMS: tuple[Form, ...] = ("short", "largest", "all")
