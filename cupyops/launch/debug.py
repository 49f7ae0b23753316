"""Debug mode: every launch is waited for, named when it fails, and watched for writes outside its outputs.

Without it, an illegal access surfaces at some later call, and a write just past an output's end, into memory that
belongs to somebody else's array, surfaces never. Debug mode gives a kernel copies of its outputs with bands of a known
pattern around them, and looks at the bands after the launch. It is slow, and meant for finding a fault.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cupyops.arrays import Info
from cupyops.compile import toolchain
from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError
from cupyops.sharing import Setting

from . import driver
from .arguments import Arguments
from .hooks import Guard, close_generated_launches, register_guard
from .signature import Parameter, Signature

if TYPE_CHECKING:
    from .variant import Variant

__all__ = ["debug_mode", "enabled", "set_debug"]

_BAND = 4096  # bytes before and behind each output
_PATTERN = 0xA5

_setting = Setting(os.environ.get("CUPYOPS_DEBUG", "") not in ("", "0"))


def enabled() -> bool:
    """Whether launches are debugged: ``CUPYOPS_DEBUG=1`` in the environment, or :func:`set_debug`."""
    return _setting.now


def set_debug(on: bool) -> None:
    """Turns debug mode on or off for all kernels of this process; within :func:`debug_mode`, until its block ends."""
    _setting.set(bool(on))
    close_generated_launches()


@contextmanager
def debug_mode(on: bool = True) -> Iterator[None]:
    """Debug mode for a block of code, in all threads: ``with cupyops.debug_mode(): ...``. Of blocks that run at once, the
    newest says whether."""
    try:
        with _setting.during(bool(on)):
            close_generated_launches()
            yield
    finally:
        close_generated_launches()


def launch(
    variant: "Variant",
    signature: Signature,
    given: Arguments,
    grid: Sequence[int],
    stream: int,
) -> None:
    """Launches with guarded copies of the outputs, waits, and looks.

    Raises:
        LaunchError: the launch failed (kernel, geometry and arguments are named), or wrote outside an output.
    """
    values, infos = given.addresses, given.infos
    runtime = toolchain.cupy().cuda.runtime
    if runtime.streamIsCapturing(stream):
        # A capture can neither be waited for nor looked at: it is only a recording.
        _submit(variant, values, grid, stream)
        return
    arguments = dict(zip(signature.names, values, strict=True))
    what = f"{variant.what} with grid {tuple(grid)}, block {variant.threads}"
    told = f"Arguments: {', '.join(f'{n}: {infos.get(n, v)}' for n, v in arguments.items())}"
    try:
        runtime.streamSynchronize(stream)
    except Exception as error:
        raise LaunchError(
            f"{what}: an earlier launch or copy on this stream failed before it ran: {error}. {told}"
        ) from error
    guarded = []
    for position, p in enumerate(signature.parameters):
        if p.name in infos and not p.const and p.shape is not None:
            band = _Guarded(p, infos[p.name], stream)
            values[position] = band.pointer
            guarded.append(band)
            for i, other in enumerate(signature.parameters):
                if other.map_of == p.name:
                    values[i] = values[i].moved(band.pointer)
    try:
        _submit(variant, values, grid, stream)
        runtime.streamSynchronize(stream)
    except Exception as error:
        raise LaunchError(f"{what} failed: {error}. {told}") from error
    for band in guarded:
        if found := band.trespass():
            raise LaunchError(f"{what} wrote outside its output `{band.parameter.name}`: {found}. {told}")
        band.copy_back()
    runtime.streamSynchronize(stream)


def _submit(variant: "Variant", values: Sequence[Any], grid: Sequence[int], stream: int) -> None:
    buffer, whole = variant.packed(values), variant.cooperative
    driver.submit(variant.function, grid, variant.threads, variant.shared, stream, buffer, cooperative=whole)


class _Guarded:
    """A copy of an output between two bands."""

    def __init__(self, parameter: Parameter, info: Info, stream: int) -> None:
        cupy = toolchain.cupy()
        self.parameter, self.info, self.stream = parameter, info, stream
        self.itemsize = DTYPES[info.dtype].itemsize
        self.nbytes = info.size * self.itemsize
        # An output that is not aligned must stay so, since kernels choose their accesses by it.
        self.front = _BAND + info.pointer % 256
        self.memory = cupy.cuda.alloc(self.front + self.nbytes + _BAND)
        runtime = cupy.cuda.runtime
        runtime.memsetAsync(self.memory.ptr, _PATTERN, self.front + self.nbytes + _BAND, stream)
        self.pointer = self.memory.ptr + self.front
        runtime.memcpyAsync(self.pointer, info.pointer, self.nbytes, runtime.memcpyDeviceToDevice, stream)

    def trespass(self) -> str:
        """Where the nearest write outside was, or nothing."""
        import numpy

        end = self.front + self.nbytes
        host = numpy.empty(end + _BAND, dtype=numpy.uint8)
        runtime = toolchain.cupy().cuda.runtime
        runtime.memcpyAsync(host.ctypes.data, self.memory.ptr, host.nbytes, runtime.memcpyDeviceToHost, self.stream)
        runtime.streamSynchronize(self.stream)
        behind = numpy.flatnonzero(host[end:] != _PATTERN)
        if behind.size:
            return f"element {self.info.size + int(behind[0]) // self.itemsize} of {self.info.size}"
        before = numpy.flatnonzero(host[: self.front] != _PATTERN)
        if before.size:
            return f"element {(int(before[-1]) - self.front) // self.itemsize} (before the first)"
        return ""

    def copy_back(self) -> None:
        runtime = toolchain.cupy().cuda.runtime
        runtime.memcpyAsync(self.info.pointer, self.pointer, self.nbytes, runtime.memcpyDeviceToDevice, self.stream)


register_guard(Guard(enabled, launch))
