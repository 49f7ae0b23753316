"""Checks a kernel's declaration before the first call.

The checks find a type that no array decides, and a size that is not a parameter.
"""

import keyword
from collections.abc import Collection, Mapping, Sequence

from cupyops.dtypes import DTYPES, INTEGERS
from cupyops.errors import nearest

from .signature import Signature

__all__ = ["check_declaration"]


def check_declaration(signature: Signature, sizes: Sequence[str], constants: Mapping[str, int]) -> None:
    """Raises if no call can fit a declaration.

    Args:
        signature: the kernel's signature.
        sizes: the size parameters of the geometry.
        constants: macro name to integer.

    Raises:
        TypeError: no array decides the type of a parameter; or a type cannot be passed by value.
        ValueError: a size is not an integer parameter; or a parameter of the template has no argument.
    """
    kernel, bindings = signature.kernel, signature.bindings
    if not signature.known:
        return  # the compiler has not been asked
    if signature.entry is not None:
        signature.entry.expression(kernel, dict.fromkeys(bindings, "float32"), constants)
    numbers = [p for p in signature.parameters if not p.pointer]
    if (arrays := [p for p in signature.parameters if p.pointer]) and all(p.nullable for p in arrays):
        raise TypeError(f"{kernel}: at least one array must not be `or null`: the launch runs on the GPU of this array")
    named = {a.name for a in arrays}
    for p in signature.parameters:
        if p.map_of is not None:
            if p.map_of not in named:
                raise TypeError(
                    f"{kernel}: `{p.name}` is the tensor map of `{p.map_of}`, and the kernel has no array `{p.map_of}`"
                )
            continue
        if p.type == "TensorMap":
            raise TypeError(
                f"{kernel}: declare `{p.name}` as const __grid_constant__ TensorMap, and name it after its array: x_map for x"
            )
        if p.type == "acc_t" and "scalar_t" not in bindings:
            raise TypeError(f"{kernel}: `{p.name}` is an acc_t, which follows scalar_t, and no array is of scalar_t")
        if p.type not in DTYPES and p.type != "acc_t" and p.type not in bindings:
            raise TypeError(
                f"{kernel}: no array of the call decides the type {p.type!r} of `{p.name}`; pass acc_t or a C type by value, or give "
                f"the text that declares the type; if a build defines it as a macro, give options=('-D{p.type}=...',)"
            )
        if p.accessor is not None and p.accessor.bits not in (32, 64):
            raise TypeError(
                f"{kernel}: the accessor `{p.name}` must have indices of 32 or 64 bits; if a parameter of the template is their "
                f"type, give it in the kernel's name"
            )
        if p.accessor is not None and p.nullable:
            raise TypeError(
                f"{kernel}: `{p.name}` is an accessor, which has the sizes of an array: leave out `or null`"
            )
        if p.length is not None and not p.length.isdigit() and p.length not in constants:
            raise TypeError(
                f"{kernel}: the length of `{p.name}`, {p.length}, must be a number or one of the kernel's constants"
            )
    integers = {p.name for p in numbers if p.type in INTEGERS and p.length is None}
    counted = {t for p in signature.parameters for t in p.shape or () if not t.isdigit()}
    for size in (*sizes, *sorted(counted - constants.keys())):
        if size in sizes and (keyword.iskeyword(size) or size in ("min", "unit")):
            raise ValueError(
                f"{kernel}: `{size}` counts threads, and its name is reserved in grid expressions; rename it to `{size}_`"
            )
        if size not in integers:
            raise ValueError(
                f"{kernel}: `{size}` counts threads or elements, but the kernel has no integer parameter of this name"
                f"{_other_case(size, integers) or nearest(size, integers)}"
            )


def _other_case(word: str, names: Collection[str]) -> str:
    """Returns the name that differs from a word in the case of its letters alone, as a question, or an empty string."""
    return next((f"; did you mean {name!r}?" for name in sorted(names) if name.lower() == word.lower()), "")
