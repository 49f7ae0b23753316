"""What a call comes to, found once: checks and the choice of kernels depend on the arrays' shapes, dtypes and devices, and take
longer than a launch."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cupyops.arrays import LIBRARIES

__all__ = ["remembered"]

MOST = 4096  # calls that are kept

Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(*names: str, most: int = MOST) -> Callable[[Function], Function]:
    """Decorator of a function that looks at no more of its arrays than library, shape, dtype and device: what it has returned for
    some is returned for others like them.

    It writes the key out for the function's parameters, as :mod:`cupyops.launch.generated` writes launches: by a loop it would take twice as
    long. Of fakes, whose sizes may be symbols, nothing is kept, nor of a call that raises.

    Args:
        names: parameters that are arrays; ``"bias?"`` may be None. The others are hashable; none has a default.
        most: results that are kept; with one more, all are forgotten.

    Attributes of the function: ``kept``, the results by their keys.

    >>> @remembered("x", "weight?")
    ... def plan(x, weight, eps):
    ...     return f"rows of {x.shape[-1]}"
    """

    def decorate(function: Function) -> Function:
        parameters = list(inspect.signature(function).parameters)
        arrays = {name.rstrip("?"): name.endswith("?") for name in names}
        first, key = next(iter(arrays)), ["library"]
        for p in parameters:
            part = f"({p}.shape, {p}.dtype, device({p}))" if p in arrays else p
            key.append(f"None if {p} is None else {part}" if arrays.get(p) else part)
        text = "\n".join(
            [
                f"def {function.__name__}({', '.join(parameters)}):",
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
        )
        kept: dict[Any, Any] = {}
        scope = {"LIBRARIES": LIBRARIES, "function": function, "kept": kept, "most": most}
        exec(compile(text, f"<{function.__name__} remembered>", "exec"), scope)
        found: Any = functools.update_wrapper(cast(Any, scope[function.__name__]), function)
        found.kept = kept
        return cast(Function, found)

    return decorate
