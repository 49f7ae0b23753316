"""A launch whose geometry or constants are chosen by measuring them.

The choices are kernels with one declaration: other blocks, other constants, other options, even other texts. The first is
the one that is right, and what is launched wherever nothing can be timed.
"""

import hashlib
import json
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cupyops.codegen import write
from cupyops.compile import toolchain
from cupyops.errors import expected, nearest
from cupyops.launch import debug, driver
from cupyops.launch.arguments import Arguments, bind, check
from cupyops.launch.generated import free_names
from cupyops.launch.geometry import Target
from cupyops.launch.kernel import Kernel

from . import measure as trial
from . import records as tuning

__all__ = ["Tuned"]

_TUNING = threading.RLock()  # two at once would time each other
_WORTH = 0.98  # a choice must be so much faster than those before it


class Tuned:
    """Kernels of one declaration, of which the fastest is launched.

    They are timed at the first call for a GPU, a choice of dtypes and a class of sizes: each size rounded up to a power of
    two. Before that, every one must give the first's results. What was found is kept in the cache folder
    (:mod:`cupyops.tuning.records`), and can be shipped as a file. Nothing is timed while a CUDA graph is captured, on fake
    tensors, in the simulator, in debug mode, for no elements, or with ``CUPYOPS_TUNE=0``: then the choice on record is
    launched, else the first (with ``CUPYOPS_TUNE=0``, what a file says, else the first).

    Args:
        kernels: the choices, best guess first.
        rtol, atol: how far results may be from the first's, ``|a - b| <= atol + rtol * |b|``. By default every choice
            must give the same bits, and so the choice cannot be seen in a result.
        exact: sizes that are not rounded, such as the length of a row.

    Raises:
        TypeError: something else than kernels.
        ValueError: no kernel; kernels that take other arguments than the first; an output without a shape, of which
            nobody can tell what is written; an unknown size in ``exact``.

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
                raise ValueError(f"Tuned: all choices must be declared alike, and {kernel!r} is not as {first!r}")
            if kernel.geometry.per_call:
                raise ValueError(
                    f"Tuned: {kernel!r} leaves its threads to each call; declare a policy such as Threads('n')"
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
        # What was decided, by GPU, dtypes and sizes: as the launches below look for it, and for arrays of any library.
        self._by_tensors: dict[tuple[Any, ...], Kernel] = {}
        self._by_types: dict[tuple[Any, ...], Kernel] = {}
        self.launch = self._write("launch")
        self.launch_vouched = self._write("launch_vouched")
        tuning.users.add(self)

    def __repr__(self) -> str:
        return f"<Tuned {self.name}: {' | '.join(self.names)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launches the choice for these arguments, as the kernel would; times them all first, if it must.

        Raises:
            TuningError: a choice gives another result than the first.
            CompileError: a choice does not compile.
            TypeError, ValueError, LaunchError: as a kernel.
        """
        if kwargs or len(args) != len(self.signature.parameters):
            self.choice(*args, **kwargs)(*args, **kwargs)
        else:
            self.launch(*args)

    def choice(self, *args: Any, **kwargs: Any) -> Kernel:
        """The kernel that this call launches; raises as the call."""
        return self._chosen(check(self._first.declared, bind(self._first.declared, args, kwargs)))

    def _vouched_choice(self, *args: Any) -> Kernel:
        return self._chosen(check(self._first.declared, bind(self._first.declared, args, {}), vouched=True))

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
        """Looks at the records again."""
        with _TUNING:
            self._by_types.clear()
            self._by_tensors.clear()

    def _decide(self, arguments: Arguments, classes: Sequence[int]) -> Kernel | None:
        """The choice, or None if it is the first for now."""
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
                times = trial.microseconds(self.kernels, self.names, arguments, self.rtol, self.atol)
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
        """``launch`` or ``launch_vouched``: looks the choice up by devices, dtypes and sizes, and asks :meth:`choice` where there is
        none. It is written for the declaration (:mod:`cupyops.codegen`): a lookup takes 0.3 µs,
        and by a closure with loops 0.75 µs."""
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
        found.__qualname__ = self.name  # what Python says of too few or too many arguments
        return found


def _capturing(stream: int) -> bool:
    try:
        return bool(toolchain.cupy().cuda.runtime.streamIsCapturing(stream))
    except Exception:  # the default stream may not even be asked while another is captured
        return True


def _names(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """What tells the choices from each other: ``block=256, TILE=4``."""

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
