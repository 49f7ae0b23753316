"""PyTorch's own operators in host code, asked of PyTorch: their C++ declarations for clang, and their calls.

A schema such as ``aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) ->
Tensor`` is the function ``at::sum`` and the method ``Tensor::sum``, as PyTorch's own C++ has them: ``dtype, layout,
device, pin_memory`` are one TensorOptions, keyword arguments are positional, and outputs come first in ``sum_out``.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from .devices import place
from .words import Namespace, own_namespace

__all__ = ["FUNCTIONS", "METHODS", "Operators", "declared", "header", "operator"]

# The lines of the words' header that the declarations of operators replace, in the class and in the namespace.
METHODS = "// methods of operators"
FUNCTIONS = "// functions of operators"

_OPTIONS = ("dtype", "layout", "device", "pin_memory")
_TYPES = {
    "Tensor": "const Tensor&", "Tensor?": "const std::optional<Tensor>&", "Tensor[]": "TensorList",
    "Tensor?[]": "c10::ArrayRef<std::optional<Tensor>>", "int": "int64_t", "int?": "std::optional<int64_t>",
    "int[]": "c10::IntArrayRef", "int[]?": "c10::OptionalIntArrayRef", "float": "double",
    "float?": "std::optional<double>", "float[]": "c10::ArrayRef<double>",
    "float[]?": "std::optional<c10::ArrayRef<double>>", "bool": "bool", "bool?": "std::optional<bool>",
    "bool[]": "c10::ArrayRef<bool>", "Scalar": "const c10::Scalar&", "Scalar?": "c10::OptionalScalar",
    "Scalar[]": "c10::ArrayRef<c10::Scalar>", "ScalarType": "c10::ScalarType",
    "ScalarType?": "std::optional<c10::ScalarType>", "str": "c10::string_view", "str?": "std::optional<c10::string_view>",
    "Device": "c10::Device", "Device?": "std::optional<c10::Device>", "Layout?": "std::optional<c10::Layout>",
    "Generator?": "std::optional<Generator>", "MemoryFormat": "c10::MemoryFormat",
    "MemoryFormat?": "std::optional<c10::MemoryFormat>", "options": "c10::TensorOptions",
}  # fmt: skip
_RETURNS = {
    "Tensor": "Tensor", "List[Tensor]": "std::vector<Tensor>", "int": "int64_t", "float": "double", "bool": "bool",
    "number": "c10::Scalar", "ScalarType": "c10::ScalarType",
}  # fmt: skip
_MEMORY_FORMATS = {"0": "c10::MemoryFormat::Contiguous", "1": "c10::MemoryFormat::Preserve"}


@dataclass(frozen=True)
class Slot:
    """A parameter of the C++ function: its name, its type in the schema, its default in C++, if it is a keyword."""

    name: str
    kind: str
    default: str | None
    keyword: bool


@dataclass(frozen=True)
class Schema:
    """An overload of an operator, with its C++ parameters, the outputs first.

    Attributes:
        overload: the name after the dot; ``""`` for the first.
        slots: the C++ parameters.
        outputs: how many of them are outputs.
        returns: the types of the results.
    """

    overload: str
    slots: tuple[Slot, ...]
    outputs: int
    returns: tuple[str, ...]

    def types(self) -> tuple[str, ...]:
        return tuple(_TYPES[slot.kind] for slot in self.slots)

    def cpp(self, name: str, required: int, *, method: bool = False) -> str:
        """Returns the C++ declaration, where the first parameters have no default."""
        first = 1 if method else 0
        parameters: list[str] = []
        optional = True
        for i in range(len(self.slots) - 1, first - 1, -1):
            slot = self.slots[i]
            optional = optional and slot.default is not None and i >= required
            default = f" = {slot.default}" if optional else ""
            parameters.insert(0, f"{_TYPES[slot.kind]} {_name(slot.name)}{default}")
        types = [_RETURNS[kind] for kind in self.returns]
        result = "void" if not types else types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"
        if (name.endswith("_") and result == "Tensor") or self.outputs == 1:
            result = "Tensor&"
        return f"{result} {name}({', '.join(parameters)}){' const' if method else ''};"

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Returns whether C++ would call this overload."""
        given = zip(self.slots, arguments, strict=False)
        return (
            len(arguments) <= len(self.slots)
            and all(slot.default is not None for slot in self.slots[len(arguments) :])
            and all(fits(slot.kind, value) for slot, value in given)
        )


def _name(name: str) -> str:
    return f"{name}_" if name in ("self", "from", "default", "other", "out") else name


def spread(options: Any) -> dict[str, Any]:
    """Returns the keywords of a factory for a TensorOptions, or for what C++ converts to one."""
    from .words import words

    made: dict[str, Any] = words()["c10::TensorOptions"].object(options).keywords()
    return made


def converted(value: Any) -> Any:
    """Returns a C++ argument as PyTorch's dispatcher takes it."""
    if isinstance(value, torch.device):
        return place(value)
    return list(value) if isinstance(value, list) else value


def fits(kind: str, value: Any) -> bool:
    """Returns whether a value of generated code can be an argument of a type of the schema."""
    if value is None:
        return kind.endswith("?") or kind in ("Tensor", "options")
    kind = kind.removesuffix("?")
    if kind.endswith("[]"):
        if isinstance(value, list):
            return all(fits(kind[:-2], item) for item in value[:1])
        return kind == "int[]" and fits("int", value)
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind == "options":
        return not isinstance(value, (bool, int, float, list, torch.Tensor))
    return isinstance(value, _PYTHON.get(kind, object)) and not (kind == "int" and isinstance(value, bool))


_PYTHON: dict[str, Any] = {
    "int": int, "float": (float, int), "bool": bool, "Scalar": (bool, int, float, complex), "str": str,
    "ScalarType": torch.dtype, "Device": (torch.device, str), "Layout": torch.layout, "MemoryFormat": torch.memory_format,
    "Generator": torch.Generator,
}  # fmt: skip


def _default(kind: str, text: str) -> str:
    """Returns a default value of a schema in C++."""
    if text == "None" or text == "[]":
        return "{}"
    if text.startswith("["):
        return "{" + text[1:-1] + "}"
    if kind == "MemoryFormat":
        return _MEMORY_FORMATS.get(text, "c10::MemoryFormat::Contiguous")
    return {"True": "true", "False": "false", "inf": "__builtin_huge_val()"}.get(text, text)


def _plain(kind: str) -> str:
    """Returns a type of a schema without lengths: ``"int[]"`` for ``"SymInt[2]"``."""
    return re.sub(r"\[\d+\]", "[]", kind).replace("SymInt", "int")


_ARGUMENT = re.compile(r"(\S+) (\w+)(?:=(.*))?")


def _parsed(schema: Any) -> Schema | None:
    """Returns a schema of PyTorch; None for an operator that C++ does not have, or whose types have no translation."""
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    if not torch._C._dispatch_has_kernel(full):
        return None
    # Aliases have parentheses and arrows of their own: "Tensor(a -> *) self".
    text = re.sub(r"\(\w+!?(?: -> [^)]*)?\)", "", str(schema))
    inner = text[text.index("(") + 1 : text.rindex(") -> ")]
    slots: list[Slot] = []
    keyword = False
    for part in re.split(r", (?![^\[]*\])", inner) if inner else ():
        if part == "*":
            keyword = True
            continue
        found = _ARGUMENT.fullmatch(part)
        if found is None:
            return None
        name = found[2]
        default = None if found[3] is None else _default(_plain(found[1]), found[3])
        if name == "unbiased":  # std() is the overload that has a correction
            default = None
        slots.append(Slot(name, _plain(found[1]), default, keyword))
    outputs = [a.name for a in schema.arguments if a.is_out]
    names = [slot.name for slot in slots]
    if "dtype" in names and names[names.index("dtype") :][:4] == list(_OPTIONS):
        at = names.index("dtype")
        slots[at : at + 4] = [Slot("options", "options", "{}", True)]
    slots.sort(key=lambda slot: slot.name not in outputs)
    returns = tuple(str(result.real_type) for result in schema.returns)
    if any(slot.kind not in _TYPES for slot in slots) or any(kind not in _RETURNS for kind in returns):
        return None
    return Schema(schema.overload_name, tuple(slots), len(outputs), returns)


@cache
def schemas(name: str) -> tuple[Schema, ...]:
    """Returns the overloads of a C++ function of namespace ``at``; none for a name that is not an operator."""
    found = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    out = not found and name.endswith("_out")
    if out:
        found = torch._C._jit_get_schemas_for_operator(f"aten::{name[:-4]}")
    parsed = (_parsed(schema) for schema in found)
    return tuple(schema for schema in parsed if schema is not None and bool(schema.outputs) == out)


def declared(names: Set[str]) -> tuple[str, str]:
    """Returns the C++ declarations of the operators among some names.

    Args:
        names: the identifiers of a text. Operators that have a word of their own are left out.

    Returns:
        the functions of namespace ``at``, and the methods of ``at::Tensor``.
    """
    from .words import words

    own = words()
    functions: list[str] = []
    methods: list[str] = []
    for name in sorted(names):
        if f"at::{name}" not in own:
            function, method = _declarations(name)
            functions += function
            methods += method
    return "\n".join(functions), "\n".join(methods)


@cache
def _declarations(name: str) -> tuple[list[str], list[str]]:
    functions: list[str] = []
    methods: list[str] = []
    overloads: dict[tuple[str, ...], Schema] = {}
    for schema in schemas(name):
        overloads.setdefault(schema.types(), schema)  # overloads with the same C++ signature are merged
    for types, schema in overloads.items():
        # A call that fits an overload whole is not a call of a longer one with its defaults.
        required = max((i + 1 for i in range(len(types)) if types[:i] in overloads), default=0)
        functions.append(schema.cpp(name, required))
        if schema.slots and schema.slots[0].name == "self" and schema.slots[0].kind == "Tensor":
            methods.append(schema.cpp(name, required, method=True))
    return functions, methods


def header(text: str, names: Set[str]) -> str:
    """Returns the words' header with the declarations of the operators among the identifiers of a text."""
    functions, methods = declared(names)
    return text.replace(METHODS, methods, 1).replace(FUNCTIONS, functions, 1)


@cache
def operator(name: str) -> Callable[..., Any]:
    """Returns the Python function of ``at::name``, which takes C++'s arguments.

    Raises:
        AttributeError: PyTorch has no such operator.
    """
    overloads = schemas(name)
    if not overloads:
        raise AttributeError(f"PyTorch has no operator at::{name}")
    base = name if hasattr(torch.ops.aten, name) else name.removesuffix("_out")
    packet = getattr(torch.ops.aten, base)
    functions = [(schema, getattr(packet, schema.overload or "default")) for schema in overloads]

    # The overload depends on the arguments' types alone, so it is chosen once for each tuple of types.
    chosen: dict[tuple[Any, ...], tuple[Any, tuple[Slot, ...]]] = {}

    def call(*arguments: Any) -> Any:
        key = tuple([(list, type(a[0]) if a else None) if isinstance(a, list) else type(a) for a in arguments])
        found = chosen.get(key)
        if found is None:
            found = chosen[key] = choose(arguments)
        function, slots = found
        if not slots:
            result = function(*arguments)
            return result if type(result) is torch.Tensor else _wrapped(result)
        return _finished(function, *_bound(slots, arguments))

    def choose(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Slot, ...]]:
        """Returns PyTorch's function, and the C++ parameters if some argument changes its form."""
        for schema, function in functions:
            if schema.takes(arguments):
                slots = schema.slots[: len(arguments)]
                same = not any(
                    s.keyword or isinstance(a, (list, torch.device)) for s, a in zip(slots, arguments, strict=True)
                )
                factory = getattr(torch, name, None) if any(s.kind == "options" for s in schema.slots) else None
                return factory or function, () if same else slots
        kinds = ", ".join(type(a).__name__ for a in arguments)
        raise TypeError(f"at::{name} has no overload for ({kinds})")

    call.__name__ = call.__qualname__ = name
    return call


def _bound(slots: Sequence[Slot], arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns C++'s arguments for PyTorch's function, by position and by keyword."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for slot, value in zip(slots, arguments, strict=True):
        if slot.kind == "options":
            keywords |= spread(value)
        elif slot.keyword:
            keywords[slot.name] = converted(value)
        else:
            positional.append(converted(value))
    return positional, keywords


def _wrapped(result: Any) -> Any:
    """Returns a result of PyTorch in the form that generated code uses."""
    from .standard import Vector

    return Vector(result) if isinstance(result, list) else result


def _finished(function: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
    requires_grad = keywords.pop("requires_grad", False)
    result = function(*positional, **keywords)
    if requires_grad:
        result.requires_grad_()
    return _wrapped(result)


class Operators(Namespace):
    """The namespace ``at`` of generated code: the words, and PyTorch's operators."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return operator(name)


own_namespace("at", Operators)
