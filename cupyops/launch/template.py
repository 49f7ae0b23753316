"""The name of a kernel in C++: its namespaces and the arguments of its template.

``Kernel(text, "softmax<float, 128>")`` gives the arguments. ``Kernel(text, "softmax")`` leaves them to the call: the
dtypes of the arrays decide the types, and ``constants`` the numbers. The default of a parameter counts last. An argument
that repeats the parameter's name is left to the call, too: ``"softmax<scalar_t, 128>"``.

``Kernel(text, "scale(float*, int)")`` names one of several functions of a name by the types of its parameters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cupyops.compile.definitions import Function, split
from cupyops.dtypes import DTYPES

__all__ = [
    "Entry",
    "TemplateParameter",
    "entry_of",
    "numbers_of",
    "overload",
    "parameter_types",
    "split_name",
    "undecided",
]

_NAME = re.compile(
    r"\s*((?:::)?\s*[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)\s*(?:<(.*)>)?\s*(?:\((|[^()\d].*)\))?\s*", re.DOTALL
)
_RESTRICT = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename|struct|enum)\b")
_TYPE_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "const"))
_TYPE = re.compile(r"(?:typename|class)\b\s*(\.\.\.)?\s*(\w*)")
_VALUE = re.compile(r".*?(\.\.\.)?\s*\b([A-Za-z_]\w*)", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+|true|false")


@dataclass(frozen=True)
class TemplateParameter:
    """A parameter of a template.

    Attributes:
        name: the name, or ``""``.
        kind: ``"type"``; ``"value"`` for a number; ``"other"`` for a template or a pack.
        default: the default argument, or None.
    """

    name: str
    kind: str
    default: str | None = None


@dataclass(frozen=True)
class Entry:
    """The C++ name of a kernel that is not ``extern "C"``.

    Attributes:
        path: the name with its namespaces.
        parameters: the parameters of the template; empty for a function.
        given: the arguments in the kernel's name.
    """

    path: str
    parameters: tuple[TemplateParameter, ...] = ()
    given: tuple[str, ...] = ()

    def packs(self) -> dict[str, tuple[str, ...]]:
        """Returns the arguments that the kernel's name gives for a pack of types at the end of the template, by the pack's name."""
        last = self.parameters[-1] if self.parameters else None
        if last is None or last.kind != "other" or not last.name or len(self.given) < len(self.parameters) - 1:
            return {}
        return {last.name: self.given[len(self.parameters) - 1 :]} if self.given else {}

    @property
    def names(self) -> frozenset[str]:
        """The names of the template's parameters."""
        return frozenset(p.name for p in self.parameters if p.name)

    def arguments(self) -> dict[str, str]:
        """Returns the types and numbers that the kernel's name gives, by parameter."""
        return {
            p.name: a for p, a in zip(self.parameters, self.given, strict=False) if p.kind != "other" and a != p.name
        }

    def renamed(self, name: str) -> "Entry":
        """Returns the entry of a function of another name in the same namespace."""
        space, colons, _ = self.path.rpartition("::")
        return replace(self, path=f"{space}{colons}{name}")

    def expression(self, kernel: str, types: Mapping[str, str], constants: Mapping[str, int]) -> str:
        """Returns the name with all arguments, ``a::softmax<float, 128>``.

        Args:
            kernel: the kernel's name, for messages.
            types: the dtype of each type that the arrays decide.
            constants: the kernel's constants.

        Raises:
            ValueError: a parameter of the template has no argument.
        """
        found: list[tuple[str, bool]] = []
        for i, p in enumerate(self.parameters):
            given = self.given[i] if i < len(self.given) else p.name
            if given != p.name or p.kind == "other":
                if i >= len(self.given) and p.name and p.default is None:
                    raise ValueError(undecided(kernel, self, p))  # a template
                if i >= len(self.given):
                    break  # a pack without arguments
                found.append((given, True))
            elif p.name in types:
                found.append((DTYPES[types[p.name]].c_type, True))
            elif p.name in constants:
                found.append((str(constants[p.name]), True))
            elif p.default is not None:
                found.append((self._substituted(p.default, found), False))
            else:
                raise ValueError(undecided(kernel, self, p))
        found += [(a, True) for a in self.given[len(self.parameters) :]]  # of a pack
        while found and not found[-1][1]:
            found.pop()
        return f"{self.path}<{', '.join(a for a, _ in found)}>" if self.parameters else self.path

    def _substituted(self, default: str, found: list[tuple[str, bool]]) -> str:
        known = {p.name: a for p, (a, _) in zip(self.parameters, found, strict=False) if p.name}
        return re.sub(r"\b[A-Za-z_]\w*\b", lambda m: known.get(m[0], m[0]), default)


def undecided(kernel: str, entry: Entry | None, parameter: TemplateParameter) -> str:
    """Returns the message for a template parameter without an argument."""
    assert entry is not None
    told = ", ".join(p.name or "..." for p in entry.parameters)
    name = entry.path.rpartition("::")[2]
    if parameter.kind == "value":
        instead = f"constants={{{parameter.name!r}: ...}} or in its name, {name}<{told}> with numbers and types"
    else:
        instead = f"part of its name, {name}<{told}> with numbers and types: no array of the call decides the type"
    return f"{kernel}: the template's parameter `{parameter.name}` has no argument: give it as {instead}"


def split_name(name: str) -> tuple[str, tuple[str, ...] | None]:
    """Returns the path in a kernel's name, and the template arguments, or None for a name without arguments.

    >>> split_name("a::softmax<float, 128>")
    ('a::softmax', ('float', '128'))

    Raises:
        ValueError: the name is not the name of a function.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"{name!r} is not a name of a kernel, such as 'softmax', 'a::softmax' or 'softmax<float, 128>'"
        )
    path = "".join(found[1].split()).removeprefix("::")
    if found[2] is None:
        return path, None
    return path, tuple(" ".join(part.split()) for _, part in split(found[2]) if part.strip())


def overload(name: str) -> tuple[str, ...] | None:
    """Returns the types of the parameters in a kernel's name, or None for a name without them.

    >>> overload("scale(float *, int)")
    ('float*', 'int')
    """
    found = _NAME.fullmatch(name)
    return None if found is None or found[3] is None else parameter_types(found[3])


def parameter_types(listed: str) -> tuple[str, ...]:
    """Returns the types in a list of parameters, without names, defaults, ``__restrict__``, and ``const`` of a value.

    >>> parameter_types("float* __restrict__ y, const int n = 3, const char4 *x")
    ('float*', 'int', 'const char4*')
    """
    found = []
    for _, part in split(listed):
        words = re.findall(r"::|\w+|[^\s\w]", _RESTRICT.sub(" ", split(part, "=")[0][1]))
        brackets = ["*"] * words.count("[") if words[-1:] == ["]"] else []
        words = words[: words.index("[")] if brackets else words
        named = len(words) > 1 and re.fullmatch(r"[A-Za-z_]\w*", words[-1]) and words[-1] not in _TYPE_WORDS
        if named and words[-2] not in ("const", "::"):
            words = words[:-1]
        words += brackets
        if "*" not in words and "&" not in words:
            words = [word for word in words if word != "const"]
        elif words[-1] == "const":  # of the pointer itself
            words = words[:-1]
        text = re.sub(r"\s*(::|[*&<>])\s*", r"\1", " ".join(words)).replace(" ,", ",")
        if text and text != "void":
            found.append(text)
    return tuple(found)


def entry_of(kernel: str, function: Function, given: tuple[str, ...]) -> Entry:
    """Returns the C++ name of a function.

    Raises:
        ValueError: more arguments are given than the template has parameters.
    """
    listed = split(function.template) if function.template is not None else []
    parameters = tuple(_parameter(part) for _, part in listed if part.strip())
    if len(given) > len(parameters) and not any(p.kind == "other" for p in parameters):
        told = ", ".join(p.name or "..." for p in parameters)
        raise ValueError(f"{kernel}: the template has the parameters <{told}>, got {len(given)} arguments")
    return Entry(function.path, parameters, given)


def numbers_of(entry: Entry) -> dict[str, int]:
    """Returns the numbers that the kernel's name gives, by parameter of the template."""
    return {
        p.name: {"true": 1, "false": 0}.get(a) if a in ("true", "false") else int(a)  # type: ignore[misc]
        for p, a in zip(entry.parameters, entry.given, strict=False)
        if p.kind == "value" and p.name and _NUMBER.fullmatch(a)
    }


def _parameter(declaration: str) -> TemplateParameter:
    head, default = declaration, None
    depth = 0
    for match in re.finditer(r"[<>()=]", declaration):
        depth += (match[0] in "<(") - (match[0] in ">)")
        if match[0] == "=" and not depth:
            head, default = declaration[: match.start()], " ".join(declaration[match.end() :].split())
            break
    head = head.strip()
    if found := _TYPE.fullmatch(head):
        return TemplateParameter(found[2], "other" if found[1] else "type", default)
    found = _VALUE.fullmatch(head)
    words = head.split()
    if head.startswith("template") and "..." not in words[-1]:
        return TemplateParameter(words[-1], "other", default)
    if head.startswith("template") or found is None or found[1]:
        return TemplateParameter("", "other", default)  # a pack
    named = len(re.findall(r"\w+", head)) > 1 and found[2] not in ("int", "bool", "unsigned", "long", "short", "char")
    return TemplateParameter(found[2] if named else "", "value", default)
