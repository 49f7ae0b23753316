"""Makes operators of a cell of CUDA C++, and reports on them."""

import argparse
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

import cupyops
from cupyops import Kernel
from cupyops.compile import toolchain
from cupyops.compile.compiler import OPTIONS, compile_text, supported_architectures
from cupyops.compile.cuda_text import scan
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import CompileError, LaunchError, MissingDependencyError
from cupyops.launch.kernel_source import signature_of
from cupyops.simulator import RESIDENT_BLOCKS, host
from cupyops.simulator.simulated import prepare
from cupyops.torch import CheckFailed, Operator, check_op

from .derived import Derived, sizes_of
from .options import CellError, constants_of, geometry_of

__all__ = ["compiled_report", "drawn_inputs", "operators_of"]

FILENAME = "cell"  # in messages: cell:7 is line 7 of the cell, in which the line of %%cu is line 1
NAMESPACE = "notebook"
BACKWARD = "_backward"


def operators_of(options: argparse.Namespace, cell: str, scope: Mapping[str, Any]) -> dict[str, Operator]:
    """Returns the operators of a cell by name.

    Args:
        options: the options of ``%%cu``.
        cell: the text after the line of ``%%cu``.
        scope: the names of the notebook, for ``--reference``.

    Raises:
        CellError: the text is not an operator, does not compile, or the options do not fit the text.
    """
    text = f"\n{cell}"
    names = list(dict.fromkeys(f.name for f in scan(text).functions))
    if not names:
        raise CellError('%%cu: the cell has no kernel: declare extern "C" __global__ void NAME(...)')
    forward = [
        name for name in names if name.removesuffix(BACKWARD) == name or name.removesuffix(BACKWARD) not in names
    ]
    if options.name is not None and len(forward) > 1:
        raise CellError(f"%%cu: leave out {options.name}: the cell has the operators {', '.join(forward)}")
    if options.name is not None and not options.name.isidentifier():
        raise CellError(f"%%cu: the name of the operator must be an identifier, got {options.name!r}")
    if options.reference is not None and not callable(reference := scope.get(options.reference)):
        raise CellError(f"%%cu: --reference: the notebook has no function {options.reference}, got {reference!r}")
    try:
        derived = {name: _derived(options, text, name) for name in names}
        for each in derived.values():
            compiled_report(each.kernel)
        return {
            options.name or name: _operator(
                options.name or name, derived[name], derived.get(f"{name}{BACKWARD}"), scope.get(options.reference)
            )
            for name in forward
        }
    except (CompileError, MissingDependencyError, TypeError, ValueError) as error:
        raise CellError(str(error)) from error


def _derived(options: argparse.Namespace, text: str, name: str) -> Derived:
    geometry = geometry_of(options, name, sizes_of(signature_of(text, name).parameters))
    return Derived(Kernel(text, name, geometry, constants=constants_of(options), filename=FILENAME))


def _operator(name: str, body: Derived, gradient: Derived | None, reference: Callable[..., Any] | None) -> Operator:
    named: dict[str, Any] = {}
    if gradient is not None:
        tensors, results = [p.name for p in body.inputs], [p.name for p in gradient.results]
        if wrong := [r for r in results if r.removeprefix("grad_") not in tensors or not r.startswith("grad_")]:
            wanted = ", ".join(f"grad_{x}" for x in tensors)
            raise TypeError(f"{gradient.kernel.name}: its results must be gradients ({wanted}), got {', '.join(wrong)}")
        named = {"backward": gradient, "wrt": [r.removeprefix("grad_") for r in results]}
    return Operator(f"{NAMESPACE}::{name}{body.schema}", body, reference=reference, **named)


def compiled_report(kernel: Kernel) -> str:
    """Compiles a kernel for its first dtype, and returns what NVRTC reports. No GPU is needed. Without NVRTC the kernel
    is compiled for the simulator, and the report is an empty string.

    Raises:
        CompileError: the text does not compile; lines are those of the cell.
    """
    types = _float32(kernel)
    if not toolchain.has_nvrtc():
        if not host.missing():
            prepare(kernel, types, RESIDENT_BLOCKS, checked=False, optimize=True)
        return ""
    known = [a for a in supported_architectures() if kernel.runs_on(a)]
    at = 90 if 90 in known else max(known)
    binary = _compiled(kernel.final_text(types), kernel.describe(types), f"sm_{at}", (*OPTIONS, *kernel.options))
    used = (f"{registers} registers, {spills} bytes spilled" for registers, spills in binary.resources.values())
    return f"{kernel.describe(types)}, sm_{at}: {'; '.join(used)}, {len(binary.code):,} bytes"


# A cell that is run again, or explained, compiles nothing again.
_compiled = functools.lru_cache(64)(compile_text)


def _float32(kernel: Kernel) -> dict[str, str]:
    choices = list(kernel.type_choices())
    return next((types for types in choices if set(types.values()) <= {"float32"}), choices[0])


def drawn_inputs(op: Operator, kernel: Derived) -> tuple[Any, ...]:
    """Returns arguments of an operator: random tensors of odd sizes, by the shape comments, and numbers.

    Raises:
        CellError: an input has no shape comment, or its type is not a floating type.
    """
    sizes = dict(zip(kernel.sizes, (37, 19, 5, 3, 7, 11), strict=False))
    constants = {**kernel.kernel.constants, **sizes}
    found: list[Any] = []
    for p in kernel.inputs:
        if p.shape is None or (p.type in DTYPES and p.type not in FLOATS):
            raise CellError(f"%%cu: `{p.name}` of {op.name} cannot be drawn: give --inputs 'EXPRESSION, ...'")
        shape = [int(t) if t.isdigit() else constants[t] for t in p.shape]
        found.append(torch.randn(shape, dtype=getattr(torch, p.type) if p.type in DTYPES else torch.float32))
    drawn = {"int": 2, "float": 0.5, "bool": True}
    return (*found, *(drawn[str(argument.type)] for argument in op.op._schema.arguments[len(found) :]))


def report_on(op: Operator, options: argparse.Namespace, evaluate: Callable[[str], Any]) -> None:
    """Prints the reports that ``--explain`` and ``--check`` request.

    Args:
        evaluate: returns the value of an expression in the notebook, for ``--inputs``.

    Raises:
        CellError: a check failed; or the inputs cannot be evaluated or drawn.
    """
    body: Any = op.body
    if options.explain:
        for each in (body, op.backward and op.backward.body):
            if isinstance(each, Derived):
                lacking = "no compiler's report: NVRTC is missing; python -m cupyops doctor says what installs it"
                print(compiled_report(each.kernel) or f"{each.kernel.name}: {lacking}")
    explain = getattr(cupyops, "explain", None)
    if options.check is None and not (options.explain and explain):
        return
    inputs = drawn_inputs(op, body) if options.inputs is None else _evaluated(options.inputs, evaluate)
    try:
        if options.explain and explain:
            print(str(explain(op, *inputs)))
        if options.check:
            check_op(op, inputs, checks=None if options.check == "all" else options.check.split(","))
    except (CheckFailed, CompileError, LaunchError, MissingDependencyError, ValueError) as error:
        raise CellError(str(error)) from error


def _evaluated(expression: str, evaluate: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        found = evaluate(expression)
    except Exception as error:  # the user's own
        raise CellError(f"%%cu: --inputs {expression!r}: {type(error).__name__}: {error}") from error
    return found if isinstance(found, tuple) else (found,)
