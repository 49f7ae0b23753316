"""Sizes that may be symbols: PyTorch traces an operator's body with symbols in place of the sizes of dynamic dimensions.

A comparison of symbols as a condition binds the traced program to the sizes on one side of it. A choice between ways that
are all right for all sizes asks :func:`surely` instead, and a bound is :func:`least` in place of ``min``.
"""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["greatest", "is_symbol", "least", "surely"]


def is_symbol(number: Any) -> bool:
    """Returns whether a number is a symbol of PyTorch."""
    return type(number).__name__ in ("SymInt", "SymFloat", "SymBool")


def surely(condition: Any) -> bool:
    """Returns whether a comparison of sizes holds; False for symbols that do not decide it.

    >>> surely(2 < 3)
    True
    """
    return bool(condition.node.statically_known_true("", 0)) if is_symbol(condition) else bool(condition)


def least(*sizes: Any) -> Any:
    """Returns the smallest of the sizes, as a symbol if one of them is a symbol.

    >>> least(2, 3)
    2
    """
    return _of_all(min, "__sym_min__", sizes)


def greatest(*sizes: Any) -> Any:
    """Returns the largest of the sizes, as a symbol if one of them is a symbol."""
    return _of_all(max, "__sym_max__", sizes)


def _of_all(function: Callable[..., Any], symbolic: str, sizes: Sequence[Any]) -> Any:
    found, *others = sizes
    for size in others:
        if is_symbol(found) or is_symbol(size):
            one, other = (found, size) if is_symbol(found) else (size, found)
            found = getattr(one, symbolic)(other)
        else:
            found = function(found, size)
    return found
