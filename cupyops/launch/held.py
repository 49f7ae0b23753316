"""Arrays in the tuple that is passed for a struct by value.

A field of 64 bits without a sign takes an array, and the struct gets the address of its first element, or None, and the
struct gets 0.
"""

import struct
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from cupyops.arrays import library_of

from .signature import Parameter

__all__ = ["Held", "held_arrays", "placed"]


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
