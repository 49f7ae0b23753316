"""Reads a program of kernels and host code, and keeps its translation on disk."""

import ast
import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupyops.codegen import define
from cupyops.compile.store import Program as Stored
from cupyops.compile.store import digest

from .generated import names
from .launches import Kernels

__all__ = ["Program", "entries_of", "program"]

_TWICE = re.compile(r"redefinition of (?!default argument)|functions that differ only in their return type|redeclared")


@dataclass
class Program:
    """A translated program.

    Attributes:
        name: the name of the program.
        source: the host code as Python.
        device: the text of the kernels, for NVRTC. Sources that keep names to themselves have texts of their own in `kernels`,
            which follow one another here.
        functions: the host functions by their C++ names.
        bound: what ``PYBIND11_MODULE`` binds, by name.
        untranslated: the code without a translation: the function, the place and the reason.
        kernels: the kernels, by name expression.
    """

    name: str
    source: str
    device: str
    functions: dict[str, Callable[..., Any]]
    bound: dict[str, Callable[..., Any]]
    untranslated: list[tuple[str, str, str]]
    kernels: Kernels = field(repr=False)


def program(
    name: str,
    sources: Sequence[tuple[str, str]],
    *,
    functions: Sequence[str] | None = None,
    options: Sequence[str] = (),
    include: Sequence[str | os.PathLike[str]] = (),
) -> Program:
    """Translates a program, or takes its translation from the disk.

    Args:
        name: its name, for messages and operators.
        sources: the file names and the texts, which are one program.
        functions: the host functions that Python calls; by default those that the program binds, else all.
        options: options of NVRTC, and ``-D``, ``-U``, ``-std=`` for both halves.
        include: folders of its own headers.

    Raises:
        MissingDependencyError: libclang is not installed, and the translation is not on disk.
    """
    folders = [os.path.abspath(folder) for folder in include]
    asked = None if functions is None else sorted(functions)
    stored = Stored("program", list(sources), asked, list(options), folders)
    found = stored.read()
    if found is None:
        found = _translated(name, sources, functions, options, folders)
        stored.write(found)
    return _made(name, found, sources, options)


def _translated(
    name: str, sources: Sequence[tuple[str, str]], functions: Sequence[str] | None, options: Sequence[str], include: Any
) -> dict[str, Any]:
    from .functions import Host
    from .tree import joined, parse

    whole = unit = parse(sources, options, include)
    if len(sources) > 1 and any(_TWICE.match(p.message) for p in unit.problems):
        # Names that the sources keep to themselves, as compilers see them. Instances of templates do not reach from one to another.
        unit = joined([parse([source], options, include) for source in sources])
    host = Host(unit)
    entries = entries_of(unit, functions)
    host.signed.update(functions or ())
    chosen = {}
    for entry, declared in entries:
        chosen[entry] = host.function(declared)
        host.signed.add(chosen[entry])
    host.write_queued()
    text, places = host.text(f"The host half of {name}, translated from its C++.")
    for lacking in sorted(set(functions or ()) - {entry for entry, _ in entries}):
        problem = next((p.message for p in unit.problems), "the program does not define it")
        host.untranslated.append((lacking, name, problem))
    device, own = _device(whole, unit, host)
    included = {file: digest(body) for file, body in unit.files.items() if not file.startswith("/cupyops/")}
    return {
        "source": text,
        "places": [list(place) for place in places],
        "device": device,
        "own": own,
        "functions": chosen,
        "bindings": [entry for entry, _ in entries if entry.startswith("cupyops_")],
        "untranslated": host.untranslated,
        "launched": [name for name in host.launched if "<" in name or "(" in name],
        "files": dict(unit.files.items()),
        "included": included,
    }


def _device(whole: Any, unit: Any, host: Any) -> tuple[str, dict[str, str]]:
    """Returns the text of the kernels. If several sources apart have kernels, each keeps its functions and its variables to
    itself: returns their texts also by the names of the kernels and the variables that the host uses."""
    from .slice import sliced

    if not (host.launched or host.has_kernels()):
        return "", {}
    found = [p for p in unit.parts if any(host.is_kernel(d) for d in p.declarations() if _is_function(d))]
    if len(found) == 1:
        return sliced(found[0]), {}
    if not found:
        return sliced(whole), {}
    texts = [sliced(part) for part in found]
    places = [part.cursor.translation_unit for part in found]
    homes = {name: host.home(declared).translation_unit for name, declared in host.launched.items()}
    return "\n".join(texts), {name: texts[places.index(home)] for name, home in homes.items() if home in places}


def _is_function(declared: Any) -> bool:
    return declared.kind.name.startswith("FUNCTION")


def entries_of(unit: Any, functions: Sequence[str] | None) -> list[tuple[str, Any]]:
    """Returns the functions that Python calls, by name."""
    from .declarations import is_host_function, registers
    from .functions import REGISTRATION

    found: dict[str, Any] = {}
    for i, declared in enumerate(unit.declarations()):
        if registers(declared):
            found[f"{REGISTRATION}{i}"] = declared
        elif declared.kind.name == "FUNCTION_DECL" and is_host_function(declared):
            definition = unit.definition(declared)
            if definition is not None and (declared.spelling not in found or declared.linkage.name != "INTERNAL"):
                found[declared.spelling] = definition
    bindings = {n: d for n, d in found.items() if n.startswith("cupyops_")}
    if functions is not None:
        return [(n, d) for n, d in found.items() if n in functions or n in bindings]
    if bindings:
        return list(bindings.items())
    return list(found.items())


def _made(name: str, found: dict[str, Any], sources: Sequence[tuple[str, str]], options: Sequence[str]) -> Program:
    from .binding import Module
    from .functions import REGISTRATION
    from .torch_library import library_of

    file = sources[-1][0] if sources else f"{name}.cu"
    kernels = Kernels(found["device"], os.path.basename(file), options, names=found["launched"], own=found["own"])
    scope = names(kernels)
    for path, text in found["files"].items():
        shown = _shown(path)
        linecache.cache[shown] = (len(text), None, text.splitlines(True), shown)
    _execute(found, scope)
    functions = {n: scope[p] for n, p in found["functions"].items() if p in scope}
    bound: dict[str, Callable[..., Any]] = {}
    for binding in found["bindings"]:
        run = functions.pop(binding)
        if binding == "cupyops_module":
            module = Module(name)
            run(module)
            bound.update(module.members)
        elif binding.startswith(REGISTRATION):
            run()
        else:
            run(library_of(binding))
    untranslated = [tuple(u) for u in found["untranslated"]]
    return Program(name, found["source"], found["device"], functions, bound, untranslated, kernels)


def _execute(found: dict[str, Any], scope: dict[str, Any]) -> None:
    """Runs the generated module. Its functions have the file and the lines of the C++ in tracebacks."""
    places = found["places"]
    tree = ast.parse(found["source"])
    for statement in tree.body:
        file, _ = next(
            (places[i] for i in range(statement.lineno - 1, statement.end_lineno or 0) if places[i][0]), ("", 0)
        )
        body = found["files"].get(file, "").split("\n")
        for node in ast.walk(statement):
            if isinstance(node, (ast.stmt, ast.expr, ast.arg, ast.keyword, ast.alias, ast.excepthandler)):
                line = places[node.lineno - 1][1] or 1
                node.lineno = node.end_lineno = line
                node.col_offset, node.end_col_offset = 0, len(body[line - 1].encode()) if line <= len(body) else 0
        define(ast.Module([statement], []), _shown(file) or "<program>", scope)


def _shown(path: str) -> str:
    return os.path.basename(path) if path.startswith("/cupyops/") else path
