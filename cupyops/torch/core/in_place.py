"""Makes the operator ``scale_``, which writes the first result of an operator ``scale`` over its first argument."""

from collections.abc import Callable
from typing import Any

import torch

from cupyops.errors import expected

from .gradients import Schema
from .tensors import DTYPE_NAMES

__all__ = ["in_place_options"]


def in_place_options(
    schema: Schema,
    in_place: Callable[..., Any],
    reference: Callable[..., Any] | None,
    fake: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Returns the arguments of the Operator in place: ``schema``, ``implementation``, ``reference`` and ``fake``.

    Args:
        schema: the schema of the operator that allocates all of its results.
        in_place: the body in place. It returns the results other than the first.
        reference: the reference of the operator that allocates, or None.
        fake: the function that computes fake results for the operator that allocates, or None.

    Raises:
        ValueError: ``in_place`` is not a function; or the operator has no result, has a result that is not a tensor, writes to an
            argument, or has a first argument that may be None.
    """
    if not callable(in_place):
        raise ValueError(expected(schema.name, "inplace", "be a function of the operator's arguments", repr(in_place)))
    first = next(iter(schema.types))
    kinds = [str(r.type) for r in torch._C.parse_schema(schema.text).returns]
    if schema.mutated or not kinds or {*kinds} != {"Tensor"} or schema.types[first] != "Tensor":
        wanted = "be declared for an operator that writes to no argument, whose first argument and results are tensors, with a result"
        raise ValueError(expected(schema.name, "inplace", wanted, repr(schema.text)))
    whole = schema.text[schema.text.index("(") : schema.text.rindex("->")]
    arguments = whole.replace("Tensor", "Tensor(a!)", 1)
    others = ", ".join(f"Tensor {name}" for name in schema.results[1:])
    text = f"{schema.namespace}::{schema.name}_{arguments}-> ({others})"

    def written(*args: Any) -> Any:
        x = args[0]
        if x.is_contiguous():
            found = in_place(*args)
        else:
            copy = x.contiguous()
            found = in_place(copy, *args[1:])
            x.copy_(copy)
        return found if others else None  # PyTorch's functions in place return their argument

    def of_all(function: Callable[..., Any] | None, checks: bool = False) -> Callable[..., Any] | None:
        def plain(*args: Any) -> Any:
            found = function(*args)  # type: ignore[misc]
            result, *rest = found if len(schema.results) > 1 else (found,)
            x = args[0]
            if checks and (x.shape, x.dtype) != (result.shape, result.dtype):
                wanted = f"have the shape and dtype of the result, {tuple(result.shape)} {DTYPE_NAMES[result.dtype]}"
                raise ValueError(expected(f"{schema.name}_", first, wanted, f"{tuple(x.shape)} {DTYPE_NAMES[x.dtype]}"))
            x.copy_(result)
            return tuple(rest) if len(rest) > 1 else rest[0] if rest else None

        return None if function is None else plain

    return {
        "schema": text,
        "implementation": written,
        "reference": of_all(reference, checks=True),
        "fake": of_all(fake),
    }
