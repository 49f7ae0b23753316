"""NumPy arrays as kernel arguments in the simulator."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cupyops.arrays import Info, first_part, numpy_dtype

__all__ = ["NumpyLibrary"]

Array = Any


class NumpyLibrary:
    """Implements :class:`cupyops.arrays.ArrayLibrary` for NumPy arrays."""

    name = "numpy"

    def empty_like(self, x: Array) -> Array:
        import numpy

        return numpy.empty_like(x)

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        import numpy

        return numpy.empty(tuple(shape), dtype=numpy_dtype(dtype))

    def size(self, x: Array) -> int:
        return int(x.size)

    def is_contiguous(self, x: Array) -> bool:
        return bool(x.flags.c_contiguous)

    def contiguous(self, x: Array) -> Array:
        import numpy

        return numpy.ascontiguousarray(x)

    def dtype_name(self, x: Array) -> str:
        return str(x.dtype)

    def result_type(self, a: Array, b: Array) -> str:
        import numpy

        return str(numpy.result_type(a, b))

    def strides(self, x: Array) -> tuple[int, ...]:
        return tuple(s // x.itemsize for s in x.strides)

    def linear(self, x: Array, weight: Array, bias: Array) -> Array:
        y = self._wide(x) @ self._wide(weight).T
        return (y if bias is None else y + self._wide(bias)).astype(x.dtype)

    def matmul(self, a: Array, b: Array) -> Array:
        return (self._wide(a) @ self._wide(b)).astype(a.dtype)

    def _wide(self, x: Array) -> Array:
        """Converts a 16-bit array to float32: NumPy would round every partial sum to 16 bits."""
        return x.astype("float32") if x.itemsize == 2 else x

    def is_host_scalar(self, x: Array) -> bool:
        return False  # like CuPy: the simulator replaces CuPy arrays with NumPy arrays

    def host_number(self, x: Array, dtype: str) -> Array:
        raise NotImplementedError("a NumPy array is never a host scalar beside device arrays")

    def is_fake(self, x: Array) -> bool:
        return False

    skips = is_fake

    def device_index(self, x: Array) -> None:
        return None

    def in_host_memory(self, x: Array) -> bool:
        return True

    def address(self, x: Array) -> int:
        return int(x.__array_interface__["data"][0])

    def info(self, x: Array) -> Info:
        layout = str(x.dtype), x.shape, self.strides(x), int(x.size)
        return Info(*layout, "cpu", None, self.address(x), read_only=not x.flags.writeable)

    def written(self, arrays: Sequence[Array]) -> None:
        pass

    def stream(self, device: int) -> int:
        return 0

    def device(self, device: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def matmul_into(self, a: Array, b: Array, out: Array) -> None:
        out[...] = a @ b

    def add_product(self, c: Array, a: Array, b: Array) -> None:
        c += self.matmul(a, b)

    def copy(self, x: Array) -> Array:
        return x.copy()

    def padded(self, x: Array, rows: int, columns: int) -> Array:
        import numpy

        return numpy.pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1])))

    def part(self, x: Array, shape: Sequence[int]) -> Array:
        return first_part(x, shape)

    def tf32(self) -> bool:
        return False
