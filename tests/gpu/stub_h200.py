"""A fake H200: tensors in host memory that claim to be on it, and a driver that records launches.

:func:`install` changes PyTorch's and CuPy's functions for the rest of the process, and does so before cupyops is imported:
operators then run the same code as on a GPU, the generated functions included. It therefore needs a process of its own.
No kernel is compiled or run. Fake binaries go into the cache, which must be a folder of this process only. Results of
operators have the right shapes, and unwritten memory.
"""

import ctypes
import json
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

CAPABILITY, MULTIPROCESSORS, NAME = 90, 132, "NVIDIA H200"
L2_CACHE = 60 * 2**20
SHARED_PER_MULTIPROCESSOR, SHARED_PER_BLOCK, RESERVED = 228 * 1024, 227 * 1024, 1024
THREADS_PER_MULTIPROCESSOR, BLOCKS_PER_MULTIPROCESSOR = 2048, 32
STREAM = 7
TENSOR_MAP = 128  # bytes


class Loaded(NamedTuple):
    """A kernel as it was loaded: its text, the options by which NVRTC was to compile it, the function's name, and the limits
    that were raised for it."""

    text: str
    options: tuple[str, ...]
    name: str
    limits: dict[int, int]


class Launch(NamedTuple):
    """What the driver is asked for.

    Attributes:
        arguments: their bytes, one item each, without the bytes between them. An address in a tensor's memory is written as the
            tensor's label and the distance to its beginning.
    """

    kernel: Loaded
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    cooperative: bool
    arguments: tuple[str, ...]


class Product(NamedTuple):
    """A matrix product that an operator asks the library for: each operand's label, distance, dtype, shape and strides."""

    what: str
    arguments: tuple[str, ...]


class Machine:
    """What it was asked for.

    Attributes:
        loaded: kernels, in the order of their first launches.
        events: launches and products, since :meth:`watch` was called.
    """

    def __init__(self) -> None:
        self.loaded: list[Loaded] = []
        self.events: list[Launch | Product] = []
        self._buffers: dict[int, tuple[Any, Sequence[tuple[int, int]]]] = {}
        # Tensors whose address was asked for. They live on while they are watched, so that no other gets their memory, and
        # their label.
        self._kept: list[Any] = []
        self._labels: dict[int, str] = {}  # by the address of a storage

    def watch(self, inputs: Sequence[Any]) -> None:
        """Clears the record, and labels these tensors ``input 0``, ``input 1``; others are labelled in order of use."""
        self.events, self._kept, self._labels = [], list(inputs), {}
        for i, x in enumerate(inputs):
            self._labels.setdefault(x.untyped_storage().data_ptr(), f"input {i}")

    def _place(self, address: int) -> str | None:
        """The label of the memory that an address lies in, and the distance to its beginning; None if it is not an address."""
        for x in self._kept:
            storage = x.untyped_storage()
            start = storage.data_ptr()
            if start <= address < start + max(storage.nbytes(), 1):
                label = self._labels.setdefault(start, f"new {len(self._labels)}")
                return f"{label} + {address - start}"
        return None

    def _bytes(self, content: bytes) -> str:
        words = [content[i : i + 8] for i in range(0, len(content), 8)]
        found = [len(w) == 8 and self._place(int.from_bytes(w, "little")) for w in words]
        return " ".join(place or word.hex() for place, word in zip(found, words, strict=True))

    def _buffer(self, variant: Any) -> Any:
        from cupyops.launch import driver

        packing, fields = variant._packing
        buffer = driver.argument_buffer(packing.size, [offset for offset, _ in fields])
        self._buffers[buffer.addresses] = buffer, fields
        return buffer

    def _load(self, binary: Any, name: str) -> Any:
        code = binary.code if binary.path is None else binary.path.read_bytes()
        text, options = json.loads(code)
        self.loaded.append(Loaded(text, tuple(options), name, {}))
        return SimpleNamespace(ptr=len(self.loaded))

    def _launch(self, function: int, *rest: int, cooperative: bool = False) -> None:
        *geometry, shared, stream, addresses, extra = rest
        assert extra == 0
        buffer, fields = self._buffers[addresses]
        arguments = tuple(self._bytes(buffer.memory.raw[at : at + size]) for at, size in fields)
        kernel, grid, block = self.loaded[function - 1], (*geometry[:3],), (*geometry[3:],)
        self.events.append(Launch(kernel, grid, block, shared, stream, cooperative, arguments))

    def _cooperative(self, function: int, *rest: int) -> None:
        self._launch(function, *rest, cooperative=True)

    def product(self, what: str, *operands: Any) -> None:
        """Writes down a product."""
        self._kept += operands
        about = [f"{self._place(x.data_ptr())} {x.dtype} {tuple(x.shape)} {x.stride()}" for x in operands]
        self.events.append(Product(what, tuple(about)))

    def _limit(self, function: int, attribute: int, value: int) -> None:
        self.loaded[function - 1].limits[attribute] = value

    def _tensor_map(self, memory: Any, kind: Any, rank: Any, address: Any, sizes: Any, *rest: Any) -> int:
        """Records the arguments of cuTensorMapEncodeTiled in place of the bits that only the driver can compute."""
        steps, box, strides, *others = rest
        words = [kind.value, *sizes, *steps, *box, *strides, *(n.value for n in others)]
        content = struct.pack(f"=QI{len(words)}I", address.value, len(words), *words)
        ctypes.memmove(memory, content.ljust(TENSOR_MAP, b"\0"), TENSOR_MAP)
        return 0


def resident(threads: int, shared: int, cluster: int = 1) -> int:
    """Blocks at once, by threads and shared memory; a driver also counts registers, which only a binary has."""
    by_shared = SHARED_PER_MULTIPROCESSOR // (shared + RESERVED) if shared <= SHARED_PER_BLOCK else 0
    blocks = min(THREADS_PER_MULTIPROCESSOR // threads, BLOCKS_PER_MULTIPROCESSOR, by_shared) * MULTIPROCESSORS
    return blocks // cluster * cluster


def _active_clusters(clusters: Any, function: Any, config: Any) -> int:
    # By the layout in cuda.h: CUlaunchConfig is grid, block and shared memory, the stream, attributes and their number.
    at = ctypes.addressof(config._obj)
    *_, threads, _, _, shared = (ctypes.c_uint * 7).from_address(at)
    attribute = ctypes.c_void_p.from_address(at + 40).value or 0
    cluster = ctypes.c_uint.from_address(attribute + 8).value
    clusters._obj.value = resident(threads, shared, cluster) // cluster
    return 0


class _Device:
    """:class:`cupy.cuda.Device`."""

    compute_capability = str(CAPABILITY)
    attributes: ClassVar = {"MultiProcessorCount": MULTIPROCESSORS, "L2CacheSize": L2_CACHE}

    def __init__(self, device: int = 0) -> None:
        self.id = device

    def __enter__(self) -> "_Device":
        return self

    def __exit__(self, *problem: object) -> None:
        pass


def _compile_text(text: str, what: str, target: str, options: Sequence[str]) -> Any:
    """NVRTC, which gives back what it was to compile, and by which options."""
    from cupyops.compile.cache import Binary

    return Binary(json.dumps([text, options]).encode(), "", {}, 0)


def _cupy(machine: Machine) -> Any:
    driver = SimpleNamespace(
        funcSetAttribute=machine._limit,
        funcGetAttribute=lambda attribute, function: 0,  # no thread has local memory
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: (
            resident(threads, shared) // MULTIPROCESSORS
        ),
    )
    runtime = SimpleNamespace(
        getDeviceProperties=lambda device: {"name": NAME}, streamIsCapturing=lambda stream: False, getDevice=lambda: 0
    )
    return SimpleNamespace(cuda=SimpleNamespace(Device=_Device, driver=driver, runtime=runtime))


def install() -> Machine:
    """Puts the machine where PyTorch and CuPy look for theirs. cupyops must not have been imported."""
    import torch

    machine = Machine()
    # A tensor without dimensions that has been marked stays in host memory, as a number by value does.
    here = "on_host"
    for name, there, otherwise in (("is_cuda", True, False), ("is_cpu", False, True)):
        setattr(torch.Tensor, name, property(lambda x, a=there, b=otherwise: b if hasattr(x, here) else a))
    torch.Tensor.device = property(lambda x: torch.device("cpu" if hasattr(x, here) else "cuda:0"))  # type: ignore[assignment,method-assign]
    torch.Tensor.get_device = lambda x: -1 if hasattr(x, here) else 0  # type: ignore[assignment,method-assign]
    torch._C._cuda_getCurrentRawStream = lambda device: STREAM  # type: ignore[attr-defined]
    torch._C._cuda_getDevice = lambda: 0  # type: ignore[attr-defined]
    address = torch.Tensor.data_ptr

    def asked(x: Any) -> int:
        machine._kept.append(x)
        return address(x)

    torch.Tensor.data_ptr = asked  # type: ignore[assignment,method-assign]
    for name in ("arange", "empty", "empty_strided", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, _in_host_memory(getattr(torch, name)))
    to = torch.Tensor.to
    torch.Tensor.to = lambda x, *args, device=None, **options: to(x, *args, **options)  # type: ignore[assignment,method-assign]
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: True
    torch.cuda.device = _Device  # type: ignore[assignment,misc]
    torch.version.cuda = None  # the fastest allocation of a CUDA build needs a driver

    import cupyops.torch  # noqa: F401  makes tensors known
    from cupyops import arrays
    from cupyops.compile import compiler, toolchain
    from cupyops.launch import driver
    from cupyops.launch.load import Variant

    compiler.compile_text = _compile_text
    cupy = _cupy(machine)
    toolchain.cupy = lambda: cupy
    Variant.new_buffer = lambda variant: machine._buffer(variant)  # type: ignore[method-assign]
    driver.load = machine._load
    driver.launch_kernel = lambda: machine._launch
    driver.launch_cooperative_kernel = lambda: machine._cooperative
    libcuda = SimpleNamespace(cuTensorMapEncodeTiled=machine._tensor_map, cuOccupancyMaxActiveClusters=_active_clusters)
    driver.libcuda = lambda: libcuda
    _library(machine, arrays.library_of(torch.empty(())))
    return machine


def _in_host_memory(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, device: Any = None, **options: Any) -> Any:
        return make(*args, **options)

    return made


def _library(machine: Machine, library: Any) -> None:
    """Products are written down, not made; where a tensor lies is asked of what :func:`install` has changed."""

    def made(what: str, shape: tuple[int, ...], *operands: Any) -> Any:
        out = operands[0].new_empty(shape)
        machine.product(what, *operands, out)
        return out

    library.in_host_memory = lambda x: x.is_cpu  # it asks PyTorch's own type
    library.linear = lambda x, weight, bias=None: made(
        "linear", (*x.shape[:-1], weight.shape[0]), x, weight, *(() if bias is None else (bias,))
    )
    library.matmul = lambda a, b: made("matmul", (a.shape[0], b.shape[1]), a, b)
    library.matmul_into = lambda a, b, out: machine.product("matmul_into", a, b, out)
    library.add_product = lambda c, a, b: machine.product("add_product", c, a, b)
