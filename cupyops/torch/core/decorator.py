"""The decorator :func:`operator`."""

from collections.abc import Callable
from typing import Any

from .operator import Operator

__all__ = ["operator"]


def operator(schema: str, **options: Any) -> Callable[[Callable[..., Any]], Operator]:
    """Returns a decorator that makes an :class:`Operator` from the decorated body::

        @operator("mylib::swiglu(Tensor a, Tensor b) -> Tensor", backward=swiglu_backward)
        def swiglu(a, b): ...

    Args:
        schema, options: the arguments of :class:`Operator`.
    """

    def declare(body: Callable[..., Any]) -> Operator:
        found = Operator(schema, body, **options)
        found.__doc__ = body.__doc__
        return found

    return declare
