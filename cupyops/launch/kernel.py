"""A CUDA kernel as a checked Python call.

Names and types drive the call: the text's declaration says what each argument must be (:mod:`cupyops.launch.signature`), the
arrays decide the dtype, a policy decides the geometry (:mod:`cupyops.launch.geometry`). A call that does not fit
(:mod:`cupyops.launch.arguments`) raises ``TypeError`` or ``ValueError`` naming kernel, parameter, expected and got; it never
reaches the GPU.

Two functions lead to one launch. The checked launch, here, takes any known array and explains what is wrong with it. The
generated launch (:mod:`cupyops.launch.generated`) repeats, in one expression, the conditions under which a call like an earlier one is
right, and hands everything else back to the checked launch.
"""

import operator
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import kernels_cu
from cupyops.arrays import Device, host
from cupyops.compile import bundle, toolchain
from cupyops.compile.compiler import binary_for, target_for
from cupyops.compile.source import assemble, included, read
from cupyops.deprecated import warn
from cupyops.dtypes import DTYPES, FLOATS, dtype_names
from cupyops.errors import CompileError, LaunchError, MissingDependencyError, expected
from cupyops.sharing import held_across_fork, once

from . import driver, hooks, recording
from .arguments import Arguments, Declared, bind, check
from .declaration import check_declaration
from .generated import deciding, write_launch
from .geometry import MAX_BLOCK, MAX_BLOCK_Z, MAX_GRID_X, PORTABLE_CLUSTER, Geometry, Grid, Target, Threads, at_least
from .locate import declaring_file, located
from .signature import Signature, only, the_kernel
from .variant import Hardware, Variant

__all__ = ["Kernel", "all_kernels"]

_OPENING = held_across_fork(threading.RLock())  # a generated launch
_OLDEST = 30  # the compute capability before which none had CUDA as it is now


class Launchable(Protocol):
    """What is ready to run, on a GPU or in place of one: it turns sizes into a grid."""

    @property
    def grid(self) -> Callable[..., Grid]: ...


class Kernel:
    """One ``__global__`` function of a CUDA C++ text.

    Args:
        text: CUDA C++, or the :class:`~pathlib.Path` of a file of it, whose own headers lie beside it. Types named ``scalar_t`` (or any
            other undeclared name) are decided by the arrays of each call; ``acc_t`` follows ``scalar_t``: float for the
            16-bit floats, else the same.
        name: the function's name; it is declared ``extern "C" __global__``. It can be left out where the text has one.
        geometry: a policy of :mod:`cupyops.launch.geometry`. Without one each call says how many threads it wants:
            ``kernel[n](x, y, n)``; a number is that with blocks of so many threads.
        dtypes: what ``scalar_t`` and the other undeclared types may be, one or several: names, or dtypes of PyTorch or
            NumPy; by default the floating ones.
        constants: macros, ``{"TANH": 1}``.
        shared: bytes of dynamic shared memory of a block.
        filename: what messages call the text; by default the file it was loaded from.
        headers: texts for ``#include "name"`` beside the shared ones.
        options: for NVRTC, beside :data:`cupyops.compile.compiler.OPTIONS`.
        since: the compute capability that the text needs, 90 for clusters of blocks and bulk copies.
        exactly: it needs that one and no later, since it uses what only this generation has, as sm_90's tensor cores
            (wgmma): it is compiled for ``sm_90a``.
        cooperative: blocks wait for one another, so all must run at once: the driver refuses a grid of more than
            :meth:`resident_blocks`.
        choices: what the undeclared types are in the compilations that :func:`cupyops.warmup` and the compile command
            make; by default each of ``dtypes`` for all of them.

    Raises:
        ValueError: the text has no such kernel, or it is not ``extern "C"``, or the policy's block is larger than CUDA's; a number
            that is none of its kind, or a constant whose name is none.
        TypeError: a parameter is of a kind that no Python value stands for; an argument here is of another kind.
        OSError: the file cannot be read.

        Of a text of :mod:`kernels_cu` the declaration is read at the first use, and what is wrong with it raised there.

    Example:
        >>> text = '''extern "C" __global__ void scale(
        ...     const scalar_t* x,  // (n)
        ...     scalar_t* y,        // (n)
        ...     acc_t factor, long long n) {
        ...     long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        ...     if (i < n) y[i] = factor * x[i];
        ... }'''
        >>> from cupyops import Threads
        >>> scale = Kernel(text, "scale", Threads("n"), dtypes=("float32", "float64"))
        >>> scale.signature.names
        ('x', 'y', 'factor', 'n')
    """

    def __init__(
        self,
        text: str | os.PathLike[str],
        name: str | None = None,
        geometry: Geometry | int | None = None,
        *,
        dtypes: Any = FLOATS,
        constants: Mapping[str, int] | None = None,
        shared: int = 0,
        filename: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        since: int = 0,
        exactly: bool = False,
        cooperative: bool = False,
        choices: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        beside: dict[str, str] = {}
        if isinstance(text, os.PathLike):
            filename = filename or os.path.basename(text)
            text, beside = read(text)
        _check_text(text, name or "Kernel")
        self.name = name = the_kernel(text) if name is None else name
        self.geometry = geometry = _policy(name, geometry)
        self.hardware = Hardware(
            _capability(name, since, exactly), exactly, cooperative, at_least(name, "shared", shared, 0)
        )
        self.choices = choices
        self.text = text
        self.filename = str(filename or getattr(text, "filename", f"{name}.cu"))
        self._declared_in = declaring_file()
        self.dtypes = dtype_names(name, dtypes)
        self.constants = {**geometry.constants, **_integers(name, constants or {}, geometry.constants)}
        self.headers = {**beside, **(headers or {})}
        self.options = (*options, *self.hardware.options)
        x, y, z = geometry.threads
        if x * y * z > MAX_BLOCK or z > MAX_BLOCK_Z:
            raise ValueError(
                f"{name}: a block of {x} x {y} x {z} threads: CUDA has at most {MAX_BLOCK}, and {MAX_BLOCK_Z} in z"
            )
        self._variants: dict[tuple[Any, ...], Variant] = {}
        # Choices of types that calls have made, also on arrays without memory: what a bundle needs beside the declared.
        self.met: dict[tuple[str, ...], dict[str, str]] = {}
        # Bodies call this attribute; the generated launch takes its place once a kernel is loaded.
        self.launch: Callable[..., None] = self.checked_launch
        # The same for a body that has looked at shapes and layouts, and allocated its outputs to fit: the generated launch need not
        # look again.
        self.launch_vouched: Callable[..., None] = self.checked_vouched
        self._generated_variants: dict[tuple[Any, ...], Variant] = {}
        hooks.KERNELS.add(self)
        # The texts of this package are read at the first use, so that importing the package reads none.
        if not isinstance(text, kernels_cu.Text):
            self.declared  # noqa: B018 - raises

    @cached_property
    def signature(self) -> Signature:
        """The parameters, read from the text."""
        signature = Signature.parse(self.text, self.name)
        spliced = included(self.text, self.headers)
        check_declaration(signature, self.text, self.geometry.sizes, self.dtypes, self.constants, spliced)
        return signature

    @cached_property
    def declared(self) -> Declared:
        """What the text and the author say of a launch."""
        return Declared(self.name, self.signature, self.geometry, self.dtypes, self.constants)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launches on the arrays' GPU and its current stream. Arguments in the order of the text, or by name.

        Raises:
            TypeError: an argument is missing, unknown, or of another type than declared.
            ValueError: arrays on different devices, of a layout or size other than declared, or a number out of range; a
                tensor with the negative bit; an output that is read-only.
            RuntimeError: an output requires grad while gradients are recorded.
            LaunchError: the driver refused the launch.
        """
        if kwargs or len(args) != len(self.signature.parameters):
            self.checked_launch(*args, **kwargs)
        else:
            self.launch(*args)

    def __getitem__(self, threads: int | tuple[int, ...]) -> Callable[..., None]:
        """The launch on at least so many threads, in up to three dimensions, of a kernel without a policy of its own:
        ``kernel[n](x, y, n)``, ``kernel[N, M](...)``.

        Raises:
            TypeError: the kernel has a policy; from the launch, if these are not one to three integers.
            ValueError: from the launch, for a negative number; else as a call.
        """
        if not self.geometry.per_call:
            raise TypeError(f"{self.name} counts its threads by {self.geometry}; call it without [...]")
        return partial(self._launch_on, threads)

    def __getattr__(self, name: str) -> Any:
        if name in ("since", "exactly", "cooperative", "shared"):
            warn(f"Kernel.{name}", f"Kernel.hardware.{name}")
            return getattr(self.hardware, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self.filename}: {', '.join(self.signature.names)}>"

    # Compiling

    def final_text(self, types: Mapping[str, str], twins: Mapping[str, str] | None = None) -> str:
        """The text as NVRTC sees it under a choice of types, ``{"scalar_t": "float16"}``.

        Args:
            types: typedef name to dtype name.
            twins: headers by name in place of those of ``kernels_cu``, for a compiler that takes no PTX.
        """
        headers = {**(twins or {}), **self.headers}
        return assemble(only(self.text, self.name), self.filename, types, self.constants, headers)

    def type_choices(self) -> Iterator[dict[str, str]]:
        """The choices given, or for each dtype the one in which every undeclared type is that dtype; one empty choice
        where there is nothing to choose."""
        bindings = self.signature.bindings
        if self.choices is not None:
            yield from ({name: choice[name] for name in bindings} for choice in self.choices)
            return
        for dtype in self.dtypes if bindings else ("",):
            yield dict.fromkeys(bindings, dtype)

    def describe(self, types: Mapping[str, str]) -> str:
        """``gelu_forward<float16>``, with constants where there are any beside those of the geometry, and blocks of a cluster."""
        extra = [f"{k}={v}" for k, v in self.constants.items() if k not in self.geometry.constants or k == "CLUSTER"]
        dtypes = list(types.values())
        return f"{self.name}<{', '.join((dtypes[:1] if len(set(dtypes)) == 1 else dtypes) + extra)}>"

    def variant(self, types: Mapping[str, str], device: int) -> Variant:
        """The kernel for a choice of types, loaded on a GPU; compiled on first use."""
        key = (device, *types.values())
        found = self._variants.get(key)
        if found is None:
            found = once(
                (self, *key),
                lambda: self._variants.get(key) or self._variants.setdefault(key, self._build(types, device)),
            )
        return found

    def _build(self, types: Mapping[str, str], device: int) -> Variant:
        cupy = toolchain.cupy()
        what = self.describe(types)
        with cupy.cuda.Device(device) as gpu:
            capability = int(gpu.compute_capability)
            if not self.runs_on(capability):
                raise LaunchError(f"{what} needs a GPU of {self.hardware}, and GPU {device} is sm_{capability}")
            text = self.final_text(types)
            binary = bundle.find(text, capability, self.options)
            if binary is None:
                try:
                    binary = binary_for(text, what, target_for(capability), self.options)
                except CompileError as error:
                    raise self._located(error) from error.__cause__
                except MissingDependencyError as error:
                    raise MissingDependencyError(f"{bundle.lacking(what, capability)}{error}") from error
            raw = driver.load(binary, self.name)
            packing = self.signature.packing(types, self.constants)
            driver.check_parameters(raw, what, self.signature, packing[1])
            if self.geometry.cluster > PORTABLE_CLUSTER:
                driver.allow_large_clusters(raw)
            # What the text itself declares counts, too, so the limit of 48 KiB may be passed earlier.
            shared = self.hardware.shared
            if shared:
                try:
                    driver.allow_shared_memory(raw, shared)
                except Exception as error:  # CuPy's driver errors
                    raise LaunchError(
                        f"{what} wants {shared} bytes of dynamic shared memory a block, which GPU {device} "
                        f"(sm_{capability}) does not have: {error}"
                    ) from error
            itemsize = max(
                (DTYPES[p.c_type(types)].itemsize for p in self.signature.parameters if p.pointer), default=4
            )
            target = Target(itemsize, gpu.attributes["MultiProcessorCount"])
            # Still with this GPU current: CuPy's kernel gives the handle that belongs to the current one.
            return Variant(what, raw, packing, self.geometry, target, self.hardware)

    def _located(self, error: CompileError) -> CompileError:
        return CompileError(located(str(error), self.filename, self.text, self._declared_in))

    def runs_on(self, capability: int) -> bool:
        """Whether GPUs of this compute capability can run the kernel."""
        return self.hardware.met_by(capability)

    def resident_blocks(self, types: Mapping[str, str], device: Device) -> int:
        """How many blocks of the kernel run on a GPU at once: the grid of a kernel whose blocks stay until all is done."""
        if not isinstance(device, int):
            return device.resident_blocks(self)
        return self.variant(types, device).resident_blocks(device)

    # Checking and launching

    def checked_launch(self, *args: Any, **kwargs: Any) -> None:
        """The checked launch: what :meth:`__call__` promises, for arrays of every known library."""
        if self.geometry.per_call:
            raise TypeError(
                f"{self.name}: say how many threads: {self.name}[n](...), or declare a policy such as Threads('n')"
            )
        arguments = check(self.declared, bind(self.declared, args, kwargs))
        self.run(arguments, written=True)

    def checked_vouched(self, *args: Any, **kwargs: Any) -> None:
        """The checked launch of a body that answers for its outputs: they are as it has allocated them, so that nobody has saved
        them, or arrays that the text leaves alone."""
        self.run(check(self.declared, bind(self.declared, args, kwargs), vouched=True))

    def _launch_on(self, threads: int | tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        arguments = check(self.declared, bind(self.declared, args, kwargs))
        counts = threads if isinstance(threads, tuple) else (threads,)
        if not arguments.lead.fake:  # else they may be symbols, and to look at one would fix it
            if not 1 <= len(counts) <= 3 or not all(map(driver.is_integer, counts)):
                raise TypeError(f"{self.name}[...] takes one to three numbers of threads, got {threads!r}")
            if min(counts) < 0:
                raise ValueError(f"{self.name}[...]: a number of threads must be at least 0, got {threads!r}")
            counts = tuple(map(operator.index, counts))
        self.run(arguments, (*counts, 1, 1)[:3], written=True)

    def run(self, arguments: Arguments, threads: Sequence[int] = (), *, written: bool = False) -> None:
        """Launches on arguments that have been checked, on so many threads where the geometry leaves that to the call; the arrays'
        library is told what is written into, if so wanted."""
        lead = arguments.lead
        self.met.setdefault(tuple(arguments.types.values()), arguments.types)
        if lead.fake:
            return
        sizes = threads or [arguments.values[s] for s in self.geometry.sizes]
        if lead.place == "cpu" and host().enabled():
            if written:
                arguments.count_written(self.signature)  # first, since what fails halfway has written, too
            try:
                host().launch(self, arguments, sizes)
            except CompileError as error:
                raise self._located(error) from None
            return
        if lead.device is None or lead.place != "cuda":
            raise ValueError(expected(self.name, next(iter(arguments.infos)), "be on a CUDA device", lead))
        variant = self.variant(arguments.types, lead.device)
        grid = self.grid(variant, sizes)
        if 0 in grid:
            return
        recording.note(recording.Launch(self, arguments.types, lead.device, grid))
        if written:
            arguments.count_written(self.signature)
        with arguments.library.device(lead.device):
            stream = arguments.library.stream(lead.device)
            guard = hooks.guard()
            if guard is not None:
                guard.submit(variant, self.signature, arguments, grid, stream)
            else:
                self._submit(variant, arguments, grid, stream)
        if not (guard is not None or recording.recording() or self.geometry.per_call):
            self._open_generated_launch(arguments, variant)

    def grid(self, variant: "Launchable", sizes: Sequence[int]) -> Grid:
        """The blocks of a launch.

        Raises:
            ValueError: more than CUDA has.
        """
        try:
            grid = variant.grid(*sizes)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if grid[0] > MAX_GRID_X and 0 not in grid:
            raise ValueError(
                f"{self.name}: a grid of {grid[0]} blocks in x: CUDA has at most {MAX_GRID_X}. Use larger blocks or a GridStride"
            )
        return grid

    def _submit(self, variant: Variant, arguments: Arguments, grid: Grid, stream: int) -> None:
        buffer = variant.packed(arguments.addresses)
        try:
            whole = variant.cooperative
            driver.submit(variant.function, grid, variant.threads, variant.shared, stream, buffer, cooperative=whole)
        except Exception as error:  # CuPy's driver errors
            arrays = ", ".join(f"{n}: {i}" for n, i in arguments.infos.items())
            raise LaunchError(
                f"{variant.what} with grid {grid}, block {variant.threads} {driver.refusal(error)}. Arguments: {arrays}"
            ) from error

    def _open_generated_launch(self, arguments: Arguments, variant: Variant) -> None:
        tensors = getattr(arguments.library, "tensor_access", None)
        if tensors is None:
            return
        given = [
            [arguments.values[p.name] for p in deciding(self.signature, vouched=vouched)] for vouched in (False, True)
        ]
        keys = [(arguments.lead.device, *(None if x is None else x.dtype for x in arrays)) for arrays in given]
        with _OPENING:
            if self.launch == self.checked_launch:
                self.launch, self.launch_vouched, self._generated_variants = write_launch(
                    self.signature,
                    self.geometry,
                    self.constants,
                    tensors,
                    self.checked_launch,
                    self.checked_vouched,
                    cooperative=self.hardware.cooperative,
                )
            self._generated_variants.update(dict.fromkeys(keys, variant))

    def close_generated_launch(self) -> None:
        """Sends every call through the checked launch again, until the next one reopens the generated one."""
        self.launch, self.launch_vouched = self.checked_launch, self.checked_vouched


def _check_text(text: object, where: str) -> None:
    """Refuses what is no text, a path among them: as a text it would only be said to have no kernel.

    Raises:
        TypeError: it is no str.
        ValueError: it looks like a path.
    """
    if not isinstance(text, str):
        raise TypeError(expected(where, "text", "be CUDA C++ as a str, or a Path", type(text).__name__))
    if "\n" in text or "{" in text:
        return
    there = os.path.isfile(text)
    if there or text.endswith((".cu", ".cuh")):
        absent = "" if there else f"; there is no such file in {os.getcwd()}"
        got = f"{text!r}, which looks like a path: give Path({text!r}){absent}"
        raise ValueError(expected(where, "text", "be CUDA C++", got))


def _integers(kernel: str, constants: Mapping[str, int], of_geometry: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for name, value in constants.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(expected(kernel, "constants", "have names of macros", repr(name)))
        found[name] = number = at_least(kernel, f"constants[{name!r}]", value, None)
        if of_geometry.get(name, number) != number:
            wanted = f"be what the launch policy says, {of_geometry[name]}"
            raise ValueError(expected(kernel, f"constants[{name!r}]", wanted, number))
    return found


def _policy(kernel: str, geometry: Any) -> Geometry:
    if isinstance(geometry, Geometry):
        return geometry
    if geometry is not None and not driver.is_integer(geometry):
        wanted = "be a launch policy such as Threads('n'), or threads of a block"
        raise TypeError(expected(kernel, "geometry", wanted, repr(geometry)))
    return Threads() if geometry is None else Threads(block=at_least(kernel, "geometry", geometry))


def _capability(kernel: str, since: Any, exactly: bool) -> int:
    number = at_least(kernel, "since", since, 0)
    if not (number == 0 or _OLDEST <= number < 1000) or (exactly and not number):
        raise ValueError(expected(kernel, "since", "be a compute capability, such as 90", number))
    return number


def all_kernels() -> list[Kernel]:
    """Every kernel declared so far, sorted by file, name and constants."""
    return sorted(hooks.KERNELS, key=lambda k: (k.filename, k.name, sorted(k.constants.items())))
