"""Writes the starting file of an extension: its kernels, its host half in Python, and an operator for each function that
launches.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cupyops.compile.cuda_text import Function
from cupyops.launch.repro import source_literal

from .launches import Kernels, comment, wrapped
from .operators import of_function, of_kernel
from .records import HostFunction

__all__ = ["ExtensionParts", "starting_file"]


@dataclass(frozen=True)
class ExtensionParts:
    """The parts of an extension from which :func:`starting_file` writes the starting file.

    Attributes:
        name: the file of the extension.
        space: the namespace of the operators.
        text: the text of the kernels.
        kernels: the kernels of the text.
        refused: the other kernels, each with the reason.
        missing: included files that were not found.
        functions: the functions of the host half.
        constants: the macros and constants of numbers at file scope, in Python.
    """

    name: str
    space: str
    text: str
    kernels: Sequence[Function]
    refused: Mapping[str, str]
    missing: Sequence[str]
    functions: Sequence[HostFunction]
    constants: Mapping[str, str]


def starting_file(parts: ExtensionParts) -> str:
    """Returns the starting file of an extension."""
    kernels = Kernels(parts.name, parts.text, parts.kernels, parts.refused, parts.constants)
    bodies: list[str] = []
    operators: list[str] = []
    for function in parts.functions:
        parameters = [a.name if a.default is None else f"{a.name}={a.default}" for a in function.parameters]
        lines = [f"    {line}".rstrip() for line in _body(kernels, function)]
        bodies += ["", "", *wrapped(f"def {function.name}(", parameters, "):"), *lines]
        if function.launches:
            operators += of_function(parts.space, kernels, function)
    launched = {x.kernel for f in parts.functions for x in f.launches}
    for kernel in parts.kernels:
        if kernel.name not in launched:
            operators += of_kernel(parts.space, parts.text, kernels, kernel)
    code = "\n".join(bodies)
    constants = [f"{name} = {value}" for name, value in parts.constants.items() if re.search(rf"\b{name}\b", code)]
    if re.search(r"\bceil_div\(", code) and all(f.name != "ceil_div" for f in parts.functions):
        bodies = ["", "", "def ceil_div(a, b):", "    return -(-a // b)", *bodies]
    notes = [line for name, why in parts.refused.items() for line in comment(f"{name} is left out: {why}.")]
    notes += [f"# {name} was not found: give its folder as include=[...] or --include." for name in parts.missing]
    if left := sum(f.left for f in parts.functions):
        notes.append(f"# Statements of the host half without translation: {left}. They stand as comments, `# C++:`.")
    return "\n".join(
        [
            f'"""The operators of {parts.name}, a PyTorch extension: its kernels, and its host half in Python.',
            "",
            "Write the shape of each array into the comment behind its parameter, `// (M, N)`: every call then checks it. Give",
            "the operators a reference, which runs on CPU tensors, and a backward, which computes the gradients.",
            '"""',
            "",
            *(["import math", ""] if "math." in code else []),
            "import torch",
            "from cupyops import Kernel, Threads",
            "from cupyops.torch import Operator",
            "",
            *notes,
            *([""] if notes else []),
            f"TEXT = {source_literal(parts.text)}",
            *kernels.lines,
            *([""] if constants else []),
            *constants,
            *bodies,
            *(["", "", *operators] if operators else []),
            "",
        ]
    )


def _body(kernels: Kernels, function: HostFunction) -> list[str]:
    """Returns the lines of a function with its launches."""
    lines: list[str] = []
    for line in function.lines:
        indent, place = line[: len(line) - len(line.lstrip())], line.strip()
        launch = next((x for x in function.launches if x.place == place), None)
        lines += [indent + text for text in kernels.launched(launch, function)] if launch else [line]
    # The variables of a grid and a block are not needed, because the launch gets the number of threads.
    sizes = [
        name for x in function.launches for part in (*x.grid, *x.block) for name in re.findall(r"[A-Za-z_]\w*", part)
    ]
    for name in [
        *sizes,
        *(n for v in sizes for part in function.locals.get(v, ()) for n in re.findall(r"[A-Za-z_]\w*", part)),
    ]:
        uses = [i for i, line in enumerate(lines) if re.search(rf"\b{name}\b", line)]
        if len(uses) == 1 and re.fullmatch(rf"{name} = [^#]*", lines[uses[0]].strip()):
            del lines[uses[0]]
    return lines if any(not line.strip().startswith("#") for line in lines) else [*lines, "pass"]
