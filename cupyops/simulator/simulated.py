"""Launches a kernel on the CPU, with the argument checks and the launch geometry of a GPU."""

import ctypes
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernels_cu
from cupyops.arrays import Info
from cupyops.compile.ask import asked_in
from cupyops.compile.compiler import STANDARD
from cupyops.compile.compiler import check as nvrtc_check
from cupyops.compile.toolchain import has_nvrtc
from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError, LaunchError, MissingDependencyError
from cupyops.launch import driver
from cupyops.launch.accessors import numbers
from cupyops.launch.elements import Held, placed
from cupyops.launch.geometry import Grid, Target
from cupyops.sharing import held_across_fork, once

from . import build, flags, host
from .abi import Checks, Fault, Launch
from .counts import Counts, base_of, counters, read_counts
from .explain import explain, lines_by_file
from .loaded import answers_of, load
from .memory import Memory
from .report import Locator, describe
from .translate import translate

if TYPE_CHECKING:
    from cupyops.launch.kernel import Kernel

__all__ = ["Simulated", "answers", "prepare", "twins"]

# The runtime runs one launch at a time. A fork waits until the launch ends: during a launch the child would inherit a
# half-finished launch, and signal handlers that belong to a thread missing in the child.
_RUNNING = held_across_fork(threading.RLock())
_MOST_STATIC = 48 * 1024
_MOST_PARAMETERS = 32764
# Warnings of compilers about C++20 features under earlier standards.
_LATER = re.compile(r"[cC]\+\+20|c\+\+2a|['‘](?:auto|concept|consteval|constinit|requires)['’]")
_running: list[str] = []  # the kernel that is simulated
_PATIENCE = 5.0  # seconds between two progress messages of a long launch


class Simulated:
    """A kernel compiled for the host, for one choice of dtypes.

    Attributes:
        what: the kernel's name and dtypes, for messages.
        checked: whether the kernel is compiled with calls of the memory checks.
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
        tells = flags.tells_volatile_apart(host.compiler())
        self._all_checks = Checks.ALL if tells else Checks.ALL_BUT_GLOBAL_RACES
        runtime = build.runtime()
        self.counters = counters(build.runtime(counted=True)) if counted else None
        self.files = files
        self._runtime = runtime
        runtime.cupyops_fault.restype = ctypes.POINTER(Fault)
        runtime.cupyops_finished.restype = ctypes.c_ulonglong
        with _RUNNING:
            self.code = load(kernel, types, text, self.path)
            kernel.compare(answers_of(self.path.read_bytes(), len(asked_in(text))), types)
            self._module = self.code.module(kernel.name)
        symbol = ctypes.cast(self.code.library.cupyops_get_module, ctypes.c_void_p).value
        self.locator = Locator(self.path, symbol or 0, files)
        self._alone = len(kernel.source.kernels()) == 1
        self._multiprocessors = multiprocessors
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
        *,
        everything: bool = False,
        timeout: float | None = None,
    ) -> Counts | None:
        """Runs the blocks of a grid one after the other; x varies fastest, then y, then z. Returns what a counted
        kernel counts, else None.

        Args:
            values: by parameter, the scalar arguments and tensor maps.
            infos: by parameter, the arrays.
            grid: the number of blocks in x, y and z.
            blocks: the range of block numbers that run; by default all.
            held: the arrays that structs by value point to.
            everything: whether a checked kernel makes all checks, and not those of bounds alone.
            timeout: the seconds after which the launch ends; None for no limit.

        Raises:
            LaunchError: a GPU would refuse the geometry, a check of the kernel failed, or the time is over; the message
                names the kernel, line, block and thread.
            BaseException: a signal handler of Python has raised it, as Ctrl-C does.
        """
        kernel = self._kernel
        with _RUNNING:
            if _running:
                raise LaunchError(f"{self.what}: a signal handler launches a kernel while {_running[0]} is simulated")
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
            launch = Launch(
                self._module,
                buffer.addresses,
                grid,
                kernel.geometry.threads,
                kernel.hardware.shared,
                Checks.NONE if not guarded else self._all_checks if everything else Checks.BOUNDS,
                ranges,
                memory.count,
                first,
                max(first, end),
                self._alone,
                kernel.hardware.cooperative,
            )
            if self.counters:
                self.counters.cupyops_count_begin(ctypes.byref(launch))
            outcome = self._outcome(launch, max(end - first, 0), timeout, lambda what: self._words(what, memory, grid))
            counts = None
            if self.counters:
                counts = read_counts(self.counters, self.path, self.files, self.locator, memory)
            if outcome:
                raise LaunchError(self._words(self.what, memory, grid) + ("" if everything else _MORE))
            memory.finish()
            return counts

    def _outcome(self, launch: Launch, blocks: int, timeout: float | None, words: Callable[[str], str]) -> int:
        """Runs a launch; returns 1 for a fault, else 0. Python runs its signal handlers between two turns of the loop."""
        runtime = self._runtime
        started = spoke = time.monotonic()
        _running.append(self.what)
        try:
            runtime.cupyops_begin(ctypes.byref(launch))
            while (outcome := int(runtime.cupyops_continue())) == 2:
                now = time.monotonic()
                if timeout is not None and now - started >= timeout:
                    runtime.cupyops_where()
                    raise LaunchError(
                        words(
                            f"{self.what}: the launch has run for the {timeout:g} s of `cupyops.simulate(timeout={timeout:g})`, "
                            f"and {runtime.cupyops_finished()} of {blocks} blocks are done"
                        )
                    )
                if now - spoke >= _PATIENCE:
                    spoke = now
                    print(
                        f"{self.what}: {runtime.cupyops_finished()} of {blocks} blocks simulated after "
                        f"{now - started:.0f} s; Ctrl-C ends it",
                        file=sys.stderr,
                        flush=True,
                    )
            return outcome
        finally:
            runtime.cupyops_end()
            _running.clear()

    def _words(self, what: str, memory: Memory, grid: Grid) -> str:
        """Returns the message of the recorded fault; it begins with `what`."""
        fault = self._runtime.cupyops_fault().contents
        where = f"grid {tuple(grid)}, block {self._kernel.geometry.threads}"
        return describe(what, fault, self._module.contents, memory, self.locator, where)

    def _check_geometry(self, grid: Grid) -> None:
        """Raises LaunchError for a geometry that the CUDA driver would refuse."""
        kernel, module = self._kernel, self._module.contents
        block = kernel.geometry.threads
        count = block[0] * block[1] * block[2]
        cluster = list(module.cluster)
        blocks = cluster[0] * cluster[1] * cluster[2]
        static = max(module.shared_largest, self._alone and module.shared_bytes)
        dynamic = kernel.hardware.shared
        warps = -(-count // 32)
        # A multiprocessor of sm_90 has 64 warps, 32 blocks, and 228 KiB, of which a block takes 1 KiB more than it asks
        # for.
        resident = self._multiprocessors * min(32, 64 // warps, 228 * 1024 // (static + dynamic + 1024))
        problem = ""
        if static > _MOST_STATIC:
            problem = (
                f"it needs {static} bytes of static shared memory, and a GPU has at most {_MOST_STATIC} for a block. "
                f"Make it dynamic: `extern __shared__`, and shared= of Kernel"
            )
        elif self._packing.size > _MOST_PARAMETERS:
            problem = f"its parameters have {self._packing.size} bytes, and a GPU takes at most {_MOST_PARAMETERS}"
        elif kernel.hardware.cooperative and grid[0] * grid[1] * grid[2] > resident:
            problem = (
                f"the blocks of a cooperative launch run at once, and the simulated GPU of {self._multiprocessors} "
                f"multiprocessors has room for {resident}"
            )
        elif module.max_threads and count > module.max_threads:
            problem = f"its __launch_bounds__ allow {module.max_threads} threads a block"
        elif not 1 <= blocks <= 16:
            problem = f"its cluster of {blocks} blocks is more than a GPU has (8, or 16 with non-portable sizes)"
        elif any(g % c for g, c in zip(grid, cluster, strict=True)):
            problem = f"its grid must be whole clusters of {tuple(cluster)} blocks"
        elif static + dynamic > 227 * 1024:
            problem = "a block has at most 227 KiB of shared memory"
        if problem:
            raise LaunchError(f"{self.what} with grid {tuple(grid)}, block {block} was refused: {problem}")


_MORE = ". `cupyops.simulate(sanitize=True)` checks more."


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


def answers(source: str, what: str, options: Sequence[str]) -> tuple[str, ...]:
    """Returns the compiler's answers to the questions of a source, see :meth:`cupyops.arrays.Host.answers`."""
    text = translate(source, (), what)
    try:
        path = _built(text, source, options, checked=False, watched=False, optimize=False, sources={}, launched=False)
    except CompileError as error:
        raise CompileError(f"{what} does not compile: {error}") from None
    return answers_of(path.read_bytes(), len(asked_in(source)))


def _built(translated: str, text: str, options: Sequence[str], **more: Any) -> Path:
    """Returns the library of a translated text in the version of C++ that its options choose, or in the one that it needs."""
    needs_cuda = build.needs_cuda(text)
    if given := [found[1] for option in options if (found := STANDARD.fullmatch(option))]:
        return build.build(translated, needs_cuda, standard=f"-std={given[-1]}", **more)
    try:
        return build.build(translated, needs_cuda, **more)
    except CompileError as error:
        if not _LATER.search(str(error)):
            raise
        try:
            return build.build(translated, needs_cuda, standard="-std=c++20", **more)
        except CompileError:
            raise error from None


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
    refused: list[CompileError] = []

    def check() -> None:
        # A host compiler takes more than NVRTC does: functions of the C library, extensions of C++.
        if not isinstance(kernel.source.text, kernels_cu.Text) and has_nvrtc():
            try:
                nvrtc_check(kernel.final_text(types), what, kernel.options, kernel.syntax)
            except MissingDependencyError:
                pass  # without the header, NVRTC cannot be asked
            except CompileError as error:
                refused.append(error)
                raise

    try:
        return _built(
            translated,
            text,
            kernel.options,
            checked=checked,
            watched=watched,
            optimize=optimize,
            sources=dict(files),
            counted=counted,
            check=check,
        )
    except CompileError as error:
        if error in refused:
            raise
        raise CompileError(explain(what, str(error), kernel.final_text(types), kernel.options)) from None
