"""The registration of an operator with ``torch.library``, and its end.

A registration ends when its Operator dies, or when the name is declared again. PyTorch frees the dispatcher's entry of
the name with it. Two kinds of objects may be older than the end:

- The ``OpOverload`` of the operator, in compiled graphs and exported programs, or in a program's own variables. It would
  read the freed entry. :func:`ending_with` has it call the newest operator of the name.
- ``torch.ops.mylib.scale``, where PyTorch keeps the OpOverload. When a library is garbage collected, PyTorch up to 2.12
  leaves it in place, and the next operator of the name would be reached through the earlier OpOverload. PyTorch 2.13
  removes it, but a library that outlived the next declaration would remove that of the next operator.
  :func:`ending_with` destroys the library, and keeps the only reference to it.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cupyops.torch.compiled import choices, graphs, keys, recompute
from cupyops.torch.compiled.common import Common
from cupyops.torch.compiled.lowering import prepare
from cupyops.torch.scale.declared import Scale

from .gradients import Gradient, Schema
from .implementations import completed, on_cpu, preparing, shapes_of, under_transforms, with_care, without_tangents

__all__ = ["ending_with", "register"]


def register(
    schema: Schema,
    body: Callable[..., Any],
    eager: Callable[..., Any],
    reference: Callable[..., Any] | None,
    fake: Callable[..., Any] | None,
    gradient: Gradient | None,
    vmap: Callable[..., Any] | None,
    scale: Scale,
    again: bool,
    recomputation: recompute.Recomputation | None,
    common: Common | None,
    find: Callable[[], Any],
) -> torch.library.Library:
    """Defines an operator in ``torch.library``. No earlier operator may have the name.

    Args:
        schema: the operator's schema.
        body: the body, which holds its results to the schema.
        eager: the same for CUDA tensors: it may repeat recorded steps of the body.
        reference: the reference for CPU tensors, or None.
        fake: computes the results for fake tensors; by default the body, or the reference where the body reads a value.
        gradient: ``setup_context`` and ``backward``, or None for an operator that writes to its arguments.
        vmap: the rule for vmap, or None.
        scale: what the operator declares for DTensor, jagged tensors and FLOP counters.
        again: whether the backward of a compiled graph may compute the results again.
        recomputation: how the first result follows from other tensors, or None.
        common: from which values results follow, or None.
        find: returns the Operator of this name.

    Returns:
        The library that holds the definition, which ends with the library.
    """
    name = f"{schema.namespace}::{schema.name}"
    library = torch.library.Library(schema.namespace, "FRAGMENT")
    library.define(schema.registered.partition("::")[2], tags=(torch.Tag.pt2_compliant_tag, *scale.tags))
    scale.register(library)
    either = completed(on_cpu(body, reference, fake), schema)
    library.impl(schema.name, without_tangents(schema.name, completed(eager, schema)), "CUDA")
    library.impl(schema.name, without_tangents(schema.name, either), "CPU")
    if not schema.mutated:
        # torch.func does not handle operators of torch.library. This dispatch key intercepts a call while a transform
        # is active, and applies another Function instead (transformable).
        library.impl(schema.name, under_transforms(find, schema), "FuncTorchDynamicLayerFrontMode")
    allowed = partial(recompute.allow, name, again, recomputation, common, scale.flops is not None)
    steps = partial(prepare, name), allowed, graphs.prepare, choices.prepare, keys.prepare, scale.prepare
    shapes = fake or shapes_of(schema.name, body, reference)
    torch.library.register_fake(name, preparing(steps, completed(shapes, schema)), lib=library)
    if gradient is not None:
        setup_context, backward = gradient

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            setup_context(ctx, inputs, output)

        backward = with_care(backward, len(schema.types))
        torch.library.register_autograd(name, backward, setup_context=setup, lib=library)
    if vmap is not None:
        torch.library.register_vmap(name, vmap, lib=library)
    return library


def ending_with(
    operator: Any, library: torch.library.Library, overload: Any, find: Callable[[], Any]
) -> Callable[[], object]:
    """Ends a registration when the operator dies. Returns a function that ends it earlier.

    Args:
        operator: the Operator.
        library: what :func:`register` returned. The caller must keep no reference to it.
        overload: the operator's OpOverload, which calls the newest operator of the name after the end.
        find: returns the OpOverload of the newest operator of the name, or None.
    """
    end = weakref.finalize(operator, _end, library, overload, find)
    end.atexit = False  # the libraries have finalizers for the exit of the process
    return end


def _end(library: torch.library.Library, overload: Any, find: Callable[[], Any]) -> None:
    name = str(overload._schema.name)

    def newest(attribute: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if (op := find()) is None:
                raise RuntimeError(
                    f"{name} is not declared any more: its Operator has been garbage collected; keep it alive"
                )
            return getattr(op, attribute)(*args, **kwargs)

        return call

    # These functions of PyTorch hold the dispatcher's entry.
    overload._op = overload._overloadpacket._op = newest("_op")
    overload._op_dk = newest("_op_dk")
    overload.__dict__.pop("_handle", None)
    library._destroy()
