"""Checks a kernel's declaration before the first call.

The checks find a type that no array decides, a type that the text itself defines, and a size that is not a parameter.
"""

import keyword
from collections.abc import Mapping, Sequence

from cupyops.compile.cuda_text import scan
from cupyops.dtypes import DTYPES, INTEGERS
from cupyops.errors import nearest

from .definitions import declarations
from .signature import Signature
from .typenames import defined_types

__all__ = ["check_declaration"]

_DTYPE_NAMES = tuple(DTYPES)


def check_declaration(
    signature: Signature,
    text: str,
    sizes: Sequence[str],
    constants: Mapping[str, int],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Raises if no call can fit a declaration.

    Args:
        signature: the kernel's signature.
        text: the text of the signature.
        sizes: the size parameters of the geometry.
        constants: macro name to integer.
        headers: the texts of the included headers, by name.

    Raises:
        TypeError: no array decides the type of a parameter; the text or a header defines the type that the arrays
            decide; or a type cannot be passed by value.
        ValueError: a size is not an integer parameter; or a parameter of the template has no argument.
    """
    kernel, bindings = signature.kernel, signature.bindings
    if signature.entry is not None:
        signature.entry.expression(kernel, dict.fromkeys(bindings, "float32"), constants)
    _check_types(signature, text, headers or {})
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
        if p.accessor is not None and not p.accessor.rank.isdigit() and p.accessor.rank not in constants:
            raise TypeError(
                f"{kernel}: the dimensions of the accessor `{p.name}`, {p.accessor.rank}, must be a number or one of the "
                f"kernel's constants"
            )
        if p.accessor is not None and not p.accessor.bits:
            raise TypeError(
                f"{kernel}: no array of the call decides the type of the indices of the accessor `{p.name}`; give it in the "
                f"kernel's name"
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
                f"{nearest(size, integers)}"
            )


def _check_types(signature: Signature, text: str, headers: Mapping[str, str]) -> None:
    """Raises if the text or one of its headers defines a type that the arrays decide.

    The kernel would read the arrays as the type defined in the text.

    Raises:
        TypeError: the text or a header defines the type as a macro, or by typedef or using.
    """
    kernel = signature.kernel
    scope = declarations(scan(text), kernel)[0].scope
    own = signature.entry.names if signature.entry else frozenset()
    types = [p.type for p in signature.parameters if p.type not in ("TensorMap", *_DTYPE_NAMES, *own)]
    for where, source in (("the text", text), *((f"the header {name}", header) for name, header in headers.items())):
        macros, aliases = defined_types(source)
        for name in dict.fromkeys(types):
            if name in macros:
                what = f"defines {name!r} as a macro"
            elif any(of == scope[: len(of)] for of in aliases.get(name, ())):
                what = f"declares {name!r} by typedef or using"
            else:
                continue
            raise TypeError(
                f"{kernel}: {where} {what}; the arrays of a call decide what it is, so leave it undefined, or declare the "
                f"parameters with the C type itself; for a struct, give structs={{...}}; where a condition of the text chooses "
                f"the type, define what it reads by options=('-D...',)"
            )
