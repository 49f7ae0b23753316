"""Finds a kernel in a text by its name.

A name may have namespaces, template arguments, and the types of the parameters, which distinguish overloads:
``"softmax"``, ``"a::softmax"``, ``"softmax<float, 128>"``, ``"softmax(float*, int)"``.

``Kernel(text, "softmax<float, 128>")`` gives the arguments. ``Kernel(text, "softmax")`` leaves them to the call: the
dtypes of the arrays decide the types, and ``constants`` the numbers. The default of a parameter counts last. An argument
that repeats the parameter's name is left to the call, too: ``"softmax<scalar_t, 128>"``.

``Kernel(text, "scale(float*, int)")`` names one of several functions of a name by the types of its parameters.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.compile.definitions import split
from cupyops.dtypes import DTYPES
from cupyops.errors import nearest

__all__ = [
    "ATTRIBUTES",
    "Entry",
    "declarations",
    "declares",
    "entry_in",
    "entry_of",
    "only",
    "overload",
    "overloads",
    "parameter_types",
    "split_name",
    "the_kernel",
    "undecided",
    "without_overloads",
]

_NAME = re.compile(
    r"\s*((?:::)?\s*[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*)\s*(?:<(.*)>)?\s*(?:\((|[^()\d].*)\))?\s*", re.DOTALL
)
_RESTRICT = re.compile(r"\b(?:__restrict__|__restrict|__grid_constant__|volatile|register|typename|struct|enum)\b")
_TYPE_WORDS = frozenset(("char", "short", "int", "long", "float", "double", "bool", "signed", "unsigned", "const"))
_TYPE = re.compile(r"(?:typename|class)\b\s*(\.\.\.)?\s*(\w*)")
_VALUE = re.compile(r".*?(\.\.\.)?\s*\b([A-Za-z_]\w*)", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+")
# Attributes of a function or of a parameter; parentheses within one another to a depth of three.
ATTRIBUTES = re.compile(
    r"\[\[[^][]*\]\]|\b(?:__attribute__|__align__|alignas)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_TYPE_BEFORE = re.compile(r"(?<!\breturn)(?<!\belse)(?<!\bnew)(?:[\w>]\s|[*&])\s*\Z")  # before the name of a function


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

    def numbers(self) -> dict[str, int]:
        """Returns the numbers that the kernel's name gives, by parameter."""
        given = ((name, {"true": "1", "false": "0"}.get(a, a)) for name, a in self.arguments().items() if name)
        return {name: int(a) for name, a in given if _NUMBER.fullmatch(a)}

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


def the_kernel(text: str) -> str:
    """Returns the name of the only ``__global__`` function of a text.

    Raises:
        ValueError: the text has no ``__global__`` function, or several.
    """
    paths = list(dict.fromkeys(f.path for f in scan(text).functions if not f.special))
    if len(paths) != 1:
        raise ValueError(f"name the kernel: the text has {', '.join(paths) or 'none'}")
    return paths[0].rpartition("::")[2]


def entry_in(text: str, kernel: str) -> Entry | None:
    """Returns the C++ name of a kernel of a text, or None for an ``extern "C"`` function."""
    found = declarations(scan(text), kernel)
    path = split_name(kernel)
    if any(f.linkage for f in _named(scan(text), path[0]) if f.template is None) and path[1] is None:
        return None
    return entry_of(kernel, found[0], path[1] or ())


def declarations(code: Code, kernel: str) -> list[Function]:
    """Returns the definitions of a kernel, or its first prototype if the text has no definition.

    Raises:
        ValueError: the text does not declare the kernel, or not with these types of parameters; several namespaces do;
            or template arguments are given for a function.
    """
    path, given = split_name(kernel)
    found = _named(code, path)
    if not found:
        names = list(dict.fromkeys(f.name for f in code.functions if not f.special))
        raise ValueError(
            f"no __global__ function {path!r} in the text; it has {', '.join(names) or 'none'}{nearest(path, names)}"
        )
    plain = [f for f in found if f.template is None]
    templates = [f for f in found if f.template is not None]
    if given is not None and not templates:
        raise ValueError(f"{kernel}: `{path}` is no template, so its name takes no arguments")
    linked = [f for f in plain if f.linkage]
    chosen = templates if given is not None else plain or templates
    if (types := overload(kernel)) is not None:
        chosen = [f for f in (templates if given is not None else found) if _types(code, f) == types]
        if not chosen:
            raise ValueError(
                f"{kernel}: no function {path!r} has these parameters; the text has {overloads(code, found)}"
            )
        linked = [f for f in linked if f in chosen]
        plain = [f for f in plain if f in chosen]
    paths = list(dict.fromkeys(f.path for f in chosen))
    if len(paths) > 1:
        raise ValueError(f"{kernel}: the text has {' and '.join(paths)}; name the kernel with its namespace")
    # Definitions come first: a prototype often has no shape comments. A definition may get its linkage from a
    # prototype.
    if linked and given is None:
        return [f for f in linked if f.defined] or [f for f in plain if f.defined] or linked[:1]
    return [f for f in chosen if f.defined] or chosen[:1]


def overloads(code: Code, functions: Sequence[Function]) -> str:
    """Returns the names of functions with the types of their parameters, for messages."""
    told = (f"{f.name}({', '.join(_types(code, f))})" for f in functions)
    return " and ".join(repr(name) for name in dict.fromkeys(told))


def _types(code: Code, function: Function) -> tuple[str, ...]:
    """Returns the types of a function's parameters."""
    return parameter_types(code.bare[function.parameters : function.end]) if function.end >= 0 else ()


def _named(code: Code, path: str) -> list[Function]:
    """Returns the functions of a name, which may begin with namespaces."""
    return [f for f in code.functions if not f.special and f"::{f.path}".endswith(f"::{path}")]


def only(text: str, kernel: str) -> str:
    """Returns the text with every ``__global__`` function except `kernel` replaced by as many empty lines.

    The kernels of a text may use different types, and a compilation chooses types for one kernel. Compiling one kernel
    also takes less time.
    """
    code = scan(text)
    kept, at = [], 0
    name, types = split_name(kernel)[0].rpartition("::")[2], overload(kernel)

    def is_wanted(function: Function) -> bool:
        if function.name != name or types is None:
            return function.name == name
        # The types of a specialization are not those of its template.
        own = _types(code, function)
        return own == types or (function.special and len(own) == len(types))

    wanted = [f.start for f in code.functions if is_wanted(f)]
    for function in code.functions:
        if is_wanted(function) or function.start < at:
            continue
        start, end = function.start, code.end_of_function(function.parameters)
        # The braces or conditionals match only after preprocessing: the function is kept.
        if bisect_left(wanted, end) > bisect_left(wanted, start) or not _whole(code, start, end):
            continue
        kept += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end
    return "".join(kept) + text[at:]


def without_overloads(text: str, kernel: str, headers: Collection[str]) -> tuple[str, str | None]:
    """Returns the text with the kernel renamed if another function has its name, and the new name, or None if it is not
    renamed.

    The name may also be that of a function for the GPU or the host with other parameters, or of another kernel's
    prototype. The name expression of a kernel has no parameters, which would distinguish them.

    Args:
        text: the text of one kernel.
        kernel: the kernel's name, also with namespaces and template arguments.
        headers: the texts of headers.
    """
    code = scan(text)
    chosen = declarations(code, kernel)
    name, types = chosen[0].name, {_types(code, f) for f in chosen}
    own = [f for f in code.functions if f.path == chosen[0].path]
    alike = [f for f in own if f.template is None and not f.special and _types(code, f) in types]
    mixed = chosen[0].template is None and len(alike) < len(own)
    if not mixed and not any(declares(other, name) for other in (text, *headers)):
        return text, None
    named = f"Cupyops_{name}"
    for function in reversed(alike if mixed else own):
        text = f"{text[: function.named]}{named}{text[function.named + len(name) :]}"
    return text, named


def declares(text: str, name: str) -> bool:
    """Returns whether a text declares a function of a name outside classes that is not a kernel."""
    if name not in text:
        return False
    code = scan(text)
    kernels = {f.named for f in code.functions}
    called = (match.start() for match in re.finditer(rf"\b{name}\s*\(", code.bare))
    return any(
        at not in kernels and _TYPE_BEFORE.search(code.bare, max(at - 99, 0), at) and code.scope(at) is not None
        for at in called
    )


def _whole(code: Code, start: int, end: int) -> bool:
    """Returns whether all conditionals that begin between two offsets end there, and none that begins before does."""
    depth = 0
    for directive in code.directives_between(start, end):
        depth += directive.name in ("if", "ifdef", "ifndef")
        if depth == 0 and directive.name in ("else", "elif", "elifdef", "elifndef", "endif"):
            return False
        depth -= directive.name == "endif"
    return depth == 0
