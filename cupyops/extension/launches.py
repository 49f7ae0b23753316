"""Writes the launches of an extension in Python: a kernel for each, its launch policy, and the call."""

import re
import textwrap
from collections.abc import Mapping, Sequence

from cupyops.compile.cuda_text import Function
from cupyops.dtypes import DTYPES, FLOATS, INTEGERS
from cupyops.launch.definitions import entry_in
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.signature import Signature
from cupyops.launch.typenames import c_dtype

from .host import whole
from .records import HostFunction, Launch

__all__ = ["Kernels", "comment", "quoted", "wrapped"]

_CEIL = (
    re.compile(r"\((?P<x>.+) \+ (?P<b>\w+) - 1\) // (?P<c>\w+)"),
    re.compile(r"\((?P<x>.+) \+ (?P<k>\d+)\) // (?P<c>\w+)"),
    re.compile(r"\((?P<x>.+) - 1\) // (?P<c>\w+) \+ 1"),
    re.compile(r"(?:ceil_div|DIVUP|CEIL_DIV|ceildiv|divup|cdiv)\((?P<x>[^,]+), (?P<c>\w+)\)"),
)
_BLOCK = 256  # threads of a block that C++ computes
_WIDTH = 120
_CHOOSE = "choose it, and remove this line"


def wrapped(opening: str, items: Sequence[str], closing: str) -> list[str]:
    """Returns a call in one line, or in several where one is too long."""
    line = f"{opening}{', '.join(items)}{closing}"
    if len(line) + 4 <= _WIDTH:
        return [line]
    inside = f"    {', '.join(items)}"
    if len(inside) + 4 <= _WIDTH:
        return [opening, inside, closing]
    return [opening, *(f"    {item}," for item in items), closing]


def comment(text: str) -> list[str]:
    """Returns the lines of a comment."""
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 12, break_long_words=False, break_on_hyphens=False)]


def _raised(words: str) -> list[str]:
    lines = textwrap.wrap(words, _WIDTH - 24, drop_whitespace=False, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1:
        return [f"raise NotImplementedError({quoted(words)})"]
    return ["raise NotImplementedError(", *(f"    {quoted(line)}" for line in lines), ")"]


class Kernels:
    """The kernels of a starting file: a variable for each kernel with its template arguments and its block.

    Args:
        name: the file of the extension.
        text: the text of the kernels.
        functions: the kernels.
        refused: the kernels without translation, each with the reason.
        constants: the macros and constants of numbers at file scope, in Python.

    Attributes:
        signatures: the parameters of the kernels, by name.
        lines: the lines that make the kernels.
    """

    def __init__(
        self,
        name: str,
        text: str,
        functions: Sequence[Function],
        refused: Mapping[str, str],
        constants: Mapping[str, str],
    ) -> None:
        self._file, self._text, self._refused, self._constants = name, text, refused, constants
        self._paths = {f.name: f.path for f in functions}
        self.signatures = {f.name: signature_of(text, f.path) for f in functions}
        self.lines: list[str] = []
        self._variables: dict[tuple[object, ...], str] = {}

    def launched(self, launch: Launch, function: HostFunction) -> list[str]:
        """Returns the Python lines of a launch. If the user has to choose a number first, the lines raise
        NotImplementedError."""
        if launch.kernel not in self._paths:
            why = self._refused.get(launch.kernel, "the file does not define this kernel")
            return [*comment(f"C++: {launch.text};"), *_raised(f"{launch.kernel}: {why}")]
        known = {**self._constants, **{name: v[0] for name, v in function.locals.items() if len(v) == 1}}
        known |= {a.name: a.default for a in function.parameters if a.default is not None and a.name not in known}
        open_points: list[str] = []
        sizes = [whole(_component(part, function), known) for part in launch.block]
        block = [n for n in sizes if n is not None]
        if not block or len(block) < len(sizes):
            open_points.append("its block is computed at run time in C++, and is a number in Threads(block=...)")
            block = [_BLOCK]
        if not launch.grid:
            open_points.append("its grid has no translation")
        grid = [_component(part, function) for part in launch.grid] or ["1"]
        threads = [_threads(part, block[i] if i < len(block) else 1, known, function) for i, part in enumerate(grid)]
        threads += [str(n) for n in block[len(threads) :]]
        while len(threads) > 1 and threads[-1] == "1":
            threads.pop()
        while len(block) > 1 and block[-1] == 1:
            block.pop()
        shared = whole(launch.shared.strip() or "0", known)
        if shared is None:
            open_points.append(f"its bytes of shared memory, Kernel(..., shared=...), are {launch.shared}")
        signature = self.signatures[launch.kernel]
        name = self._name(launch, known, open_points)
        policy = _policy(signature, launch, threads, block)
        variable = self._variable(name, policy, _dtypes(signature, launch), shared or 0)
        if any(a.startswith("#") for a in launch.arguments):
            open_points.append("an argument has no translation")
        arguments = [f"... {a}".replace("#", "") if a.startswith("#") else a for a in launch.arguments]
        called = variable if "Threads(block" not in policy else f"{variable}[{', '.join(threads)}]"
        call = wrapped(f"{called}(", arguments, ")")
        if not open_points:
            return call
        words = f"{variable}: {'; '.join(open_points)}; {_CHOOSE}"
        notes = [*comment(f"C++: {launch.text};"), *_raised(words)]
        return [*notes, *([f"# {line}" for line in call] if "argument" in open_points[-1] else call)]

    def alone(self, function: Function) -> str:
        """Returns the Python variable of a kernel that no host function launches."""
        return self._variable(function.path, f"Threads(block=({_BLOCK},))", (), 0)

    def _name(self, launch: Launch, known: Mapping[str, str], open_points: list[str]) -> str:
        """Returns the kernel's name, with the template arguments that no array decides."""
        path = self._paths[launch.kernel]
        entry = entry_in(self._text, path)
        if entry is None or not entry.parameters:
            return path
        decided = self.signatures[launch.kernel].bindings
        found, plain = [], True
        for i, p in enumerate(entry.parameters):
            given = " ".join(launch.template[i].split()) if i < len(launch.template) else ""
            value = whole(given, known) if p.kind == "value" and given not in ("true", "false", "") else None
            if (p.kind == "type" and p.name in decided) or (not given and p.default is not None):
                found.append(p.name)
                continue
            plain = False
            if value is not None:
                found.append(str(value))
            elif given in ("true", "false") or (given and c_dtype(given)):
                found.append(given)
            else:
                shown = f"{given} in C++" if given else "left to the compiler in C++"
                open_points.append(f"its template parameter {p.name}, in the name of the Kernel, is {shown}")
                found.append("1" if p.kind == "value" else "float")
        return path if plain else f"{path}<{', '.join(found)}>"

    def _variable(self, name: str, policy: str, dtypes: Sequence[str], shared: int) -> str:
        key = (name, policy, tuple(dtypes), shared)
        if key not in self._variables:
            base = name.partition("<")[0].rpartition("::")[2].upper()
            taken = {*self._variables.values(), *self._constants}
            free = next(n for n in (base, *(f"{base}_{i}" for i in range(2, 1000))) if n not in taken)
            self._variables[key] = free
            shown = f"({', '.join(map(quoted, dtypes))}{',' if len(dtypes) == 1 else ''})"
            more = [f"filename={quoted(self._file)}"]
            more += [f"dtypes={shown}"] if dtypes else []
            more += [f"shared={shared}"] if shared else []
            self.lines += wrapped(f"{free} = Kernel(", ["TEXT", quoted(name), policy, *more], ")")
        return self._variables[key]


def quoted(text: str) -> str:
    """Returns a string literal of Python in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _dtypes(signature: Signature, launch: Launch) -> tuple[str, ...]:
    """Returns the dtypes of a kernel whose types the arrays decide; empty for the default."""
    if not signature.bindings:
        return ()
    by_value = any(not p.pointer and p.type in signature.bindings for p in signature.parameters)
    found = launch.dtypes or (FLOATS if by_value else ())
    return tuple(d for d in found if not by_value or DTYPES[d].code is not None)


def _policy(signature: Signature, launch: Launch, threads: Sequence[str], block: Sequence[int]) -> str:
    """Returns the launch policy: sizes that are arguments of the kernel, or threads that each call gives."""
    integers = {p.name for p in signature.parameters if p.type in INTEGERS and not p.pointer and p.length is None}
    by_value = {
        given: p.name
        for p, given in zip(signature.parameters, launch.arguments, strict=False)
        if p.name in integers and p.name not in ("min", "unit")
    }
    if len(launch.arguments) == len(signature.parameters) and all(t in by_value for t in threads):
        shown = str(block[0]) if len(block) == 1 else f"({', '.join(map(str, block))})"
        return f"Threads({', '.join(quoted(by_value[t]) for t in threads)}, block={shown})"
    return f"Threads(block=({', '.join(map(str, block))}{',' if len(block) == 1 else ''}))"


def _component(part: str, function: HostFunction) -> str:
    """Returns a component of a grid or a block, with the variable of a ``dim3`` replaced by its value."""
    if found := re.fullmatch(r"(\w+)\[(\d)\]", part):
        return function.locals[found[1]][int(found[2])]
    return part


def _threads(blocks: str, block: int, known: Mapping[str, str], function: HostFunction) -> str:
    """Returns the threads of a dimension: n for ``(n + 255) // 256`` blocks of 256, else blocks times threads."""
    shown = blocks
    if re.fullmatch(r"\w+", blocks) and len(function.locals.get(blocks, ())) == 1:
        shown = function.locals[blocks][0]
    for form in _CEIL:
        found = form.fullmatch(shown)
        if found is None or whole(found["c"], known) != block:
            continue
        groups = found.groupdict()
        if ("k" in groups and int(groups["k"]) != block - 1) or ("b" in groups and whole(groups["b"], known) != block):
            continue
        return groups["x"]
    if block == 1:
        return blocks
    value = whole(blocks, known)
    if value is not None:
        return str(value * block)
    return f"{blocks} * {block}" if re.fullmatch(r"\w+(?:\([\w, .]*\))?", blocks) else f"({blocks}) * {block}"
