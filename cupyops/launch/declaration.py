"""What is wrong with a declaration before any call: types that no array decides, or that the text decides as well; sizes that are
no parameters."""

import keyword
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cupyops.compile.cuda_text import scan
from cupyops.dtypes import DTYPES, INTEGERS
from cupyops.errors import nearest

from .signature import Signature, declarations

__all__ = ["check_declaration"]

_DTYPE_NAMES = tuple(DTYPES)
# A macro with parameters is none that a type's name calls.
_MACRO = re.compile(r"(\w+)(?![\w(])")
# The words of a typedef end where another begins, so that each is read once.
_ALIAS = re.compile(r"\busing\s+(?P<using>\w+)\s*=|\btypedef\b(?P<typedef>(?:(?!\btypedef\b)[^;{}])*);")
_LAST_WORD = re.compile(r"\b(\w+)\s*(?=,|\Z)")


def check_declaration(
    signature: Signature,
    text: str,
    sizes: Sequence[str],
    dtypes: Sequence[str],
    constants: Mapping[str, int],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Refuses, before any call, a declaration that no call could fit.

    Args:
        signature: of the kernel.
        text: that it was read from.
        sizes: the parameters that the geometry counts by.
        dtypes: what the caller's arrays may be.
        constants: macro name to integer.
        headers: those that the text includes, by name.

    Raises:
        TypeError: a parameter's type that is not decided by an array, or is decided by the text or a header as well, or cannot
            be passed by value.
        ValueError: a size that is no integer parameter.
    """
    kernel, bindings = signature.kernel, signature.bindings
    _check_types(signature, text, headers or {})
    numbers = [p for p in signature.parameters if not p.pointer]
    if (arrays := [p for p in signature.parameters if p.pointer]) and all(p.nullable for p in arrays):
        raise TypeError(f"{kernel}: one array at least must not be `or null`, to say which GPU the launch is on")
    named = {a.name for a in arrays}
    for p in signature.parameters:
        if p.map_of is not None:
            if p.map_of not in named:
                raise TypeError(f"{kernel}: `{p.name}` is the map of an array `{p.map_of}`, and there is none")
            continue
        if p.type == "TensorMap":
            raise TypeError(
                f"{kernel}: declare `{p.name}` as const __grid_constant__ TensorMap, and call it after its array: x_map for x"
            )
        if p.type == "acc_t" and "scalar_t" not in bindings:
            raise TypeError(f"{kernel}: `{p.name}` is an acc_t, which follows scalar_t, and no array is of scalar_t")
        if p.type not in DTYPES and p.type != "acc_t" and p.type not in bindings:
            raise TypeError(
                f"{kernel}: no array of the call decides the type {p.type!r} of `{p.name}`; pass acc_t or a C type by value"
            )
        if p.length is not None and not p.length.isdigit() and p.length not in constants:
            raise TypeError(
                f"{kernel}: the length of `{p.name}`, {p.length}, must be a number or one of the kernel's constants"
            )
    for p in numbers:
        for dtype in (p.type,) if p.type in DTYPES else dtypes if p.type in bindings else ():
            if DTYPES[dtype].code is None:
                raise TypeError(
                    f"{kernel}: `{p.name}` is a {dtype} by value, which cannot be passed; declare it acc_t or float"
                )
    integers = {p.name for p in numbers if p.type in INTEGERS and p.length is None}
    counted = {t for p in signature.parameters for t in p.shape or () if not t.isdigit()}
    for size in (*sizes, *sorted(counted - constants.keys())):
        if size in sizes and (keyword.iskeyword(size) or size in ("min", "unit")):
            raise ValueError(
                f"{kernel}: `{size}` counts threads, and has a name that expressions of Python use; call it `{size}_`"
            )
        if size not in integers:
            raise ValueError(
                f"{kernel}: `{size}` counts threads or elements, but is no integer parameter{nearest(size, integers)}"
            )


def _check_types(signature: Signature, text: str, headers: Mapping[str, str]) -> None:
    """Refuses a type of the declaration to which the text, or a header of it, gives a meaning of its own: the arrays would be
    read as another type than they are."""
    kernel = signature.kernel
    scope = declarations(scan(text), kernel)[0].scope
    types = [p.type for p in signature.parameters if p.type not in ("TensorMap", *_DTYPE_NAMES)]
    for where, source in (("the text", text), *((f"the header {name}", header) for name, header in headers.items())):
        macros, aliases = _defined(source)
        for name in dict.fromkeys(types):
            if name in macros:
                what = f"defines {name!r} as a macro"
            elif any(of == scope[: len(of)] for of in aliases.get(name, ())):
                what = f"declares {name!r} by typedef or using"
            else:
                continue
            raise TypeError(
                f"{kernel}: {where} {what}; the arrays of a call decide what it is, so leave it undefined, or declare the "
                f"parameters with the C type itself"
            )


@lru_cache(64)
def _defined(text: str) -> tuple[frozenset[str], Mapping[str, Sequence[tuple[str, ...]]]]:
    """Names that a text defines as macros, and those that it declares as types outside functions and classes, each with the
    namespaces around."""
    code = scan(text)
    macros = (_MACRO.match(d.rest) for d in code.directives if d.name == "define")
    aliases: dict[str, list[tuple[str, ...]]] = {}
    for match in _ALIAS.finditer(code.bare):
        scope = code.scope(match.start())
        if scope is None:
            continue
        names = [match["using"]] if match["using"] else _LAST_WORD.findall(match["typedef"])
        for name in names:
            aliases.setdefault(name, []).append(scope)
    return frozenset(m[1] for m in macros if m), aliases
