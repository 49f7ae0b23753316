"""The names that the command line accepts, in a module that its parser imports quickly."""

import re
from pathlib import Path
from typing import Literal

__all__ = [
    "COMPILED_AT",
    "DTYPE_NAMES",
    "EXTRA",
    "FORMS",
    "HALVES",
    "IMPLEMENTATIONS",
    "LABELS",
    "LLTM_CASES",
    "LLTM_DTYPES",
    "OPERATORS",
    "RECIPES",
    "ROWS",
    "ROW_IMPLEMENTATIONS",
    "ROW_SCALE",
    "SIZES",
    "Form",
    "families",
]


def families(*work: str) -> tuple[str, ...]:
    """Returns the benchmarks of shipped operators whose ``WORK`` is one of the arguments: the sizes over which their time
    is measured, "elements", "rows" (elements and the length of a row) or "products" (shapes of a matrix product).

    The files are read as texts, since they import PyTorch.
    """
    files = sorted(Path(__file__).parent.glob("*.py"))
    said = {path.stem: re.search(r'^WORK = "(\w+)"$', path.read_text(encoding="utf-8"), re.MULTILINE) for path in files}
    return tuple(name for name, line in said.items() if line and line[1] in work)


# ``benchmarks.lltm`` measures steps by a command of its own.
OPERATORS = families("elements", "rows", "products")
LLTM_CASES = ("cell", "sequence", "pointwise")
LLTM_DTYPES = ("float32", "tf32", "float16", "bfloat16")  # tf32: float32 whose products may take TF32
# What is measured only when asked for, into a file of its own: operators of examples and documentation.
EXTRA = ("own_ops", "tutorial")
# `--ops rows` measures the operators on rows, into a file of its own, at these lengths.
ROWS = "rows"
ROW_SCALE = (
    *(96, 128, 192, 256, 384, 512, 768, 1024, 1152, 1280, 1600, 2048, 2560, 3072, 4096, 4544, 5120, 8192),
    *(16384, 32768, 65536, 131072, 262144),
)
# Who is measured on them; the other peers are our own kernels, which other runs measure.
ROW_IMPLEMENTATIONS = ("ours", "eager", "compile", "liger", "quack")
COMPILED_AT = (1024, 4096)  # where torch.compile is measured: one length of each half
HALVES = ("first", "second")  # every other row length, from the first on or from the second
SIZES = tuple(2**k for k in (10, 16, 20, 24, 28))
DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")  # the last in rows of its own
RECIPES = ("default", "fast")  # of lenet5

LABELS = {
    "ours": "cupyops",
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "triton": "Triton",
    "liger": "Liger",
    "quack": "quack",
    "extension": "C++ extension",
    "dlpack": "cupyops through DLPack",
    "function": "autograd.Function, RawKernel",
}
IMPLEMENTATIONS = tuple(LABELS)

Form = Literal["largest", "all", "rows"]  # of tables
FORMS: tuple[Form, ...] = ("largest", "all", "rows")
