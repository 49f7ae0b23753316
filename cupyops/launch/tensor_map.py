"""Tensor maps: descriptors of a matrix for TMA (sm_90 and later), which copies a box of the matrix per instruction."""

import ctypes
import struct
from functools import lru_cache

from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError, MissingDependencyError, expected

from . import driver

__all__ = ["TensorMap", "tensor_map"]

BYTES = 128
_ALIGNMENT = 64
_SWIZZLE = 128  # bytes of a row of a box; the 128-byte swizzle of its 16-byte pieces avoids bank conflicts

# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DATA_TYPES = {"float16": 6, "bfloat16": 9}
_SWIZZLE_128B, _L2_PROMOTION_256B = 3, 3


class TensorMap(bytes):
    """The 128 bytes of a tensor map.

    A kernel takes the map of its array ``x`` by value, declared as ``const __grid_constant__ TensorMap x_map``.

    Attributes:
        address: address of the matrix.
        rows, columns, dtype: shape and dtype of the matrix.
        size: number of elements of the matrix.
        box_rows: rows of a box.
        simulated: the matrix lies in host memory, and the simulator reads the map.
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

    __str__ = __repr__  # messages of launches show str()

    def moved(self, address: int) -> "TensorMap":
        """Returns the map of a matrix of the same shape and dtype at another address."""
        return tensor_map(address, self.rows, self.columns, self.dtype, self.box_rows, simulated=self.simulated)


@lru_cache(1024)
def tensor_map(
    address: int, rows: int, columns: int, dtype: str, box_rows: int, *, simulated: bool = False
) -> TensorMap:
    """Returns the tensor map of a contiguous matrix of 16-bit floats, in boxes of `box_rows` rows and 64 columns, with
    the 128-byte swizzle.

    A map depends on the arguments only, so maps are cached: a cached map also fits a later matrix at the same address.
    With ``simulated`` the map describes host memory for :func:`cupyops.simulate`, and needs no driver.

    Raises:
        ValueError: the address or the number of bytes of a row is not a multiple of 16.
        LaunchError: the driver refuses the map.
        MissingDependencyError: there is no driver, or the driver is older than CUDA 12.
    """
    itemsize = DTYPES[dtype].itemsize
    if address % 16 or columns * itemsize % 16:
        wanted = "be a multiple of 16, and so must the bytes of a row"
        raise ValueError(expected("tensor_map", "address", wanted, f"{address:#x} and rows of {columns * itemsize}"))
    if simulated:
        # The format that the simulator reads in cupyops/simulator/hardware/wgmma.cuh.
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
        raise MissingDependencyError(
            "Tensor maps need NVIDIA's driver of CUDA 12 or later, and no such driver was found"
        )
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
        (ctypes.c_uint32 * 2)(1, 1),  # element strides
        ctypes.c_int(0),  # not interleaved
        ctypes.c_int(_SWIZZLE_128B),
        ctypes.c_int(_L2_PROMOTION_256B),
        ctypes.c_int(0),  # elements outside the matrix are copied as zeros
    )
    if status:
        raise LaunchError(
            f"the driver refuses a tensor map of {dtype}[{rows}, {columns}] in boxes of {box_rows} rows: error {status}"
        )
    return memory.raw[offset : offset + BYTES]
