"""Launches of translated host code: ``kernels["scale<float, 4>"][grid, block, shared, stream](x, y, n)``.

Each block and each number of bytes of shared memory has a :class:`cupyops.Kernel`, which is made at its first launch. The
kernels of a text with ``__device__`` or ``__constant__`` variables share one binary, so that they share the variables.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cupyops.arrays import host
from cupyops.compile.cuda_text import scan
from cupyops.compile.file_scope import variables
from cupyops.dtypes import DTYPES
from cupyops.errors import ExportError, expected
from cupyops.launch import debug, driver, elements, hooks, recording
from cupyops.launch.geometry import MAX_GRID_X, MAX_GRID_YZ, Threads
from cupyops.launch.kernel import Kernel
from cupyops.launch.module import Module
from cupyops.launch.parameter import Parameter
from cupyops.launch.recording import planning

from .memory import DevicePointer, FakeMemory, dtype_of
from .references import Pointer

__all__ = ["Entry", "Kernels", "Variable", "errors", "on_stream", "stream_of"]

INVALID_CONFIGURATION = 9  # cudaErrorInvalidConfiguration


class _Errors(threading.local):
    """CUDA's last error of a thread, which ``cudaGetLastError`` returns and clears."""

    last = 0


errors = _Errors()


class Kernels:
    """The kernels of a text, by their names with the arguments of templates.

    Args:
        text: the device code.
        filename: the name of its file in messages.
        options: options of NVRTC.
        headers: texts by name for ``#include "name"``.
        names: names of instances of templates, ``"scale<float, 4>"``, that are compiled with the other kernels of a text
            with variables. Other instances that are launched have the text compiled again, and the variables keep their
            values.
        own: the texts of kernels and variables whose source keeps names to itself, by name.
        skip_empty: whether a grid without blocks is not a launch. In C++ it is an error, which ``cudaGetLastError`` returns.
    """

    def __init__(
        self,
        text: str,
        filename: str,
        options: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        skip_empty: bool = False,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.text, self.skip_empty = text, skip_empty
        self._given: dict[str, Any] = {"filename": filename, "options": tuple(options), "headers": dict(headers or {})}
        self._names = list(names)
        self._entries: dict[str, Entry] = {}
        self._module: Module | None = None
        self._making = threading.RLock()
        self._has_variables = bool(variables(text))
        self._unset: list[tuple[str, int, bytes]] = []  # written before there is a module
        texts: dict[str, list[str]] = {}
        for name, its_text in (own or {}).items():
            texts.setdefault(its_text, []).append(name)
        self._homes: dict[str, Kernels] = {}
        for its_text, here in texts.items():
            home = Kernels(its_text, names=[n for n in names if n in here], skip_empty=skip_empty, **self._given)
            self._homes.update(dict.fromkeys(here, home))

    def home(self, name: str) -> "Kernels":
        """Returns the kernels of the source that has a kernel or a variable."""
        return self._homes.get(name, self)

    def __getitem__(self, name: str) -> "Entry":
        home = self.home(name)
        return home._entries.get(name) or home._entries.setdefault(name, Entry(home, name))

    def variable(self, name: str) -> "Variable":
        """Returns a ``__device__`` or ``__constant__`` variable of the text."""
        return Variable(self.home(name), name)

    def kernel(self, name: str, block: tuple[int, ...], shared: int, cooperative: bool) -> Kernel:
        """Returns a kernel for a block and bytes of dynamic shared memory."""
        own: dict[str, Any] = {"shared": shared, "cooperative": cooperative, "nullable": True}
        if not self._has_variables:
            return Kernel(self.text, name, Threads(block=block), **own, **self._given)
        with self._making:
            if self._module is None or name not in self._module.names:
                self._grow(name)
            assert self._module is not None
            return self._module.kernel(name, Threads(block=block), **own)

    def module(self) -> Module | None:
        """Returns the module of a text with variables; None while no name of a kernel is known."""
        with self._making:
            if self._module is None:
                self._grow("")
            return self._module

    def _grow(self, name: str) -> None:
        """Makes the module with a further kernel, and hands the variables over."""
        before = self._module
        if before is None:
            own = [f.path for f in scan(self.text).functions if not f.special and f.template is None]
            self._names = list(dict.fromkeys([*own, *self._names]))
        if name and name not in self._names:
            self._names.append(name)
        if not self._names:
            return
        self._module = module = Module(self.text, kernels=self._names, **self._given)
        storage = module.variables._kernel.storage
        if before is not None:
            old = before.variables._kernel.storage
            storage.given.update(old.given)
            if old.everywhere():
                source, target = before.variables._code(), module.variables._code()
                for variable in source.variables.values():
                    there, here = source.locate(variable), target.locate(variable)
                    if there and here:
                        target.store(here[0], source.load(*there, None), None)
            for entry in self._entries.values():
                entry.forget()
        unset, self._unset = self._unset, []
        for variable_name, offset, data in unset:
            self.variable(variable_name).write(data, offset)


class Variable:
    """A ``__device__`` or ``__constant__`` variable: the symbol of ``cudaMemcpyToSymbol``."""

    def __init__(self, kernels: Kernels, name: str) -> None:
        self._kernels, self.name = kernels, name

    def _located(self, module: Module) -> tuple[Any, int, int]:
        code = module.variables._code()
        module.variables._check(self.name)
        found = code.locate(code.variables[self.name])
        if found is None:
            code._layout(self.name)  # raises: the compiled code does not have it
            raise AssertionError
        return code, *found

    @property
    def size(self) -> int:
        """Bytes of the variable."""
        module = self._kernels.module()
        return 0 if module is None else self._located(module)[2]

    def write(self, data: bytes, offset: int = 0, stream: Any = None) -> None:
        """Sets bytes of the variable on the current GPU, or in the simulator, after the work of a stream.

        Raises:
            ValueError: the variable is smaller.
        """
        module = self._kernels.module()
        if module is None:
            self._kernels._unset.append((self.name, offset, data))
            return
        code, address, size = self._located(module)
        if not 0 <= offset <= size - len(data):
            raise ValueError(f"{len(data)} bytes at byte {offset} of the variable {self.name} of {size} bytes")
        code.store(address + offset, data, stream)
        # Code that is loaded later, for another GPU or another mode of the simulator, begins with this value.
        module.variables._kernel.storage.given[self.name] = code.read(self.name)

    def read(self, count: int, offset: int = 0, stream: Any = None) -> bytes:
        """Returns bytes of the variable.

        Raises:
            ValueError: the variable is smaller, or the text has no kernel that could have used it.
        """
        module = self._kernels.module()
        if module is None:
            raise ValueError(f"the variable {self.name} is read before a kernel is known that uses it")
        code, address, size = self._located(module)
        if not 0 <= offset <= size - count:
            raise ValueError(f"{count} bytes at byte {offset} of the variable {self.name} of {size} bytes")
        return code.load(address + offset, count, stream)


class Entry:
    """A kernel as host code names it: ``entry[grid, block, shared, stream](...)`` launches it."""

    def __init__(self, kernels: Kernels, name: str) -> None:
        self._kernels, self.name = kernels, name
        self._bound: dict[tuple[int, ...], _Bound] = {}

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., None]:
        """Returns the launch of a grid and a block, which bytes of shared memory and a stream may follow."""
        further: tuple[Any, ...] = (0, None)
        grid, block, shared, stream = (*configuration, *further[len(configuration) - 2 :])
        stream = getattr(stream, "cuda_stream", stream)  # a stream of PyTorch becomes CUDA's handle
        key = (block.x, block.y, block.z, shared, False)
        bound = self._bound.get(key)
        if bound is None:
            if 0 in key[:3]:
                return _skipped if self._kernels.skip_empty else _refused
            bound = self._bind(key)
        return _Configured(bound, grid, stream)

    def cooperative(self, grid: Any, block: Any, shared: int, stream: Any) -> Callable[..., None]:
        """Returns the launch of a grid whose blocks run at once."""
        stream = getattr(stream, "cuda_stream", stream)
        key = (block.x, block.y, block.z, shared, True)
        return _Configured(self._bound.get(key) or self._bind(key), grid, stream)

    def _bind(self, key: tuple[int, ...]) -> "_Bound":
        kernel = self.kernel(key[:3], key[3], bool(key[4]))
        return self._bound.setdefault(key, _Bound(kernel, self._kernels.skip_empty))

    def kernel(self, block: tuple[int, ...], shared: int, cooperative: bool = False) -> Kernel:
        """Returns the kernel for a block and bytes of dynamic shared memory."""
        return self._kernels.kernel(self.name, block, shared, cooperative)

    @property
    def count(self) -> int:
        """The number of parameters."""
        bound = next(iter(self._bound.values()), None) or self._bind((1, 1, 1, 0, False))
        return len(bound.kernel.signature.parameters)

    def forget(self) -> None:
        self._bound = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"


def _refused(*arguments: Any) -> None:
    """CUDA refuses a grid or block without threads, and the next ``cudaGetLastError`` returns the error."""
    errors.last = INVALID_CONFIGURATION


def _skipped(*arguments: Any) -> None:
    """Stands for the launch of a block without threads that is not an error."""


class _Configured:
    """A launch whose grid and stream are given."""

    __slots__ = ("_bound", "_grid", "_stream")

    def __init__(self, bound: "_Bound", grid: Any, stream: Any) -> None:
        self._bound, self._grid, self._stream = bound, grid, stream

    def __call__(self, *arguments: Any) -> None:
        grid = self._grid
        blocks = (grid.x, grid.y, grid.z)
        if 0 in blocks:
            if not self._bound.skip_empty:
                errors.last = INVALID_CONFIGURATION
            return
        bound = self._bound
        if not bound.variants or not bound.launch(blocks, self._stream, arguments):
            bound.checked(blocks, self._stream, arguments)


class _Bound:
    """A kernel with the conversions of its arguments.

    A checked launch passes tensors to the kernel. It makes the kernel known to :meth:`launch`, which passes addresses to
    the driver: the types are those that the compiler of the host code has checked.

    Attributes:
        variants: the loaded kernels by GPU.
    """

    def __init__(self, kernel: Kernel, skip_empty: bool = False) -> None:
        self.kernel, self.skip_empty = kernel, skip_empty
        self.variants: dict[int, Any] = {}
        self._block = kernel.geometry.threads
        self._makes = [_converter(kernel.name, p) for p in kernel.signature.parameters]
        self._packs = [_packer(kernel.name, p) for p in kernel.signature.parameters]
        self._direct = all(self._packs) and not kernel.signature.bindings
        hooks.on_close(self)

    def checked(self, blocks: tuple[int, int, int], stream: int | None, arguments: tuple[Any, ...]) -> None:
        """Launches by the kernel's checks."""
        if any(map(_is_fake, arguments)):
            if planning():
                raise ExportError(
                    f"{self.kernel.name}: a translated launch takes addresses, which no plan of launches has"
                )
            return
        kernel, block = self.kernel, self._block
        threads = tuple(b * t for b, t in zip(blocks, block, strict=True))
        if len(arguments) == len(self._makes):
            arguments = tuple(make(a) for make, a in zip(self._makes, arguments, strict=True))
        with on_stream(stream):
            kernel.forall(*threads)(*arguments)
        on_gpu = self._direct and not host().enabled() and torch.cuda.is_initialized()
        if on_gpu and not debug.enabled() and not recording.recording():
            device = torch.cuda.current_device()
            self.variants[device] = kernel.variant({}, device)

    def launch(self, blocks: tuple[int, int, int], stream: int | None, arguments: tuple[Any, ...]) -> bool:
        """Launches without checks; returns False if it cannot."""
        device = torch._C._cuda_getDevice()
        variant = self.variants.get(device)
        if variant is None or blocks[1] > MAX_GRID_YZ or blocks[2] > MAX_GRID_YZ or blocks[0] > MAX_GRID_X:
            return False
        try:
            values: list[Any] = []
            for pack, argument in zip(self._packs, arguments, strict=True):
                if pack is _address:
                    if argument is None:
                        values.append(0)
                        continue
                    if argument.memory.tensor.get_device() != device:
                        return False
                    values.append(argument.offset)
                else:
                    pack(values, argument)  # type: ignore[misc]  # there is no launch without all of them
            try:
                buffer = variant.buffers.pop()
            except IndexError:
                buffer = variant.new_buffer()
            variant.pack_into(buffer[0], 0, *values)
            call = driver.launch_cooperative_kernel() if variant.cooperative else driver.launch_kernel()
            handle = torch._C._cuda_getCurrentRawStream(device) if stream is None else stream
            call(variant.function, *blocks, *self._block, variant.shared, handle, buffer[1], 0)
            variant.buffers.append(buffer)
        except Exception:  # the checked launch raises the proper error
            return False
        return True

    def close_generated_launch(self) -> None:
        """Sends the next launch through the checks (:func:`cupyops.launch.hooks.close_generated_launches`)."""
        self.variants = {}


def stream_of(stream: Any) -> torch.cuda.Stream | None:
    """Returns PyTorch's stream of a handle; None for PyTorch's current stream, and where there is no GPU."""
    stream = getattr(stream, "cuda_stream", stream)
    if stream is None or not torch.cuda.is_initialized() or host().enabled():
        return None
    if stream == torch.cuda.current_stream().cuda_stream:
        return None
    return torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """Makes the stream of a handle current within a ``with`` block. None leaves PyTorch's current stream."""
    found = stream_of(stream)
    return nullcontext() if found is None else torch.cuda.stream(found)


# Arguments


def _converter(kernel: str, p: Parameter) -> Callable[[Any], Any]:
    """Returns the conversion of an argument of host code to one of :class:`cupyops.Kernel`."""
    if p.accessor is not None or p.map_of is not None:
        paired = p.accessor is not None and p.accessor.paired
        return lambda value: torch.view_as_real(value) if paired and value.is_complex() else value
    if p.pointer:
        width = p.element.width if p.element is not None else 1

        def tensor(value: Any) -> Any:
            if not isinstance(value, Pointer):
                return value
            return _tensor(kernel, p.name, value, "" if p.untyped and p.type not in DTYPES else p.type, width)

        return tensor
    record = p.element.record if p.element is not None else None

    def plain(value: Any) -> Any:
        value = _plain(value)
        return _with_tensors(kernel, p.name, value, record) if record is not None else value

    return plain if p.element is not None or p.length is not None else lambda value: value


def _is_fake(value: Any) -> bool:
    """Returns whether an argument is a pointer into a fake tensor, or holds one."""
    if isinstance(value, DevicePointer):
        return type(value.memory) is FakeMemory
    value = value.as_argument() if hasattr(value, "as_argument") else value
    return isinstance(value, (tuple, list)) and any(map(_is_fake, value))


def _plain(value: Any) -> Any:
    """Returns a struct, a vector or a complex number as nested tuples."""
    if hasattr(value, "as_argument"):
        return value.as_argument()
    return (value.real, value.imag) if isinstance(value, complex) else value


def _tensor(kernel: str, name: str, pointer: Pointer, dtype: str, width: int = 1) -> torch.Tensor:
    """Returns the memory from a pointer on as a tensor.

    Args:
        kernel, name: the kernel and its parameter, for messages.
        pointer: the pointer.
        dtype: the dtype of the parameter; that of the pointer if the parameter has none of its own.
        width: the last dimension of the tensor.
    """
    if not isinstance(pointer, DevicePointer):
        raise ValueError(expected(kernel, name, "be a pointer to device memory", "one to memory of the host"))
    found = getattr(torch, dtype) if dtype in DTYPES else dtype_of(pointer.kind) or torch.uint8
    try:
        return pointer.memory.flat(pointer.offset, found, None, width)
    except (IndexError, ValueError) as error:
        raise type(error)(expected(kernel, name, "point into its memory", str(error))) from None


def _with_tensors(kernel: str, path: str, value: Any, record: Any) -> Any:
    """Returns the nested tuples of a struct with tensors in place of pointers."""
    if isinstance(value, Pointer):
        pointed, _ = (record.metadata or {}).get("pointer", ("", False))
        return _tensor(kernel, path, value, pointed or "uint8")
    if not isinstance(value, (tuple, list)):
        return value
    if record.names is not None and len(record.names) == len(value):
        fields = [(f"{path}.{n}", v, record.fields[n][0]) for n, v in zip(record.names, value, strict=True)]
        return tuple(_with_tensors(kernel, *field) for field in fields)
    if record.subdtype is not None or isinstance(value, list):  # an array, or one of its rows
        inner = record if record.subdtype is None else record.subdtype[0]
        return [_with_tensors(kernel, path, v, inner) for v in value]
    return value


def _address(values: list[Any], value: Any) -> None:
    """Stands for the address of a pointer in :meth:`_Bound.launch`, which knows the device."""
    raise NotImplementedError


def _packer(kernel: str, p: Parameter) -> Callable[[list[Any], Any], None] | None:
    """Returns what adds an argument to the values for the driver, or None if only a checked launch can pass it."""
    if p.accessor is not None or p.map_of is not None:
        return None
    if p.pointer:
        return _address
    if p.length is not None:
        return lambda values, value: values.extend(_plain(value))
    if p.element is None:
        return lambda values, value: values.append(value)
    if p.element.record is None or elements.takes_arrays(p.element.record):
        return None
    return lambda values, value: values.append(elements.packed(kernel, p, _plain(value)))
