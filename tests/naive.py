"""The naive kernels at the top of the texts: one thread an element, in the order of the formula. The simulator's tests hold the
fast kernels to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import kernels_cu
from cupyops import Kernel

__all__ = ["IS_NAIVE", "naive_kernel", "without_naive"]

IS_NAIVE = "_naive"  # how their names end; no operator declares one


def naive_kernel(
    text_name: str,
    kernel_name: str,
    geometry: Any,
    *,
    constants: Mapping[str, int] | None = None,
    **options: Any,
) -> Kernel:
    """A naive kernel of a shipped text, under ``#ifdef NAIVE``.

    Args:
        text_name: of ``kernels_cu/<text_name>.cu``.
        kernel_name: the function, such as ``gelu_naive``.
        geometry: threads of a launch, most often ``Threads("n")``.
        constants: further macros.
        options: as for :class:`cupyops.Kernel`.

    Raises:
        ValueError: the function's name is not a naive kernel's, or the text has no such function.
    """
    if not kernel_name.endswith(IS_NAIVE):
        raise ValueError(f"{kernel_name}: a naive kernel's name ends in {IS_NAIVE}")
    constants = {"NAIVE": 1, **(constants or {})}
    return Kernel(kernels_cu.source(text_name), kernel_name, geometry, constants=constants, **options)


def without_naive(names: Sequence[str]) -> list[str]:
    """The kernels among them that operators launch."""
    return [name for name in names if not name.endswith(IS_NAIVE)]
