"""Reads the compiler's answers about the parameters of a kernel (:mod:`.asked`)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from cupyops.compile.ask import ParameterType
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError

from .accessors import accessor_of
from .elements import unknown_struct, without_data
from .library_types import Element, complex_of, library_type
from .parameter import OPEN, Parameter
from .typenames import dtype_of

__all__ = ["Answers", "Ask", "answered", "taken_apart"]

_EXTENTS = re.compile(r"\s*\([*&]\)\s*(?:\[\d*\])+\Z|(?:\s*\[\d*\])+\Z")
_POINTER = re.compile(r"\s*(?:\*|&&?)\s*(const)?\s*(?:volatile\b|(?:__)?restrict(?:__)?\b|\s)*\Z")
_UNDEFINED = re.compile(
    r"identifier \"(\w+)\" is undefined|unknown type name '(\w+)'"
    r"|'(\w+)' (?:was not declared|has not been declared|does not name a type)"
)


class Answers(Protocol):
    """The compiler's answers about a kernel's parameters for a choice of types."""

    @property
    def parameters(self) -> Sequence[ParameterType]:
        """The types, in the order of the declaration."""
        ...

    @property
    def of_others(self) -> Sequence[Sequence[ParameterType]]:
        """The types under further choices that were asked for."""
        ...

    def record(self, position: int, given: Element | None) -> tuple[object, int]:
        """Returns the NumPy dtype of the class of a parameter, or None without one, and its bytes. If Python passed a
        layout for the struct, the dtype has its members."""
        ...


class Ask(Protocol):
    """Asks the compiler about a kernel's parameters."""

    def __call__(
        self, types: Mapping[str, str], positions: Sequence[int], others: Sequence[Mapping[str, str]] = (), /
    ) -> Answers:
        """Returns the answers for a choice of types, with the classes of the parameters at some places, and the types for further
        choices, which differ in arguments of the kernel's template."""
        ...


class _Types(NamedTuple):
    """Answers without the layouts of classes."""

    parameters: Sequence[ParameterType]
    of_others: Sequence[Sequence[ParameterType]] = ()

    def record(self, position: int, given: Element | None) -> tuple[None, int]:
        return None, self.parameters[position].size


def answered(
    kernel: str,
    parameters: Sequence[Parameter],
    bases: Sequence[str],
    open_names: Sequence[str],
    open_types: Sequence[str],
    ask: Ask,
    dtypes: Sequence[str],
    structs: Mapping[str, Element],
) -> list[Parameter]:
    """Returns the parameters of a declaration with the types that the compiler reports.

    Args:
        kernel: the kernel's name, for messages.
        parameters, bases: the parameters as the text has them, and the types in it.
        open_names: names in these types that the arrays decide.
        open_types: those of them that are parameters of the kernel's template.
        ask, dtypes, structs: see :meth:`Signature.parse`.
    """
    parameters = list(parameters)
    low = next((d for d in dtypes if d in ("float16", "bfloat16")), dtypes[0])
    high = next(d for d in (*reversed(dtypes), "float32", "float64") if d not in (low, "float16", "bfloat16"))
    open_places = [i for i, p in enumerate(parameters) if p.type == OPEN]
    asked = {bases[i] for i in open_places}
    words = {word for i in open_places for word in re.findall(r"\w+", bases[i])}
    decided = [p.type for p in parameters if p.type not in (*DTYPES, OPEN, "TensorMap") and p.element is None]
    undecided = list(dict.fromkeys([*decided, *open_names]))
    if "acc_t" in undecided:
        undecided = [name for name in dict.fromkeys(["scalar_t", *undecided]) if name != "acc_t"]
    undecided = [name for name in undecided if name not in asked or name in open_names]
    first: CompileError | None = None
    while True:
        lowest = dict.fromkeys(undecided, low)
        of_template = [name for name in undecided if name in open_types]
        others = [{**lowest, name: high} for name in of_template]
        try:
            try:
                answers = ask(lowest, open_places, others)
            except CompileError:
                if not others:
                    raise
                answers, of_template = ask(lowest, open_places), []  # the text may take one dtype alone
            break
        except CompileError as error:
            first = first or error
            # No declaration of these names is compiled (one may be in a branch that a condition removes): the arrays
            # decide them.
            names = {name for found in _UNDEFINED.findall(str(error)) for name in found if name} & words - {*undecided}
            if not names:
                raise first from None
            undecided += sorted({"scalar_t" if name == "acc_t" else name for name in names})
    if len(answers.parameters) != len(parameters):
        raise TypeError(
            f"{kernel}: the text shows {len(parameters)} parameters, and the compiler sees {len(answers.parameters)}: "
            f"declare each parameter without a macro for several"
        )
    found = [
        replace(_told(kernel, p, base, answers, i, structs), asked=True) if p.type == OPEN else p
        for i, (p, base) in enumerate(zip(parameters, bases, strict=True))
    ]
    lows = list(found)
    high_types = dict(zip(of_template, answers.of_others, strict=True))
    for name in undecided:
        try:
            types = high_types.get(name) or ask({**lowest, name: high}, ()).parameters
        except CompileError:
            continue  # the text takes one dtype alone
        for i in open_places:
            p, base = lows[i], bases[i]
            if types[i] == answers.parameters[i]:
                continue
            if not p.pointer and types[i].kind == "s" and p.accessor is None:
                raise _follows(kernel, p, base)
            q = replace(_told(kernel, parameters[i], base, _Types(types), i, structs), asked=True)
            if p in (q, replace(q, accessor=p.accessor)):
                continue
            if (p.type, replace(q, type=p.type)) == (low, p) and q.type == high:
                found[i] = replace(p, type=name)
            elif name == "scalar_t" and (p.type, q.type) == (DTYPES[low].acc, DTYPES[high].acc) and not p.pointer:
                found[i] = replace(p, type="acc_t")
            elif p.pointer:
                spelled = base if not base.isidentifier() else f"decltype({p.name})"
                found[i] = Parameter(p.name, spelled, pointer=True, const=p.const, untyped=True, asked=True)
            else:
                raise _follows(kernel, p, base)
    return found


def _follows(kernel: str, p: Parameter, base: str) -> TypeError:
    return TypeError(
        f"{kernel}: parameter `{p.name}` has type {base!r}, which follows from the dtype of the arrays: declare scalar_t, acc_t or a C "
        f"type, or give the arguments of the template in the kernel's name"
    )


def _told(
    kernel: str, p: Parameter, base: str, answers: Answers, position: int, structs: Mapping[str, Element]
) -> Parameter:
    """Returns a parameter with the type that the compiler reports."""
    answer = answers.parameters[position]
    depth, pointer_const, const, spelled = taken_apart(answer.spelling)
    if depth > 2 or (depth == 2 and "(" in answer.spelling):
        raise TypeError(f"{kernel}: parameter `{p.name}` is of type `{answer.spelling}`: pass arrays as T*")
    if depth == 2:
        return Parameter(p.name, "uint64", pointer=True, const=pointer_const)
    if "(" in spelled.partition("<")[0]:  # a pointer to a function
        return Parameter(p.name, "uint64")
    pointer = depth == 1
    plain = Parameter(p.name, "uint8", pointer=pointer, const=const if pointer else True)
    if pointer and spelled == "void":
        return replace(plain, untyped=True)
    name = spelled.rpartition("::")[2] if "<" not in spelled else spelled
    if not pointer and (found := accessor_of(spelled)) is not None:
        of, accessor = found
        reads = p.const or of.endswith(" const")
        of = of.removesuffix(" const")
        if (dtype := dtype_of(of)) is not None:
            return Parameter(p.name, dtype, pointer=True, const=reads, accessor=accessor)
        if (number := complex_of(of)) is not None:
            accessor = replace(accessor, paired=True)
            return Parameter(p.name, number.dtype, pointer=True, const=reads, accessor=accessor, element=number)
        raise TypeError(f"{kernel}: parameter `{p.name}` has elements of {of!r}, which is no dtype")
    if (dtype := dtype_of(spelled) or (dtype_of(answer.element) if answer.kind == "e" else None)) is not None:
        if rows := re.search(
            r"\(\*\)\s*((?:\[\d+\])+)\Z", answer.spelling
        ):  # a pointer to arrays, as of typedef float vec3[3]
            width = math.prod(map(int, re.findall(r"\d+", rows[1])))
            return replace(plain, type=dtype, element=Element(base, dtype, width, DTYPES[dtype].itemsize))
        return replace(plain, type=dtype)
    if spelled.startswith("Int64s<"):
        return replace(plain, type="int64", length=spelled[7:].rstrip(">ul"))
    given = structs.get(name) or structs.get(base.removeprefix("struct "))
    if given is None and (element := library_type(spelled)) is not None:
        return replace(plain, type=element.dtype, element=replace(element, name=base or element.name))
    if answer.kind == "o" and given is None:
        return replace(
            plain, element=Element(base or spelled, "uint8", answer.size, answer.alignment, without_data(answer.size))
        )
    if answer.kind in "so":
        record, size = answers.record(position, given)
        if given is not None:
            return replace(plain, element=given)
        if record is not None:
            own = Element(base if base.isidentifier() else spelled, "uint8", size, min(answer.alignment, 16), record)
            return replace(plain, element=own)
    if pointer and answer.kind in "si":
        return replace(plain, untyped=True)
    if answer.kind in "si":
        raise unknown_struct(kernel, p.name, base.removeprefix("struct ") or name)
    raise TypeError(
        f"{kernel}: parameter `{p.name}` has type {answer.spelling!r}, for which no Python value can be passed"
    )


def taken_apart(spelling: str) -> tuple[int, bool, bool, str]:
    """Returns the pointers and references of a type, whether the outer pointer's target is a ``const`` pointer, whether the element is
    ``const``, and the element.

    >>> taken_apart("float const*")
    (1, False, True, 'float')
    """
    depth, pointer_const = 0, False
    if extents := _EXTENTS.search(spelling):
        depth, spelling = 1, spelling[: extents.start()]
    while (found := _POINTER.search(spelling)) and not spelling.endswith(">"):
        pointer_const = pointer_const or (depth == 1 and found[1] is not None)
        depth, spelling = depth + 1, spelling[: found.start()]
    words = spelling.split(" ")
    const = "const" in words[-2:]
    while words[-1] in ("const", "volatile"):
        words.pop()
    return depth, pointer_const, const, " ".join(words)
