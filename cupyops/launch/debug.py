"""Debug mode: waits for every launch, names a launch that fails, and detects writes outside the outputs.

Without debug mode, an illegal access surfaces at a later call. A write past the end of an output into the memory of
another array does not surface at all. In debug mode a kernel gets copies of its outputs, each between two guard bands
of a known byte pattern, and the bands are compared with the pattern after the launch. Debug mode is slow.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cupyops.arrays import Info
from cupyops.compile import toolchain
from cupyops.dtypes import DTYPES
from cupyops.environment import switched
from cupyops.errors import LaunchError
from cupyops.sharing import Setting

from . import driver
from .accessors import moved
from .arguments import Arguments
from .hooks import close_generated_launches
from .signature import Parameter, Signature

if TYPE_CHECKING:
    from .load import Variant

__all__ = ["debug_mode", "enabled", "set_debug"]

_BAND = 4096  # bytes of the guard band before each output, and of the band after it
_PATTERN = 0xA5

_setting = Setting(switched("CUPYOPS_DEBUG") == "on")


def enabled() -> bool:
    """Returns whether debug mode is on: by ``CUPYOPS_DEBUG=1``, :func:`set_debug` or :func:`debug_mode`."""
    return _setting.now


def set_debug(on: bool) -> None:
    """Turns debug mode on or off for all kernels of this process.

    Inside a :func:`debug_mode` block the change lasts until the block ends.
    """
    _setting.set(bool(on))
    close_generated_launches()


@contextmanager
def debug_mode(on: bool = True) -> Iterator[None]:
    """Turns debug mode on or off while a block of code runs: ``with cupyops.debug_mode(): ...``.

    The setting holds for all threads. In nested blocks, the innermost decides.
    """
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
    """Launches with guarded copies of the outputs, waits, and compares the guard bands with their pattern.

    Raises:
        LaunchError: the launch failed, or the kernel wrote outside an output. The message names the kernel, the
            geometry and the arguments.
    """
    values, infos = given.addresses, given.infos
    runtime = toolchain.cupy().cuda.runtime
    if runtime.streamIsCapturing(stream):
        # A capture records the launch without running it, so there is nothing to wait for and no band to compare.
        _submit(variant, values, grid, stream)
        return
    arguments = dict(zip(signature.names, values, strict=True))
    what = f"{variant.what} with grid {tuple(grid)}, block {variant.threads}"
    told = f"Arguments: {', '.join(f'{n}: {infos.get(n, v)}' for n, v in arguments.items())}"
    try:
        runtime.streamSynchronize(stream)
    except Exception as error:
        raise LaunchError(
            f"{what}: an earlier launch or copy on this stream failed before this launch: {error}. {told}"
        ) from error
    guarded = []
    for position, p in enumerate(signature.parameters):
        if p.name in infos and not p.const and p.shape is not None:
            band = _Guarded(p, infos[p.name], stream)
            values[position] = moved(values[position], band.pointer)
            guarded.append(band)
            for i, other in enumerate(signature.parameters):
                if other.map_of == p.name:
                    values[i] = values[i].moved(band.pointer)
    try:
        _submit(variant, values, grid, stream)
        runtime.streamSynchronize(stream)
    except Exception as error:
        raise LaunchError(f"{what} failed: {error}{driver.ended(error)}. {told}") from error
    for band in guarded:
        if found := band.trespass():
            raise LaunchError(f"{what} wrote outside its output `{band.parameter.name}`: {found}. {told}")
        band.copy_back()
    runtime.streamSynchronize(stream)


def _submit(variant: "Variant", values: Sequence[Any], grid: Sequence[int], stream: int) -> None:
    buffer, whole = variant.packed(values), variant.cooperative
    driver.submit(variant.function, grid, variant.threads, variant.shared, stream, buffer, cooperative=whole)


class _Guarded:
    """A copy of an output between two guard bands."""

    def __init__(self, parameter: Parameter, info: Info, stream: int) -> None:
        cupy = toolchain.cupy()
        self.parameter, self.info, self.stream = parameter, info, stream
        self.itemsize = DTYPES[info.dtype].itemsize
        self.nbytes = info.size * self.itemsize
        # The copy has the alignment of the output, because kernels choose their vector width by the alignment.
        self.front = _BAND + info.pointer % 256
        self.memory = cupy.cuda.alloc(self.front + self.nbytes + _BAND)
        runtime = cupy.cuda.runtime
        runtime.memsetAsync(self.memory.ptr, _PATTERN, self.front + self.nbytes + _BAND, stream)
        self.pointer = self.memory.ptr + self.front
        runtime.memcpyAsync(self.pointer, info.pointer, self.nbytes, runtime.memcpyDeviceToDevice, stream)

    def trespass(self) -> str:
        """Returns the index of the element outside the output that was written nearest to the output, in words.

        Returns ``""`` if both guard bands hold their pattern.
        """
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
