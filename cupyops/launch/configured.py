"""Launches as CUDA configures them: ``kernel[grid, block](...)`` and ``kernel[grid, block, shared](...)``.

The kernel of a block and of bytes of shared memory is a copy that shares the text and the loaded code.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cupyops.errors import expected
from cupyops.sizes import is_symbol

from . import recording
from .arguments import bind, check
from .geometry import MAX_BLOCK, Geometry, Grid, Threads, at_least, is_integer, policy
from .untraced import untraced
from .watch import rereads

__all__ = ["Configurable", "configured"]

_MOST_COPIES = 256  # of one kernel: a call with further bytes of shared memory makes the copies again


def _configuration(kernel: Any, given: Any) -> tuple[Any, Grid]:
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
    grid, block = _triple(where, "grid", given[0], 0), _triple(where, "block", given[1], 1)
    if block[0] * block[1] * block[2] > MAX_BLOCK:
        raise ValueError(
            f"{where}: a block of {' x '.join(map(str, block))} threads: CUDA has at most {MAX_BLOCK}. The second number is "
            f"the threads of a block; {kernel.name}.forall(N, M) has N x M threads"
        )
    shared = at_least(where, "shared", given[2], 0) if len(given) == 3 else None
    found = kernel.configured(policy(kernel.name, Threads(block=block)), shared)
    return found, (grid[0] * block[0], grid[1] * block[1], grid[2] * block[2])


def _triple(where: str, name: str, numbers: Any, least: int) -> Grid:
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
    found.close_generated_launch()
    if len(kernel.copies) >= _MOST_COPIES:
        kernel.copies.clear()
    if not is_symbol(shared):
        kernel.copies[key] = found
    return found


class Configurable:
    """The part of a :class:`.kernel.Kernel` without a policy: each call configures its launch."""

    name: str
    geometry: Geometry

    def __getitem__(self, configuration: int | tuple[Any, ...]) -> Callable[..., None]:
        """Returns a launch of a kernel without a policy. ``kernel[n](x, y, n)`` launches at least n threads.
        ``kernel[grid, block](...)`` launches these blocks of these threads, as CUDA's ``<<<grid, block>>>``; each is a number
        or a tuple of up to three. ``kernel[grid, block, shared](...)`` has dynamic shared memory of that many bytes.

        Raises:
            TypeError: the kernel has a policy. The launch raises TypeError for another configuration.
            ValueError: raised by the launch for a negative number, and for the reasons given in :meth:`__call__`.
        """
        self._needs_no_policy()
        return partial(self._launch_on, configuration)

    def forall(self, *threads: int) -> Callable[..., None]:
        """Returns the launch on at least the given number of threads in up to three dimensions: ``kernel.forall(N, M)(...)``.

        Raises:
            TypeError, ValueError: as for ``kernel[...]``.
        """
        self._needs_no_policy()
        return partial(self._launch_over, threads)

    def _needs_no_policy(self) -> None:
        if not self.geometry.per_call:
            wanted = f"call it without [...], or make the Kernel without a policy for {self.name}[grid, block]"
            raise TypeError(f"{self.name} counts its blocks by {self.geometry}; {wanted}")

    @rereads
    def configured(self, geometry: Geometry, shared: int | None) -> Any:
        """Returns this kernel with another block and other bytes of shared memory. See :mod:`.configured`."""
        return configured(self, geometry, shared)

    @untraced
    def _launch_on(self: Any, given: int | tuple[Any, ...], /, *args: Any, **kwargs: Any) -> None:
        arguments = check(self, bind(self, args, kwargs))
        # With fake arrays the numbers may be symbols, and a comparison would fix the value of a symbol.
        skipped = arguments.lead.fake and not recording.planning()
        kernel, threads = (self, (1, 1, 1)) if skipped else _configuration(self, given)
        kernel.run(arguments, threads, written=True)

    @untraced
    def _launch_over(self: Any, counts: tuple[int, ...], /, *args: Any, **kwargs: Any) -> None:
        arguments = check(self, bind(self, args, kwargs))
        threads = counts if arguments.lead.fake else _triple(f"{self.name}.forall", "threads", counts, 0)
        self.run(arguments, threads, written=True)
