"""Launches a kernel on the CPU, with the argument checks and the launch geometry of a GPU."""

import ctypes
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupyops.arrays import Info
from cupyops.compile.compiler import STANDARD, lines_by_file
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError, LaunchError
from cupyops.launch import driver
from cupyops.launch.accessors import numbers
from cupyops.launch.geometry import Grid, Target
from cupyops.launch.held import Held, placed
from cupyops.sharing import held_across_fork, once

from . import build, flags, host
from .abi import PROGRESS, Fault, Launch
from .counts import Counts, base_of, counters, read_counts
from .explain import explain
from .loaded import load
from .memory import Memory
from .report import Locator, describe
from .translate import translate

if TYPE_CHECKING:
    from cupyops.launch.kernel import Kernel

__all__ = ["Simulated", "prepare", "twins"]

# The runtime runs one launch at a time. A fork waits until the launch ends: during a launch the child would inherit a
# half-finished launch, and signal handlers that belong to a thread missing in the child.
_RUNNING = held_across_fork(threading.RLock())
_PATIENCE = 5.0  # seconds between two progress messages of a long launch


class Simulated:
    """A kernel compiled for the host, for one choice of dtypes.

    Attributes:
        what: the kernel's name and dtypes, for messages.
        checked: whether the kernel is compiled with memory checks.
        code: the loaded library.
        path: the compiled library.
        grid: a function from the call's sizes to the grid.
    """

    def __init__(
        self,
        kernel: "Kernel",
        types: Mapping[str, str],
        multiprocessors: int,
        *,
        checked: bool,
        optimize: bool,
        counted: bool = False,
    ) -> None:
        self.what = kernel.describe(types).removesuffix("<>")
        self.checked = checked
        self._kernel = kernel
        text = kernel.final_text(types, twins())
        files = {
            n: "\n".join(ls.get(i, "") for i in range(1, max(ls) + 1)) for n, ls in lines_by_file(text).items() if ls
        }
        self.path = _compile(kernel, types, text, self.what, checked, optimize, files, counted)
        self._checks = 2 if flags.tells_volatile_apart(host.compiler()) else 1
        runtime = build.runtime()
        self.counters = counters(build.runtime(counted=True)) if counted else None
        self.files = files
        self._runtime = runtime
        runtime.cupyops_fault.restype = ctypes.POINTER(Fault)
        with _RUNNING:
            self.code = load(kernel, types, text, self.path)
            self._module = self.code.module(kernel.name)
        symbol = ctypes.cast(self.code.library.cupyops_get_module, ctypes.c_void_p).value
        self.locator = Locator(self.path, symbol or 0, files)
        self._packing, fields = kernel.signature.packing(types, kernel.constants)
        self._offsets = [offset for offset, _ in fields]
        with _RUNNING:
            self._check_parameters([size for _, size in fields])
        itemsize = max((DTYPES[p.c_type(types)].itemsize for p in kernel.signature.parameters if p.pointer), default=4)
        self.grid = kernel.geometry.grid_for(Target(itemsize, multiprocessors))

    def _check_parameters(self, declared: Sequence[int]) -> None:
        module = self.code.module(self._kernel.name).contents
        compiled = module.parameter_bytes[: module.parameters]
        if compiled != list(declared):
            pairs = ", ".join(
                f"{p.name}: {d}" for p, d in zip(self._kernel.signature.parameters, declared, strict=True)
            )
            raise LaunchError(
                f"{self.what}: the text declares parameters of {pairs} bytes, but the compiled kernel has {compiled}. "
                f"Declare parameters with plain types and no macros, so that the declaration can be read."
            )

    def run(
        self,
        values: Mapping[str, Any],
        infos: Mapping[str, Info],
        grid: Grid,
        blocks: slice = slice(None),
        held: Sequence[Held] = (),
    ) -> Counts | None:
        """Runs the blocks of a grid one after the other; x varies fastest, then y, then z. Returns what a counted
        kernel counts, else None.

        Args:
            values: by parameter, the scalar arguments and tensor maps.
            infos: by parameter, the arrays.
            grid: the number of blocks in x, y and z.
            blocks: the range of block numbers that run; by default all.
            held: the arrays that structs by value point to.

        Raises:
            LaunchError: a GPU would refuse the geometry, or a check of the kernel failed; the message of a failed check
                names the kernel, line, block and thread.
            KeyboardInterrupt: the user pressed Ctrl-C.
        """
        kernel = self._kernel
        with _RUNNING:
            self.code.module(kernel.name)  # the kernels of a module share one library
            self._check_geometry(grid)
            guarded = self.checked or self.counters is not None
            arrays = {**values, **{one.parameter.name: one.array for one in held}}
            bases = {n: base_of(arrays[n], info) for n, info in infos.items()} if guarded else None
            written = [one.parameter.name for one in held if not one.parameter.const]
            memory = Memory(kernel.signature, infos, guarded, bases, written)
            buffer = driver.argument_buffer(self._packing.size, self._offsets)
            arguments = [
                (memory.pointers[p.name], *numbers(p.accessor, infos[p.name]))
                if p.accessor
                else memory.pointers.get(p.name, 0)
                if p.pointer
                else values[p.name].moved(memory.pointers[p.map_of])
                if p.map_of in memory.pointers
                else placed(p.name, values[p.name], held, memory.pointers)
                for p in kernel.signature.parameters
            ]
            self._packing.pack_into(
                buffer.memory, 0, *(n for a in arguments for n in (a if isinstance(a, tuple) else (a,)))
            )
            ranges = memory.ranges()
            first, end, _ = blocks.indices(grid[0] * grid[1] * grid[2])
            progress = _Progress(self.what, max(end - first, 0))
            launch = Launch(
                self._module,
                buffer.addresses,
                grid,
                kernel.geometry.threads,
                kernel.hardware.shared,
                self._checks if self.checked else 0,
                ranges,
                len(memory.places),
                first,
                max(first, end),
                progress.callback,
                kernel.hardware.cooperative,
            )
            if self.counters:
                self.counters.cupyops_count_begin(ctypes.byref(launch))
            outcome = self._runtime.cupyops_run(ctypes.byref(launch))
            counts = None
            if self.counters:
                counts = read_counts(self.counters, self.path, self.files, self.locator, memory)
            if progress.error is not None:
                raise progress.error
            if outcome == 2:
                raise KeyboardInterrupt
            if outcome:
                fault = self._runtime.cupyops_fault().contents
                where = f"grid {tuple(grid)}, block {kernel.geometry.threads}"
                words = describe(self.what, fault, self._module.contents, memory, self.locator, where)
                raise LaunchError(words if self.checked else words + _MORE)
            memory.finish()
            return counts

    def _check_geometry(self, grid: Grid) -> None:
        """Raises LaunchError for a geometry that the CUDA driver would refuse."""
        kernel, module = self._kernel, self._module.contents
        block = kernel.geometry.threads
        count = block[0] * block[1] * block[2]
        cluster = list(module.cluster)
        blocks = cluster[0] * cluster[1] * cluster[2]
        problem = ""
        if module.max_threads and count > module.max_threads:
            problem = f"its __launch_bounds__ allow {module.max_threads} threads a block"
        elif not 1 <= blocks <= 16:
            problem = f"its cluster of {blocks} blocks is more than a GPU has (8, or 16 with non-portable sizes)"
        elif any(g % c for g, c in zip(grid, cluster, strict=True)):
            problem = f"its grid must be whole clusters of {tuple(cluster)} blocks"
        elif kernel.hardware.shared > 227 * 1024:
            problem = "a block has at most 227 KiB of dynamic shared memory"
        if problem:
            raise LaunchError(f"{self.what} with grid {tuple(grid)}, block {block} was refused: {problem}")


_MORE = ". `cupyops.simulate(sanitize=True)` checks every access and reports more."


class _Progress:
    """Prints the progress of a long launch to stderr."""

    def __init__(self, what: str, blocks: int) -> None:
        self._what, self._blocks = what, blocks
        self._started = self._spoke = time.monotonic()
        self.error: BaseException | None = None
        self.callback = PROGRESS(self._tell)

    def _tell(self, finished: int) -> int:
        try:
            now = time.monotonic()
            if now - self._spoke >= _PATIENCE:
                self._spoke = now
                print(
                    f"{self._what}: {finished} of {self._blocks} blocks simulated after {now - self._started:.0f} s; "
                    f"Ctrl-C ends it",
                    file=sys.stderr,
                    flush=True,
                )
        except BaseException as error:  # an exception cannot cross the C++ runtime; `run` raises it afterwards
            self.error = error
            return 1
        return 0


def prepare(
    kernel: "Kernel",
    types: Mapping[str, str],
    multiprocessors: int,
    *,
    checked: bool,
    optimize: bool,
    counted: bool = False,
) -> Simulated:
    """Returns the compiled kernel for a choice of dtypes; the first call compiles, and the kernel object caches."""
    kept = kernel.__dict__.setdefault("_simulated", {})
    key = ((checked, optimize, counted and multiprocessors), *types.values())
    found: Simulated | None = kept.get(key)
    if found is None:
        found = once(
            (kernel, id(kept), *key),
            lambda: (
                kept.get(key)
                or kept.setdefault(
                    key,
                    Simulated(kernel, types, multiprocessors, checked=checked, optimize=optimize, counted=counted),
                )
            ),
        )
    return found


@cache
def twins() -> dict[str, str]:
    """Returns the C++ replacements of the PTX headers in ``kernels_cu/hardware``, by header name."""
    return {path.name: path.read_text(encoding="utf-8") for path in (build.HERE / "hardware").glob("*.cuh")}


def _compile(
    kernel: "Kernel",
    types: Mapping[str, str],
    text: str,
    what: str,
    checked: bool,
    optimize: bool,
    files: Mapping[str, str],
    counted: bool,
) -> Path:
    translated = translate(text, kernel.source.kernels(), what)
    watched = "volatile" in translated and re.search(r"\bvolatile\b", translated) is not None
    try:
        return build.build(
            translated,
            build.needs_cuda(text),
            checked=checked,
            watched=watched,
            optimize=optimize,
            sources=dict(files),
            counted=counted,
            standard=next((f"-std={m[1]}" for o in reversed(kernel.options) if (m := STANDARD.fullmatch(o))), ""),
        )
    except CompileError as error:
        raise CompileError(explain(what, str(error), kernel.final_text(types), kernel.options)) from None
