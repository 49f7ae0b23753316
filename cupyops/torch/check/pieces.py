"""The pieces of tensors on the ranks of a mesh: cuts a tensor into pieces by its placements, and joins pieces to a
tensor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["joined", "pieces_of"]


def pieces_of(x: Tensor, placements: Sequence[Any], ranks: Any) -> Iterator[tuple[int, Tensor]]:
    """Yields each rank of a mesh and its piece of a tensor, cut along the first dimension of the mesh first."""
    if not placements:
        yield ranks, x.clone()
        return
    first, count = placements[0], len(ranks)
    if first.is_shard():
        parts = list(x.chunk(count, first.dim))
        parts += [x.narrow(first.dim, 0, 0)] * (count - len(parts))
    else:
        # The numbers of ranks are powers of two, so that the division is exact.
        parts = [x / count if first.is_partial() else x] * count
    for part, those in zip(parts, ranks, strict=True):
        yield from pieces_of(part, placements[1:], those)


def joined(pieces: Mapping[int, Tensor], placements: Sequence[Any], ranks: Any) -> Tensor:
    """Returns the tensor of which the ranks have these pieces."""
    if not placements:
        return pieces[ranks]
    first, parts = placements[0], [joined(pieces, placements[1:], those) for those in ranks]
    if first.is_shard():
        return torch.cat(parts, first.dim)
    return torch.stack(parts).sum(0) if first.is_partial() else parts[0]
