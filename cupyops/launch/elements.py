"""Parameters whose C type is more than one number: vector types, structs, textures and surfaces.

An array of ``float4`` is an array of float32 whose last dimension is 4. An array of a struct is an array of the struct's
NumPy dtype, or an array of uint8 whose last dimension is the size of the struct. The kernel reads both in place.

A struct is declared in the text, and the compiler reports its layout. A struct without a known layout is its bytes.
"""

import contextlib
import ctypes
import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cupyops.arrays import Info, library_of
from cupyops.errors import expected

from .parameter import Parameter

__all__ = [
    "Held",
    "check_elements",
    "conditions",
    "held_arrays",
    "of_bytes",
    "packed",
    "placed",
    "resolved",
    "seen",
    "takes_arrays",
    "without_data",
]


def resolved(p: Any) -> Any:
    """Returns a parameter with the dtype and the shape of its array, if its type is a vector, a struct, a texture or a surface.
    Returns every other parameter unchanged."""
    element = p.element
    if element is None or p.accessor is not None:
        return p
    if not p.pointer:
        by_value = str(element.width) if not (element.handle or element.record is not None) else None
        return replace(p, type=element.dtype, length=by_value)
    if element.handle:  # the handles as numbers, the attribute ptr of CuPy's objects
        return replace(p, type=element.dtype, element=None)
    shape = None if p.shape is None else (*p.shape, str(element.width))
    return replace(p, type=element.dtype, shape=shape)


# Structs


def takes_arrays(dtype: Any) -> bool:
    """Returns whether a struct by value has a field that takes an array, whose address the struct gets."""
    fields = (dtype.fields[name][0].base for name in dtype.names or ())
    return dtype.str[1:] == "u8" or any(map(takes_arrays, fields))


def without_data(size: int) -> Any:
    """Returns the dtype of a class without data, such as a function object. A call passes `()` or any number for it."""
    import numpy

    layout: Any = {"names": [], "formats": [], "itemsize": size}
    return numpy.dtype(layout)


def of_bytes(size: int) -> Any:
    """Returns the dtype of a class whose layout is not known, for which a call passes the bytes."""
    import numpy

    return numpy.dtype(f"V{size}")


# Arguments


def seen(kernel: str, p: Any, array: Any, info: Info) -> Info:
    """Returns the properties of an array as its kernel sees them: an array of a struct's dtype as its bytes.

    Raises:
        TypeError: the array is neither of the struct's dtype nor of uint8.
    """
    if p.element is None or p.element.record is None or info.dtype == "uint8":
        return info
    dtype = getattr(array, "dtype", None)
    if not hasattr(dtype, "fields") or dtype != p.element.record:
        wanted = f"be an array of the dtype {p.element.record} ({p.element.name}), or of uint8 with {p.element.width} as its last dimension"
        raise TypeError(expected(kernel, p.name, wanted, dtype if hasattr(dtype, "fields") else info.dtype))
    width = p.element.width
    shape, strides = (*info.shape, width), (*(s * width for s in info.strides), 1)
    return replace(info, dtype="uint8", shape=shape, strides=strides, size=info.size * width)


def check_elements(kernel: str, p: Any, info: Info) -> None:
    """Raises unless a thread can read the array as vectors or structs.

    Raises:
        ValueError: the last dimension has another size or is not contiguous, or an address is not aligned.
    """
    element = p.element
    assert element is not None
    if not info.shape or info.shape[-1] != element.width:
        wanted = f"have {element.width} as its last dimension, the {element.dtype}s of a {element.name}"
        raise ValueError(expected(kernel, p.name, wanted, f"shape {tuple(info.shape)}"))
    whole = all(s % element.width == 0 for n, s in zip(info.shape[:-1], info.strides[:-1], strict=True) if n > 1)
    if not whole or (element.width > 1 and info.size and info.strides[-1] != 1):
        wanted = f"have every {element.name} in one piece, a whole number of them apart"
        raise ValueError(expected(kernel, p.name, wanted, f"strides {tuple(info.strides)}"))
    if not info.fake and info.size and info.pointer % element.alignment:
        wanted = f"begin at a multiple of {element.alignment} bytes, as {element.name} does"
        raise ValueError(f"{expected(kernel, p.name, wanted, hex(info.pointer))}. Pass a copy")


def conditions(p: Any, x: str) -> list[str]:
    """Returns the conditions of a generated launch under which a call of an array of vectors or structs is refused."""
    element = p.element
    assert element is not None
    found = [f"{x}.shape[-1] != {element.width}", f"{x}.data_ptr() % {element.alignment}"]
    if p.shape is None:
        found += [f"{x}.stride(-1) != 1", f"any([s % {element.width} for s in {x}.stride()[:-1]])"]
    return found


def packed(kernel: str, p: Any, value: Any, simulated: bool = False) -> Any:
    """Returns the argument for a struct, a texture or a surface as the driver takes it: bytes, or the handle.

    Args:
        simulated: whether the launch runs in the simulator, which has textures and surfaces of its own.

    Raises:
        TypeError: the value is of another type, or of another struct.
    """
    element = p.element
    assert element is not None
    if element.handle:
        fits = type(value).__name__ == element.handle and getattr(type(value), "simulated", False) == simulated
        if not fits or not isinstance(getattr(value, "ptr", None), int):
            wanted = f"be a {'cupyops.simulator' if simulated else 'cupy.cuda.texture'}.{element.handle}"
            raise TypeError(expected(kernel, p.name, wanted, f"{type(value).__module__}.{type(value).__name__}"))
        return value.ptr
    if element.record is None:
        return value
    import numpy

    known = element.record.names is not None
    if isinstance(value, bytes):
        given: Any = value
    elif known and not element.record.names and (value == () or isinstance(value, int)):
        given = bytes(element.width)
    elif isinstance(value, ctypes.Structure):
        given = bytes(value) if not known or numpy.dtype(type(value)) == element.record else b""
    else:
        fits = getattr(value, "dtype", None) == element.record or not known
        one = isinstance(value, (numpy.void, numpy.ndarray)) and math.prod(numpy.shape(value)) == 1
        given = value.tobytes() if fits and one else b""
        if known and isinstance(value, tuple):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                fields = numpy.array(value, element.record)
                filled = numpy.zeros((), element.record)  # bytes outside of fields are 0
                for name in element.record.names:
                    filled[name] = fields[name]
                given = filled.tobytes()
    if len(given) != element.width:
        wanted = (
            f"one element of the dtype {element.record}, a tuple of its fields, or an object of its ctypes.Structure"
        )
        if not known:
            wanted = f"{element.width} bytes, or an object of numpy or ctypes of this size: its layout is not known"
        raise TypeError(expected(kernel, p.name, f"be a {element.name}: {wanted}", repr(value)))
    return given


# Arrays in the tuple that is passed for a struct by value. A field of 64 bits without a sign takes an array, and the struct gets the
# address of its first element, or None, and the struct gets 0.


class Held(NamedTuple):
    """An array that a struct by value points to.

    Attributes:
        parameter: the array as a parameter of its own. Its name is the field's with that of the struct's parameter,
            ``params.weights``.
        array: the array.
        owner: the name of the struct's parameter.
        offset: where the address is in the struct, in bytes.
    """

    parameter: Parameter
    array: Any
    owner: str
    offset: int


def held_arrays(p: Parameter, value: Any) -> tuple[Any, list[Held]]:
    """Returns the argument for a struct by value with 0 in place of arrays and of None, and the arrays."""
    if p.element is None or p.element.record is None or not isinstance(value, tuple):
        return value, []
    found: list[Held] = []
    return _without(p.element.record, value, p.name, 0, p.name, found), found


def _without(dtype: Any, value: Any, path: str, offset: int, owner: str, found: list[Held]) -> Any:
    import numpy

    if dtype.subdtype is not None and isinstance(value, (tuple, list)):
        base, shape = dtype.subdtype
        inner = numpy.dtype((base, shape[1:])) if shape[1:] else base
        parts = ((inner, v, f"{path}[{i}]", offset + i * inner.itemsize) for i, v in enumerate(value))
    elif dtype.names is not None and isinstance(value, tuple) and len(value) == len(dtype.names):
        fields = ((name, *dtype.fields[name][:2]) for name in dtype.names)
        parts = ((of, v, f"{path}.{name}", offset + at) for (name, of, at), v in zip(fields, value, strict=True))
    elif dtype == numpy.uint64:
        if value is None:
            return 0
        if _is_array(value):
            pointed, read_only = (dtype.metadata or {}).get("pointer", ("", False))
            kind = Parameter(path, pointed or "uint8", pointer=True, const=read_only, untyped=not pointed)
            found.append(Held(kind, value, owner, offset))
            return 0
        return value
    else:
        return value
    plain = [_without(*part, owner, found) for part in parts]
    return plain if dtype.subdtype is not None else tuple(plain)  # NumPy tells arrays from structs


def _is_array(value: Any) -> bool:
    try:
        library_of(value)
    except TypeError:
        return False
    return True


def placed(owner: str, packed: Any, held: Collection[Held], pointers: Mapping[str, int]) -> Any:
    """Returns the bytes of a struct with the addresses of its arrays.

    Args:
        owner: the name of the struct's parameter.
        packed: the bytes without the addresses.
        held: the arrays of all structs of a call.
        pointers: the addresses, by the names of the arrays.
    """
    own = [one for one in held if one.owner == owner]
    if not own:
        return packed
    memory = bytearray(packed)
    for one in own:
        struct.pack_into("=Q", memory, one.offset, pointers[one.parameter.name])
    return bytes(memory)
