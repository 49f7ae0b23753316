"""A CUDA kernel as a checked Python call.

Names and types drive the call: the text's declaration says what each argument must be (:mod:`cupyops.signature`), the
arrays decide the dtype, a policy decides the geometry (:mod:`cupyops.geometry`). A call that does not fit raises
``TypeError`` or ``ValueError`` naming kernel, parameter, expected and got; it never reaches the GPU.

Two lanes lead to one launch. The checked lane, here, takes any known array and explains what is wrong with it. The fast
lane (:mod:`cupyops.fast_lane`) repeats, in one expression, the conditions under which a call like an earlier one is
right, and hands everything else back to the checked lane.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import debug, driver, simulator, toolchain
from .arrays import ArrayLibrary, Info, is_contiguous, is_dense, library_of
from .compiler import binary_for, target_for
from .dtypes import DTYPES
from .errors import LaunchError, expected, nearest
from .fast_lane import write_fast_lane
from .geometry import MAX_GRID_X, Geometry, Grid, Target
from .signature import Parameter, Signature, check_declaration, only
from .source import assemble

__all__ = ["Kernel", "Variant", "all_kernels"]

_KERNELS: "weakref.WeakSet[Kernel]" = weakref.WeakSet()
_BUILDING = threading.RLock()


class Variant:
    """A kernel compiled for one choice of types, loaded on one GPU, ready to launch.

    Attributes:
        what: kernel and dtypes, for messages.
        raw: the :class:`cupy.RawKernel` (or its inner function, where the cache folder cannot be written).
        function: the driver's handle of it.
        grid: sizes to blocks.
        unit: what the geometry's expressions call so.
        threads: of a block.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster.
        cooperative: all blocks must run at once.
        pack_into: writes all argument values into a buffer, exactly as wide as the kernel declares them.
        buffers: free argument buffers; a launch takes one and gives it back, so that threads never share one.
    """

    __slots__ = (
        *("_packing", "_resident", "buffers", "cluster", "cooperative", "function"),
        *("grid", "pack_into", "raw", "shared", "threads", "unit", "what"),
    )

    def __init__(
        self,
        what: str,
        raw: Any,
        packing: tuple[Any, list[tuple[int, int]]],
        geometry: Geometry,
        target: Target,
        shared: int,
        cooperative: bool = False,
    ) -> None:
        self.what = what
        self.raw = raw
        self.function = driver.handle(raw)
        self.grid = geometry.planner(target)
        self.unit = geometry.unit(target)
        self.threads = geometry.threads
        self.shared = shared
        self.cluster = geometry.cluster
        self.cooperative = cooperative
        self._resident: int | None = None
        self._packing = packing
        self.pack_into = packing[0].pack_into
        self.buffers: list[driver.ArgumentBuffer] = []

    def new_buffer(self) -> driver.ArgumentBuffer:
        """A buffer for one launch's arguments, for when all others are in use."""
        return driver.argument_buffer(self._packing[0].size, [offset for offset, _ in self._packing[1]])

    def resident_blocks(self, device: int) -> int:
        """How many blocks run on the GPU at once."""
        if self._resident is None:
            with toolchain.cupy().cuda.Device(device):
                threads = self.threads[0] * self.threads[1] * self.threads[2]
                self._resident = driver.resident_blocks(self.function, threads, self.shared, self.cluster)
        return self._resident

    def packed(self, arguments: Sequence[Any]) -> driver.ArgumentBuffer:
        """A buffer of its own with these arguments, one a parameter: addresses, numbers, tuples of numbers."""
        buffer = self.new_buffer()
        self.pack_into(buffer.memory, 0, *(n for a in arguments for n in (a if isinstance(a, tuple) else (a,))))
        return buffer


class Kernel:
    """One ``__global__`` function of a CUDA C++ text.

    Args:
        text: CUDA C++. Types named ``scalar_t`` (or any other undeclared name) are decided by the arrays of each call;
            ``acc_t`` follows ``scalar_t``: float for the 16-bit floats, else the same.
        name: the function's name; it is declared ``extern "C" __global__``.
        geometry: a policy of :mod:`cupyops.geometry`.
        dtypes: what ``scalar_t`` and the other undeclared types may be.
        constants: macros, ``{"TANH": 1}``.
        shared: bytes of dynamic shared memory of a block.
        filename: what messages call the text; by default the file it was loaded from.
        headers: texts for ``#include "name"`` beside the shared ones.
        options: for NVRTC, beside :data:`cupyops.compiler.OPTIONS`.
        since: the compute capability that the text needs, 90 for clusters of blocks and bulk copies.
        cooperative: blocks wait for one another, so all must run at once: the driver refuses a grid of more than
            :meth:`resident_blocks`.
        choices: what the undeclared types are in the compilations that :func:`cupyops.warmup` and the compile command
            make; by default each of ``dtypes`` for all of them.

    Raises:
        ValueError: the text has no such kernel, or it is not ``extern "C"``.
        TypeError: a parameter is of a kind that no Python value stands for.

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
        text: str,
        name: str,
        geometry: Geometry,
        *,
        dtypes: Sequence[str],
        constants: Mapping[str, int] | None = None,
        shared: int = 0,
        filename: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        since: int = 0,
        cooperative: bool = False,
        choices: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.since = since
        self.cooperative = cooperative
        self.choices = choices
        self.text = text
        self.filename = str(filename or getattr(text, "filename", f"{name}.cu"))
        self.geometry = geometry
        self.dtypes = tuple(dtypes)
        self.constants = {**geometry.constants, **_integers(name, constants or {})}
        self.shared = shared
        self.headers = dict(headers or {})
        self.options = tuple(options)
        self.signature = Signature.parse(text, name)
        unknown = [d for d in self.dtypes if d not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(f"{name}: dtypes must be names of {', '.join(DTYPES)}; got {unknown or 'none'}")
        check_declaration(self.signature, text, geometry.sizes, self.dtypes, self.constants)
        self._variants: dict[tuple[Any, ...], Variant] = {}
        # Bodies call this attribute; the fast lane takes its place once there is something to be fast about.
        self.launch: Callable[..., None] = self.checked_launch
        # The same for a body that has just allocated its outputs to fit: the fast lane need not look at them again.
        self.launch_fresh: Callable[..., None] = self.checked_launch
        self._fast_variants: dict[tuple[Any, ...], Variant] = {}
        _KERNELS.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launches on the arrays' GPU and its current stream. Arguments in the order of the text, or by name.

        Raises:
            TypeError: an argument is missing, unknown, or of another type than declared.
            ValueError: arrays on different devices, of a layout or size other than declared, or a number out of range.
            LaunchError: the driver refused the launch.
        """
        if kwargs or len(args) != len(self.signature.parameters):
            self.checked_launch(*args, **kwargs)
        else:
            self.launch(*args)

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self.filename}: {', '.join(self.signature.names)}>"

    # Compiling

    def final_text(self, types: Mapping[str, str]) -> str:
        """The text as NVRTC sees it under a choice of types, ``{"scalar_t": "float16"}``."""
        return assemble(only(self.text, self.name), self.filename, types, self.constants, self.headers)

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
        """``gelu_forward<float16>``, with constants where there are any beside the geometry's."""
        extra = [f"{k}={v}" for k, v in self.constants.items() if k not in self.geometry.constants]
        dtypes = list(types.values())
        return f"{self.name}<{', '.join((dtypes[:1] if len(set(dtypes)) == 1 else dtypes) + extra)}>"

    def variant(self, types: Mapping[str, str], device: int) -> Variant:
        """The kernel for a choice of types, loaded on a GPU; compiled on first use."""
        key = (device, *types.values())
        found = self._variants.get(key)
        if found is None:
            with _BUILDING:
                found = self._variants.get(key) or self._variants.setdefault(key, self._build(types, device))
        return found

    def _build(self, types: Mapping[str, str], device: int) -> Variant:
        cupy = toolchain.cupy()
        what = self.describe(types)
        with cupy.cuda.Device(device) as gpu:
            capability = int(gpu.compute_capability)
            if capability < self.since:
                raise LaunchError(
                    f"{what} needs a GPU of sm_{self.since} or later, and GPU {device} is sm_{capability}"
                )
            binary = binary_for(self.final_text(types), what, target_for(capability), self.options)
            raw = driver.load(binary, self.name)
            packing = self.signature.packing(types, self.constants)
            driver.check_parameters(raw, what, self.signature, packing[1])
            # What the text itself declares counts, too, so the limit of 48 KiB may be passed earlier.
            if self.shared:
                driver.allow_shared_memory(raw, self.shared)
            itemsize = max(
                (DTYPES[p.c_type(types)].itemsize for p in self.signature.parameters if p.pointer), default=4
            )
            target = Target(itemsize, gpu.attributes["MultiProcessorCount"])
            # Still with this GPU current: CuPy's kernel gives the handle that belongs to the current one.
            return Variant(what, raw, packing, self.geometry, target, self.shared, self.cooperative)

    def resident_blocks(self, types: Mapping[str, str], device: int) -> int:
        """How many blocks of the kernel run on a GPU at once: the grid of a kernel whose blocks stay until all is done."""
        if device < 0:
            return simulator.RESIDENT_BLOCKS * self.geometry.cluster
        return self.variant(types, device).resident_blocks(device)

    # Checking and launching

    def checked_launch(self, *args: Any, **kwargs: Any) -> None:
        """The checked lane: what :meth:`__call__` promises, for arrays of every known library."""
        values = self._bind(args, kwargs)
        library, infos = self._infos(values)
        types = self._types(infos)
        lead = self._check_arrays(infos, types)
        if lead.fake:
            return
        self._check_scalars(values, infos, types)
        if lead.place == "cpu" and simulator.enabled():
            simulator.launch(self, values, infos, types)
            return
        if lead.place != "cuda":
            raise ValueError(expected(self.name, next(iter(infos)), "be on a CUDA device", lead))
        variant = self.variant(types, lead.device)
        arguments = [
            (infos[p.name].pointer if p.name in infos else 0) if p.pointer else values[p.name]
            for p in self.signature.parameters
        ]
        grid = self._grid(variant, values)
        if 0 in grid:
            return
        with library.device(lead.device):
            stream = library.stream(lead.device)
            if debug.enabled():
                debug.launch(variant, self.signature, arguments, infos, grid, stream)
            else:
                self._submit(variant, arguments, grid, stream, infos)
        if not debug.enabled():
            self._open_fast_lane(library, values, lead, variant)

    def _grid(self, variant: "Variant | simulator.Plan", values: Mapping[str, Any]) -> Grid:
        try:
            grid = variant.grid(*(values[s] for s in self.geometry.sizes))
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if grid[0] > MAX_GRID_X and 0 not in grid:
            raise ValueError(
                f"{self.name}: a grid of {grid[0]} blocks in x: CUDA has at most {MAX_GRID_X}. Use larger blocks or a GridStride"
            )
        return grid

    def _submit(
        self, variant: Variant, arguments: Sequence[Any], grid: Grid, stream: int, infos: Mapping[str, Info]
    ) -> None:
        buffer = variant.packed(arguments)
        try:
            whole = variant.cooperative
            driver.submit(variant.function, grid, variant.threads, variant.shared, stream, buffer, cooperative=whole)
        except Exception as error:  # CuPy's driver errors
            arrays = ", ".join(f"{n}: {i}" for n, i in infos.items())
            raise LaunchError(
                f"{variant.what} with grid {grid}, block {variant.threads} was refused: {error}. Arguments: {arrays}"
            ) from error

    def _open_fast_lane(self, library: ArrayLibrary, values: Mapping[str, Any], lead: Info, variant: Variant) -> None:
        tensors = getattr(library, "fast_lane", None)
        if tensors is None:
            return
        given = [values[p.name] for p in self.signature.parameters if p.pointer]
        key = (lead.device, *(None if x is None else x.dtype for x in given))
        with _BUILDING:
            if self.launch == self.checked_launch:
                self.launch, self.launch_fresh, self._fast_variants = write_fast_lane(
                    self.signature,
                    self.geometry,
                    self.constants,
                    tensors,
                    self.checked_launch,
                    cooperative=self.cooperative,
                )
            self._fast_variants[key] = variant

    def close_fast_lane(self) -> None:
        """Sends every call through the checked lane again, until the next one reopens the fast one."""
        self.launch = self.launch_fresh = self.checked_launch

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self.signature.names
        if len(args) > len(names):
            raise TypeError(f"{self.name} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(
                    f"{self.name} has no parameter `{name}`{nearest(name, names)}; it takes {', '.join(names)}"
                )
            if name in values:
                raise TypeError(f"{self.name}: parameter `{name}` is given twice")
            values[name] = value
        missing = [f"`{n}`" for n in names if n not in values]
        if missing:
            raise TypeError(f"{self.name}: missing {', '.join(missing)}; it takes {', '.join(names)}")
        return values

    def _infos(self, values: Mapping[str, Any]) -> tuple[ArrayLibrary, dict[str, Info]]:
        libraries, infos = {}, {}
        for p in self.signature.parameters:
            if not p.pointer or (p.nullable and values[p.name] is None):
                continue
            try:
                library = library_of(values[p.name])
            except TypeError:
                got = values[p.name]
                wanted = "be a CuPy array or a PyTorch tensor" + (" or None" if p.nullable else "")
                raise TypeError(expected(self.name, p.name, wanted, type(got).__name__)) from None
            libraries[library.name] = library
            infos[p.name] = library.info(values[p.name])
        if len(libraries) != 1:
            what = f"arrays of {' and '.join(libraries)}" if libraries else "no array at all"
            raise TypeError(f"{self.name}: a launch takes arrays of one library, got {what}")
        return next(iter(libraries.values())), infos

    def _types(self, infos: Mapping[str, Info]) -> dict[str, str]:
        types: dict[str, str] = {}
        for name, positions in self.signature.bindings.items():
            candidates = [self.signature.parameters[i].name for i in positions]
            given = next((a for a in candidates if a in infos), None)
            types[name] = infos[given].dtype if given is not None else ""
            if given is not None and types[name] not in self.dtypes:
                raise TypeError(expected(self.name, given, f"have dtype {' or '.join(self.dtypes)}", types[name]))
        for name in [name for name, dtype in types.items() if not dtype]:
            # A type that only absent arrays would decide is not used; it is what scalar_t is.
            types[name] = types.get("scalar_t", "")
            if not types[name]:
                arrays = ", ".join(f"`{self.signature.parameters[i].name}`" for i in self.signature.bindings[name])
                raise TypeError(f"{self.name}: give at least one of {arrays}: they decide what {name} is")
        return types

    def _check_arrays(self, infos: Mapping[str, Info], types: Mapping[str, str]) -> Info:
        first, lead = next(iter(infos.items()))
        for p in self.signature.parameters:
            if p.name not in infos:
                continue
            info, wanted = infos[p.name], p.c_type(types)
            if info.dtype != wanted:
                because = f" ({p.type}, as the arrays before it)" if p.type in types else ""
                raise TypeError(expected(self.name, p.name, f"have dtype {wanted}{because}", info.dtype))
            if (info.place, info.device) != (lead.place, lead.device):
                raise ValueError(expected(self.name, p.name, f"be on the device of `{first}` ({lead})", info))
            if info.fake != lead.fake:
                got = "one without memory (fake)" if info.fake else "one with memory"
                raise ValueError(expected(self.name, p.name, f"be an array of the kind of `{first}`", got))
        shaped = [(p, infos[p.name]) for p in self.signature.parameters if p.name in infos and p.shape is not None]
        # Compared, not hashed: under torch.compile sizes may be symbols.
        one_layout = self.geometry.any_layout and all(
            (i.shape, i.strides) == (shaped[0][1].shape, shaped[0][1].strides) for _, i in shaped
        )
        for p, info in shaped:
            if not (is_contiguous(info) or (one_layout and is_dense(info.shape, info.strides))):
                alike = ", or dense and laid out like the other arrays" if self.geometry.any_layout else ""
                raise ValueError(
                    expected(
                        self.name, p.name, f"be contiguous{alike}", f"strides {info.strides} for shape {info.shape}"
                    )
                )
        return lead

    def _check_scalars(self, values: Mapping[str, Any], infos: Mapping[str, Info], types: Mapping[str, str]) -> None:
        for p in self.signature.parameters:
            if not p.pointer:
                self._check_scalar(p, values[p.name], types)
        counted = (t for p in self.signature.parameters for t in p.shape or () if t in values)
        for size in (*self.geometry.sizes, *counted):
            if values[size] < 0:
                raise ValueError(expected(self.name, size, "be at least 0", values[size]))
        for p in self.signature.parameters:
            if p.name in infos and p.shape is not None:
                count = 1
                for term in p.shape:
                    count *= int(term) if term.isdigit() else int(values.get(term, self.constants.get(term)))
                if infos[p.name].size != count:
                    shape = " x ".join(p.shape) or "1"
                    raise ValueError(
                        expected(self.name, p.name, f"hold {shape} = {count} elements", infos[p.name].size)
                    )

    def _check_scalar(self, p: Parameter, value: Any, types: Mapping[str, str]) -> None:
        if p.length is not None:
            count = int(self.constants.get(p.length, p.length))
            if not isinstance(value, tuple) or len(value) != count:
                raise TypeError(expected(self.name, p.name, f"be a tuple of {count} integers", repr(value)))
            numbers, dtype = value, DTYPES["int64"]
        else:
            numbers, dtype = (value,), DTYPES[p.c_type(types)]
        for number in numbers:
            driver.check_scalar(self.name, p.name, dtype, number)


def _integers(kernel: str, constants: Mapping[str, int]) -> dict[str, int]:
    for name, value in constants.items():
        if not driver.is_integer(value):
            raise TypeError(expected(kernel, f"constants[{name!r}]", "be an integer", repr(value)))
    return {name: int(value) for name, value in constants.items()}


def all_kernels() -> list[Kernel]:
    """Every kernel declared so far, sorted by file, name and constants."""
    return sorted(_KERNELS, key=lambda k: (k.filename, k.name, sorted(k.constants.items())))
