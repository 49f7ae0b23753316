"""Measures the operators on rows, one length after the other, so that an interrupted run keeps whole lengths."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from .cases import Case
from .choices import COMPILED_AT, families

__all__ = ["FEW_ROWS", "ROUNDS", "cases"]

ROUNDS = 5
FEW_ROWS, FEW_AT = (1, 8, 64, 512), (1024, 4096)
FLOAT16_AT = (1024, 4096, 16384)  # float16 moves the bytes of bfloat16
# Rows and parameters.
PAIRS = (
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.float32),
    (torch.float16, torch.float16),
)


def cases(
    n: int, elements: int, *, dtypes: Sequence[str] = (), directions: Sequence[str] = (), ops: Sequence[str] = ()
) -> Iterator[Case]:
    """The cases of rows of n elements.

    Few rows are measured where a CUDA graph captures the call. ``torch.compile`` takes seconds for a case. It is measured
    at :data:`.choices.COMPILED_AT`, with many rows.

    Args:
        n: elements of a row.
        elements: of all rows, where there are many of them.
        dtypes, directions: as of :class:`.cases.Choice`; none: all.
        ops: families of operators; none: all on rows.
    """
    many = max(1, elements // n)
    for op in ops or families("rows"):
        each = importlib.import_module(f"benchmarks.{op}").each
        for dtype, of_parameters in PAIRS:
            if dtype == torch.float16 and n not in FLOAT16_AT:
                continue
            few = FEW_ROWS if n in FEW_AT and dtype == of_parameters == torch.bfloat16 else ()
            for m in (many, *(m for m in few if m < many)):
                for case in each(m, n, dtype, of_parameters):
                    if dtypes and not set(case.dtype.split("+")) - {"int64"} <= set(dtypes):
                        continue
                    if m != many and not case.capturable:
                        continue  # few rows would be timed by the host's part of autograd
                    if directions and case.direction not in directions:
                        continue
                    makers = dict(case.implementations)
                    if m != many or n not in COMPILED_AT:
                        makers.pop("compile", None)
                    yield replace(case, implementations=makers)
