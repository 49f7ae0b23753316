"""Runs kernels on a CPU: the machine's C++ compiler compiles the same ``.cu`` text, and each CUDA thread is a fibre.

The simulator is slow and exact. It serves tests and debugging: with ``sanitize=True`` it checks every memory access.
A text that uses an unsupported CUDA feature does not compile, and the message names the feature. ``docs/simulator.md``
documents the simulator.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import ArrayLibrary, Host, register_finder, register_host
from cupyops.environment import switched
from cupyops.errors import expected
from cupyops.launch import recording
from cupyops.launch.arguments import Arguments
from cupyops.launch.geometry import Grid
from cupyops.launch.kernel import Kernel
from cupyops.sharing import Setting, held_across_fork

from .textures import SurfaceObject, TextureObject

__all__ = [
    "Counted",
    "SurfaceObject",
    "TextureObject",
    "call",
    "counted",
    "enabled",
    "fake_call",
    "in_call",
    "simulate",
]


@dataclass(frozen=True)
class _Mode:
    on: bool
    sanitize: bool | None
    optimize: bool
    blocks: slice | None = None
    counting: "Counting | None" = None
    timeout: float | None = None


@dataclass(frozen=True)
class Counted:
    """One counted launch.

    Attributes:
        kernel: the :class:`cupyops.Kernel`.
        types: the dtype of each undeclared type of the text.
        grid: blocks in x, y and z.
        counts: the :class:`.counts.Counts`.
    """

    kernel: Kernel
    types: Mapping[str, str]
    grid: Grid
    counts: Any


@dataclass(frozen=True)
class Counting:
    """Counts the launches of a ``with`` block, see :func:`counted`.

    Attributes:
        multiprocessors: multiprocessors of the GPU for which grids are computed.
        launches: receives the launches.
    """

    multiprocessors: int
    launches: list[Counted]


# The number of resident clusters, for kernels with persistent blocks. The number is small: each block then processes
# several rows even of a small test.
RESIDENT_BLOCKS = 4

# Held by the first import of the modules below, which a simulation imports at its first use. A fork waits for the import:
# a child that was forked during it would wait for ever for the lock that Python holds during an import.
_importing = held_across_fork(threading.RLock())
_word = switched("CUPYOPS_SIMULATE", others=("sanitize", "unchecked"))
_setting = Setting(_Mode(_word != "off", {"sanitize": True, "unchecked": False}.get(_word), True))


def enabled() -> bool:
    """Returns whether calls on CPU tensors and NumPy arrays run kernels in the simulator.

    The environment variable ``CUPYOPS_SIMULATE`` or :func:`simulate` turns the simulator on.
    """
    return _mode().on


class _Call(threading.local):
    """The call of an operator that runs in this thread.

    Attributes:
        mode: the setting of the simulator for the call, or None.
    """

    mode: _Mode | None = None


_call = _Call()


def _mode() -> _Mode:
    return _call.mode or _setting.now


def in_call() -> bool:
    """Returns whether :func:`call` has decided about the kernels of this thread."""
    return _call.mode is not None


@contextmanager
def call() -> Iterator[None]:
    """Simulates the kernels of one call in this thread, from begin to end: in the setting in force, or with bounds
    checked if the simulator is off.

    Other threads may enter and leave :func:`simulate` meanwhile, and this block changes nothing for them.

    Raises:
        MissingDependencyError: no C++ compiler is installed.
    """
    mode = _mode()
    if not mode.on:
        mode = _Mode(True, None, True)
        _host_compiler()
    with _of_call(mode):
        yield


@contextmanager
def fake_call() -> Iterator[None]:
    """Does the same for a call on tensors without memory, in which no kernel runs: it needs no compiler."""
    with _of_call(_mode() if _mode().on else _Mode(True, None, True)):
        yield


@contextmanager
def _of_call(mode: _Mode) -> Iterator[None]:
    before, _call.mode = _call.mode, mode
    try:
        yield
    finally:
        _call.mode = before


@contextmanager
def _during(mode: _Mode) -> Iterator[None]:
    with _setting.during(mode), _of_call(mode) if in_call() else nullcontext():
        yield


def _host_compiler() -> None:
    """Raises for a missing compiler now, before the first launch."""
    with _importing:
        from . import host
    host.compiler()


@contextmanager
def simulate(
    on: bool = True,
    *,
    sanitize: bool | None = None,
    optimize: bool = True,
    blocks: slice | None = None,
    timeout: float | None = None,
) -> Iterator[None]:
    """Simulates kernels on CPU tensors and NumPy arrays inside a ``with`` block.

    The setting applies to all threads of the process, since PyTorch computes gradients in threads of its own. If
    several ``with`` blocks are open at once, the setting of the newest block applies. A call of an operator reads it
    once, when it begins; so does each call of the backward.

    Args:
        on: False turns the simulator off inside the block.
        sanitize: what is checked. None, the default, checks that every memory access lies within an array or a variable:
            no kernel then damages or ends the process. True also finds races in shared and in global memory,
            uninitialised reads of shared memory, signed overflow, bad shifts, and barriers that some threads do not
            reach. False checks no memory access: a kernel runs faster, and may end the process.
        optimize: False compiles without optimization, for a debugger.
        blocks: the range of a grid's blocks that run; ``slice(0, 1)`` runs the first block alone. By default all blocks
            run. Blocks outside the range write nothing.
        timeout: seconds after which a launch ends with a LaunchError that says where its threads are. By default a
            launch has no limit.

    Raises:
        ValueError: ``blocks`` is a slice with a step, or ``timeout`` is not positive.
        MissingDependencyError: no C++ compiler is installed; the message names three ways to get one.
        LaunchError: raised by a launch; a check failed, and the message names the kernel, line, block and thread.
        CompileError: raised by a launch; the text does not compile for the host.

    >>> import numpy
    >>> from cupyops import gelu
    >>> with simulate():
    ...     gelu(numpy.float32([-1, 0, 1])).round(4).tolist()
    [-0.15870000422000885, 0.0, 0.8413000106811523]
    """
    if blocks is not None and blocks.step not in (None, 1):
        raise ValueError(expected("simulate", "blocks", "be a slice without a step", blocks))
    if timeout is not None and not timeout > 0:
        raise ValueError(expected("simulate", "timeout", "be a positive number of seconds or None", timeout))
    if on:
        _host_compiler()
    with _during(_Mode(on, sanitize, optimize, blocks, timeout=timeout)):
        yield


@contextmanager
def counted(multiprocessors: int) -> Iterator[list[Counted]]:
    """Simulates kernels inside a ``with`` block, counts their executions and memory requests, and yields the launches.

    Args:
        multiprocessors: the number for which a policy computes a grid that fills the GPU.

    Raises:
        MissingDependencyError: no C++ compiler is installed.
    """
    _host_compiler()
    launches: list[Counted] = []
    with _during(_Mode(True, False, True, None, Counting(multiprocessors, launches))):
        yield launches


class Simulator(Host):
    """Runs kernels on arrays in host memory; implements :class:`cupyops.arrays.Host`.

    Attributes:
        capability: the simulated compute capability, as major * 10 + minor; 90 has clusters and bulk copies.
        multiprocessors: the simulated number of multiprocessors, small to keep grids that fill the device small.
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
        mode = _mode()
        simulated = self._prepared(kernel, arguments.types, mode)
        grid = kernel.grid(simulated, sizes)
        if 0 not in grid:
            recording.note(recording.Launch(kernel, arguments.types, self, grid))
            recording.submitted(simulated, arguments, grid)
            counts = simulated.run(
                arguments.values,
                arguments.infos,
                grid,
                mode.blocks or slice(None),
                arguments.held,
                everything=bool(mode.sanitize),
                timeout=mode.timeout,
            )
            if mode.counting:
                mode.counting.launches.append(Counted(kernel, arguments.types, grid, counts))

    def twins(self) -> Mapping[str, str]:
        with _importing:
            from .simulated import twins
        return twins()

    def answers(self, source: str, what: str, options: Sequence[str]) -> tuple[str, ...]:
        with _importing:
            from .simulated import answers
        return answers(source, what, options)

    def code(self, kernel: Kernel, types: Mapping[str, str]) -> Any:
        return self._prepared(kernel, types, _mode()).code

    def _prepared(self, kernel: Kernel, types: Mapping[str, str], mode: _Mode) -> Any:
        with _importing:
            from .simulated import prepare
        return prepare(
            kernel,
            types,
            mode.counting.multiprocessors if mode.counting else self.multiprocessors,
            checked=mode.sanitize is not False,
            optimize=mode.optimize,
            counted=mode.counting is not None,
        )

    def settings(self) -> dict[str, Any]:
        mode = _mode()
        given = {"sanitize": mode.sanitize, "optimize": mode.optimize, "blocks": mode.blocks, "timeout": mode.timeout}
        usual = {"sanitize": None, "optimize": True, "blocks": None, "timeout": None}
        return {name: value for name, value in given.items() if value != usual[name]}

    def resident_blocks(self, kernel: Kernel) -> int:
        return RESIDENT_BLOCKS * kernel.geometry.cluster


def _numpy_library(kind: type) -> ArrayLibrary | None:
    """Returns the library for a NumPy array type while the simulator is on, else None."""
    if not enabled() or not any(base.__module__ == "numpy" and base.__name__ == "ndarray" for base in kind.__mro__):
        return None
    with _importing:
        from .numpy_arrays import NumpyLibrary

    return NumpyLibrary()


register_host(Simulator())
register_finder(_numpy_library)
