"""Broadcasting: the loop sizes and strides for operands of different shapes and layouts, which ``strided.cuh``
takes."""

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["broadcast_shape", "collapse", "divider", "spread", "strided_loop"]


def broadcast_shape(a: Sequence[int], b: Sequence[int], where: str = "add2") -> tuple[int, ...]:
    """Returns the shape to which two shapes broadcast.

    Args:
        a, b: the shapes.
        where: the operator's name, for the message.

    Raises:
        RuntimeError: the shapes do not broadcast; the message has PyTorch's words.
    """
    ndim = max(len(a), len(b))
    out = []
    for d in range(ndim):
        i, j = d - ndim + len(a), d - ndim + len(b)
        m, n = (a[i] if i >= 0 else 1), (b[j] if j >= 0 else 1)
        if m != n and m != 1 and n != 1:
            raise RuntimeError(
                f"{where}: The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension {d}"
            )
        out.append(n if m == 1 else m)
    return tuple(out)


def spread(shape: Sequence[int], strides: Sequence[int], out: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a view that is expanded to the shape ``out``: 0 for a dimension that is new or
    repeated."""
    new = len(out) - len(shape)
    expanded = (0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, out[new:], strict=True))
    return (0,) * new + tuple(expanded)


def collapse(shape: Sequence[int], *views: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the loop over a shape in the fewest dimensions, innermost first: the sizes, then the strides of each
    view.

    Dimensions of size 1 are dropped. Two neighbouring dimensions become one dimension if, in every view, the outer
    stride is the inner stride times the inner size.

    >>> collapse((8, 4, 1, 16), (64, 16, 16, 1), (0, 0, 0, 1))
    ((16, 32), (1, 16), (1, 0))
    """
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] == 1:
            continue
        if sizes and all(s[-1] * sizes[-1] == v[d] for s, v in zip(strides, views, strict=True)):
            sizes[-1] *= shape[d]
            continue
        sizes.append(shape[d])
        for s, v in zip(strides, views, strict=True):
            s.append(v[d])
    if not sizes:
        sizes, strides = [1], [[0] for _ in views]
    return (tuple(sizes), *(tuple(s) for s in strides))


def strided_loop(shape: Sequence[int], views: Sequence[Sequence[int]], widest: int) -> tuple[Any, ...]:
    """Returns the loop of a kernel that includes ``strided.cuh``.

    Args:
        shape: the result's shape.
        views: the operands' strides, expanded to this shape by :func:`spread`.
        widest: bytes of the widest element.

    Returns:
        The elements that a thread takes, whether indices need 64 bits, the sizes (innermost first, the innermost
        counted in groups of one thread's elements), the divider of each size, and the strides of each operand.
    """
    sizes, *strides = collapse(shape, *views)
    farthest = max(sum((n - 1) * abs(s) for n, s in zip(sizes, view, strict=True)) for view in strides)
    wide = max(math.prod(sizes), farthest) >= 2**31
    vector_width = 16 // widest if sizes[0] % (16 // widest) == 0 else 1
    sizes = (sizes[0] // vector_width, *sizes[1:])
    return vector_width, wide, sizes, tuple(divider(n) for n in sizes), *strides


def divider(size: int) -> int:
    """Returns the argument of ``divide(i, divider)`` in ``strided.cuh`` for i // size with i < 2^31.

    The low 32 bits are a multiplier, and the bits above are a shift. For a size of 2^31 or more, the kernel divides by
    the size itself, and the divider is 0.
    """
    if not 0 < size < 2**31:
        return 0
    shift = (size - 1).bit_length()
    return (((1 << 32) * ((1 << shift) - size)) // size + 1) | shift << 32
