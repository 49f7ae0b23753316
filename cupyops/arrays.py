"""Array libraries: the interface through which launches and operator bodies use CuPy arrays and PyTorch tensors.

This module defines the library of CuPy arrays. Other libraries register themselves with :func:`register`, or with a
finder that runs at the first array of an unknown type (:func:`register_finder`). The simulator, which runs kernels on
arrays in host memory, registers itself with :func:`register_host`. :func:`as_cupy` converts any other array by DLPack.
"""

import functools
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from cupyops.compile import toolchain

from .errors import MissingDependencyError, expected
from .installing import pip_install

__all__ = [
    "ArrayLibrary",
    "Device",
    "Host",
    "Info",
    "as_cupy",
    "check_devices",
    "device_of",
    "first_part",
    "host",
    "in_use",
    "is_contiguous",
    "is_dense",
    "library_of",
    "on_any_arrays",
    "register",
    "register_finder",
    "register_host",
    "register_in_use",
]

Array = Any
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Info:
    """The properties of an array that a launch checks.

    Attributes:
        dtype: name of the dtype.
        shape, strides: in elements.
        size: number of elements.
        place: kind of device, ``"cuda"`` for a GPU.
        device: index of the GPU; None for another kind of device.
        pointer: address of the first element; 0 for a fake array.
        fake: the array has no memory, and a launch on it does nothing.
        negated: the memory holds the negated values (PyTorch's negative bit).
        read_only: the array must not be written to.
        recorded: the array requires grad and autograd is recording. Autograd cannot record the writes of a kernel.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    place: str
    device: int | None
    pointer: int
    fake: bool = False
    negated: bool = False
    read_only: bool = False
    recorded: bool = False

    def __str__(self) -> str:
        where = f"{self.place}:{self.device}" if self.place == "cuda" else self.place
        return f"{self.dtype}{list(self.shape)} on {where}"


class ArrayLibrary(Protocol):
    """The functions of an array library that launches and operator bodies call."""

    name: str

    # Parameters are positional-only: a library may assign a function of its own, whose parameters have other names.
    def empty_like(self, x: Array, /) -> Array: ...  # same shape, dtype, device; same layout if x is dense
    def empty(self, shape: Sequence[int], dtype: str, like: Array, /) -> Array: ...  # contiguous, on the device of like
    def size(self, x: Array, /) -> int: ...
    def is_contiguous(self, x: Array, /) -> bool: ...
    def contiguous(self, x: Array, /) -> Array: ...
    def dtype_name(self, x: Array, /) -> str: ...
    def result_type(self, a: Array, b: Array, /) -> str: ...
    def strides(self, x: Array, /) -> tuple[int, ...]: ...  # in elements
    def linear(self, x: Array, weight: Array, bias: Array, /) -> Array: ...  # x·weightᵀ + bias; bias may be None
    def matmul(self, a: Array, b: Array, /) -> Array: ...  # product of two matrices
    def is_host_scalar(self, x: Array, /) -> bool: ...  # one number in host memory, which a kernel can take by value
    def host_number(self, x: Array, dtype: str, /) -> Array: ...  # the host scalar x in dtype, by the library's rules
    def is_fake(self, x: Array, /) -> bool: ...  # an array without memory
    def skips(
        self, x: Array, /
    ) -> bool: ...  # launches on it do nothing: it is a fake array, and its launches are not being planned
    def device_index(self, x: Array, /) -> int | None: ...  # index of the GPU; in host memory the library's own index
    def in_host_memory(self, x: Array, /) -> bool: ...
    def address(self, x: Array, /) -> int: ...  # address of the first element
    def info(self, x: Array, /) -> Info: ...
    def written(self, arrays: Sequence[Array], /) -> None: ...  # records that a launch writes into these arrays
    def stream(self, device: int, /) -> int: ...  # handle of the current stream of a device
    def device(self, device: int, /) -> AbstractContextManager[Any]: ...  # makes a device current
    def matmul_into(self, a: Array, b: Array, out: Array, /) -> None: ...  # out = a·b; out may be a slice of columns
    def add_product(self, c: Array, a: Array, b: Array, /) -> Any: ...  # c += a·b
    def copy(self, x: Array, /) -> Array: ...
    # A contiguous copy of a matrix with zeros appended, up to the given rows and columns.
    def padded(self, x: Array, rows: int, columns: int, /) -> Array: ...
    # The first rows and columns of a new matrix, in a shape (..., columns); the result may have the matrix's memory.
    def part(self, x: Array, shape: Sequence[int], /) -> Array: ...
    def tf32(self) -> bool: ...  # whether float32 products may round the operands to TF32


class CupyLibrary:
    """CuPy's own arrays."""

    name = "cupy"

    def empty_like(self, x: Array) -> Array:
        with x.device:
            return toolchain.cupy().empty_like(x)

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        with like.device:
            return toolchain.cupy().empty(tuple(shape), dtype=numpy_dtype(dtype))

    def size(self, x: Array) -> int:
        return int(x.size)

    def is_contiguous(self, x: Array) -> bool:
        return bool(x.flags.c_contiguous)

    def contiguous(self, x: Array) -> Array:
        with x.device:
            return toolchain.cupy().ascontiguousarray(x)

    def dtype_name(self, x: Array) -> str:
        return str(x.dtype)

    def result_type(self, a: Array, b: Array) -> str:
        return str(toolchain.cupy().result_type(a, b))

    def strides(self, x: Array) -> tuple[int, ...]:
        return tuple(s // x.itemsize for s in x.strides)

    def linear(self, x: Array, weight: Array, bias: Array) -> Array:
        y = self.matmul(x, weight.T)
        if bias is not None:
            with x.device:
                y += bias
        return y

    def matmul(self, a: Array, b: Array) -> Array:
        with a.device:
            try:
                if str(a.dtype) != "bfloat16":
                    return a @ b
                # CuPy passes no bfloat16 products to cuBLAS.
                return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)
            except ImportError as error:
                wheel = "nvidia-cublas-cu12" if toolchain.nvrtc_version()[0] == 12 else "nvidia-cublas"
                raise MissingDependencyError(
                    f"CuPy's matrix products need cuBLAS ({error}). Install it with: pip install {wheel}"
                ) from error

    def is_host_scalar(self, x: Array) -> bool:
        return False

    def host_number(self, x: Array, dtype: str) -> Array:
        raise NotImplementedError("CuPy has no arrays in host memory")

    def is_fake(self, x: Array) -> bool:
        return False

    skips = is_fake

    def device_index(self, x: Array) -> int:
        return int(x.device.id)

    def in_host_memory(self, x: Array) -> bool:
        return False

    def address(self, x: Array) -> int:
        return int(x.data.ptr)

    def info(self, x: Array) -> Info:
        return Info(str(x.dtype), x.shape, self.strides(x), int(x.size), "cuda", x.device.id, x.data.ptr)

    def written(self, arrays: Sequence[Array]) -> None:
        pass

    def stream(self, device: int) -> int:
        return int(toolchain.cupy().cuda.get_current_stream().ptr)

    def device(self, device: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = toolchain.cupy().cuda.Device(device)
        return context

    def matmul_into(self, a: Array, b: Array, out: Array) -> None:
        with out.device:
            out[...] = toolchain.cupy().matmul(a, b)

    def add_product(self, c: Array, a: Array, b: Array) -> None:
        with c.device:
            c += self.matmul(a, b)

    def copy(self, x: Array) -> Array:
        with x.device:
            return x.copy()

    def padded(self, x: Array, rows: int, columns: int) -> Array:
        with x.device:
            return toolchain.cupy().pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1])))

    def part(self, x: Array, shape: Sequence[int]) -> Array:
        return first_part(x, shape)

    def tf32(self) -> bool:
        # CuPy's own products follow CUPY_TF32. CuPy's other switch for TF32 is not public.
        return os.environ.get("CUPY_TF32") == "1"


def first_part(x: Array, shape: Sequence[int]) -> Array:
    """Returns the first rows and columns of a matrix, in a shape (..., columns), as a view."""
    *batch, n = shape
    rows = math.prod(batch)
    return x[:rows].reshape((*batch, x.shape[1]))[..., :n]


class _Libraries(dict[type, ArrayLibrary]):
    """Maps an array type to its library. A subclass has the library of its base class."""

    def __missing__(self, kind: type) -> ArrayLibrary:
        for base in kind.__mro__[1:]:
            if base in self:
                return self[base]  # not stored: torch.compile would compile its graphs again
        cupy = sys.modules.get("cupy")
        if cupy is not None and issubclass(kind, getattr(cupy, "ndarray", ())):
            self[kind] = CupyLibrary()
            return self[kind]
        for find in _FINDERS:
            if (library := find(kind)) is not None:
                return library  # not cached: NumPy arrays have a library only while kernels are simulated
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not an array that kernels run on")


LIBRARIES = _Libraries()
_FINDERS: list[Callable[[type], ArrayLibrary | None]] = []
_IN_USE: list[Callable[[], ArrayLibrary | None]] = []
_HOSTS: list["Host"] = []


def register(kind: type, library: ArrayLibrary) -> None:
    """Registers the library of an array type."""
    LIBRARIES[kind] = library


def register_finder(find: Callable[[type], ArrayLibrary | None]) -> None:
    """Registers a function that returns the library of an array type, or None. Lookups of other types call it."""
    _FINDERS.append(find)


def register_in_use(find: Callable[[], ArrayLibrary | None]) -> None:
    """Registers a function that returns a library if the library has used a GPU in this process, else None."""
    _IN_USE.append(find)


def in_use() -> ArrayLibrary:
    """Returns the first registered library that has used a GPU in this process, else CuPy's."""
    return next((library for find in _IN_USE if (library := find()) is not None), CupyLibrary())


class Host(ABC):
    """Runs kernels on arrays in host memory, in place of a GPU. The simulator implements this class.

    Attributes:
        capability: compute capability of the simulated GPU.
        multiprocessors: number of multiprocessors of the simulated GPU.
    """

    capability: int
    multiprocessors: int

    @abstractmethod
    def enabled(self) -> bool:
        """Returns whether launches on arrays in host memory run now."""

    @abstractmethod
    def array(self, x: Any) -> Array | None:
        """Returns an array in host memory as a NumPy array while the host is enabled.

        Returns None for another array.
        """

    @abstractmethod
    def launch(self, kernel: Any, arguments: Any, sizes: Sequence[int]) -> None:
        """Runs a kernel on checked arguments. The geometry computes the grid from `sizes`."""

    @abstractmethod
    def twins(self) -> Mapping[str, str]:
        """Returns the headers that replace headers of ``kernels_cu`` in a text for this host, by name."""

    @abstractmethod
    def answers(self, source: str, what: str, options: Sequence[str]) -> tuple[str, ...]:
        """Returns the answers of the host's compiler to the questions of a source, see :mod:`cupyops.compile.ask`.

        Raises:
            CompileError: the compiler refuses the source.
            MissingDependencyError: there is no compiler.
        """

    def settings(self) -> dict[str, Any]:
        """Returns the arguments of :func:`cupyops.simulate` for launches that run as they would run now."""
        return {}

    @abstractmethod
    def code(self, kernel: Any, types: Any) -> Any: ...  # the loaded code of a kernel, with its variables

    @abstractmethod
    def resident_blocks(self, kernel: Any) -> int:
        """Returns how many blocks of a kernel run at once."""


Device = int | Host
"""A device that runs kernels: the index of a GPU, or the :class:`Host` for arrays in host memory."""


def register_host(runs: Host) -> None:
    """Registers the :class:`Host` that runs kernels on arrays in host memory."""
    _HOSTS.append(runs)


def host() -> Host:
    """Returns the :class:`Host` that was registered last."""
    return _HOSTS[-1]


def device_of(library: ArrayLibrary, x: Array) -> Device:
    """Returns the device that runs kernels on an array."""
    return host() if library.in_host_memory(x) else library.device_index(x)  # type: ignore[return-value]


def library_of(x: Array) -> ArrayLibrary:
    """Returns the library that an array belongs to. Raises TypeError if none is registered for its type."""
    return LIBRARIES[type(x)]


def numpy_dtype(name: str) -> Any:
    """Returns the NumPy dtype of a name. The bfloat16 dtype comes from the package ml_dtypes.

    Raises:
        MissingDependencyError: ml_dtypes is not installed.
    """
    import numpy

    if name != "bfloat16":
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(
            f"bfloat16 outside PyTorch needs ml_dtypes. Install it with: {pip_install('cuda12', 'ml_dtypes')}"
        ) from error
    return numpy.dtype(ml_dtypes.bfloat16)


def as_cupy(x: Array, where: str, argument: str) -> Array:
    """Returns a CuPy array on the memory of `x`, through DLPack unless `x` is a CuPy array.

    While kernels are simulated, an array in host memory becomes a NumPy array on the same memory.

    Raises:
        TypeError: `x` does not export DLPack.
        ValueError: `x` is not in GPU memory.
        MissingDependencyError: CuPy is not installed.
    """
    if (in_host_memory := host().array(x)) is not None:
        return in_host_memory
    cupy = toolchain.cupy()
    if isinstance(x, cupy.ndarray):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(expected(where, argument, "be an array that exports DLPack", type(x).__name__))
    kind, _ = x.__dlpack_device__()
    # kDLCUDA and kDLCUDAManaged in the DLPack standard.
    if int(kind) not in (2, 13):
        words = expected(where, argument, "be in the memory of a CUDA GPU", "an array in host memory")
        raise ValueError(f"{words}. On a CPU, kernels run within `with cupyops.simulate():`")
    return cupy.from_dlpack(x)


def on_any_arrays(*names: str) -> Callable[[Function], Function]:
    """Returns a decorator that converts array arguments with :func:`as_cupy` before it calls the function.

    Args:
        names: parameters that are arrays. An array with a question mark, ``"bias?"``, may be None.
    """

    def decorate(function: Function) -> Function:
        where = function.__name__
        code = function.__code__
        positions = {name: i for i, name in enumerate(code.co_varnames[: code.co_argcount])}
        # A keyword-only parameter gets an index beyond every positional argument.
        arrays = [
            (positions.get(name.rstrip("?"), sys.maxsize), name.rstrip("?"), name.endswith("?")) for name in names
        ]

        @functools.wraps(function)
        def converted(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            for i, name, optional in arrays:
                found: Any = given if i < len(given) else kwargs
                key: Any = i if i < len(given) else name
                if (found is given or name in found) and not (optional and found[key] is None):
                    found[key] = as_cupy(found[key], where, name)
            return function(*given, **kwargs)

        return cast(Function, converted)

    return decorate


def check_devices(where: str, /, **arrays: Array) -> None:
    """Raises unless all arrays are on the device of the first array.

    The message is the message of a launch. An array that is None is skipped.

    Raises:
        ValueError: an array is on another device than the first array.
    """
    (first, lead), *others = ((name, library_of(x).info(x)) for name, x in arrays.items() if x is not None)
    for name, info in others:
        if (info.place, info.device) != (lead.place, lead.device):
            raise ValueError(expected(where, name, f"be on the device of `{first}` ({lead})", info))


def is_contiguous(info: Info) -> bool:
    """Returns whether the elements lie in C order without gaps. An array without elements is contiguous."""
    if info.size == 0:
        return True
    step = 1
    for size, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether two indices of an array have one element of memory, as in an expanded view.

    A stride that is a multiple of another stride reaches an element that the steps of the other stride reach.
    """
    if 0 in shape:
        return False
    steps = [(n, abs(s)) for n, s in zip(shape, strides, strict=True) if n > 1]
    return any(not s for _, s in steps) or any(
        a != b and s % t == 0 and s // t < n for a, (_, s) in enumerate(steps) for b, (n, t) in enumerate(steps)
    )


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether a layout fills its memory without gaps or overlaps, in any order of dimensions.

    A layout without elements is dense.
    """
    if 0 in shape:
        return True
    step = 1
    for stride, size in sorted((st, sz) for sz, st in zip(shape, strides, strict=True) if sz != 1):
        if stride != step:
            return False
        step *= size
    return True


def dense(x: Array) -> Array:
    """Returns the array if its memory is dense in any order of dimensions, else a contiguous copy.

    Elementwise kernels take dense arrays.
    """
    library = library_of(x)
    if library.is_contiguous(x) or is_dense(x.shape, library.strides(x)):
        return x
    return library.contiguous(x)
