"""Tensor maps: what the copying hardware of sm_90 and later (TMA) is told of a matrix, so that one instruction moves a
box of it."""

import ctypes
import struct
from functools import lru_cache

from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError, MissingDependencyError, expected

from . import driver

__all__ = ["TensorMap", "tensor_map"]

BYTES = 128
_ALIGNMENT = 64
_SWIZZLE = 128  # bytes of a row of a box, whose pieces of 16 lie where the tensor cores find them without conflicts

# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DATA_TYPES = {"float16": 6, "bfloat16": 9}
_SWIZZLE_128B, _L2_PROMOTION_256B = 3, 3


class TensorMap(bytes):
    """The 128 bytes that a kernel takes by value, as ``const __grid_constant__ TensorMap x_map`` for its array ``x``.

    Attributes:
        address: of the matrix.
        rows, columns, dtype: its.
        size: its elements.
        box_rows: of a box.
        simulated: the matrix lies in host memory, and the simulator reads the bytes.
    """

    address: int
    rows: int
    columns: int
    dtype: str
    box_rows: int
    size: int
    simulated: bool

    def __repr__(self) -> str:
        return f"<TensorMap of {self.dtype}[{self.rows}, {self.columns}] at {self.address:#x}>"

    __str__ = __repr__  # which launches show in messages

    def moved(self, address: int) -> "TensorMap":
        """The map of such a matrix elsewhere."""
        return tensor_map(address, self.rows, self.columns, self.dtype, self.box_rows, simulated=self.simulated)


@lru_cache(1024)
def tensor_map(
    address: int, rows: int, columns: int, dtype: str, box_rows: int, *, simulated: bool = False
) -> TensorMap:
    """The map of a contiguous matrix of 16-bit floats, in boxes of so many rows and 64 columns, swizzled by 128 bytes.

    A map is made of these numbers alone, so that one serves as long as they hold, whoever's memory is there. With
    ``simulated`` it is of host memory, for :func:`cupyops.simulate`, and no driver is asked.

    Raises:
        ValueError: the address or the bytes of a row are no multiples of 16.
        LaunchError: the driver refuses.
        MissingDependencyError: there is no driver, or one before CUDA 12.
    """
    itemsize = DTYPES[dtype].itemsize
    if address % 16 or columns * itemsize % 16:
        wanted = "begin at a multiple of 16 bytes, as its rows must"
        raise ValueError(expected("tensor_map", "address", wanted, f"{address:#x} and rows of {columns * itemsize}"))
    if simulated:
        # As the simulator's hardware/wgmma.cuh reads them.
        words = (address, rows, columns, box_rows, _SWIZZLE // itemsize, itemsize)
        found = TensorMap(struct.pack("=6Q", *words).ljust(BYTES, b"\0"))
    else:
        found = TensorMap(_encoded(address, rows, columns, dtype, box_rows))
    found.address, found.rows, found.columns, found.dtype, found.box_rows = address, rows, columns, dtype, box_rows
    found.size, found.simulated = rows * columns, simulated
    return found


def _encoded(address: int, rows: int, columns: int, dtype: str, box_rows: int) -> bytes:
    itemsize = DTYPES[dtype].itemsize
    encode = getattr(driver.libcuda(), "cuTensorMapEncodeTiled", None)
    if encode is None:
        raise MissingDependencyError("Tensor maps are made by NVIDIA's driver, from CUDA 12 on; there is none here")
    memory = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
    offset = -ctypes.addressof(memory) % _ALIGNMENT
    status = encode(
        ctypes.c_void_p(ctypes.addressof(memory) + offset),
        ctypes.c_int(_DATA_TYPES[dtype]),
        ctypes.c_uint32(2),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(columns * itemsize),
        (ctypes.c_uint32 * 2)(_SWIZZLE // itemsize, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),  # every element
        ctypes.c_int(0),  # not interleaved
        ctypes.c_int(_SWIZZLE_128B),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),  # zeros outside
    )
    if status:
        raise LaunchError(
            f"the driver refuses a tensor map of {dtype}[{rows}, {columns}] in boxes of {box_rows} rows: error {status}"
        )
    return memory.raw[offset : offset + BYTES]
