"""Writes the operators of a starting file."""

import re
import textwrap
from collections.abc import Sequence

from cupyops.compile.cuda_text import Function
from cupyops.dtypes import INTEGERS
from cupyops.launch.definitions import entry_in

from .launches import Kernels, comment, wrapped
from .records import Argument, HostFunction

__all__ = ["of_function", "of_kernel"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def of_function(space: str, kernels: Kernels, function: HostFunction) -> list[str]:
    """Returns the lines that declare a host function as an operator, or a comment with the reason why it cannot be
    one."""
    written = _written_by(kernels, function)
    tensors = [a for a in function.parameters if a.kind.startswith("Tensor")]
    others = [a for a in function.parameters if not a.kind.startswith("Tensor")]
    why, results = _results(function)
    odd = [a.name for a in function.parameters if not a.kind]
    if odd:
        why = f"no operator takes {', '.join(odd)}"
    elif not tensors:
        why = "it has no tensor"
    elif not (written or function.results or why):
        why = "it returns nothing, and writes to none of its arguments"
    elif written and results != "()" and not why:
        why = f"it returns tensors, and also writes to {', '.join(sorted(written))}"
    elif len(written) > len(_LETTERS):
        why = "it writes to too many arguments"
    if why:
        return comment(f"{function.name} is a function and no operator: {why}.")
    letters = iter(_LETTERS)

    def declared(a: Argument) -> str:
        return f"Tensor({next(letters)}!) {a.name}" if a.name in written else f"{a.kind} {a.name}"

    body, given = function.name, ", ".join(a.name for a in [*tensors, *others])
    if given != ", ".join(a.name for a in function.parameters):  # a schema lists the tensors first
        body = f"lambda {given}: {function.name}({', '.join(a.name for a in function.parameters)})"
    head = f"{space}::{function.name}("
    return _declared(f"{function.name}_op", head, list(map(declared, [*tensors, *others])), results, body)


def of_kernel(space: str, text: str, kernels: Kernels, function: Function) -> list[str]:
    """Returns the lines of an operator that launches a kernel, if no host function launches the kernel."""
    signature = kernels.signatures[function.name]
    entry = entry_in(text, function.path)
    alone = f"# No function of the file launches {function.path}"
    lacking = [
        p.name for p in (entry.parameters if entry else ()) if p.name not in signature.bindings and p.default is None
    ]
    if lacking:
        told = f'give its template {", ".join(lacking)} in the name, Kernel(TEXT, "{function.path}<...>")'
        return comment(f"No function of the file launches {function.path}: {told}.")
    arrays = [p for p in signature.parameters if p.pointer]
    numbers = [p for p in signature.parameters if not p.pointer]
    if any(p.length is not None or p.map_of is not None or p.element is not None for p in signature.parameters):
        return [f"{alone}, and no operator can pass its parameters."]
    if not any(not p.const for p in arrays):
        return [f"{alone}, and it writes to none of its parameters."]
    letters = iter(_LETTERS)
    declared = [f"Tensor {p.name}" if p.const else f"Tensor({next(letters)}!) {p.name}" for p in arrays]
    for p in numbers:
        kind = "bool" if p.type == "bool" else "int" if p.type in INTEGERS else "float"
        declared.append(f"{kind} {p.name}")
    given = ", ".join([*(p.name for p in arrays), *(p.name for p in numbers), "threads"])
    body = f"lambda {given}: {kernels.alone(function)}[threads]({', '.join(signature.names)})"
    head = f"{space}::{function.name}("
    return [
        f"{alone}. The operator takes the number of threads.",
        *_declared(f"{function.name}_op", head, [*declared, "int threads"], "()", body),
    ]


def _results(function: HostFunction) -> tuple[str, str]:
    """Returns the reason why a function cannot be an operator, or ``""``, and the results in its schema."""
    if function.returns == "void":
        return "", "()"
    names = {a.name for a in function.parameters}
    if "Tensor" not in function.returns:
        return f"it returns {function.returns}", ""
    if len({len(found) for found in function.results}) != 1:
        return "its return statements differ, or have no translation", ""
    if any(value in names for found in function.results for value in found):
        return "it returns an argument", ""
    last = function.results[-1]
    proper = all(n.isidentifier() and last.count(n) == 1 for n in last)
    shown = [f"Tensor {n}" for n in last] if proper else ["Tensor"] * len(last)
    return "", shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _declared(name: str, head: str, arguments: Sequence[str], results: str, body: str) -> list[str]:
    line = f'{name} = Operator("{head}{", ".join(arguments)}) -> {results}", {body})'
    if len(line) <= 120:
        return [line]
    schema = wrapped(head, arguments, f") -> {results}")
    if len(schema) > 1:
        listed = textwrap.wrap(", ".join(arguments), 110, drop_whitespace=False)
        schema = [head, *listed, f") -> {results}"]
    found = (
        wrapped(f"{body.partition('(')[0]}(", body.partition("(")[2].rstrip(")").split(", "), ")")
        if "(" in body
        else [body]
    )
    return [
        f"{name} = Operator(",
        *(f'    "{part}"' for part in schema[:-1]),
        f'    "{schema[-1]}",',
        *_body(found),
        ")",
    ]


def _body(lines: Sequence[str]) -> list[str]:
    return [*(f"    {line}" for line in lines[:-1]), f"    {lines[-1]},"]


def _written_by(kernels: Kernels, function: HostFunction) -> set[str]:
    """Returns the parameters of a function that its launches write."""
    own = {a.name for a in function.parameters}

    def root(name: str) -> str:
        for _ in range(8):
            if name in own or len(function.locals.get(name, ())) != 1:
                break
            name = function.locals[name][0]
        return re.sub(r"\.contiguous\(\)\Z", "", name)

    found = set()
    for launch in function.launches:
        signature = kernels.signatures.get(launch.kernel)
        for p, given in zip(signature.parameters if signature else (), launch.arguments, strict=False):
            if p.pointer and not p.const:
                found.add(root(given))
    return found & own
