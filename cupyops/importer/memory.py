"""Memory of tensors and of ``cudaMalloc``, as bytes with typed pointers; and the bytes of host values.

A pointer into device memory has an address, and its casts keep the address. The memory is a tensor's storage: on a GPU,
or in the memory of this process while :func:`cupyops.simulate` is on.

A type is what :class:`.references.Pointer` has as its `kind`. The Python class of a struct has ``fields``: the name and the
type of each member, and optionally its offset in bytes; and optionally ``size`` and ``alignment`` in bytes.
"""

import ctypes
import struct
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from cupyops.arrays import host
from cupyops.launch import hooks

from .errors import NotTranslated
from .numbers import NUMBERS, Number
from .references import Pointer

__all__ = [
    "KINDS",
    "DeviceMemory",
    "DevicePointer",
    "FakeMemory",
    "allocate",
    "copy",
    "current_device",
    "dtype_of",
    "fill",
    "host_bytes",
    "known",
    "pack",
    "pointer_to",
    "sizeof",
    "unpack",
]

# Types by their C++ spellings. The words of CUDA add its vectors.
KINDS: dict[str, Any] = {n.spelling: n for n in NUMBERS.values()} | {
    "char": NUMBERS["int8"],
    "unsigned int": NUMBERS["uint32"],
    "long long": NUMBERS["int64"],
    "unsigned long long": NUMBERS["uint64"],
}
_CODES = {"bool_": "?", "float16": "e", "float32": "f", "float64": "d"}
for _size, _code in zip((8, 16, 32, 64), "bhiq", strict=True):
    _CODES |= {f"int{_size}": _code, f"uint{_size}": _code.upper()}
_C_TYPES: dict[str, Any] = {"bool_": ctypes.c_bool, "float32": ctypes.c_float, "float64": ctypes.c_double}
_C_TYPES |= {name: getattr(ctypes, f"c_{name}") for name in _CODES if "int" in name}
_ARRAYS = ("[]", "std::array")  # ("[]", float32, 3)


# Types


def known(kind: Any) -> Any:
    """Returns a type with the object for its C++ spelling; None for ``void``."""
    if isinstance(kind, str):
        kind = kind.removeprefix("const ").removeprefix("struct ")
        return None if kind == "void" else KINDS.get(kind, kind)
    return kind


def sizeof(kind: Any) -> int:
    """Returns the bytes of a type, 1 for ``void``."""
    kind = known(kind)
    if kind is None:
        return 1
    if isinstance(kind, tuple):
        if kind[0] == "*":
            return 8
        if kind[0] in _ARRAYS:
            return int(kind[2]) * sizeof(kind[1])
        if kind[0].endswith("complex"):
            return 2 * sizeof(kind[1])
    elif isinstance(kind, Number):
        return kind.size
    elif hasattr(kind, "fields"):
        return layout(kind).size
    raise NotTranslated(f"the bytes of {kind}")


class Layout(NamedTuple):
    """Where the members of a struct are: their names, types and offsets in bytes; with its size and alignment."""

    members: tuple[tuple[str, Any, int], ...]
    size: int
    alignment: int


@cache
def layout(kind: Any) -> Layout:
    """Returns the layout of a struct, which is the compiler's unless members have alignments of their own."""
    members, end, alignment = [], 0, getattr(kind, "alignment", 1)
    for name, of, *given in kind.fields:
        aligned = alignment_of(of)
        start = given[0] if given else -(-end // aligned) * aligned
        members.append((name, of, start))
        end, alignment = start + sizeof(of), max(alignment, aligned)
    return Layout(tuple(members), getattr(kind, "size", max(1, -(-end // alignment)) * alignment), alignment)


def alignment_of(kind: Any) -> int:
    """Returns the alignment of a type in bytes."""
    kind = known(kind)
    if isinstance(kind, tuple) and kind[0] in _ARRAYS:
        return alignment_of(kind[1])
    if isinstance(kind, tuple) and kind[0] == "std::complex":
        return alignment_of(kind[1])
    return layout(kind).alignment if hasattr(kind, "fields") else sizeof(kind)


def dtype_of(kind: Any) -> torch.dtype | None:
    """Returns the dtype of a type of numbers or of complex numbers, or None."""
    kind = known(kind)
    if isinstance(kind, tuple) and kind[0].endswith("complex"):
        return {"float32": torch.complex64, "float64": torch.complex128}.get(repr(kind[1]))
    return kind.dtype if isinstance(kind, Number) else None


def pack(kind: Any, values: Iterable[Any]) -> bytes:
    """Returns the bytes of values of one type."""
    kind = known(kind)
    if isinstance(kind, Number):
        listed = list(values)
        if code := _CODES.get(kind.name):
            return struct.pack(f"={len(listed)}{code}", *listed)
        return torch.tensor(listed, dtype=kind.dtype).view(torch.uint8).numpy().tobytes()
    if isinstance(kind, tuple):
        if kind[0] == "*":
            return struct.pack(f"={len(listed := [_address(v) for v in values])}Q", *listed)
        if kind[0] in _ARRAYS:
            return b"".join(pack(kind[1], value) for value in values)
        if kind[0].endswith("complex"):
            return pack(kind[1], (part for value in values for part in (value.real, value.imag)))
    elif hasattr(kind, "fields"):
        return b"".join(_packed(kind, value) for value in values)
    raise NotTranslated(f"the bytes of {kind}")


def _packed(kind: Any, value: Any) -> bytes:
    found = bytearray(sizeof(kind))
    for name, of, offset in layout(kind).members:
        data = pack(of, [getattr(value, name)])
        found[offset : offset + len(data)] = data
    return bytes(found)


def _address(pointer: Any) -> int:
    if pointer is None:
        return 0
    if not isinstance(pointer, DevicePointer):
        raise NotTranslated("the address of host memory")
    return pointer.address()


def unpack(kind: Any, data: bytes) -> list[Any]:
    """Returns the values of one type whose bytes are given."""
    kind = known(kind)
    size = sizeof(kind)
    if len(data) % size or kind is None:
        raise NotTranslated(f"{len(data)} bytes as values of {kind or 'void'}, which has {size} bytes")
    if isinstance(kind, Number):
        if code := _CODES.get(kind.name):
            return list(struct.unpack(f"={len(data) // size}{code}", data))
        assert kind.dtype is not None
        return torch.frombuffer(bytearray(data), dtype=kind.dtype).tolist() if data else []
    parts = (data[at : at + size] for at in range(0, len(data), size))
    if isinstance(kind, tuple) and kind[0] in _ARRAYS:
        from .containers import Vector  # late: its words are declared after those of CUDA

        return [Vector(unpack(kind[1], part)) for part in parts]
    if isinstance(kind, tuple) and kind[0] == "*" and not any(data):
        return [None] * (len(data) // size)
    if isinstance(kind, tuple) and kind[0].endswith("complex"):
        return [complex(*unpack(kind[1], part)) for part in parts]
    if hasattr(kind, "fields"):
        return [_unpacked(kind, part) for part in parts]
    raise NotTranslated(f"values of {kind} from bytes")


def _unpacked(kind: Any, data: bytes) -> Any:
    made = kind()
    for name, of, offset in layout(kind).members:
        setattr(made, name, unpack(of, data[offset : offset + sizeof(of)])[0])
    return made


# Device memory


class DeviceMemory:
    """The memory of a tensor's storage.

    Attributes:
        tensor: a tensor of this storage, which keeps it.
        hidden: host code cannot read the memory, as that of ``cudaMalloc``.
        owned: the memory is that of an allocation by the runtime, which may be freed.
    """

    __slots__ = ("_base", "_storage", "hidden", "owned", "tensor")

    def __init__(self, tensor: torch.Tensor, hidden: bool = False, owned: bool = False) -> None:
        self.tensor, self.hidden, self.owned = tensor, hidden, owned
        self._storage: Any = None  # found at its first use: a launch on a GPU needs only the address

    @property
    def storage(self) -> torch.UntypedStorage:
        if self._storage is None:
            self._storage = self.tensor.untyped_storage()
            self._base = self._storage.data_ptr()
        found: torch.UntypedStorage = self._storage
        return found

    def flat(self, address: int, dtype: torch.dtype, count: int | None = None, width: int = 1) -> torch.Tensor:
        """Returns the memory from an address on as a vector.

        Args:
            address: the address of the first element.
            dtype: the dtype of the elements.
            count: the number of elements; by default all up to the end of the memory.
            width: the last dimension of the result, unless it is 1.

        Raises:
            IndexError: the address or the end lies outside the memory.
            ValueError: the address is not aligned.
        """
        storage = self.storage
        start, size = address - self._base, dtype.itemsize
        left = storage.nbytes() - start
        if start < 0 or left < (count or 0) * size:
            raise IndexError(f"{(count or 0) * size} bytes at byte {start} of memory of {storage.nbytes()}")
        if start % size:
            raise ValueError(f"a pointer to {dtype} at byte {start} of its memory, which is not a multiple of {size}")
        count = max(left, 0) // (size * width) * width if count is None else count
        shape, strides = ((count,), (1,)) if width == 1 else ((count // width, width), (width, 1))
        return torch.empty(0, dtype=dtype, device=self.tensor.device).set_(storage, start // size, shape, strides)

    def bytes_at(self, address: int, count: int) -> torch.Tensor:
        return self.flat(address, torch.uint8, count)

    def check_host(self) -> None:
        if self.hidden or not self.tensor.is_cpu:
            raise RuntimeError("host code reads or writes device memory, which it cannot: copy it by cudaMemcpy")


class FakeMemory(DeviceMemory):
    """The memory of a fake tensor, which is none: copies to it and launches on it do nothing. Its `tensor` is None."""

    __slots__ = ("device",)

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.device = tensor.device

    def flat(self, address: int, dtype: torch.dtype, count: int | None = None, width: int = 1) -> torch.Tensor:
        """Returns a fake vector."""
        return torch.empty((count or 0,), dtype=dtype, device=self.device)

    def check_host(self) -> None:
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)


class DevicePointer(Pointer):
    """A pointer into :class:`DeviceMemory`. `offset` is its address, in bytes; `element` the type before a cast to void."""

    __slots__ = ()

    def __init__(self, memory: DeviceMemory, offset: int, kind: Any = None, element: Any = None) -> None:
        self.memory, self.offset, self.kind = memory, offset, kind
        self.element = kind if kind is not None else element

    @property
    def size(self) -> int:
        """Bytes of the type."""
        return self.kind.size if type(self.kind) is Number else sizeof(self.kind)

    def __add__(self, count: int) -> "DevicePointer":
        return DevicePointer(self.memory, self.offset + count * self.size, self.kind, self.element)

    def __sub__(self, other: Any) -> Any:
        return (self.offset - other.offset) // self.size if isinstance(other, Pointer) else self + -other

    def _view(self, index: int) -> tuple[Any, int]:
        """Returns the host's view of an element, as a list of one element and its index."""
        self.memory.check_host()
        kind, address = known(self.kind), self.offset + index * self.size
        self.memory.bytes_at(address, self.size)  # raises outside the memory
        if isinstance(kind, Number) and (of := _C_TYPES.get(kind.name)):
            return (of * 1).from_address(address), 0
        return _Bytes(kind, address, self.size), 0

    def __getitem__(self, index: int) -> Any:
        view, place = self._view(index)
        return view[place]

    def __setitem__(self, index: int, value: Any) -> None:
        view, place = self._view(index)
        view[place] = value

    def _place(self) -> tuple[int, int]:
        return 0, self.offset

    def cast(self, kind: Any) -> "DevicePointer":
        return DevicePointer(self.memory, self.offset, kind, self.element)

    def address(self) -> int:
        """Returns the address as a number, which may become a value in memory that a kernel reads."""
        storage = self.memory.storage
        hooks.hand_over(self.memory.tensor, storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        return self.offset

    def __repr__(self) -> str:
        return f"<pointer to {self.kind or 'void'} at {self.offset:#x}>"


class _Bytes:
    """One value of a type in the memory of this process."""

    def __init__(self, kind: Any, address: int, size: int) -> None:
        self._kind, self._address, self._size = kind, address, size

    def __getitem__(self, index: int) -> Any:
        return unpack(self._kind, ctypes.string_at(self._address, self._size))[0]

    def __setitem__(self, index: int, value: Any) -> None:
        ctypes.memmove(self._address, pack(self._kind, [value]), self._size)


def pointer_to(tensor: torch.Tensor | None, kind: Any) -> DevicePointer | None:
    """Returns the pointer to the first element of a tensor, or None for a tensor without elements."""
    if tensor is None:
        return None
    if type(tensor) is FakeTensor:
        return DevicePointer(FakeMemory(tensor), 0, kind)
    address = tensor.data_ptr()
    return DevicePointer(DeviceMemory(tensor), address, kind) if address else None


def current_device() -> torch.device:
    """Returns where ``cudaMalloc`` allocates: the current GPU, or the memory of this process in the simulator."""
    return torch.device("cpu" if host().enabled() else "cuda")


def allocate(count: int, kind: Any = None, on_host: bool = False) -> DevicePointer | None:
    """Returns the pointer to new memory of some bytes, or None for 0 bytes."""
    if not count:
        return None
    device = torch.device("cpu") if on_host else current_device()
    memory = torch.empty(count, dtype=torch.uint8, device=device)
    if type(memory) is FakeTensor:
        return DevicePointer(FakeMemory(memory), 0, kind)
    return DevicePointer(DeviceMemory(memory, not on_host, True), memory.data_ptr(), kind)


# Copies


def host_bytes(pointer: Pointer, count: int, kind: Any = None) -> bytes:
    """Returns bytes of memory, on the host or of a tensor, from a pointer on.

    Args:
        pointer: where they are.
        count: how many.
        kind: the type of the elements of host memory, if the pointer has no type.
    """
    if isinstance(pointer, DevicePointer):
        if type(pointer.memory) is FakeMemory:
            pointer.memory.check_host()
        found = pointer.memory.bytes_at(pointer.offset, count).cpu()
        return ctypes.string_at(found.data_ptr(), count)
    kind, places = _places(pointer, count, kind)
    return pack(kind, (pointer.memory[place] for place in places))


def _places(pointer: Pointer, count: int, kind: Any) -> tuple[Any, range]:
    if isinstance(pointer, str) or not isinstance(pointer, Pointer):
        raise NotTranslated(f"a copy of the bytes of {type(pointer).__name__}")
    kind = known(pointer.element) if known(pointer.element) is not None else known(kind)
    if kind is None:
        raise NotTranslated("a copy of host memory whose type is not known")
    size = sizeof(kind)
    if count % size:
        raise NotTranslated(f"a copy of {count} bytes of host memory of {kind}, of {size} bytes each")
    places = range(pointer.offset, pointer.offset + count // size)
    if places and not 0 <= places[0] <= places[-1] < len(pointer.memory):
        raise IndexError(f"elements {places[0]} to {places[-1]} of host memory of {len(pointer.memory)}")
    return kind, places


def copy(to: Pointer, source: Pointer, count: int) -> None:
    """Copies bytes, as ``cudaMemcpy``: between memory of tensors and of the host, in each direction."""
    if not count:
        return
    if isinstance(to, DevicePointer):
        if type(to.memory) is FakeMemory:
            return
        there = to.memory.bytes_at(to.offset, count)
        if isinstance(source, DevicePointer):
            here = source.memory.bytes_at(source.offset, count)
            overlaps = abs(to.offset - source.offset) < count  # which CUDA leaves undefined
            there.copy_(here.clone() if overlaps else here)
        else:
            there.copy_(torch.frombuffer(bytearray(host_bytes(source, count, to.element)), dtype=torch.uint8))
        return
    kind, places = _places(to, count, source.element)
    for place, value in zip(places, unpack(kind, host_bytes(source, count, kind)), strict=True):
        _put(to.memory, place, value)


def _put(memory: Any, place: int, value: Any) -> None:
    """Sets an element of host memory. A struct stays the same object, which others may refer to."""
    if hasattr(value, "assign") and hasattr(memory[place], "assign"):
        memory[place].assign(value)
    else:
        memory[place] = value


def fill(pointer: Pointer, value: int, count: int) -> None:
    """Sets bytes, as ``cudaMemset``."""
    if not count:
        return
    if isinstance(pointer, DevicePointer):
        pointer.memory.bytes_at(pointer.offset, count).fill_(value & 255)
        return
    kind, places = _places(pointer, count, None)
    for place, one in zip(places, unpack(kind, bytes([value & 255]) * count), strict=True):
        _put(pointer.memory, place, one)
