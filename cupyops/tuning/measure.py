"""Measures candidate kernels for one call: compares their results and times their launches.

The candidates run on the call's inputs and on copies of the call's outputs, on the call's stream. Each launch is timed
between two events. A write before each launch empties the L2 cache, as the preceding operators of a network would.
During the write, the host queues the launch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cupyops.arrays import numpy_dtype
from cupyops.compile import toolchain
from cupyops.dtypes import DTYPES
from cupyops.errors import LaunchError, TuningError
from cupyops.launch import driver
from cupyops.launch.accessors import moved
from cupyops.launch.arguments import Arguments

if TYPE_CHECKING:
    from cupyops.launch.kernel import Kernel

__all__ = ["microseconds"]

_SECONDS = 0.1  # the time limit of the timing of all candidates together
_ROUNDS = (5, 25)  # the fewest and the most launches of a candidate that are timed
_FLUSHING = 1 << 25  # the fewest bytes written before each launch: the host queues the launch during the write
_CHUNK = 1 << 26  # bytes that are compared at once
_ALIGNMENT = 256  # a copy has its output's address modulo this number: kernels choose their accesses by alignment


def microseconds(
    kernels: Sequence["Kernel"], names: Sequence[str], arguments: Arguments, rtol: float, atol: float
) -> dict[str, float | None]:
    """Returns the median microseconds of a launch of each kernel, by the kernel's name.

    The value of a kernel that the GPU cannot launch is None.

    Args:
        kernels: the candidates. The first is the reference for the results.
        names: the names of the kernels.
        arguments: the checked arguments of the call, on a GPU. All kernels take the arguments.
        rtol, atol: the tolerance of a result, ``|a - b| <= atol + rtol * |b|``. With 0 and 0 every bit must be equal.

    Raises:
        TuningError: the result of a kernel differs from the result of the first.
        LaunchError: the GPU cannot launch the first kernel, or a kernel fails while it runs.
        MemoryError: the GPU has no memory for the copies.
    """
    runtime = toolchain.cupy().cuda.runtime
    stream = arguments.library.stream(arguments.gpu)
    launches: dict[str, Callable[[], None]] = {}
    with _copies(runtime, arguments, kernels[0]) as (reference, copies):
        for kernel, name in zip(kernels, names, strict=True):
            try:
                outputs = copies if launches else reference
                launch = _launch(kernel, arguments, outputs.values, stream)
                outputs.refill(stream)
                launch()
            except (LaunchError, ValueError):
                if not launches:
                    raise
                continue  # the kernel needs more threads or more shared memory than the GPU has
            try:
                runtime.streamSynchronize(stream)
            except Exception as error:
                raise LaunchError(f"{kernel.describe(arguments.types)} with {name} failed: {error}") from error
            if launches and (difference := copies.difference(reference, stream, rtol, atol)):
                raise TuningError(
                    f"{kernel.describe(arguments.types)}: {name} gives another result than {names[0]}: {difference}. One of the "
                    f"two is wrong. If the difference is rounding, declare a tolerance: Tuned(..., rtol=..., atol=...)"
                )
            launches[name] = launch
        with _memory(runtime, _flushing_bytes(arguments.gpu)) as (flushed, size):
            clock = _Clock(runtime, stream, lambda: runtime.memsetAsync(flushed, 0, size, stream))
            once = sum(first for (first,) in clock.times([*launches.values()], 1))
            times = clock.times(
                [*launches.values()], max(_ROUNDS[0], min(_ROUNDS[1], int(_SECONDS * 1e6 / max(once, 1.0))))
            )
    from statistics import median  # imported only here: statistics imports decimal and fractions

    found = {name: round(median(t), 3) for name, t in zip(launches, times, strict=True)}
    return {name: found.get(name) for name in names}


def _launch(kernel: "Kernel", arguments: Arguments, values: Sequence[Any], stream: int) -> Callable[[], None]:
    """Returns a function that launches a kernel with ``values`` in place of the call's arguments.

    The arguments are packed once, outside the timed region.
    """
    variant = kernel.variant(arguments.types, arguments.gpu)
    grid = kernel.grid(variant, [arguments.values[s] for s in kernel.geometry.sizes])
    buffer = variant.packed(values)

    def launch() -> None:
        try:
            driver.submit(
                variant.function, grid, variant.threads, variant.shared, stream, buffer, cooperative=variant.cooperative
            )
        except Exception as error:  # an error of CuPy's driver API
            what = f"{variant.what} with grid {grid}, block {variant.threads}"
            raise LaunchError(f"{what} {driver.refusal(error)}") from error

    return launch


class _Outputs:
    """Copies of a call's outputs, and the call's arguments with the copies in place of the outputs."""

    def __init__(self, runtime: Any, arguments: Arguments, kernel: "Kernel") -> None:
        self._runtime, self._arguments = runtime, arguments
        self._names = [
            p.name for p in kernel.signature.parameters if p.pointer and not p.const and p.name in arguments.infos
        ]
        self._places: dict[str, int] = {}
        self._size = 0
        for name in self._names:
            info = arguments.infos[name]
            self._places[name] = self._size + info.pointer % _ALIGNMENT
            self._size = -(-(self._places[name] + self._bytes(name)) // _ALIGNMENT) * _ALIGNMENT
        self._base = 0
        self.values: list[Any] = []

    def _bytes(self, name: str) -> int:
        info = self._arguments.infos[name]
        return info.size * DTYPES[info.dtype].itemsize

    @contextmanager
    def allocated(self) -> Iterator["_Outputs"]:
        with _memory(self._runtime, self._size) as (self._base, _):
            there = {name: self._base + place for name, place in self._places.items()}
            pairs = zip(self._arguments.values, self._arguments.addresses, strict=True)
            self.values = [moved(value, there[name]) if name in there else value for name, value in pairs]
            yield self

    def refill(self, stream: int) -> None:
        """Copies the contents of the call's outputs into the copies."""
        runtime = self._runtime
        for name, place in self._places.items():
            source, kind = self._arguments.infos[name].pointer, runtime.memcpyDeviceToDevice
            runtime.memcpyAsync(self._base + place, source, self._bytes(name), kind, stream)

    def difference(self, other: "_Outputs", stream: int, rtol: float, atol: float) -> str:
        """Returns a description of the first element that differs from ``other``, or ""."""
        import numpy

        for name, place in self._places.items():
            info = self._arguments.infos[name]
            width = DTYPES[info.dtype].itemsize
            step = _CHUNK // width
            for start in range(0, info.size, step):
                count = min(step, info.size - start)
                mine, theirs = (numpy.empty((count, width), numpy.uint8) for _ in range(2))
                for outputs, host in ((self, mine), (other, theirs)):
                    source = outputs._base + place + start * width
                    kind = self._runtime.memcpyDeviceToHost
                    self._runtime.memcpyAsync(host.ctypes.data, source, host.nbytes, kind, stream)
                self._runtime.streamSynchronize(stream)
                unlike = (mine != theirs).any(1)
                if not unlike.any():
                    continue
                a, b = (v.view(numpy_dtype(info.dtype))[:, 0] for v in (mine, theirs))
                if rtol or atol:
                    with numpy.errstate(invalid="ignore"):
                        got, wanted = (v.astype(numpy.float64) for v in (a, b))
                        unlike &= ~numpy.isclose(got, wanted, rtol, atol, equal_nan=True)
                if unlike.any():
                    at = int(unlike.argmax())
                    return f"element {start + at} of `{name}` is {a[at]}, and was {b[at]}"
        return ""


@contextmanager
def _copies(runtime: Any, arguments: Arguments, kernel: "Kernel") -> Iterator[tuple[_Outputs, _Outputs]]:
    with (
        _Outputs(runtime, arguments, kernel).allocated() as one,
        _Outputs(runtime, arguments, kernel).allocated() as two,
    ):
        yield one, two


@contextmanager
def _memory(runtime: Any, size: int) -> Iterator[tuple[int, int]]:
    """Allocates ``size`` bytes of GPU memory from the driver. A memory pool would keep the memory after the tuning.

    Raises:
        MemoryError: the GPU has less free memory.
    """
    try:
        pointer = runtime.malloc(max(size, 1))
    except Exception as error:
        if "MemoryAllocation" not in str(error):
            raise
        raise MemoryError(f"no {size} bytes on the GPU") from error
    try:
        yield pointer, size
    finally:
        with suppress(Exception):  # after a kernel has failed, the CUDA context refuses every call
            runtime.free(pointer)


def _flushing_bytes(device: int) -> int:
    return max(2 * int(toolchain.cupy().cuda.Device(device).attributes["L2CacheSize"]), _FLUSHING)


class _Clock:
    """Times launches on one stream. The same preparation runs before each launch."""

    def __init__(self, runtime: Any, stream: int, prepare: Callable[[], None]) -> None:
        self._runtime, self._stream, self._prepare = runtime, stream, prepare

    def times(self, launches: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
        """Returns the microseconds of each launch in each round.

        The launches alternate, A B C A B C, so that a drift of the clock frequency affects all launches equally.
        """
        runtime, stream = self._runtime, self._stream
        events = [[(runtime.eventCreate(), runtime.eventCreate()) for _ in range(rounds)] for _ in launches]
        try:
            for turn in range(rounds):
                for launch, pairs in zip(launches, events, strict=True):
                    self._prepare()
                    runtime.eventRecord(pairs[turn][0], stream)
                    launch()
                    runtime.eventRecord(pairs[turn][1], stream)
            runtime.streamSynchronize(stream)
            return [[runtime.eventElapsedTime(a, b) * 1e3 for a, b in pairs] for pairs in events]
        finally:
            for pairs in events:
                for pair in pairs:
                    for event in pair:
                        with suppress(Exception):
                            runtime.eventDestroy(event)
