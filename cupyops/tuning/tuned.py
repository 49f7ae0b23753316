"""Kernels whose geometry or constants are chosen by measurement.

The choices are kernels with the same parameters and dtypes. Their blocks, constants, options and CUDA sources may
differ. The first choice is the reference for the results, and is launched where nothing can be timed.
"""

import hashlib
import json
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cupyops.codegen import free_names, write
from cupyops.compile import toolchain
from cupyops.errors import expected, nearest
from cupyops.launch import debug, driver
from cupyops.launch.arguments import Arguments, bind, check
from cupyops.launch.geometry import Target
from cupyops.launch.kernel import Kernel
from cupyops.launch.untraced import hide, untraced

from . import measure
from . import records as tuning

__all__ = ["Tuned"]

_TUNING = threading.RLock()  # two tunings at once would disturb each other's times
_WORTH = 0.98  # a later choice wins if its time is less than this fraction of the best earlier time


class Tuned:
    """Launches the fastest of several kernels with the same parameters.

    The first call for a GPU, a combination of dtypes and a class of sizes times the kernels. A class holds the sizes
    that round up to the same power of two. Every kernel must give the results of the first kernel. The choice is
    recorded in the cache folder (:mod:`cupyops.tuning.records`) and can be shipped as a file.

    Nothing is timed while a CUDA graph is captured, in debug mode, and with ``CUPYOPS_TUNE=0``. The recorded choice is
    then launched, or the first kernel if there is no record. With ``CUPYOPS_TUNE=0`` only records from files count. On
    fake tensors, in the simulator and for arrays without elements, the first kernel is always launched.

    Args:
        kernels: the choices, best guess first.
        rtol, atol: the tolerance of a result, ``|a - b| <= atol + rtol * |b|``, where b is the first kernel's result.
            By default every choice must give the same bits, so the choice does not change a result.
        exact: sizes that are not rounded, such as the length of a row.

    Raises:
        TypeError: a choice is not a kernel.
        ValueError: there is no kernel, a kernel has other parameters than the first, an output has no declared shape,
            or ``exact`` names an unknown size.

    Example:
        >>> text = '''extern "C" __global__ void scale(
        ...     const scalar_t* x,  // (n)
        ...     scalar_t* y,        // (n)
        ...     acc_t factor, long long n) {
        ...     long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        ...     if (i < n) y[i] = factor * x[i];
        ... }'''
        >>> from cupyops import Threads
        >>> scale = Tuned(Kernel(text, "scale", Threads("n", block=(block, 1, 1))) for block in (256, 128, 512))
        >>> scale
        <Tuned scale: block=(256, 1, 1) | block=(128, 1, 1) | block=(512, 1, 1)>
    """

    def __init__(
        self, kernels: Iterable[Kernel], *, rtol: float = 0.0, atol: float = 0.0, exact: Sequence[str] = ()
    ) -> None:
        self.kernels = tuple(kernels)
        for kernel in self.kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(expected("Tuned", "kernels", "be kernels", type(kernel).__name__))
        if not self.kernels:
            raise ValueError(expected("Tuned", "kernels", "be at least one", "none"))
        self._first = first = self.kernels[0]
        self.name, self.signature = first.name, first.signature
        for kernel in self.kernels:
            if (kernel.signature.parameters, kernel.dtypes) != (first.signature.parameters, first.dtypes):
                raise ValueError(
                    f"Tuned: all choices must have the same parameters and dtypes, and {kernel!r} differs from {first!r}"
                )
            if kernel.geometry.per_call:
                raise ValueError(
                    f"Tuned: {kernel!r} leaves its threads to each call; declare a policy such as Threads('n')"
                )
            if kernel.shared_bytes is not None:
                raise ValueError(
                    f"Tuned: {kernel!r} has shared={kernel.shared_bytes.source!r}; declare a number of bytes that fits all sizes"
                )
        for p in self.signature.parameters:
            if p.pointer and not p.const and p.shape is None:
                raise ValueError(f"Tuned: `{p.name}` of {self.name} is written to; declare its shape, as in // (n)")
        counted = {t for p in self.signature.parameters for t in p.shape or ()}
        counted.update(s for kernel in self.kernels for s in kernel.geometry.sizes)
        self.sizes = tuple(n for n in self.signature.names if n in counted)
        for name in exact:
            if name not in self.sizes:
                raise ValueError(f"Tuned: exact: {self.name} has no size `{name}`{nearest(name, self.sizes)}")
        self.rtol, self.atol, self.exact = rtol, atol, frozenset(exact)
        self.names = _names(self.kernels)
        # The choices by GPU, dtypes and classes of sizes. The generated launches use the first table, whose keys hold
        # the dtype objects of tensors. The keys of the second table hold dtype names, for arrays of any library.
        self._by_tensors: dict[tuple[Any, ...], Kernel] = {}
        self._by_types: dict[tuple[Any, ...], Kernel] = {}
        self.launch = self._write("launch")
        self.launch_vouched = self._write("launch_vouched")
        tuning.users.add(self)

    def __repr__(self) -> str:
        return f"<Tuned {self.name}: {' | '.join(self.names)}>"

    def __reduce__(self) -> Any:  # the generated functions have no names to pickle
        return partial(Tuned, rtol=self.rtol, atol=self.atol, exact=sorted(self.exact)), (self.kernels,)

    @untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Launches the chosen kernel. If there is no choice for the arguments, the call times all kernels first.

        Raises:
            TuningError: the result of a kernel differs from the result of the first.
            CompileError: a kernel does not compile.
            TypeError, ValueError, LaunchError: as a call of a kernel.
        """
        if kwargs or len(args) != len(self.signature.parameters):
            self.choice(*args, **kwargs)(*args, **kwargs)
        else:
            self.launch(*args)

    def choice(self, *args: Any, **kwargs: Any) -> Kernel:
        """Returns the kernel that a call with these arguments launches. Raises the errors of the call."""
        return self._chosen(check(self._first, bind(self._first, args, kwargs)))

    def _vouched_choice(self, *args: Any) -> Kernel:
        return self._chosen(check(self._first, bind(self._first, args, {}), vouched=True))

    def _chosen(self, arguments: Arguments) -> Kernel:
        if arguments.lead.fake or arguments.lead.place != "cuda":
            return self._first
        sizes = {name: operator.index(arguments.values[name]) for name in self.sizes}
        if 0 in sizes.values():
            return self._first
        classes = tuple(n if name in self.exact else (n - 1).bit_length() for name, n in sizes.items())
        key = (arguments.gpu, *arguments.types.values(), *classes)
        with _TUNING:
            kernel = self._by_types.get(key)
            if kernel is None:
                kernel = self._decide(arguments, classes)
                if kernel is None:
                    return self._first
                self._by_types[key] = kernel
        if getattr(arguments.library, "tensor_access", None) is not None:
            given = [arguments.values[p.name] for p in self.signature.parameters if p.pointer]
            self._by_tensors[(arguments.gpu, *(None if x is None else x.dtype for x in given), *classes)] = kernel
        return kernel

    def forget(self) -> None:
        """Clears the cached choices, so that the next call reads the records again."""
        with _TUNING:
            self._by_types.clear()
            self._by_tensors.clear()

    def _decide(self, arguments: Arguments, classes: Sequence[int]) -> Kernel | None:
        """Returns the choice from the records or by timing. Returns None if nothing can be timed now; a later call
        tries again."""
        device = arguments.gpu
        gpu = driver.name(device)
        key = self._key(arguments.types, gpu, driver.capability(device), classes)
        record = tuning.get(key)
        if record is not None and record.choice in self.names:
            return self.kernels[self.names.index(record.choice)]
        if not tuning.enabled() or len(self.kernels) == 1:
            return self._first
        if debug.enabled():
            return None
        with arguments.library.device(device):
            if _capturing(arguments.library.stream(device)):
                return None
            try:
                times = measure.microseconds(self.kernels, self.names, arguments, self.rtol, self.atol)
            except MemoryError:
                return self._first
        chosen = self.names[0]
        for name, time in times.items():
            if time is not None and time < _WORTH * (times[chosen] or 0.0):
                chosen = name
        classed = [
            f"{n} = {c}" if n in self.exact else f"{n} <= {1 << c}" for n, c in zip(self.sizes, classes, strict=True)
        ]
        tuning.put(key, tuning.Record(self._first.describe(arguments.types), gpu, ", ".join(classed), chosen, times))
        return self.kernels[self.names.index(chosen)]

    def _key(self, types: Mapping[str, str], gpu: str, capability: int, classes: Sequence[int]) -> str:
        def content(kernel: Kernel) -> list[Any]:
            geometry = kernel.geometry
            planned = [geometry.sizes, geometry.threads, geometry.blocks, geometry.unit(Target(1, 1)), geometry.cluster]
            return [
                kernel.final_text(types),
                kernel.options,
                kernel.hardware.shared,
                kernel.hardware.cooperative,
                planned,
            ]

        about = [tuning.FORMAT, gpu, capability, [content(k) for k in self.kernels], list(classes), sorted(self.exact)]
        return hashlib.sha256(json.dumps([*about, self.rtol, self.atol]).encode()).hexdigest()[:40]

    def _write(self, launch: str) -> Callable[..., None]:
        """Returns the method ``launch`` or ``launch_vouched``, generated for the kernel's parameters
        (:mod:`cupyops.codegen`).

        The method looks the choice up by device, dtypes and sizes, and calls :meth:`choice` if there is none. A lookup
        takes 0.3 µs; a closure with loops takes 0.75 µs.
        """
        names = free_names(self.signature.names, {"chosen", "choice", "kernel", "getattr", "Exception"})
        arrays = [p for p in self.signature.parameters if p.pointer]
        lead = names[next(p.name for p in arrays if not p.nullable)]
        dtypes = [
            f"getattr({names[p.name]}, 'dtype', None)" if p.nullable else f"{names[p.name]}.dtype" for p in arrays
        ]
        sizes = [names[n] if n in self.exact else f"({names[n]} - 1).bit_length()" for n in self.sizes]
        arguments = ", ".join(names.values())
        lines = [
            f"def {launch}({arguments}):",
            "    try:",
            f"        kernel = chosen[{', '.join([f'{lead}.get_device()', *dtypes, *sizes])},]",
            "    except Exception:",
            f"        kernel = choice({arguments})",
            f"    kernel.{launch}({arguments})",
        ]
        choice = self._vouched_choice if launch == "launch_vouched" else self.choice
        found = write(f"choice of {self.name}", launch, lines, {"chosen": self._by_tensors, "choice": choice})
        found.__qualname__ = self.name  # the name in Python's message about too few or too many arguments
        untraced(found)
        hide()
        return found


def _capturing(stream: int) -> bool:
    try:
        return bool(toolchain.cupy().cuda.runtime.streamIsCapturing(stream))
    except Exception:  # while another stream is captured, CUDA refuses this call for the default stream
        return True


def _names(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Returns the name of each choice: the properties in which the choices differ, such as ``block=256, TILE=4``."""

    def facts(kernel: Kernel) -> dict[str, Any]:
        geometry = kernel.geometry
        given = {name: getattr(geometry, name) for name in getattr(geometry, "__dataclass_fields__", ())}
        own = {name: n for name, n in kernel.constants.items() if name not in geometry.constants}
        others = {"kernel": kernel.name, "shared": kernel.hardware.shared, "options": " ".join(kernel.options)}
        return {"geometry": type(geometry).__name__, **given, **own, **others}

    every = [facts(kernel) for kernel in kernels]
    keys = list(dict.fromkeys(key for f in every for key in f))
    differing = [key for key in keys if len({repr(f.get(key)) for f in every}) > 1]
    names = [", ".join(f"{key}={f[key]}" for key in differing if key in f) or "the only one" for f in every]
    return tuple(n if names.count(n) == 1 else f"{n} (choice {i})" for i, n in enumerate(names, 1))
