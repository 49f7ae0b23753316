"""Launches as CUDA configures them: ``kernel[grid, block](...)`` and ``kernel[grid, block, shared](...)``.

The kernel of a block and of bytes of shared memory is a copy that shares the text and the loaded code.
"""

import copy
from dataclasses import replace
from typing import Any

from cupyops.errors import expected
from cupyops.sizes import is_symbol

from .geometry import MAX_BLOCK, Geometry, Grid, Threads, at_least, is_integer, policy

__all__ = ["configuration", "configured", "triple"]

_MOST_COPIES = 256  # of one kernel: a call with further bytes of shared memory makes the copies again


def configuration(kernel: Any, given: Any) -> tuple[Any, Grid]:
    """Returns the kernel and the threads of the launch that ``kernel[given]`` asks for.

    Raises:
        TypeError, ValueError: `given` is not a configuration.
    """
    where = f"{kernel.name}[...]"
    if is_integer(given):
        return kernel, (at_least(where, "threads", given, 0), 1, 1)
    if not isinstance(given, tuple) or not 2 <= len(given) <= 3:
        stream = ". Launches are on PyTorch's current stream: `with torch.cuda.stream(stream):`"
        told = stream if isinstance(given, tuple) and len(given) > 3 else ""
        raise TypeError(
            f"{where}: the launch configuration must be [n] for n threads, [grid, block] or [grid, block, shared], got "
            f"{given!r}; {kernel.name}.forall(N, M) has N x M threads{told}"
        )
    if len(given) == 3 and not is_integer(given[2]):
        wanted = "be a number of bytes. Launches are on the current stream: `with torch.cuda.stream(stream):`"
        raise TypeError(expected(where, "shared", wanted, repr(given[2])))
    grid, block = triple(where, "grid", given[0], 0), triple(where, "block", given[1], 1)
    if block[0] * block[1] * block[2] > MAX_BLOCK:
        raise ValueError(
            f"{where}: a block of {' x '.join(map(str, block))} threads: CUDA has at most {MAX_BLOCK}. The second number is "
            f"the threads of a block; {kernel.name}.forall(N, M) has N x M threads"
        )
    shared = at_least(where, "shared", given[2], 0) if len(given) == 3 else None
    found = kernel.configured(policy(kernel.name, Threads(block=block)), shared)
    return found, (grid[0] * block[0], grid[1] * block[1], grid[2] * block[2])


def triple(where: str, name: str, numbers: Any, least: int) -> Grid:
    found = numbers if isinstance(numbers, tuple | list) else (numbers,)
    if not 1 <= len(found) <= 3 or not all(map(is_integer, found)):
        raise TypeError(expected(where, name, "be one to three numbers", repr(numbers)))
    x, y, z = (*(at_least(where, name, n, least) for n in found), 1, 1)[:3]
    return x, y, z


def configured(kernel: Any, geometry: Geometry, shared: int | None) -> Any:
    """Returns the copy of a kernel with another block, or other bytes of shared memory.

    Args:
        shared: None for the kernel's own ``shared=``.
    """
    key = (geometry, shared)
    found = None if is_symbol(shared) else kernel.copies.get(key)
    if found is not None and found.source is kernel.source:  # else an edit of a watched file has replaced the text
        return found
    found = copy.copy(kernel)
    own = {} if shared is None else {"shared_bytes": None, "hardware": replace(kernel.hardware, shared=shared)}
    fresh: dict[str, Any] = {"_variants": {}, "_generated_variants": {}, "_simulated": {}, "copies": {}, "file": None}
    vars(found).update(geometry=geometry, base=kernel, **fresh, **own)
    vars(found).pop("declared", None)
    found.close_generated_launch()
    if len(kernel.copies) >= _MOST_COPIES:
        kernel.copies.clear()
    if not is_symbol(shared):
        kernel.copies[key] = found
    return found
