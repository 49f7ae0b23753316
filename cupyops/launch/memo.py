"""Caches the checked configuration of a call by its arrays' shapes, dtypes and devices: to check the arrays and to choose kernels
takes longer than a launch."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cupyops.arrays import LIBRARIES
from cupyops.codegen import write
from cupyops.deprecated import renamed

__all__ = ["memo"]

MOST = 4096  # results that are kept

Function = TypeVar("Function", bound=Callable[..., Any])


def memo(*names: str, most: int = MOST) -> Callable[[Function], Function]:
    """Decorator of a function that depends on no more of its arrays than library, shape, dtype and device: calls that are alike in
    these share one result.

    The key is written out for the function's parameters (:mod:`cupyops.codegen`): with four arrays a call takes 1.0 µs, and with a
    loop over the arrays 1.6 µs. A call with fakes, whose sizes may be symbols, is not kept, and neither is a call that raises.

    Args:
        names: parameters that are arrays; ``"bias?"`` may be None. The others are hashable; none has a default.
        most: results that are kept; with one more, all are forgotten.

    Attributes of the function: ``kept``, the results by their keys.

    >>> @memo("x", "weight?")
    ... def config(x, weight, eps):
    ...     return f"rows of {x.shape[-1]}"
    """

    def decorate(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters)
        arrays = {name.rstrip("?"): name.endswith("?") for name in names}
        first, key = next(iter(arrays)), ["library"]
        for p in parameters:
            part = f"({p}.shape, {p}.dtype, device({p}))" if p in arrays else p
            key.append(f"None if {p} is None else {part}" if arrays.get(p) else part)
        name = function.__name__
        lines = [
            f"def {name}({', '.join(parameters)}):",
            f"    library = LIBRARIES[type({first})]",
            f"    if library.is_fake({first}):",
            f"        return function({', '.join(parameters)})",
            "    device = library.device_index",
            f"    key = ({', '.join(key)})",
            "    found = kept.get(key)",
            "    if found is None:",
            f"        found = function({', '.join(parameters)})",
            "        if len(kept) >= most:",
            "            kept.clear()",
            "        kept[key] = found",
            "    return found",
        ]
        kept: dict[Any, Any] = {}
        scope = {"LIBRARIES": LIBRARIES, "function": function, "kept": kept, "most": most}
        found: Any = functools.update_wrapper(cast(Any, write(f"memo of {name}", name, lines, scope)), function)
        found.kept = kept
        return cast(Function, found)

    return decorate


__getattr__ = renamed(__name__, {"remembered": "memo"})
