"""Elementwise programs whose operands and results are views, such as the halves of one tensor."""

import functools
from collections.abc import Callable, Sequence

from torch import Tensor

from cupyops.programs.elementwise import Program, strided_kernel, text_of
from cupyops.tiling.broadcasting import spread, strided_loop

__all__ = ["into_views"]


def into_views(program: Program) -> Callable[[Sequence[Tensor], Sequence[Tensor]], None]:
    """Returns a function that computes an elementwise program without numbers: from operands, into results that are views.

    All tensors have one dtype. The operands are expanded to the shape of the results. No two elements of the results
    share memory.
    """
    text = text_of(program, placed=True)
    kernel = functools.cache(lambda *config: strided_kernel(program, text, *config))

    def compute(operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        shape, total = results[0].shape, results[0].numel()
        if not total:
            return
        views = [spread(x.shape, x.stride(), shape) for x in (*operands, *results)]
        vector_width, wide, sizes, dividers, *strides = strided_loop(shape, views, results[0].dtype.itemsize)
        groups = total // vector_width
        kernel(len(sizes), vector_width, wide).launch_vouched(*operands, *results, groups, sizes, dividers, *strides)

    return compute
