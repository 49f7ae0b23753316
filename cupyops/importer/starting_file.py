"""The function :func:`from_extension`, which writes a starting file: kernels, the host code in Python, and
operators."""

import ast
import keyword
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cupyops.codegen import define
from cupyops.compile.file_scope import variables
from cupyops.errors import CompileError, expected
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.parameter import Parameter
from cupyops.launch.repro import source_literal

from .binding import Module
from .casters import Signature
from .effects import Effects
from .functions import Host
from .generated import names
from .launches import Kernels
from .program import entries_of
from .starting_kernels import device_half, launches, parameters
from .starting_operators import Called, comment, operators, wrapped
from .tree import Unit, parse
from .types import qualified

__all__ = ["Extension", "ExtensionKernel", "from_extension"]


@dataclass(frozen=True)
class ExtensionKernel:
    """A kernel of an extension.

    Attributes:
        name: the name with its namespaces.
        template: the parameters of the template, in C++; ``""`` for a function.
        parameters: the parameters.
        launches: the launches in the host code, without their arguments, in C++.
    """

    name: str
    template: str
    parameters: tuple[Parameter, ...]
    launches: tuple[str, ...]

    def __str__(self) -> str:
        listed = []
        for p in self.parameters:
            layout = "" if p.accessor is None else f", {'up to ' * p.accessor.counted}{p.accessor.rank} dimensions"
            const = "const " if p.pointer and p.const else ""
            listed.append(f"{const}{p.type}{'*' if p.pointer else ''} {p.name}{layout}")
        head = f"template <{' '.join(self.template.split())}> {self.name}" if self.template else self.name
        lines = [head, *(f"    {line}" for line in listed), *(f"    launched by {line}" for line in self.launches)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Extension:
    """The kernels of an extension, and a file to start from.

    Attributes:
        path: the file of the extension.
        text: the device code: the kernels and the declarations that they use.
        kernels: the kernels.
        refused: the names of the kernels that have no translation, each with the reason.
        missing: the names of included files that were not found.
        untranslated: what of the host code has no translation: the function, the place and the reason.
        starter: the text of the starting file: kernels, the host code in Python, and operators.
    """

    path: Path
    text: str
    kernels: tuple[ExtensionKernel, ...]
    refused: dict[str, str]
    missing: tuple[str, ...]
    untranslated: tuple[tuple[str, str, str], ...]
    starter: str

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the starting file, and returns its path.

        Raises:
            FileExistsError: the file exists. It is not overwritten.
            OSError: the file cannot be written.
        """
        path = Path(path)
        with path.open("x", encoding="utf-8") as file:
            file.write(self.starter)
        return path

    def __str__(self) -> str:
        lines = [str(kernel) for kernel in self.kernels]
        lines += [f"{name} has no translation: {why}" for name, why in self.refused.items()]
        lines += [f"{name} has no whole translation: {place}: {why}" for name, place, why in self.untranslated]
        lines += [f"{name} was not found: give its folder as include=[...]" for name in self.missing]
        return "\n".join(lines)


def from_extension(
    path: str | os.PathLike[str], *, include: Sequence[str | os.PathLike[str]] = (), namespace: str | None = None
) -> Extension:
    """Reads the ``.cu`` file of a PyTorch C++/CUDA extension.

    The kernels and the declarations that they use become the text of :class:`~cupyops.importer.launches.Kernels`. The
    host code becomes Python, by the types that clang finds. Each function that the file binds (or each function that no
    other calls) becomes an :class:`~cupyops.torch.Operator` if its types allow it. The operator of ``f_backward`` is
    the gradient of the operator of ``f`` if its parameters have the names of gradients, inputs and results. C++ code
    without a translation raises :class:`~cupyops.importer.errors.NotTranslated` when it would run, and a comment at the
    top of the file lists it.

    Args:
        path: the file; or its text, a string of several lines.
        include: folders of files that it includes, in addition to its own folder.
        namespace: the namespace of the operators; by default the name of the file.

    Raises:
        OSError: a file cannot be read.
        TypeError: `path` is not a path, or `include` is not a list of paths.
        ValueError: the file is not UTF-8, has no kernel, or none of its kernels has a translation, with the reasons
            in the message; or `namespace` is not an identifier, or is missing for a text.
        MissingDependencyError: libclang is not installed.

    Example:
        >>> import cupyops
        >>> extension = cupyops.from_extension("lltm_cuda_kernel.cu")  # doctest: +SKIP
        >>> print(extension)  # doctest: +SKIP
        >>> extension.write("lltm.py")  # doctest: +SKIP
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(expected("from_extension", "path", "be the path of a .cu file", type(path).__name__))
    if isinstance(include, (str, os.PathLike)) or not all(isinstance(folder, (str, os.PathLike)) for folder in include):
        raise TypeError(expected("from_extension", "include", "be a list of folders", repr(include)))
    for folder in include:
        if not Path(folder).is_dir():
            raise ValueError(expected("from_extension", "include", "name folders", str(folder)))
    text = path if isinstance(path, str) and "\n" in path else None
    if text is not None and namespace is None:
        raise ValueError(expected("from_extension", "namespace", 'be given for a text, `namespace="mylib"`', "None"))
    path = Path(f"{namespace}.cu" if text is not None else path)
    space = re.sub(r"\W", "_", path.stem) if namespace is None else namespace
    space = f"_{space}" if space[:1].isdigit() else space
    if not space.isidentifier() or keyword.iskeyword(space):
        raise ValueError(expected("from_extension", "namespace", "be an identifier", repr(space)))
    name = path.name
    if text is None:
        name = str(path.absolute())
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as problem:
            found = f"{path} ({problem.reason})"
            raise ValueError(expected("from_extension", "path", "name files of UTF-8", found)) from None
    unit = parse([(name, text)], (), [os.path.abspath(folder) for folder in include])
    host = Host(unit)
    declared = [d for d in unit.declarations() if d.kind.name.startswith("FUNCTION") and host.is_kernel(d)]
    if not declared:
        lacking = f"; it includes {', '.join(unit.missing)}, which was not found" if unit.missing else ""
        wanted = "name a file with a __global__ function"
        raise ValueError(expected("from_extension", "path", wanted, f"{path}{lacking}"))
    device, functions, refused = device_half(unit, path.name, [*dict.fromkeys(map(qualified, declared))])
    if not functions:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        wanted = "name a file with a kernel that NVRTC can have"
        raise ValueError(expected("from_extension", "path", wanted, f"{path}: {reasons}"))
    half = _HostHalf(unit, host, device)
    notes = [f"{name} is left out: {why}." for name, why in refused.items()]
    notes += [f"{name} was not found: give its folder as include=[...] or --include." for name in unit.missing]
    notes += [f"{name} has no whole translation: {place}: {why}." for name, place, why in host.untranslated]
    notes += half.notes
    starter = half.written(path.name, space, [line for note in notes for line in comment(note)])
    kernels = tuple(
        ExtensionKernel(f.path, f.template or "", parameters(device, f), launches(unit, f.name)) for f in functions
    )
    return Extension(path, device, kernels, refused, unit.missing, tuple(host.untranslated), starter)


def _imports(imported: Sequence[str]) -> list[str]:
    line = f"from cupyops.importer.generated import {', '.join(imported)}"
    if len(line) > 120:
        return wrapped(f"{line.replace(' import ', ' import (')})")
    return [line] if imported else []


# The host code


class _Bindings:
    """The library of ``TORCH_LIBRARY``, which keeps the functions for CUDA, and those for all keys, by name."""

    def __init__(self, key: str) -> None:
        self.key, self.found = key, dict[str, Callable[..., Any]]()

    def def_(self, schema: str, *extra: Any) -> "_Bindings":
        return self.impl(schema.partition("(")[0], "", *extra[-1:])

    def impl(self, name: str, *what: Any) -> "_Bindings":
        key = str(getattr(what[0], "name", what[0])) if len(what) > 1 and what[0] else self.key
        if what and hasattr(what[-1], "signature") and key.rpartition("::")[2] in ("", "CUDA"):
            self.found[name.rpartition("::")[2]] = what[-1]
        return self


class _HostHalf:
    """The host code as Python.

    Attributes:
        notes: what a reader of the file should know.
    """

    def __init__(self, unit: Unit, host: Host, device: str) -> None:
        self.host, self.device = host, device
        self.notes: list[str] = []
        entries = entries_of(unit, None)
        chosen = [host.function(declared) for _, declared in entries]
        host.signed.update(chosen)
        host.write_queued()
        self.source, _ = host.text("")
        self.parts = {getattr(p, "name", f"{i}"): p for i, p in enumerate(ast.parse(self.source).body)}
        self.binders = [n for n in chosen if n.startswith("cupyops_")]
        scope = names(Kernels(device, "kernels.cu"))
        define(ast.parse(self.source), "<host half>", scope)
        self.moved: dict[str, tuple[str, ast.FunctionDef]] = {}
        if self.binders:
            self.bound = {name: f for binder in self.binders for name, f in self._bound(binder, scope).items()}
        else:
            self.bound = {n: (scope[n], {}) for n in chosen if n in self.parts and n not in self._used()}

    def _used(self) -> set[str]:
        """Returns the functions that other functions call."""
        return {
            n.id
            for p in self.parts.values()
            for n in ast.walk(p)
            if isinstance(n, ast.Name) and n.id != getattr(p, "name", "")
        }

    def _bound(self, binder: str, scope: dict[str, Any]) -> dict[str, tuple[Any, dict[int, Any]]]:
        """Returns the functions that a binding names, with the defaults of their parameters."""
        try:
            if binder != "cupyops_module":
                library = _Bindings(binder.split("__")[-2])
                scope[binder](library)
                return {name: (f, {}) for name, f in library.found.items()}
            module = Module()
            scope[binder](module)
        except Exception as problem:
            self.notes.append(f"The bindings have no translation: {problem}.")
            return {}
        found: dict[str, tuple[Any, dict[int, Any]]] = {}
        for name, value in module.members.items():
            overloads: Any = getattr(value, "overloads", ())
            if len(overloads) == 1:
                found[name] = overloads[0].function, {i: a.default for i, a in enumerate(overloads[0].arguments)}
            elif name != "__doc__":
                self.notes.append(f"{name} of the module is left out: it is not a function with one set of parameters.")
        return found

    def _functions(self) -> Iterator[tuple[str, ast.FunctionDef, Signature, dict[int, Any]]]:
        """Yields the functions that Python calls; a lambda becomes a function of the module."""
        for name, (function, defaults) in self.bound.items():
            own = self.parts.get(function.__name__)
            if not isinstance(own, ast.FunctionDef):
                inner = (n for b in self.binders for n in ast.walk(self.parts[b]) if isinstance(n, ast.FunctionDef))
                own = next(n for n in inner if n.name == function.__name__)
                text = textwrap.dedent(self._text(own))
                moved = f"{name}_" if name in self.parts or not name.isidentifier() else name
                text = text.replace(f"def {own.name}(", f"def {moved}(", 1)
                own = ast.parse(text).body[0]
                assert isinstance(own, ast.FunctionDef)
                self.moved[moved] = text, own
            yield name, own, function.signature, defaults

    def _text(self, part: ast.stmt) -> str:
        """Returns the text of a statement, without decorators."""
        return "\n".join(self.source.splitlines()[part.lineno - 1 : part.end_lineno])

    def written(self, name: str, space: str, notes: Sequence[str]) -> str:
        """Returns the starting file.

        Args:
            name: the name of the extension's file.
            space: the namespace of the operators.
            notes: lines of comments.
        """
        functions = {n: p for n, p in self.parts.items() if isinstance(p, ast.FunctionDef)}
        called = [*self._functions()]
        functions |= {n: own for n, (_, own) in self.moved.items()}
        effects = Effects(functions, cache(self._written_by))
        lacking = {function: f"{place}: {why}" for function, place, why in reversed(self.host.untranslated)}
        declared = [
            Called(n, own, signature, defaults, effects.of(own.name), self._lacking(own, functions, lacking))
            for n, own, signature, defaults in called
        ]
        bodies: list[str] = []
        for part in (p for n, p in self.parts.items() if n not in self.binders):
            if isinstance(part, ast.Expr):  # the docstring
                continue
            spaced = isinstance(part, (ast.FunctionDef, ast.ClassDef)) or (bodies and bodies[-1].startswith(" "))
            bodies += ["", ""] * bool(spaced) + self._text(part).splitlines()
        for text, _ in self.moved.values():
            bodies += ["", "", *text.splitlines()]
        made = operators(space, declared)
        bodies = [text for line in bodies for text in wrapped(line)]
        bodies += ["", "", *made] if made and made[:1] != [""] else made
        code = "\n".join(bodies)
        used = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}
        imported = sorted(used & names(None).keys() - {"kernels", "statics"})
        made_by = f'kernels = Kernels(TEXT, "{name}", skip_empty=True)'
        if (instances := [f'"{n}"' for n in self.host.launched if "<" in n]) and variables(self.device):
            made_by = f'kernels = Kernels(TEXT, "{name}", names=[{", ".join(instances)}], skip_empty=True)'
        head = f'"""The operators of {name}, a PyTorch extension: its kernels, and its host half in Python.'
        lines = [
            head,
            "",
            "Give the operators a reference, which runs on CPU tensors, and a backward, which computes the gradients.",
            '"""',
            "",
            *_imports(imported),
            "from cupyops.importer.launches import Kernels",
            *(["from cupyops.torch import Operator"] if "Operator" in used else []),
            "",
            *notes,
            *([""] if notes else []),
            f"TEXT = {source_literal(self.device)}",
            *wrapped(made_by),
            *(["statics = {}"] if "statics" in used else []),
            code,
            "",
        ]
        return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines))

    def _lacking(
        self, function: ast.FunctionDef, functions: dict[str, ast.FunctionDef], lacking: dict[str, str]
    ) -> str:
        """Returns why a function, or one that it calls, has no whole translation."""
        seen, wanted = set[str](), [function.name]
        while wanted:
            name = wanted.pop()
            if name in lacking:
                return lacking[name]
            if name in functions and name not in seen:
                seen.add(name)
                wanted += [n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)]
        return ""

    def _written_by(self, kernel: str) -> tuple[bool, ...] | None:
        """Returns for each parameter of a kernel whether the kernel writes to its memory."""
        try:
            parameters = signature_of(self.device, kernel.partition("<")[0]).parameters
        except (CompileError, TypeError, ValueError):
            return None
        return tuple(not p.const if p.pointer else p.element is not None for p in parameters)
