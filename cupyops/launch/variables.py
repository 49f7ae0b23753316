"""``__device__`` and ``__constant__`` variables of a text, read and set from Python.

A variable is part of loaded code. Each :class:`.kernel.Kernel` loads code of its own for each choice of dtypes, each GPU
and each mode of the simulator; the kernels of a :class:`.module.Module` share their code. A value that Python sets goes
to all code that is loaded, and to code that is loaded later.
"""

import ctypes
import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cupyops.arrays import host, in_use, numpy_dtype
from cupyops.compile import toolchain
from cupyops.compile.cache import Binary
from cupyops.compile.file_scope import DeviceVariable, variables
from cupyops.compile.linking import parts
from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError, expected, nearest
from cupyops.sharing import once

from . import driver
from .current import capturing, current_gpu
from .typenames import dtype_of, library_type

__all__ = ["GpuCode", "LoadedCode", "Storage", "Variables"]


class LoadedCode(ABC):
    """Compiled code that is loaded, with the variables of its text.

    Attributes:
        what: the kernel and its dtypes, for messages.
        variables: the text's device variables.
    """

    def __init__(self, kernel: Any, types: Mapping[str, str], text: str) -> None:
        self.what = kernel.describe(types).removesuffix("<>")
        self.variables = variables(parts(text)[0])
        self._types, self._constants, self._structs = types, kernel.constants, kernel.signature.structs

    @abstractmethod
    def locate(self, variable: DeviceVariable) -> tuple[int, int] | None:
        """Returns the address and the bytes of a variable, or None if the code does not have it."""

    @abstractmethod
    def load(self, address: int, size: int, stream: Any) -> bytes:
        """Returns the bytes at an address."""

    @abstractmethod
    def store(self, address: int, data: bytes, stream: Any) -> None:
        """Writes bytes to an address."""

    def read(self, name: str, stream: Any = None) -> Any:
        """Returns a variable as a NumPy array."""
        import numpy

        dtype, shape, address, size = self._layout(name)
        return numpy.frombuffer(bytearray(self.load(address, size, stream)), dtype).reshape(shape)

    def write(self, name: str, value: Any, stream: Any = None) -> None:
        """Sets a variable.

        Raises:
            TypeError: the value has another dtype.
            ValueError: the value has another shape, or a number is out of range.
        """
        dtype, shape, address, _ = self._layout(name)
        self.store(address, _converted(f"{self.what}.variables", name, value, dtype, shape).tobytes(), stream)

    def _layout(self, name: str) -> tuple[Any, tuple[int, ...], int, int]:
        """Returns the dtype, the shape, the address and the bytes of a variable. A type that is not known is bytes."""
        import numpy

        variable = self.variables[name]
        found = self.locate(variable)
        if found is None:
            raise LaunchError(
                f"{self.what}: the compiled code has no variable `{name}`: declare it in this text, without static"
            )
        address, size = found
        dtype, tail = self._dtype(variable)
        one = dtype.itemsize * math.prod(tail) if dtype is not None else 0
        if dtype is None or size % one:
            return numpy.dtype("uint8"), (size,), address, size
        numbers = [self._number(expression) for expression in variable.sizes]
        shape = tuple(n for n in numbers if n is not None)
        if len(shape) != len(numbers) or math.prod(shape) != size // one:
            shape = (size // one,)
        return dtype, (*shape, *tail), address, size

    def _dtype(self, variable: DeviceVariable) -> tuple[Any, tuple[int, ...]]:
        """Returns the NumPy dtype of an element, or None, and the dimension of a vector."""
        import numpy

        if variable.pointer:
            return numpy.dtype("uint64"), ()
        struct = self._structs.get(variable.type)
        if struct is not None and struct.record is not None:
            return struct.record, ()
        if (vector := struct or library_type(variable.type)) and not vector.handle:
            return numpy_dtype(vector.dtype), (vector.width,)
        decided = self._types.get("scalar_t" if variable.type == "acc_t" else variable.type)
        name = DTYPES[decided].acc if decided and variable.type == "acc_t" else decided or dtype_of(variable.type)
        return (numpy_dtype(name) if name else None), ()

    def _number(self, expression: str) -> int | None:
        if re.fullmatch(r"0[xX][0-9a-fA-F]+|[1-9][0-9]*", expression):
            return int(expression, 0)
        return self._constants.get(expression)


def _converted(where: str, name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Returns a value as an array of a dtype and a shape. Only numbers and lists are converted.

    Raises:
        TypeError: the value has another dtype, or lies on a GPU.
        ValueError: the value has another shape, or a number is out of range.
    """
    import numpy

    try:
        given = numpy.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(value).__name__} ({error})"
        raise TypeError(expected(where, name, f"be numbers or an array of {dtype} in host memory", got)) from None
    if given.dtype != dtype:
        floating = str(dtype).startswith(("float", "bfloat"))
        whole = given.dtype.kind in "biu" and (floating or dtype.kind in "biu")
        if hasattr(value, "dtype") or not (whole or (given.dtype.kind == "f" and floating)):
            raise TypeError(expected(where, name, f"have dtype {dtype}", given.dtype))
        converted = given.astype(dtype)
        if not floating and not (converted == given).all():
            raise ValueError(expected(where, name, f"fit {dtype}", repr(value)))
        given = converted
    if given.shape != shape:
        raise ValueError(expected(where, name, f"have shape {shape}", given.shape))
    return given


class GpuCode(LoadedCode):
    """A CUDA module on a GPU. The GPU is current when the object is made."""

    def __init__(self, kernel: Any, types: Mapping[str, str], text: str, binary: Binary, device: int) -> None:
        super().__init__(kernel, types, text)
        self.device = device
        driver.ensure_context()
        self.module = toolchain.cupy().cuda.function.Module()
        self.module.load(binary.code)

    def locate(self, variable: DeviceVariable) -> tuple[int, int] | None:
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        status = driver.libcuda().cuModuleGetGlobal_v2(
            ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(self.module.ptr), variable.symbol.encode()
        )
        return None if status else (int(address.value or 0), size.value)

    def load(self, address: int, size: int, stream: Any) -> bytes:
        memory = ctypes.create_string_buffer(size)
        self._copy(ctypes.addressof(memory), address, size, stream, "memcpyDeviceToHost")
        return memory.raw

    def store(self, address: int, data: bytes, stream: Any) -> None:
        memory = ctypes.create_string_buffer(data, len(data))
        self._copy(address, ctypes.addressof(memory), len(data), stream, "memcpyHostToDevice")

    def _copy(self, to: int, source: int, size: int, stream: Any, kind: str) -> None:
        """Copies after the work of the stream, or after all work of the GPU, and waits for the copy."""
        cuda = toolchain.cupy().cuda
        with cuda.Device(self.device):
            if stream is None:
                cuda.runtime.deviceSynchronize()
                cuda.runtime.memcpy(to, source, size, getattr(cuda.runtime, kind))
                cuda.runtime.deviceSynchronize()
                return
            handle = int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
            cuda.runtime.memcpyAsync(to, source, size, getattr(cuda.runtime, kind), handle)
            cuda.runtime.streamSynchronize(handle)


class Storage:
    """The loaded code of one kernel, or of the kernels of one module, and the values that Python has set.

    `kernels` has the names of a module's kernels; it is empty for one kernel. `members` has the kernels by name.
    """

    def __init__(self, kernels: tuple[str, ...] = ()) -> None:
        self.kernels = kernels
        self.given: dict[str, Any] = {}
        self.members: dict[str, Any] = {}
        self._loaded: dict[tuple[Any, ...], LoadedCode] = {}

    def code(self, key: tuple[Any, ...], make: Callable[[], LoadedCode]) -> Any:
        """Returns the code of a key. The first call loads the code and sets its variables."""

        def loaded() -> LoadedCode:
            if key not in self._loaded:
                code = make()
                for name, value in self.given.items():
                    if name in code.variables:
                        code.write(name, value)
                self._loaded[key] = code
            return self._loaded[key]

        return self._loaded.get(key) or once((id(self), *key), loaded)

    def on_gpu(self, kernel: Any, types: Mapping[str, str], text: str, binary: Binary, device: int) -> GpuCode:
        """Returns the code of a binary on a GPU. The GPU must be current."""
        key = ("cuda", device, hashlib.sha256(binary.code).hexdigest())
        found: GpuCode = self.code(key, lambda: GpuCode(kernel, types, text, binary, device))
        return found

    def everywhere(self) -> list[LoadedCode]:
        """Returns all code that is loaded."""
        return list(self._loaded.values())


class Variables(Mapping[str, Any]):
    """The ``__device__`` and ``__constant__`` variables of a kernel's text, as a mapping of NumPy arrays.

    ``kernel.variables["table"]`` returns a copy of the variable, of the simulator while it is on, else of the current
    GPU. ``kernel.variables["table"] = values`` sets the variable on every GPU and in every mode of the simulator, now and
    when code is loaded later. Both wait for all work of the GPU. :meth:`read` and :meth:`write` take a stream, and wait
    only for this stream.

    Raises:
        KeyError: the text has no such variable.
        TypeError: a value has another dtype than the variable. Numbers and lists are converted.
        ValueError: a value has another shape or is out of range; or the text has several choices of dtypes, and so
            several variables.
        RuntimeError: a CUDA graph is being captured.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, name: str) -> Any:
        return self.read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.write(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared())

    def __len__(self) -> int:
        return len(self._declared())

    def __contains__(self, name: object) -> bool:
        return name in self._declared()

    def __repr__(self) -> str:
        return f"<Variables of {self._kernel.name}: {', '.join(self) or 'none'}>"

    def read(self, name: str, stream: Any = None) -> Any:
        """Returns a copy of a variable.

        Args:
            name: the name in C++, with its namespaces.
            stream: a stream of PyTorch or CuPy, or its handle: the copy follows the work of this stream. By default the
                copy follows all work of the GPU.
        """
        self._check(name)
        return self._code().read(name, stream)

    def write(self, name: str, value: Any, stream: Any = None) -> None:
        """Sets a variable.

        Args:
            name: the name in C++, with its namespaces.
            value: an array of the variable's dtype and shape in host memory, or numbers.
            stream: a stream of PyTorch or CuPy, or its handle, on the current GPU: only the variable of this GPU changes,
                after the work of this stream.
        """
        self._check(name)
        import numpy

        kept = value.numpy().copy() if hasattr(value, "numpy") and not hasattr(value, "get") else value
        kept = numpy.array(kept) if hasattr(kept, "__array_interface__") else kept
        storage = self._kernel.storage
        if stream is not None:
            self._code().write(name, kept, stream)
            return
        choices = list(self._kernel.type_choices())
        codes = [self._code(), *storage.everywhere()] if len(choices) == 1 else storage.everywhere()
        for code in dict.fromkeys(c for c in codes if name in c.variables):
            code.write(name, kept)
        storage.given[name] = kept

    def _declared(self) -> dict[str, DeviceVariable]:
        return variables(parts(self._kernel.final_text(next(iter(self._kernel.type_choices()))))[0])

    def _check(self, name: str) -> None:
        declared = self._declared()
        if name not in declared:
            raise KeyError(
                f"{self._kernel.name}: the text has no __device__ or __constant__ variable {name!r} outside functions and "
                f"conditionals{nearest(name, declared)}; it has {', '.join(declared) or 'none'}"
            )
        devices = {c.device for c in self._kernel.storage.everywhere() if isinstance(c, GpuCode)}
        if devices and capturing(devices, in_use()):
            raise RuntimeError(
                f"{self._kernel.name}: `{name}` cannot be read or set while a CUDA graph is captured, since the copy would "
                f"wait for the GPU. Set it before the capture or between replays: a replay reads the variable"
            )

    def _code(self) -> LoadedCode:
        """Returns the code that a launch would run now."""
        kernel = self._kernel
        choices = list(kernel.type_choices())
        choices = choices if len(choices) == 1 else list(kernel.met.values())
        if len(choices) != 1:
            raise ValueError(
                f"{kernel.name}: each choice of dtypes has variables of its own, and the kernel has run with "
                f"{len(choices)}; declare the kernel with one of dtypes={kernel.dtypes}"
            )
        if host().enabled():
            found: LoadedCode = host().code(kernel, choices[0])
            return found
        return kernel.variant(choices[0], current_gpu(kernel.name)).code
