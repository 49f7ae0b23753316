"""Generates the dispatch of an operator: the Python function that runs first in each call of the operator.

For plain CUDA tensors, the function calls the operator's body, or an ``autograd.Function`` around the body. For all
other arguments, the function calls the slower, general dispatch. The function calls PyTorch's own functions without
Python wrappers, to save host time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from cupyops.codegen import write

from .tensors import NoStorageError

__all__ = [
    "call_source",
    "dispatch_modes",
    "fast_function",
    "forward_mode",
    "grad_enabled",
    "has_tangent",
    "is_compiling",
    "transforms_active",
    "write_call",
]

is_compiling = torch.compiler.is_compiling
transforms_active = torch._C._are_functorch_transforms_active
dispatch_modes = torch._C._len_torch_dispatch_stack
grad_enabled = torch.is_grad_enabled


def forward_mode() -> bool:
    """Returns whether ``torch.func.jvp`` or ``torch.autograd.forward_ad`` is active (forward-mode differentiation)."""
    return forward_ad._current_level >= 0


def has_tangent(args: Sequence[Any]) -> bool:
    """Returns whether one of the tensors carries a tangent of forward-mode differentiation.

    Returns True if PyTorch raises an error instead of returning the tangent, as it does while a graph is traced.
    """
    try:
        return any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args)
    except RuntimeError:
        return True


def call_source(
    name: str,
    tensors: Mapping[str, bool],
    others: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    *,
    casts: bool = False,
) -> str:
    """Returns the text of an operator's generated dispatch.

    The generated function calls ``body`` or ``apply`` on plain CUDA tensors, and ``dispatch`` otherwise. A text for
    each schema (:mod:`cupyops.codegen`) replaces a loop over the tensors, which takes 0.5 µs, a tenth of the host time
    of a launch. ``print(source_of(operator.call))`` prints the text.

    Args:
        name: the name of the generated function.
        tensors: the names of the tensor arguments, and whether each may be None.
        others: the names of the other arguments.
        defaults: the default values, by the names of the arguments.
        casts: whether autocast converts the operator's tensors on a GPU.

    >>> print(call_source("scale", {"x": False}, ["factor"]))
    def scale(x, factor):
        if (
            not (is_compiling() or transforms_active() or dispatch_modes())
            and forward_ad._current_level < 0
            and (type(x) is Tensor or type(x) is Parameter)
            and x.is_cuda and not x.is_neg()
        ):
            try:
                if (x.requires_grad) and grad_enabled():
                    return apply(x, factor)
                return body(x, factor)
            except NoStorageError:
                pass
        return dispatch((x, factor,))
    """
    arguments = ", ".join([*tensors, *others])
    plain, on_gpu, wants_grad = [], [], []
    for t, optional in tensors.items():
        may = f"{t} is None or " if optional else ""
        plain.append(f"        and ({may}type({t}) is Tensor or type({t}) is Parameter)")
        on_gpu.append(f"{t}.is_cuda and not {t}.is_neg()")
        on_gpu[-1] = f"        and ({may}{on_gpu[-1]})" if optional else f"        and {on_gpu[-1]}"
        wants_grad.append(f"({t} is not None and {t}.requires_grad)" if optional else f"{t}.requires_grad")
    defaults = defaults or {}
    parameters = ", ".join(f"{a}={defaults[a]!r}" if a in defaults else a for a in (*tensors, *others))
    return "\n".join(
        [
            f"def {name}({parameters}):",
            "    if (",
            "        not (is_compiling() or transforms_active() or dispatch_modes())",
            "        and forward_ad._current_level < 0",
            *(["        and not is_autocast_enabled('cuda')"] if casts else []),
            *plain,
            *on_gpu,
            "    ):",
            "        try:",
            f"            if ({' or '.join(wants_grad)}) and grad_enabled():",
            f"                return apply({arguments})",
            f"            return body({arguments})",
            "        except NoStorageError:",  # autograd's batched tensors have type Tensor and no memory
            "            pass",
            f"    return dispatch(({arguments},))",
        ]
    )


def write_call(source: str, parts: Mapping[str, Any], first: Callable[..., Any] | None = None) -> Any:
    """Compiles the text of :func:`call_source` and returns the generated function.

    Args:
        source: the text.
        parts: the functions ``body``, ``apply`` and ``dispatch`` that the text calls.
        first: called in place of ``body`` until one call of it has returned.
    """
    scope: dict[str, Any] = {
        "is_autocast_enabled": torch.is_autocast_enabled,
        "is_compiling": is_compiling,
        "transforms_active": transforms_active,
        "dispatch_modes": dispatch_modes,
        "grad_enabled": grad_enabled,
        "forward_ad": forward_ad,
        "NoStorageError": NoStorageError,
        "Tensor": Tensor,
        "Parameter": Parameter,
        **parts,
    }
    if first is not None:

        def body(*args: Any) -> Any:
            found = first(*args)
            scope["body"] = parts["body"]
            return found

        scope["body"] = body
    name = source.partition("(")[0].removeprefix("def ")
    return write(f"dispatch of {name}", name, source, scope)


def fast_function(
    name: str, body: Any, setup_context: Any, backward: Any, recording: Any = None, first: Any = None
) -> Callable[..., Any]:
    """Returns ``apply`` of an ``autograd.Function`` around the body, in the form with the least host time.

    The Function's ``forward`` takes ctx and saves tensors itself. A Function with a separate ``setup_context`` takes
    about four times as long per call. The returned method is the C++ ``apply`` of the base class: the Python method
    ``Function.apply`` also looks for tensors of ``torch.func``, which the operator's dispatch has already excluded.

    Args:
        name: the operator's name.
        body: the operator's body.
        setup_context, backward: the functions of the same names of an ``autograd.Function``.
        recording: ``recording(ctx, *args)``, which replaces both ``body`` and ``setup_context``.
        first: called in place of ``body`` until one call of it has returned.
    """

    run = body

    def once(*args: Any) -> Any:
        nonlocal run
        found = first(*args)
        run = body
        return found

    if first is not None:
        run = once

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        if recording is not None:
            return recording(ctx, *args)
        output = run(*args)
        setup_context(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"{name}_function", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
