"""Copies of the memory of arrays, from which arrays of the same layout, overlap and alignment can be made again."""

import base64
import ctypes
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cupyops.arrays import Info, numpy_dtype
from cupyops.compile import toolchain
from cupyops.dtypes import DTYPES

__all__ = ["SavedMemory", "View", "address", "extent", "in_lines", "restored"]

_ALIGNED = 256  # bytes: kernels choose code by the alignment of an address, and allocators align by at least as much
_WIDTH = 100  # characters of a line of base64


class View(NamedTuple):
    """An array in a block.

    Attributes:
        block: number of the block.
        offset: bytes from the beginning of the block to the array's first element.
        dtype: name of the dtype.
        shape, strides: in elements.
    """

    block: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def extent(info: Info) -> tuple[int, int]:
    """Returns the address of an array's first byte and the address after its last byte."""
    itemsize = DTYPES[info.dtype].itemsize
    if info.size == 0:
        return info.pointer, info.pointer
    steps = [(n - 1) * s * itemsize for n, s in zip(info.shape, info.strides, strict=True)]
    return info.pointer + sum(s for s in steps if s < 0), info.pointer + sum(s for s in steps if s > 0) + itemsize


@dataclass(frozen=True)
class SavedMemory:
    """Copies of the memory of some arrays. Overlapping arrays are in one block.

    Attributes:
        memory: the bytes of each block.
        alignment: the address of each block modulo 256.
        views: the arrays by name.
    """

    memory: Sequence[Any]
    alignment: Sequence[int]
    views: Mapping[str, View]

    @classmethod
    def copied(cls, infos: Mapping[str, Info]) -> "SavedMemory":
        """Copies the memory of arrays in host memory or on GPUs.

        Raises:
            Exception: CuPy's error, if a GPU's memory cannot be read, as after an illegal access.
        """
        memory: list[Any] = []
        alignment: list[int] = []
        views: dict[str, View] = {}
        spans: list[tuple[int, int, dict[str, Info]]] = []
        for name, info in sorted(infos.items(), key=lambda item: extent(item[1])):
            begin, end = extent(info)
            # Two GPUs may use the same addresses.
            other = next(iter(spans[-1][2].values())) if spans else None
            if other and begin < spans[-1][1] and (other.place, other.device) == (info.place, info.device):
                last = spans.pop()
                spans.append((last[0], max(last[1], end), {**last[2], name: info}))
            else:
                spans.append((begin, end, {name: info}))
        for begin, end, held in spans:
            for name, info in held.items():
                views[name] = View(
                    len(memory), info.pointer - begin, info.dtype, tuple(info.shape), tuple(info.strides)
                )
            memory.append(_bytes(begin, end - begin, next(iter(held.values()))))
            alignment.append(begin % _ALIGNED)
        return cls(memory, alignment, {name: views[name] for name in infos})

    def packed(self) -> bytes:
        """Returns the bytes of an ``.npz`` file."""
        import numpy

        stream = io.BytesIO()
        arrays: dict[str, Any] = {str(i): numpy.frombuffer(block, numpy.uint8) for i, block in enumerate(self.memory)}
        numpy.savez_compressed(stream, alignment=numpy.array(self.alignment, numpy.int64), **arrays)
        return stream.getvalue()


def _bytes(begin: int, count: int, info: Info) -> Any:
    if info.place != "cuda":
        return ctypes.string_at(begin, count)
    import numpy

    found = numpy.empty(count, numpy.uint8)
    cuda = toolchain.cupy().cuda
    with cuda.Device(info.device):
        cuda.runtime.deviceSynchronize()
        if count:
            cuda.runtime.memcpy(found.ctypes.data, begin, count, cuda.runtime.memcpyDeviceToHost)
    return found.tobytes()


def in_lines(data: bytes) -> str:
    """Returns bytes as lines of base64, which :func:`restored` takes."""
    return "\n".join(textwrap.wrap(base64.b64encode(data).decode(), _WIDTH))


def restored(data: str | Path, views: Mapping[str, Sequence[Any]], torch: Any = None) -> dict[str, Any]:
    """Returns arrays in host memory with the layout, overlap and alignment of the arrays that were copied.

    Args:
        data: the ``.npz`` file, or its bytes in base64.
        views: for each array the number of its block, the offset in bytes, the dtype, the shape and the strides in
            elements.
        torch: the module ``torch`` for tensors; by default the arrays are NumPy's.
    """
    import numpy

    blocks = []
    with numpy.load(data if isinstance(data, Path) else io.BytesIO(base64.b64decode(data))) as archive:
        for number, wanted in enumerate(archive["alignment"].tolist()):
            block = archive[str(number)]
            room = numpy.empty(block.size + 2 * _ALIGNED, numpy.uint8)
            start = (wanted - room.ctypes.data) % _ALIGNED
            blocks.append(room[start : start + block.size])
            blocks[-1][:] = block
    found = {}
    for name, given in views.items():
        view = View(*given)
        block = blocks[view.block]
        found[name] = _array(block, view) if torch is None else _tensor(block, view, torch)
    return found


def _array(block: Any, view: View) -> Any:
    import numpy

    dtype = numpy.dtype(numpy_dtype(view.dtype))
    strides = [s * dtype.itemsize for s in view.strides]
    return numpy.ndarray(view.shape, dtype, block, view.offset, strides)


def _tensor(block: Any, view: View, torch: Any) -> Any:
    dtype = getattr(torch, view.dtype)
    if 0 in view.shape:
        return torch.empty_strided(view.shape, view.strides, dtype=dtype)
    itemsize = DTYPES[view.dtype].itemsize
    span = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) + 1
    flat = torch.from_numpy(block[view.offset : view.offset + span * itemsize]).view(dtype)
    return flat.as_strided(view.shape, view.strides)


def address(x: Any) -> int:
    """Returns the address of the first element of a restored array."""
    return int(x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data)
