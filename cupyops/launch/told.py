"""Gives the parameters of a kernel the types that the compiler reports (:mod:`.asked`)."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cupyops.compile.ask import ParameterType
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError

from .accessors import accessor_of
from .definitions import undecided
from .elements import of_bytes, without_data
from .library_types import Element, complex_of, library_type
from .parameter import OPEN, Parameter
from .scanned import Scanned
from .typenames import dtype_of, taken_apart

__all__ = ["answered"]

_UNDEFINED = re.compile(
    r"identifier \"(\w+)\" is undefined|unknown type name '(\w+)'"
    r"|'(\w+)' (?:was not declared|has not been declared|does not name a type)"
)


def answered(scanned: Scanned, ask: Callable[..., Any], dtypes: Sequence[str]) -> list[Parameter]:
    """Returns the parameters of a declaration with the types that the compiler reports. It is asked only for open types.

    Args:
        scanned: the declaration.
        ask: :meth:`.KernelSource.ask`.
        dtypes: the dtypes of the types that the arrays decide.

    Raises:
        TypeError, ValueError: no Python value can be passed for a parameter, or no array decides a type.
        CompileError: the compiler refuses the text.
    """
    kernel, parameters, bases = scanned.kernel, scanned.parameters, scanned.bases
    places = [i for i, p in enumerate(parameters) if p.type == OPEN]
    if not places:
        return parameters
    low = next((d for d in dtypes if d in ("float16", "bfloat16")), dtypes[0])
    high = next(d for d in (*reversed(dtypes), "float32", "float64") if d not in (low, "float16", "bfloat16"))
    of_template = _types_of_template(scanned)
    words = {word for base in bases for word in re.findall(r"\w+", base)}
    plain = [p.type for p in parameters if p.type not in (*DTYPES, OPEN, "TensorMap") and p.element is None]
    known = scanned.declared | (scanned.entry.names if scanned.entry else frozenset())
    usual = {"scalar_t", "acc_t"} & words if known.isdisjoint(("scalar_t", "acc_t")) else ()
    by_arrays = [*dict.fromkeys("scalar_t" if name == "acc_t" else name for name in (*plain, *usual, *of_template))]
    first: CompileError | None = None
    while True:
        lowest = dict.fromkeys(by_arrays, low)
        try:
            answers = ask(lowest, places)
            break
        except CompileError as error:
            first = first or error
            # No declaration of these names is compiled (one may be in a branch that a condition removes): the arrays
            # decide them.
            names = {name for found in _UNDEFINED.findall(str(error)) for name in found if name} & words - {*by_arrays}
            if not names:
                raise first from None
            by_arrays += sorted({"scalar_t" if name == "acc_t" else name for name in names})
    if len(answers.parameters) != len(parameters):
        raise TypeError(
            f"{kernel}: the text shows {len(parameters)} parameters, and the compiler sees {len(answers.parameters)}: "
            f"declare each parameter without a macro for several"
        )
    lows = list(parameters)
    for i in places:
        lows[i] = _told(kernel, parameters[i], bases[i], answers.parameters[i], partial(answers.record, i))
    found = list(lows)
    for name in by_arrays:
        try:
            types = ask({**lowest, name: high}).parameters
        except CompileError:
            continue  # the text takes one dtype alone
        for i in places:
            p = lows[i]
            if types[i] == answers.parameters[i]:
                continue
            if not p.pointer and types[i].kind in "sm":
                raise _follows(kernel, p, bases[i])
            q = _told(kernel, p, bases[i], types[i], lambda: None)
            if p in (q, replace(q, accessor=p.accessor)):
                continue
            if (p.type, replace(q, type=p.type)) == (low, p) and q.type == high:
                found[i] = replace(p, type=name)
            elif name == "scalar_t" and (p.type, q.type) == (DTYPES[low].acc, DTYPES[high].acc) and not p.pointer:
                found[i] = replace(p, type="acc_t")
            elif p.pointer:
                spelled = bases[i] if bases[i] and not bases[i].isidentifier() else f"decltype({p.name})"
                found[i] = replace(p, type=spelled, untyped=True, element=None, accessor=None)
            else:
                raise _follows(kernel, p, bases[i])
    return found


def _follows(kernel: str, p: Parameter, base: str) -> TypeError:
    return TypeError(
        f"{kernel}: parameter `{p.name}` has type {base!r}, which follows from the dtype of the arrays: declare scalar_t, acc_t or a C "
        f"type, or give the arguments of the template in the kernel's name"
    )


def _types_of_template(scanned: Scanned) -> list[str]:
    """Returns the parameters of the kernel's template that the arrays decide.

    Raises:
        ValueError: no parameter of the kernel has such a type.
    """
    if scanned.entry is None:
        return []
    given = scanned.entry.arguments()
    found = [
        p for p in scanned.entry.parameters if p.kind == "type" and p.name not in ("", *given) and p.default is None
    ]
    for parameter in found:
        # An array decides T by T* and by Vector<T>*, and not by T::pointer.
        if not re.search(rf"\b{parameter.name}\b(?!\s*::)", " ".join(scanned.bases)):
            raise ValueError(undecided(scanned.kernel, scanned.entry, parameter))
    return [p.name for p in found]


def _told(kernel: str, p: Parameter, base: str, answer: ParameterType, record: Callable[[], Any]) -> Parameter:
    """Returns a parameter with the type that the compiler reports."""
    depth, pointer_const, const, spelled = taken_apart(answer.spelling)
    if depth > 2 or answer.spelling.endswith("&&") or (depth == 2 and "(" in answer.spelling):
        of = f"{kernel}: parameter `{p.name}` is of type `{answer.spelling}`"
        raise TypeError(f"{of}: pass arrays as T*, numbers by value, small tuples as Int64s<N>")
    pointer = depth > 0
    plain = Parameter(
        p.name, "uint8", pointer, const or not pointer, p.shape, None, p.nullable, optional=p.optional, asked=True
    )
    if depth == 2:
        return replace(plain, type="uint64", const=pointer_const)
    if "(" in spelled.partition("<")[0]:  # a pointer to a function
        return replace(plain, type="uint64", pointer=False, const=True)
    if pointer and spelled == "void":
        return replace(plain, untyped=True)
    if not pointer and (found := accessor_of(spelled)) is not None:
        of, accessor = found
        plain = replace(plain, pointer=True, const=p.const or of.endswith(" const"))
        of = of.removesuffix(" const")
        if (dtype := dtype_of(of)) is not None:
            return replace(plain, type=dtype, accessor=accessor)
        if (number := complex_of(of)) is not None:
            return replace(plain, type=number.dtype, accessor=replace(accessor, paired=True), element=number)
        raise TypeError(f"{kernel}: parameter `{p.name}` has elements of {of!r}, which is no dtype")
    if (dtype := dtype_of(spelled) or (dtype_of(answer.element) if answer.kind == "e" else None)) is not None:
        rows = re.search(r"\(\*\)\s*((?:\[\d+\])+)\Z", answer.spelling)
        if rows is None:
            return replace(plain, type=dtype)
        width = math.prod(map(int, re.findall(r"\d+", rows[1])))  # a pointer to arrays, as of typedef float vec3[3]
        return replace(plain, type=dtype, element=Element(base, dtype, width, DTYPES[dtype].itemsize))
    if spelled.startswith("Int64s<") and not pointer:
        return replace(plain, type="int64", length=spelled[7:].rstrip(">ul"))
    if (element := library_type(spelled)) is not None:
        return replace(plain, type=element.dtype, element=replace(element, name=base or element.name))
    of = base if base.isidentifier() and not spelled.isidentifier() else spelled
    if answer.kind == "o":
        empty = Element(of, "uint8", answer.size, answer.alignment, without_data(answer.size))
        return replace(plain, element=empty)
    layout = record() if answer.kind in "sm" else None
    if pointer and layout is None and (p.shape is None or answer.kind == "i"):
        return replace(plain, untyped=True)
    if answer.kind in "sm":
        layout = of_bytes(answer.size) if layout is None else layout
        return replace(plain, element=Element(of, "uint8", answer.size, min(answer.alignment, 16), layout))
    raise TypeError(
        f"{kernel}: parameter `{p.name}` has type {answer.spelling!r}, for which no Python value can be passed"
    )
