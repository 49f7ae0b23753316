"""Parameters whose C type is more than one number: vector types, structs, textures and surfaces.

An array of ``float4`` is an array of float32 whose last dimension is 4. An array of a struct is an array of the struct's
NumPy dtype, or an array of uint8 whose last dimension is the size of the struct. The kernel reads both in place.

A struct is declared in the text. Python gets its layout from ``Kernel(..., structs={"Particle": dtype})``. The final text
compares this layout with the compiler's (:func:`assertions`), so a field at another offset is a compile error and never a
wrong value.
"""

import contextlib
import ctypes
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cupyops.arrays import Info
from cupyops.compile.cuda_text import scan
from cupyops.dtypes import DTYPES
from cupyops.errors import expected

from .library_types import KNOWN, LARGEST_ALIGNMENT, Element, library_type
from .structs import private_names, structs_in

__all__ = [
    "assertions",
    "check_elements",
    "conditions",
    "element_of",
    "explained",
    "hidden_names",
    "opaque",
    "packed",
    "pointers",
    "resolved",
    "seen",
    "specification",
    "struct_elements",
]

_ACCESS = re.compile(r"\bclass\b|\b(?:private|protected)\s*:")


def resolved(kernel: str, p: Any, structs: Mapping[str, Element]) -> Any:
    """Returns a parsed parameter with the dtype and the shape of its array, if its type is a vector, a struct, a texture
    or a surface. Returns every other parameter unchanged.

    Raises:
        TypeError: the parameter is a struct whose layout is not given.
    """
    element = element_of(p.type, structs)
    if element is None and p.type.startswith("struct "):
        raise _unknown(kernel, p.name, p.type.removeprefix("struct "))
    if element is None:
        return p
    if not p.pointer:
        by_value = str(element.width) if not (element.handle or element.record is not None) else None
        return replace(p, type=element.dtype, length=by_value, element=element)
    if element.handle:  # the handles as numbers, the attribute ptr of CuPy's objects
        return replace(p, type=element.dtype)
    shape = None if p.shape is None else (*p.shape, str(element.width))
    return replace(p, type=element.dtype, shape=shape, element=element)


def element_of(name: str, structs: Mapping[str, Element]) -> Element | None:
    """Returns the element of a vector type, a struct, a texture or a surface, or None for another type."""
    name = name.removeprefix("struct ")
    return structs.get(name) or library_type(name)


# Structs: the layout from Python, and its comparison with the compiler's


def struct_elements(kernel: str, structs: Mapping[str, Any] | None) -> dict[str, Element]:
    """Returns the elements of ``structs=``: a NumPy structured dtype or a subclass of ctypes.Structure for each name.

    Raises:
        TypeError: `structs` is no mapping, a value gives no layout, a field cannot be in a kernel's memory, or a name is
            no C name.
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


def _leaves(
    dtype: Any, path: tuple[str, ...], offset: int = 0, hidden: Collection[str] = ()
) -> Iterator[tuple[tuple[str, ...], Any, int]]:
    """Yields the path, the dtype and the offset of each field that is no struct. Of an array of structs, yields the fields
    of the first element, and the array itself. Leaves out the fields with names in `hidden`."""
    for name in dtype.names:
        if name in hidden:
            continue
        field, at = dtype.fields[name][:2]
        if field.base.names is None:
            yield (*path, name), field, offset + at
            continue
        if field.shape:
            yield (*path, name), field, offset + at
        first = name + "[0]" * len(field.shape)
        yield from _leaves(field.base, (*path, first), offset + at, hidden)


def pointers(dtype: Any) -> list[str]:
    """Returns the paths of the fields of a struct that take arrays, whose addresses the struct gets."""
    return [".".join(path) for path, leaf, _ in _leaves(dtype, ()) if leaf.base.str[1:] == "u8"]


_KINDS = {"f": 1, "i": 2, "u": 3}
_PROBES = """
template <unsigned long long...> struct CupyopsLayout_{name};
template <> struct CupyopsLayout_{name}<{wanted}> {{}};
static_assert(sizeof(CupyopsLayout_{name}<{found}>) == 1, "");
"""
# The overloads return arrays of 1 byte for a float, 2 for a signed integer, 3 for an unsigned one, 4 for another type.
# NVRTC has no offsetof.
_KIND_OF = """
#ifdef CUPYOPS_SIMULATOR
#define CUPYOPS_OFFSET_OF(T, member) __builtin_offsetof(T, member)
#else
#define CUPYOPS_OFFSET_OF(T, member) __INTADDR__(&(((T*)0)->member))
#endif
template <class T> __device__ char (&cupyops_kind_of(const volatile T&))[4];
#define CUPYOPS_KIND(T, n) __device__ char (&cupyops_kind_of(const volatile T&))[n];
CUPYOPS_KIND(float, 1) CUPYOPS_KIND(double, 1)
CUPYOPS_KIND(signed char, 2) CUPYOPS_KIND(short, 2) CUPYOPS_KIND(int, 2) CUPYOPS_KIND(long, 2) CUPYOPS_KIND(long long, 2)
CUPYOPS_KIND(unsigned char, 3) CUPYOPS_KIND(unsigned short, 3) CUPYOPS_KIND(unsigned, 3)
CUPYOPS_KIND(unsigned long, 3) CUPYOPS_KIND(unsigned long long, 3)
#define CUPYOPS_KIND_OF(e, n) (sizeof(cupyops_kind_of(e)) == 4 ? n : sizeof(cupyops_kind_of(e)))
"""


def hidden_names(structs: Mapping[str, Element], texts: Iterable[str]) -> frozenset[str]:
    """Returns the names of the private data of classes, which code outside the classes cannot read.

    Args:
        structs: the layouts of structs; without them, nothing is searched.
        texts: the texts that declare the classes.
    """
    found = (structs_in(text, scan(text).bare).values() for text in texts if structs and _ACCESS.search(text))
    return frozenset(name for declared in found for struct in declared for name in private_names(struct))


def assertions(structs: Mapping[str, Element], hidden: Collection[str] = ()) -> str:
    """Returns the CUDA C++ that follows a text and compares the layout of its structs with Python's.

    Args:
        structs: the layouts from Python.
        hidden: names of fields that are not compared.

    The numbers of a layout are template arguments. The template is defined for the layout from Python alone, so the
    compiler's message for another layout has the compiler's numbers.
    """
    structs = {name: element for name, element in structs.items() if element.record is not None}
    if not structs:
        return ""
    lines = ['\n#line 1 "cupyops/structs"', _KIND_OF]
    for label, element in _labels(structs).items():
        name = element.name
        if element.spelling:
            name = f"CupyopsStruct_{label}"
            lines.append(f"typedef {element.spelling} {name};")
        wanted, found = [element.width], [f"sizeof({name})"]
        for path, leaf, offset in _leaves(element.record, (), hidden=hidden):
            member = ".".join(path)
            kind = _KINDS.get(leaf.base.kind, 0) if leaf.base.itemsize > 2 or leaf.base.kind != "f" else 0
            first = member + "[0]" * len(leaf.shape)
            wanted += [offset, leaf.itemsize, kind]
            found += [f"CUPYOPS_OFFSET_OF({name}, {member})", f"sizeof((({name}*)0)->{member})"]
            found += [f"CUPYOPS_KIND_OF((({name}*)0)->{first}, {kind})" if kind else "0"]
        numbers = ", ".join(f"{n}ULL" for n in wanted)
        lines.append(_PROBES.format(name=label, wanted=numbers, found=", ".join(found)))
    return "\n".join(lines)


def _labels(structs: Mapping[str, Element]) -> dict[str, Element]:
    """Returns the elements by identifiers made of their names."""
    return {re.sub(r"\W+", "_", name): element for name, element in structs.items()}


def explained(message: str, structs: Mapping[str, Element], hidden: Collection[str] = ()) -> str:
    """Returns a compiler's message, or, if a struct has another layout in the text, the two layouts in its place."""
    labels = _labels(structs)
    for found in re.finditer(r"CupyopsLayout_(\w+?)<([\d\sULul,()]+)>", message) if structs else ():
        if found[1] not in labels:
            continue
        element, numbers = labels[found[1]], [int(n) for n in re.findall(r"\d+", found[2])]
        lines = [
            f"{message.splitlines()[0].rstrip(':')}: the struct {element.name} of the text has another layout than structs[{element.name!r}]",
            f"{'field':24} {'text':>28} {'Python':>28}",
            f"{'(size)':24} {f'{numbers[0]} bytes':>28} {f'{element.width} bytes':>28}",
        ]
        differs = numbers[0] != element.width
        kinds = {1: "float", 2: "signed", 3: "unsigned"}
        for i, (path, leaf, offset) in enumerate(_leaves(element.record, (), hidden=hidden)):
            at, size, kind = numbers[1 + 3 * i : 4 + 3 * i]
            wanted = _KINDS.get(leaf.base.kind, 0)
            compiled = f"{kinds.get(kind, '')} {size} bytes at {at}".strip()
            python = f"{kinds.get(wanted, '') if kind else ''} {leaf.itemsize} bytes at {offset}".strip()
            differs = differs or compiled != python
            mark = "" if compiled == python else "  <-"
            lines.append(f"{'.'.join(path):24} {compiled:>28} {python:>28}{mark}")
        if differs:  # else the compiler shows the layout from Python beside another error
            lines.append("numpy.dtype([...], align=True) has the offsets of a C struct without alignment of its own.")
            return "\n".join(lines)
    return message


def opaque(kernel: str, parameters: Sequence[Any], texts: Sequence[str]) -> tuple[Any, ...]:
    """Returns parameters whose pointers to structs of unknown layouts take arrays of any dtype, as ``void*`` does.

    Raises:
        TypeError: a parameter is such a struct by value, or has a comment with a shape, which counts elements.
    """
    found = []
    for p in parameters:
        undecided = p.element is None and p.type not in ("TensorMap", *DTYPES) and p.type.isidentifier()
        unknown = undecided and any(p.type in text and p.type in structs_in(text, scan(text).bare) for text in texts)
        if unknown and not (p.pointer and p.shape is None):
            raise _unknown(kernel, p.name, p.type)
        found.append(replace(p, type="uint8", untyped=True) if unknown else p)
    return tuple(found)


def _unknown(kernel: str, name: str, struct: str) -> TypeError:
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
    elif not element.record.names and isinstance(value, tuple):  # a struct without data, such as a function object
        given = b"" if value else bytes(element.width)
    elif isinstance(value, ctypes.Structure):
        given = bytes(value) if numpy.dtype(type(value)) == element.record else b""
    else:
        of_record = getattr(value, "dtype", None) == element.record and math.prod(numpy.shape(value)) == 1
        given = value.tobytes() if of_record and isinstance(value, (numpy.void, numpy.ndarray)) else b""
        if isinstance(value, tuple):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                fields = numpy.array(value, element.record)
                filled = numpy.zeros((), element.record)  # what no field has is 0
                for name in element.record.names:
                    filled[name] = fields[name]
                given = filled.tobytes()
    if len(given) != element.width:
        wanted = f"be a {element.name}: one element of the dtype {element.record}, a tuple of its fields, or an object of its ctypes.Structure"
        raise TypeError(expected(kernel, p.name, wanted, repr(value)))
    return given
