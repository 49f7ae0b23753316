"""The generated dispatch of an operator, written for each schema: plain tensors on a GPU go straight to the body, or to a Function
around the body. Every call runs it, so it calls PyTorch's own functions, not wrappers."""

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
    """Whether tensors may carry tangents, of ``torch.func.jvp`` or of ``torch.autograd.forward_ad``."""
    return forward_ad._current_level >= 0


def has_tangent(args: Sequence[Any]) -> bool:
    """Whether one of the tensors carries a tangent; where PyTorch cannot tell, as while a graph is traced, it counts as one."""
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
    """The text of an operator's generated dispatch: plain tensors on a GPU straight on, anything else to ``dispatch``.

    It is written for each schema (:mod:`cupyops.codegen`): a loop over the tensors takes half a microsecond, a tenth of what a
    launch costs altogether. ``print(source_of(operator.call))`` shows it.

    Args:
        tensors: names, and whether each may be None.
        defaults: of arguments that may be left out.
        casts: autocast would convert the tensors.

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
            "        except NoStorageError:",  # of a type like others, and no tensor of memory: found at the launch
            "            pass",
            f"    return dispatch(({arguments},))",
        ]
    )


def write_call(source: str, parts: Mapping[str, Any], first: Callable[..., Any] | None = None) -> Any:
    """The function of :func:`call_source`, over body, apply and dispatch; ``first`` takes the body's place in its first
    call."""
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
    """``apply`` of a Function that saves within forward: the form with ``setup_context`` costs about four times as much
    a call. ``first`` takes the body's place in its first call.

    The bound method is the one in C++. Function.apply, in Python, first looks for functorch's wrappers; an operator has
    done so before.
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
