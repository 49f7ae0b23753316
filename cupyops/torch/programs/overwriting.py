"""Gradients of row programs in the memory of an input."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cupyops.programs.row_config import RowKernels
from cupyops.torch.core.gradients import Schema
from cupyops.torch.core.operator import Operator

from .elementwise import Written
from .row_reduce import body_of

__all__ = ["overwriting", "recorded_over"]

_AT_ONCE = 2**24  # elements that are copied at once


def overwriting(operator: Written, array: str) -> Operator:
    """Returns the operator that writes its only result over an input. An operator with a backward gives the operator that
    writes the gradient of the input there.

    The program's kernel runs with the input and the result at one address.

    Args:
        operator: a row program. Its backward's program, or its own if it has no backward, reads the input, reduces nothing,
            and has one result.
        array: the input, which has a value for each element.
    """
    back = operator.programs[-1]
    (result,) = back.results
    assert operator.backward is None or result == f"grad_{array}"
    assert all(not step.over or step.over == "at" for step in back.steps)
    name = f"{operator.programs[0].name}{'_backward' if operator.backward else ''}_over_{array}"
    back = replace(back, name=name, over=(result, array))
    compute, reference = body_of(RowKernels(back), ["element"]), (operator.backward or operator).reference
    at, by_row = back.inputs.index(array), {*back.elements, *back.rows, *back.indices}

    def write(make: Callable[..., Any]) -> Callable[..., None]:
        def written(*args: Any) -> None:
            x = args[at]
            # Rows with gaps between them are copied. A copy of all of them would take the memory of a gradient.
            each = (
                x.shape[0] if x.is_contiguous() or x.dim() < 2 else max(1, _AT_ONCE * x.shape[0] // max(1, x.numel()))
            )
            if each >= x.shape[0]:
                made = make(*args)
                if made is not x:
                    x.copy_(made)
                return
            for i in range(0, x.shape[0], each):
                written(
                    *(a[i : i + each] if name in by_row else a for name, a in zip(back.inputs, args, strict=False)),
                    *args[len(back.inputs) :],
                )

        return written

    arguments = [f"Tensor(a!) {x}" if x == array else f"Tensor {x}" for x in back.inputs]
    arguments += [f"float {s}" for s in back.scalars]
    namespace = operator.qualified_name.partition("::")[0]
    return Operator(
        f"{namespace}::{back.name}({', '.join(arguments)}) -> ()",
        write(compute),
        reference=reference and write(reference),
    )


def recorded_over(operator: Written, array: str) -> Callable[..., Any]:
    """Returns a function of the operator's arguments, on plain tensors that require grad. Its backward writes the
    gradient of an input over the input.

    The backward increments the input's version counter. Autograd therefore refuses to differentiate an operation that has
    saved the input, and to run this backward again.

    Args:
        operator, array: as for :func:`overwriting`. The array of a call is contiguous.
    """
    over, schema = overwriting(operator, array), Schema.parse(operator.schema)
    takes = [a.name for a in over.op._schema.arguments]
    fixed = [y for y in schema.results if f"grad_{y}" not in takes]
    where = operator.name

    class Over(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = operator.call(*args)
            found = (results,) if isinstance(results, Tensor) else results
            values = {**dict(zip(schema.types, args, strict=True)), **dict(zip(schema.results, found, strict=True))}
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(values[y] for y in fixed))
            ctx.tensors = [x for x in takes if isinstance(values.get(x), Tensor)]
            ctx.numbers = {x: values[x] for x in takes if x in values and x not in ctx.tensors}
            ctx.save_for_backward(*(values[x] for x in ctx.tensors))
            return results

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled():
                raise RuntimeError(
                    f"{where}: the gradient takes the memory of `{array}`, which a second derivative reads: "
                    "call it with inplace_backward=False"
                )
            given = {f"grad_{y}": g for y, g in zip(schema.results, grads, strict=True)}
            if any(given[x] is None for x in takes if x in given):
                return (None,) * len(schema.types)
            values = {**given, **ctx.numbers, **dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))}
            values[array] = values[array].detach()  # shares the version counter
            over.call(*(values[x] for x in takes))
            return tuple(values[x] if x == array else None for x in schema.types)

    return Over.apply
