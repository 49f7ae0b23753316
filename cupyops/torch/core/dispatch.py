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

from cupyops.codegen import free_names, write

from .autocast import cast
from .conditions import (
    any_autocast,
    dispatch_modes,
    grad_enabled,
    has_nested,
    in_graph,
    is_scripted,
    is_traced,
    no_autocast,
    transforms_active,
)
from .tensors import NoStorageError

__all__ = ["call_source", "casts_source", "fast_function", "function_of", "once", "write_call"]

# The globals of a generated dispatch, beside the functions that it calls for its operator.
_SCOPE: dict[str, Any] = {
    "any_autocast": any_autocast,
    "no_autocast": no_autocast,
    "is_autocast_enabled": torch.is_autocast_enabled,
    "get_autocast_dtype": torch.get_autocast_dtype,
    "float32_": torch.float32,
    "cast_": cast,
    "is_traced": is_traced,
    "is_scripted": is_scripted,
    "in_graph": in_graph,
    "transforms_active": transforms_active,
    "dispatch_modes": dispatch_modes,
    "grad_enabled": grad_enabled,
    "forward_ad": forward_ad,
    "NoStorageError": NoStorageError,
    "has_nested": has_nested,
    "Tensor": Tensor,
    "Parameter": Parameter,
}


def _spelled(name: str, arguments: Sequence[str]) -> tuple[str, dict[str, str], str]:
    """Returns the names in the text of a generated dispatch: of the function, of each argument, and of autocast's dtype."""
    taken = {"body", "apply", "dispatch", "composite", "type", "isinstance", "int", "float", "RuntimeError"}
    taken |= _SCOPE.keys()
    function, names = free_names([name], set(taken))[name], free_names(arguments, taken)
    return function, names, free_names(["to_"], taken)["to_"]


def _under_autocast(
    tensors: Mapping[str, bool], to: str, policy: str | None, calls: Sequence[str], indent: str = ""
) -> list[str]:
    """Returns the lines that, under autocast, convert the tensors by the policy and call without autocast.

    Args:
        tensors: the tensors' names in the text, and whether each may be None.
        to: the name of the dtype in the text.
        policy: the policy, or None.
        calls: the lines of the call.
        indent: what each line begins with.
    """
    lines = [f"{indent}if any_autocast():"]
    if policy is not None:
        dtype = "float32_" if policy == "float32" else "get_autocast_dtype('cuda')"
        lines += [f"{indent}    if is_autocast_enabled('cuda'):", f"{indent}        {to} = {dtype}"]
        for t, optional in tensors.items():
            may = f"{t} is not None and " if optional else ""
            lines.append(f"{indent}        if {may}{t}.dtype is not {to}: {t} = cast_({t}, {to})")
    return [*lines, f"{indent}    with no_autocast():", *(f"{indent}        {line}" for line in calls)]


def casts_source(name: str, tensors: Mapping[str, bool], others: Sequence[str], policy: str | None) -> str:
    """Returns the text of a function that converts the tensors under autocast and calls ``apply`` without autocast.

    >>> print(casts_source("scale", {"x": False}, ["factor"], "float32"))
    def scale(x, factor):
        if any_autocast():
            if is_autocast_enabled('cuda'):
                to_ = float32_
                if x.dtype is not to_: x = cast_(x, to_)
            with no_autocast():
                return apply(x, factor)
        return apply(x, factor)
    """
    function, names, to = _spelled(name, [*tensors, *others])
    arguments = ", ".join(names.values())
    call, given = f"return apply({arguments})", {names[t]: optional for t, optional in tensors.items()}
    lines = [f"def {function}({arguments}):", *_under_autocast(given, to, policy, [call], "    "), f"    {call}"]
    return "\n".join(lines)


def call_source(
    name: str,
    tensors: Mapping[str, bool],
    others: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    *,
    spread: Mapping[str, tuple[str, int]] | None = None,
    casts: str | None = None,
    late: bool = False,
    packed: bool = False,
    traced: bool = False,
) -> str:
    """Returns the text of an operator's generated dispatch.

    The generated function calls ``body`` or ``apply`` on plain CUDA tensors, and ``dispatch`` otherwise. Under autocast
    it converts the tensors, and disables autocast for the call. A text for
    each schema (:mod:`cupyops.codegen`) replaces a loop over the tensors, which takes 0.5 µs, a tenth of the host time
    of a launch. ``print(source_of(operator.call))`` prints the text.

    Args:
        name: the name of the generated function.
        tensors: the names of the tensor arguments, and whether each may be None.
        others: the names of the other arguments.
        defaults: the default values, by the names of the arguments.
        spread: arguments for which a number stands for a list of equal numbers: the number's type, and how many.
        casts: the autocast policy of the operator on a GPU, or None.
        packed: whether ``apply`` takes the arguments that are not tensors as one tuple. Autograd takes some time for
            each argument of a Function.
        late: whether ``apply`` is called under autocast, and converts the tensors itself.
        traced: whether the generated function calls ``composite`` while Dynamo traces (:mod:`.composite`).

    >>> print(call_source("scale", {"x": False}, ["factor"]))
    def scale(x, factor):
        if (
            not (is_traced() or is_scripted() or transforms_active() or dispatch_modes())
            and forward_ad._current_level < 0
            and (type(x) is Tensor or type(x) is Parameter)
            and x.is_cuda and not x.is_neg()
        ):
            try:
                if any_autocast():
                    with no_autocast():
                        if (x.requires_grad) and grad_enabled():
                            return apply(x, factor)
                        return body(x, factor)
                if (x.requires_grad) and grad_enabled():
                    return apply(x, factor)
                return body(x, factor)
            except NoStorageError:
                pass
            except RuntimeError:
                if not has_nested((x, factor,)): raise
        return dispatch((x, factor,))
    """
    function, names, to = _spelled(name, [*tensors, *others])
    defaults = {names[a]: value for a, value in (defaults or {}).items()}
    tensors, others = {names[t]: optional for t, optional in tensors.items()}, [names[a] for a in others]
    arguments = ", ".join(names.values())
    recorded = f"{', '.join(tensors)}, ({', '.join(others)},)" if packed else arguments
    plain, on_gpu, wants_grad = [], [], []
    for t, optional in tensors.items():
        may = f"{t} is None or " if optional else ""
        plain.append(f"        and ({may}type({t}) is Tensor or type({t}) is Parameter)")
        on_gpu.append(f"{t}.is_cuda and not {t}.is_neg()")
        on_gpu[-1] = f"        and ({may}{on_gpu[-1]})" if optional else f"        and {on_gpu[-1]}"
        wants_grad.append(f"({t} is not None and {t}.requires_grad)" if optional else f"{t}.requires_grad")
    record = [f"if ({' or '.join(wants_grad)}) and grad_enabled():", f"    return apply({recorded})"]
    call, inner = [f"return body({arguments})"], " " * 12
    both = [*record, *call]
    quiet = _under_autocast(tensors, to, casts, call if late else both, inner)
    plain_calls = [inner + line for line in both]
    calls = [*plain_calls[:2], *quiet, *plain_calls[2:]] if late else [*quiet, *plain_calls]
    parameters = ", ".join(f"{a}={defaults[a]!r}" if a in defaults else a for a in names.values())
    lists = [
        f"    if isinstance({names[a]}, {kind}): {names[a]} = [{names[a]}] * {count}"
        for a, (kind, count) in (spread or {}).items()
    ]
    return "\n".join(
        [
            f"def {function}({parameters}):",
            *lists,
            "    if (",
            "        not (is_traced() or is_scripted() or transforms_active() or dispatch_modes())",
            "        and forward_ad._current_level < 0",
            *plain,
            *on_gpu,
            "    ):",
            "        try:",
            *calls,
            "        except NoStorageError:",  # autograd's batched tensors have type Tensor and no memory
            "            pass",
            "        except RuntimeError:",  # PyTorch raises it for the shape of a nested tensor, whose type is Tensor, too
            f"            if not has_nested(({arguments},)): raise",
            *(["    if in_graph():", f"        return composite({arguments})"] if traced else []),
            f"    return dispatch(({arguments},))",
        ]
    )


def write_call(
    source: str,
    parts: Mapping[str, Any],
    name: str,
    arguments: Sequence[str],
    first: Callable[..., Any] | None = None,
) -> Any:
    """Compiles the text of :func:`call_source` or :func:`casts_source`, and returns the generated function.

    Args:
        source: the text.
        parts: the functions ``body``, ``apply``, ``dispatch`` and ``composite`` that the text calls.
        name: the name of the function, as the text was generated for it.
        arguments: the names of the arguments, likewise.
        first: called in place of ``body`` until one call of it has returned.
    """
    scope: dict[str, Any] = {**_SCOPE, **parts}
    if first is not None:
        once(scope, "body", first)
    function, names, _ = _spelled(name, arguments)
    called = {spelled: argument for argument, spelled in names.items() if spelled != argument}
    found = write(f"dispatch of {name}", function, source, scope, called)
    found.__name__ = found.__qualname__ = name
    return found


def once(scope: dict[str, Any], name: str, first: Callable[..., Any]) -> None:
    """Replaces a function in the globals of generated code by ``first``, until one call of ``first`` has returned."""
    then = scope[name]

    def called(*args: Any) -> Any:
        found = first(*args)
        scope[name] = then
        return found

    scope[name] = called


def fast_function(
    name: str, body: Any, setup_context: Any, backward: Any, recording: Any = None, first: Any = None
) -> Callable[..., Any]:
    """Returns ``apply`` of an ``autograd.Function`` around the body, in the form with the least host time.

    The Function's ``forward`` takes ctx and saves tensors itself. A Function with a separate ``setup_context`` takes
    about four times as long per call.

    Args:
        name: the operator's name.
        body: the operator's body.
        setup_context, backward: the functions of the same names of an ``autograd.Function``.
        recording: ``recording(ctx, *args)``, which replaces both ``body`` and ``setup_context``.
        first: called in place of ``body`` until one call of it has returned.
    """

    scope = {"body": body}
    if first is not None:
        once(scope, "body", first)

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.materialize_grads = False
        if recording is not None:
            return recording(ctx, *args)
        output = scope["body"](*args)
        setup_context(ctx, args, output)
        return output

    return function_of(name, forward, backward)


def function_of(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``apply`` of an ``autograd.Function``, in the form with the least host time.

    The returned method is the C++ ``apply`` of the base class: the Python method ``Function.apply`` also looks for
    tensors of ``torch.func``, which the operator's dispatch has already excluded. The engine calls ``backward`` itself,
    and not the method of PyTorch that would look ``backward`` up.

    Args:
        name: the operator's name.
        forward: takes ctx first, and saves tensors itself.
        backward: the function of the same name of an ``autograd.Function``.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"{name}_function", (torch.autograd.Function,), members)
    if (node := getattr(function, "_backward_cls", None)) is not None:
        node.apply = backward
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply
