"""The arrays that kernels run on: what a launch has to know of one, for each array library.

CuPy's arrays are known here. Other libraries register themselves (:func:`register`), PyTorch's tensors at the first tensor
(:func:`register_finder`). What runs kernels on arrays in host memory registers itself, too (:func:`register_host`). Any
other array comes in by DLPack, :func:`as_cupy`.
"""

import functools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    "host",
    "is_contiguous",
    "is_dense",
    "library_of",
    "on_any_arrays",
    "register",
    "register_finder",
    "register_host",
]

Array = Any
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Info:
    """One array, as a launch sees it.

    Attributes:
        dtype: name.
        shape, strides: in elements.
        size: number of elements.
        place: ``"cuda"``, or another kind of device.
        device: index of the GPU; None in other places.
        pointer: address of the first element; 0 for a fake.
        fake: an array without memory, whose launches do nothing.
        negated: its memory holds the negated values (PyTorch's negative bit).
        read_only: it must not be written to.
        recorded: autograd records what is written to it, and cannot see what a kernel writes.
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
    """What an operator's body and a launch ask of the library an array belongs to."""

    name: str

    # Positional, since the functions of a library are used as they are and name their arguments as they like.
    def empty_like(self, x: Array, /) -> Array: ...  # same shape, dtype, device; same layout where it is dense
    def empty(self, shape: Sequence[int], dtype: str, like: Array, /) -> Array: ...  # on the device of like; contiguous
    def size(self, x: Array, /) -> int: ...
    def is_contiguous(self, x: Array, /) -> bool: ...
    def contiguous(self, x: Array, /) -> Array: ...
    def dtype_name(self, x: Array, /) -> str: ...
    def result_type(self, a: Array, b: Array, /) -> str: ...
    def strides(self, x: Array, /) -> tuple[int, ...]: ...  # in elements
    def linear(self, x: Array, weight: Array, bias: Array, /) -> Array: ...  # x·weightᵀ + bias, which may be None
    def matmul(self, a: Array, b: Array, /) -> Array: ...  # of two matrices
    def is_host_scalar(self, x: Array, /) -> bool: ...  # a number in host memory, that a kernel can be given by value
    def host_number(self, x: Array, dtype: str, /) -> Array: ...  # such a number, converted as the library would
    def is_fake(self, x: Array, /) -> bool: ...  # an array without memory, on which launches do nothing
    def device_index(self, x: Array, /) -> int | None: ...  # index of the GPU; in host memory what the library calls it
    def in_host_memory(self, x: Array, /) -> bool: ...
    def address(self, x: Array, /) -> int: ...  # of the first element
    def info(self, x: Array, /) -> Info: ...
    def written(self, arrays: Sequence[Array], /) -> None: ...  # a launch writes into these
    def stream(self, device: int, /) -> int: ...  # the current stream of a device, as the driver's handle
    def device(self, device: int, /) -> AbstractContextManager[Any]: ...  # makes a device current
    def matmul_into(self, a: Array, b: Array, out: Array, /) -> None: ...  # out = a·b; out may be a slice of columns
    def add_product(self, c: Array, a: Array, b: Array, /) -> Any: ...  # c += a·b
    def copy(self, x: Array, /) -> Array: ...
    def tf32(self) -> bool: ...  # whether products in float32 may keep 10 bits of the operands


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
                # cuBLAS is asked for what CuPy has a name for, which is not this.
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

    def tf32(self) -> bool:
        # As CuPy reads it; its other switch is no public one.
        return os.environ.get("CUPY_TF32") == "1"


class _Libraries(dict[type, ArrayLibrary]):
    """Library by exact type; a subclass is looked up once."""

    def __missing__(self, kind: type) -> ArrayLibrary:
        for base in kind.__mro__[1:]:
            if base in self:
                self[kind] = self[base]
                return self[kind]
        cupy = sys.modules.get("cupy")
        if cupy is not None and issubclass(kind, getattr(cupy, "ndarray", ())):
            self[kind] = CupyLibrary()
            return self[kind]
        for find in _FINDERS:
            if (library := find(kind)) is not None:
                return library  # not kept: it may hold for a while only
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not an array that kernels run on")


LIBRARIES = _Libraries()
_FINDERS: list[Callable[[type], ArrayLibrary | None]] = []
_HOSTS: list["Host"] = []


def register(kind: type, library: ArrayLibrary) -> None:
    """Makes arrays of a type known to launches and bodies."""
    LIBRARIES[kind] = library


def register_finder(find: Callable[[type], ArrayLibrary | None]) -> None:
    """Has a function asked for the library of each type of arrays that is not known; it returns None for those that it does
    not know either."""
    _FINDERS.append(find)


class Host(ABC):
    """What runs kernels on arrays in host memory, in place of a GPU.

    Attributes:
        capability: the compute capability that it stands for.
        multiprocessors: how many it stands for.
    """

    capability: int
    multiprocessors: int

    @abstractmethod
    def enabled(self) -> bool:
        """Whether arrays in host memory run kernels now."""

    @abstractmethod
    def array(self, x: Any) -> Array | None:
        """An array in host memory as the host's own kind, while it is enabled; None for another array."""

    @abstractmethod
    def launch(self, kernel: Any, arguments: Any, sizes: Sequence[int]) -> None:
        """Runs a kernel on arguments that have been checked, on a grid for these sizes."""

    @abstractmethod
    def resident_blocks(self, kernel: Any) -> int:
        """How many blocks of a kernel run at once."""


Device = int | Host
"""What runs kernels: a GPU by its index, or what stands in for one on arrays in host memory."""


def register_host(runs: Host) -> None:
    """Makes known what runs kernels on arrays in host memory."""
    _HOSTS.append(runs)


def host() -> Host:
    """What runs kernels on arrays in host memory."""
    return _HOSTS[-1]


def device_of(library: ArrayLibrary, x: Array) -> Device:
    """What runs kernels on an array."""
    return host() if library.in_host_memory(x) else library.device_index(x)  # type: ignore[return-value]


def library_of(x: Array) -> ArrayLibrary:
    """The library that an array belongs to.

    Raises:
        TypeError: it belongs to none that is known.
    """
    return LIBRARIES[type(x)]


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of a name; bfloat16 comes from the package ml_dtypes.

    Raises:
        MissingDependencyError: ml_dtypes is missing.
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
    """The same memory as a CuPy array: CuPy's own as they are, others through DLPack. While kernels are simulated, an
    array in host memory stays there, as NumPy's.

    Raises:
        TypeError: it does not export DLPack.
        ValueError: it is not in GPU memory.
        MissingDependencyError: CuPy is missing.
    """
    if (in_host_memory := host().array(x)) is not None:
        return in_host_memory
    cupy = toolchain.cupy()
    if isinstance(x, cupy.ndarray):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(expected(where, argument, "be an array that exports DLPack", type(x).__name__))
    kind, _ = x.__dlpack_device__()
    # kDLCUDA and kDLCUDAManaged of the DLPack standard
    if int(kind) not in (2, 13):
        raise ValueError(expected(where, argument, "be in the memory of a CUDA GPU", "an array in host memory"))
    return cupy.from_dlpack(x)


def on_any_arrays(*names: str) -> Callable[[Function], Function]:
    """Decorator of a function of CuPy arrays, which may then be any that :func:`as_cupy` takes.

    Args:
        names: parameters that are arrays; ``"bias?"`` may be None.
    """

    def decorate(function: Function) -> Function:
        where = function.__name__
        code = function.__code__
        positions = {name: i for i, name in enumerate(code.co_varnames[: code.co_argcount])}
        # What can be given by name alone lies behind every position.
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


def check_devices(where: str, **arrays: Array) -> None:
    """Refuses arrays that are not on the device of the first, in the words of a launch; None is left out.

    Raises:
        ValueError: so it is.
    """
    (first, lead), *others = ((name, library_of(x).info(x)) for name, x in arrays.items() if x is not None)
    for name, info in others:
        if (info.place, info.device) != (lead.place, lead.device):
            raise ValueError(expected(where, name, f"be on the device of `{first}` ({lead})", info))


def is_contiguous(info: Info) -> bool:
    """Whether the elements lie in C order without holes; without elements they do."""
    if info.size == 0:
        return True
    step = 1
    for size, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a layout fills its memory without holes or overlaps, in whatever order of dimensions; without elements it
    does."""
    if 0 in shape:
        return True
    step = 1
    for stride, size in sorted((st, sz) for sz, st in zip(shape, strides, strict=True) if sz != 1):
        if stride != step:
            return False
        step *= size
    return True


def dense(x: Array) -> Array:
    """The array itself where its memory is dense in any order of dimensions, else a contiguous copy: what elementwise
    kernels take."""
    library = library_of(x)
    if library.is_contiguous(x) or is_dense(x.shape, library.strides(x)):
        return x
    return library.contiguous(x)
