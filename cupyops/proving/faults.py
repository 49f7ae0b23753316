"""Launches that break a bound: sizes from z3, which the simulator runs."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cupyops.arrays import numpy_dtype
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.errors import LaunchError
from cupyops.simulator import Simulator, simulate

from .launches import Launches
from .solver import Model, Solver
from .terms import Condition, any_of, at_most, constant, equal, negated

__all__ = ["Fault", "fault_of"]

_LIMITS = (8, 64, 1024, 1 << 17, 1 << 24, (1 << 31) - 1, None)  # of sizes: the smallest that break are shown
_TRIES = 3  # for each limit
_WHOLE = 1 << 16  # threads of a launch that runs whole; of a larger one the block runs that z3 names
_GAP = 1 << 16
_MOST = 1 << 42  # bytes of an array that is tried
_VIEW = 4096  # elements of an array without a declared size
_SECONDS = 4
_FAULTS = ("out of bounds", "misaligned", "not aligned", "belongs to no array")


@dataclass(frozen=True)
class Fault:
    """A launch that the simulator has found broken.

    Attributes:
        sizes: the integer arguments.
        grid, block: blocks and threads of a block in x, y, z.
        starts: bytes between a multiple of 256 and the begin of an array, of the arrays that begin at none.
        filled: whether the arrays have random numbers, and not zeros.
        message: of the simulator.
    """

    sizes: dict[str, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    starts: dict[str, int]
    filled: bool
    message: str

    @property
    def words(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        starts = "".join(
            f"; `{name}` begins {shift} bytes after a multiple of 256" for name, shift in self.starts.items()
        )
        filled = "; random numbers in the arrays" if self.filled else ""
        return f"{sizes or 'every launch'}{starts}{filled}: {self.message}"


def fault_of(launches: Launches, solver: Solver, condition: Condition) -> Fault | None:
    """Returns a launch that meets a condition and that the simulator finds broken, or None."""
    for model in _models(launches, solver, condition):
        for filled in (False, True):
            if (found := _run(launches, model, filled=filled)) is not None:
                return found
    return None


def _models(launches: Launches, solver: Solver, condition: Condition) -> Iterator[Model]:
    fixed = [condition]
    if launches.multiprocessors is not None:
        fixed.append(equal(launches.multiprocessors, Simulator.multiprocessors))
    numbers = list(launches.numbers.values())
    for limit in _LIMITS:
        bounds = [c for n in numbers for c in (at_most(n, limit), at_most(constant(-limit), n))] if limit else []
        excluded: list[Condition] = []
        for _ in range(_TRIES):
            given = [*fixed, *bounds, *excluded]
            model = solver.model(given, exact=True) or solver.model(given)
            if model is None:
                break
            yield model
            if not numbers:
                return
            excluded.append(any_of(*(negated(equal(n, model.of(n))) for n in numbers)))


def _run(launches: Launches, model: Model, *, filled: bool) -> Fault | None:
    """Runs a launch in the simulator, and returns it if it is broken."""
    import numpy

    kernel, types = launches.kernel, launches.types
    arguments: list[Any] = []
    sizes, starts = {}, {}
    for position, p in enumerate(kernel.signature.parameters):
        if p.pointer:
            array = launches.arrays[p.name]
            if p.nullable and model.of(array.base) == 0:
                arguments.append(None)
                continue
            dtype = DTYPES[p.c_type(types)]
            count = model.of(array.size) // dtype.itemsize if array.size is not None else _VIEW
            shift = model.of(array.address) % 256
            if count < 0 or count * dtype.itemsize > _MOST or p.accessor is not None:
                return None
            kind = numpy_dtype(dtype.name)
            total = count * dtype.itemsize + 2 * _GAP
            try:
                memory = mmap.mmap(
                    -1, total + 256, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
                )
            except (OSError, ValueError, OverflowError):
                return None
            raw = numpy.frombuffer(memory, numpy.uint8)
            found = raw[_GAP + shift : _GAP + shift + count * dtype.itemsize].view(kind)
            if filled and count <= _WHOLE:
                found[:] = numpy.random.default_rng(0).integers(0, 100, count).astype(kind)
            if shift:
                starts[p.name] = shift
            arguments.append(found if p.element is None else found.reshape(-1, p.element.width))
        elif p.name in launches.numbers:
            value = model.of(launches.numbers[p.name])
            sizes[p.name] = value
            arguments.append(bool(value) if p.c_type(types) == "bool" else value)
        elif p.length is not None and p.element is None and p.c_type(types) not in FLOATS:
            width, length = DTYPES[p.c_type(types)].itemsize, int(kernel.constants.get(p.length, p.length))
            values = [launches.others.get((position, width * i, 8 * width)) for i in range(length)]
            signed = [0 if v is None else model.of(v) for v in values]
            half = 1 << (8 * width - 1)
            arguments.append(
                tuple(v - 2 * half if v >= half and p.c_type(types).startswith("i") else v for v in signed)
            )
        elif p.element is None and p.map_of is None:
            arguments.append(1.0)
        else:
            return None
    grid, block, at = (
        tuple(model.of(launches.special[f"%{name}.{axis}"]) for axis in "xyz") for name in ("nctaid", "ntid", "ctaid")
    )
    number = at[0] + grid[0] * (at[1] + grid[1] * at[2])
    many = grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2] > _WHOLE
    try:
        with simulate(sanitize=None, blocks=slice(number, number + 1) if many else None, timeout=_SECONDS):
            (kernel[grid, block] if kernel.geometry.per_call else kernel)(*arguments)
    except LaunchError as error:
        words = str(error)
        if any(word in words for word in _FAULTS):
            return Fault(sizes, grid, block, starts, filled, words)  # type: ignore[arg-type]
    except (TypeError, ValueError, MemoryError, OverflowError):
        return None  # no launch that the checks of a call accept
    return None
