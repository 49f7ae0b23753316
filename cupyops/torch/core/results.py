"""Checks that a body returns the tensors that its schema declares, each in memory of its own.

Each call through PyTorch's dispatcher is checked. The generated dispatch checks only its first call of the body, to
save host time.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import Schema
from .tensors import PLAIN_TENSORS

__all__ = ["WrongResults", "held_to_schema"]

_MAYBE_TENSOR = torch.OptionalType(torch.TensorType.get())
# The suffix that gradients.named_for_its_arguments gives to the operator of a declared backward.
_BACKWARD = re.compile(r"_backward_[0-9a-f]{8}$")


class WrongResults(RuntimeError):
    """A body returned something other than the tensors that its schema declares."""


def held_to_schema(body: Callable[..., Any], schema: Schema, what: str = "body") -> Callable[..., Any]:
    """Returns a function that calls the body, or the reference, and checks the results.

    Args:
        body: the function.
        schema: the schema.
        what: what errors call the function, if it is not that of a declared backward.

    Raises:
        WrongResults: raised by the returned function if the results are not the tensors that the schema declares.
    """
    kinds = [r.type for r in torch._C.parse_schema(schema.text).returns]
    if not kinds or not all(kind.isSubtypeOf(_MAYBE_TENSOR) for kind in kinds):
        return body
    optional = [isinstance(kind, torch.OptionalType) for kind in kinds]
    name = f"{schema.namespace}::{schema.name}"
    who = f"{_BACKWARD.sub('', name)}: the {'backward' if _BACKWARD.search(name) else what}"
    wanted = f"{len(kinds)} tensor{'s' if len(kinds) > 1 else ''} ({', '.join(schema.results)})"

    plain = PLAIN_TENSORS.issuperset  # by types alone, which takes a third of the time of the conditions below
    # A gradient may be the incoming gradient itself. The operator of a declared backward is called by autograd alone.
    own = () if _BACKWARD.search(name) else tuple(schema.results)
    tensors = [(i, argument) for i, argument in enumerate(schema.types) if argument in schema.tensors]

    def held(*args: Any) -> Any:
        found = body(*args)
        if type(found) is tuple:
            if len(found) == len(kinds) > 1 and plain(map(type, found)):
                check_memory(found, args)
                return found
        elif plain((type(found),)) and len(kinds) == 1:
            check_memory((found,), args)
            return found
        given = (found,) if len(kinds) == 1 else found
        if (
            not isinstance(given, (tuple, list))
            or len(given) != len(kinds)
            or not all(isinstance(y, Tensor) or (y is None and may) for y, may in zip(given, optional, strict=True))
        ):
            raise WrongResults(f"{who} returned {_in_words(found)}; it must return {wanted}")
        check_memory(given, args)
        return found

    def check_memory(found: Sequence[Any], args: Sequence[Any]) -> None:
        taken: dict[int, str] = {}
        if own:
            for i, argument in tensors:
                if i < len(args) and (memory := _memory(args[i])) is not None:
                    taken[memory] = argument
        for result, y in zip(own, found, strict=False):
            if (memory := _memory(y)) is not None and taken.setdefault(memory, result) is not result:
                raise WrongResults(
                    f"{who} returned `{result}` in the memory of `{taken[memory]}`; a result must have memory of its own: "
                    f"return a copy, such as `{result}.clone()`"
                )

    return held


def _memory(x: Any) -> int | None:
    """Returns what distinguishes the memory of a tensor, or None if there is none."""
    if x is None:
        return None
    try:
        found: int = x.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # tensors of transforms, and sparse ones
        return None
    return found


def _in_words(found: Any) -> str:
    if found is None:
        return "None"
    if isinstance(found, Tensor):
        return "1 tensor"
    if isinstance(found, (tuple, list)):
        if len(found) > 1 and all(isinstance(y, Tensor) for y in found):
            return f"{len(found)} tensors"
        each = ("None" if y is None else "Tensor" if isinstance(y, Tensor) else type(y).__name__ for y in found)
        return f"a {type(found).__name__} of ({', '.join(each)})"
    return f"{'an' if type(found).__name__[0] in 'aeiou' else 'a'} {type(found).__name__}"
