"""Kernels on a CPU: the very texts, compiled by the machine's C++ compiler, the threads of a block as fibres.

It is slow and exact, and meant for tests and debugging: with ``sanitize=True`` every access is looked at. What it does
not cover does not compile, and the message names it. ``docs/simulator.md`` is the page on it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import ArrayLibrary, Host, register_finder, register_host
from cupyops.errors import expected
from cupyops.launch import recording
from cupyops.launch.arguments import Arguments
from cupyops.launch.kernel import Kernel
from cupyops.sharing import Setting

__all__ = ["enabled", "simulate"]


@dataclass(frozen=True)
class _Mode:
    on: bool
    sanitize: bool
    optimize: bool
    blocks: slice | None = None


# How many blocks or clusters run "at once", for kernels whose blocks stay until all is done: few, so that each has several
# rows to do.
RESIDENT_BLOCKS = 4

_word = os.environ.get("CUPYOPS_SIMULATE", "").lower()
_setting = Setting(_Mode(_word not in ("", "0"), _word == "sanitize", True))


def enabled() -> bool:
    """Whether CPU tensors and NumPy arrays run kernels: ``CUPYOPS_SIMULATE=1`` in the environment, or
    :func:`simulate`."""
    return _setting.now.on


@contextmanager
def simulate(
    on: bool = True, *, sanitize: bool = False, optimize: bool = True, blocks: slice | None = None
) -> Iterator[None]:
    """A block of code in which CPU tensors and NumPy arrays run the kernels themselves, on the CPU.

    It holds for all threads of the process, since gradients are computed in threads of PyTorch's own. Of blocks that run at
    once, the newest says what holds.

    Args:
        on: False turns it off for the block.
        sanitize: look at every access: bounds to the element, races in shared and in global memory, uninitialised reads in
            shared memory, signed overflow and bad shifts, barriers that some threads do not reach.
        optimize: False compiles for a debugger.
        blocks: which blocks of a grid run, ``slice(0, 1)`` for the first alone; by default all. What the others would
            have written is left as it was.

    Raises:
        ValueError: ``blocks`` is a slice with a step.
        MissingDependencyError: there is no C++ compiler; the message names three ways to get one.
        LaunchError: from a launch: the kernel did what it must not, and the message names kernel, line, block, thread.
        CompileError: from a launch: the text does not compile for the host.

    >>> import numpy
    >>> from cupyops import gelu
    >>> with simulate():
    ...     gelu(numpy.float32([-1, 0, 1])).round(4).tolist()
    [-0.15870000422000885, 0.0, 0.8413000106811523]
    """
    if blocks is not None and blocks.step not in (None, 1):
        raise ValueError(expected("simulate", "blocks", "be a slice without a step", blocks))
    if on:
        from . import host

        host.compiler()  # says what is missing here, not at some launch
    with _setting.during(_Mode(on, sanitize, optimize, blocks)):
        yield


class Simulator(Host):
    """Runs kernels on arrays in host memory, as :class:`cupyops.arrays.Host` says.

    Attributes:
        capability: the compute capability whose kernels it runs; 9.0 has clusters of blocks and bulk copies.
        multiprocessors: few, so that a grid that fills the device is small.
    """

    capability = 90
    multiprocessors = 4

    def enabled(self) -> bool:
        return enabled()

    def array(self, x: Any) -> Any:
        if not enabled():
            return None
        import numpy

        if isinstance(x, numpy.ndarray):
            return x
        # kDLCPU of the DLPack standard
        if hasattr(x, "__dlpack__") and int(x.__dlpack_device__()[0]) == 1:
            return numpy.from_dlpack(x)
        return None

    def launch(self, kernel: Kernel, arguments: Arguments, sizes: Sequence[int]) -> None:
        from .simulated import prepare

        mode = _setting.now
        simulated = prepare(
            kernel, arguments.types, self.multiprocessors, checked=mode.sanitize, optimize=mode.optimize
        )
        grid = kernel.grid(simulated, sizes)
        if 0 not in grid:
            recording.note(recording.Launch(kernel, arguments.types, self, grid))
            simulated.run(arguments.values, arguments.infos, grid, mode.blocks or slice(None))

    def resident_blocks(self, kernel: Kernel) -> int:
        return RESIDENT_BLOCKS * kernel.geometry.cluster


def _numpy_library(kind: type) -> ArrayLibrary | None:
    """What knows arrays of this type while kernels are simulated, if they are NumPy's."""
    if not enabled() or not any(base.__module__ == "numpy" and base.__name__ == "ndarray" for base in kind.__mro__):
        return None
    from .numpy_arrays import NumpyLibrary

    return NumpyLibrary()


register_host(Simulator())
register_finder(_numpy_library)
