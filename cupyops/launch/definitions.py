"""Finds a kernel in a text by its name.

A name may have namespaces, template arguments, and the types of the parameters, which distinguish overloads:
``"softmax"``, ``"a::softmax"``, ``"softmax<float, 128>"``, ``"softmax(float*, int)"``.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence

from cupyops.compile.cuda_text import Code, Function, scan
from cupyops.errors import nearest

from .template import Entry, entry_of, overload, parameter_types, split_name

__all__ = [
    "ATTRIBUTES",
    "declarations",
    "declares",
    "entry_in",
    "only",
    "overloads",
    "the_kernel",
    "without_overloads",
]

# Attributes of a function or of a parameter; parentheses within one another to a depth of three.
ATTRIBUTES = re.compile(
    r"\[\[[^][]*\]\]|\b(?:__attribute__|__align__|alignas)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)
_TYPE_BEFORE = re.compile(r"(?<!\breturn)(?<!\belse)(?<!\bnew)(?:[\w>]\s|[*&])\s*\Z")  # before the name of a function


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
