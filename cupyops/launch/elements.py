"""Parameters whose C type is more than one number: vector types, structs, textures and surfaces.

An array of ``float4`` is an array of float32 whose last dimension is 4. An array of a struct is an array of the struct's
NumPy dtype, or an array of uint8 whose last dimension is the size of the struct. The kernel reads both in place.

A struct is declared in the text, and the compiler reports its layout. A layout that is given, ``Kernel(...,
structs={"Particle": dtype})``, is compared with the compiler's (:func:`difference`), so a field at another offset is an
error and never a wrong value.
"""

import contextlib
import ctypes
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cupyops.arrays import Info
from cupyops.dtypes import DTYPES
from cupyops.errors import expected

from .library_types import KNOWN, LARGEST_ALIGNMENT, Element

__all__ = [
    "check_elements",
    "conditions",
    "difference",
    "packed",
    "pointers",
    "resolved",
    "seen",
    "specification",
    "struct_elements",
    "unknown_struct",
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


# Structs: the layout from Python


def struct_elements(kernel: str, structs: Mapping[str, Any] | None) -> dict[str, Element]:
    """Returns the elements of ``structs=``: a NumPy structured dtype or a subclass of ctypes.Structure for each name.

    Raises:
        TypeError: `structs` is not a mapping, a value gives no layout, a field cannot be in a kernel's memory, or a name is
            not a C name.
    """
    if structs is None:
        return {}
    if not isinstance(structs, Mapping):
        raise TypeError(expected(kernel, "structs", "be a mapping of names to layouts", type(structs).__name__))
    import numpy

    found = {}
    for name, given in structs.items():
        where = f"structs[{name!r}]"
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in KNOWN or name in DTYPES:
            raise TypeError(expected(kernel, "structs", "have names of structs of the text", repr(name)))
        wanted = "be a NumPy structured dtype or a ctypes.Structure"
        try:
            dtype = numpy.dtype(given)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise TypeError(expected(kernel, where, wanted, f"{given!r} ({error})")) from None
        if dtype.names is None or dtype.shape:
            raise TypeError(expected(kernel, where, wanted, repr(given)))
        for path, leaf, _ in _leaves(dtype, ()):
            if leaf.hasobject or not leaf.isnative:
                got = f"`{'.'.join(path)}` of {leaf}"
                raise TypeError(expected(kernel, where, "have fields of numbers in this machine's byte order", got))
        # The alignment of a struct divides its size. The largest such power of two is safe, and every whole struct of
        # an allocation has it.
        alignment = min(dtype.itemsize & -dtype.itemsize, LARGEST_ALIGNMENT)
        found[name] = Element(name, "uint8", dtype.itemsize, alignment, dtype)
    return found


def _leaves(dtype: Any, path: tuple[str, ...], offset: int = 0) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """Yields the path, the dtype and the offset of each field that is not a struct. For an array of structs, yields the
    fields of the first element, and the array itself."""
    for name in dtype.names:
        field, at = dtype.fields[name][:2]
        if field.base.names is None:
            yield (*path, name), field, offset + at
            continue
        if field.shape:
            yield (*path, name), field, offset + at
        first = name + "[0]" * len(field.shape)
        yield from _leaves(field.base, (*path, first), offset + at)


def pointers(dtype: Any) -> list[str]:
    """Returns the paths of the fields of a struct that take arrays, whose addresses the struct gets."""
    return [".".join(path) for path, leaf, _ in _leaves(dtype, ()) if leaf.base.str[1:] == "u8"]


def difference(kernel: str, name: str, wanted: Any, found: Any, size: int) -> str:
    """Returns a message on what differs in two layouts of a struct, or ``""`` if they are equal.

    Args:
        kernel: the kernel's name.
        name: the struct's name.
        wanted: the dtype from Python.
        found: the compiler's dtype of the members of these names.
        size: the compiler's size of the struct.
    """
    compiled = {path: (leaf, offset) for path, leaf, offset in _leaves(found, ())}
    told = [f"it has {size} bytes, and {wanted.itemsize} in Python"] if size != wanted.itemsize else []
    for path, leaf, offset in _leaves(wanted, ()):
        here, there = _shown(leaf, offset), _shown(*compiled[path]) if path in compiled else "absent"
        # Fields for which NumPy has no dtype, such as bfloat16, are bytes in Python.
        if here != there and not (leaf.base.kind == "V" and here.split()[-4:] == there.split()[-4:]):
            told.append(f"`{'.'.join(path)}` is {there}, and {here} in Python")
    differs = f"{kernel}: the struct {name} of the text has another layout than structs[{name!r}]: {'; '.join(told)}"
    return f"{differs}. numpy.dtype([...], align=True) has C's offsets" if told else ""


def _shown(dtype: Any, offset: int) -> str:
    kind = {"f": "float", "i": "signed", "u": "unsigned"}.get(dtype.base.kind, "")
    return f"{kind} {dtype.itemsize} bytes at {offset}".strip()


def without_data(size: int) -> Any:
    """Returns the dtype of a class without data, such as a function object. A call passes `()` or any number for it."""
    import numpy

    layout: Any = {"names": [], "formats": [], "itemsize": size}
    return numpy.dtype(layout)


def unknown_struct(kernel: str, name: str, struct: str) -> TypeError:
    """Returns the error that a parameter is of a struct whose layout Python does not know."""
    return TypeError(
        f"{kernel}: `{name}` is of the struct {struct}, whose layout Python does not know; give it: "
        f"structs={{{struct!r}: a NumPy structured dtype or a ctypes.Structure}}"
    )


def specification(dtype: Any) -> dict[str, Any]:
    """Returns a structured dtype as a dictionary of strings and numbers, from which ``numpy.dtype`` makes it again."""
    fields = [dtype.fields[name][:2] for name in dtype.names]
    formats = [f.str if f.base.names is None and not f.shape else _format(f) for f, _ in fields]
    offsets = [offset for _, offset in fields]
    return {"names": list(dtype.names), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}


def _format(field: Any) -> Any:
    base = field.base.str if field.base.names is None else specification(field.base)
    return (base, tuple(field.shape)) if field.shape else base


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
        raise TypeError(expected(kernel, p.name, wanted, info.dtype))
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

    if isinstance(value, bytes):
        given: Any = value
    elif not element.record.names and (value == () or isinstance(value, int)):
        given = bytes(element.width)
    elif isinstance(value, ctypes.Structure):
        given = bytes(value) if numpy.dtype(type(value)) == element.record else b""
    else:
        of_record = getattr(value, "dtype", None) == element.record and math.prod(numpy.shape(value)) == 1
        given = value.tobytes() if of_record and isinstance(value, (numpy.void, numpy.ndarray)) else b""
        if isinstance(value, tuple):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                fields = numpy.array(value, element.record)
                filled = numpy.zeros((), element.record)  # bytes outside of fields are 0
                for name in element.record.names:
                    filled[name] = fields[name]
                given = filled.tobytes()
    if len(given) != element.width:
        wanted = f"be a {element.name}: one element of the dtype {element.record}, a tuple of its fields, or an object of its ctypes.Structure"
        raise TypeError(expected(kernel, p.name, wanted, repr(value)))
    return given
