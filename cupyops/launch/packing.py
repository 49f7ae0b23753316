"""Packs the arguments of a launch that has bfloat16 numbers, for which :mod:`struct` has no code."""

import struct
from collections.abc import Sequence
from typing import Any

from cupyops.dtypes import bfloat16_bits

__all__ = ["BFloat16Struct"]


class BFloat16Struct:
    """A :class:`struct.Struct` that packs some of its numbers as bfloat16.

    Args:
        layout: the format, with ``H`` in place of each bfloat16.
        places: the positions of the bfloat16 numbers among the values.
    """

    def __init__(self, layout: str, places: Sequence[int]) -> None:
        self._struct, self._places = struct.Struct(layout), tuple(places)
        self.size = self._struct.size

    def pack_into(self, buffer: Any, offset: int, *values: Any) -> None:
        self._struct.pack_into(buffer, offset, *self._rounded(values))

    def pack(self, *values: Any) -> bytes:
        return self._struct.pack(*self._rounded(values))

    def _rounded(self, values: Sequence[Any]) -> list[Any]:
        rounded = list(values)
        for place in self._places:
            rounded[place] = bfloat16_bits(rounded[place])
        return rounded
