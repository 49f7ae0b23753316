"""A CUDA kernel as a Python callable that checks its arguments.

The declaration in the text gives the type of each argument (:mod:`cupyops.launch.signature`). The arrays decide the
dtype, and a policy computes the grid (:mod:`cupyops.launch.geometry`). A call that does not fit the declaration raises
``TypeError`` or ``ValueError`` (:mod:`cupyops.launch.arguments`) and launches nothing. The message names the kernel,
the parameter, the expected value and the given value.

The checked launch, in this module, takes arrays of every known library and raises the errors. The generated launch
(:mod:`cupyops.launch.generated`) tests in one expression whether the kernel is loaded and the arguments fit, else calls it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import kernels_cu
from cupyops.arrays import Device, host
from cupyops.compile.ask import split_types
from cupyops.compile.cuda_text import scan
from cupyops.compile.project_headers import read
from cupyops.dtypes import FLOATS, dtype_names
from cupyops.errors import CompileError, LaunchError, expected
from cupyops.sharing import computed_once, once

from . import debug, driver, hooks, recording
from .arguments import Arguments, bind, check
from .configured import Configurable, configured
from .definitions import declarations, the_kernel
from .generated import open_launch
from .geometry import MAX_GRID_X, Geometry, Grid, policy
from .given_text import check_text, checked_filename, file_name, linked_texts, macros, numbers, prepared
from .hooks import all_kernels
from .kernel_source import KernelSource
from .listing import Listed
from .load import Hardware, Variant, load
from .locate import declaring_file, in_python, placed
from .repro import keeps_call
from .signature import Signature
from .size_expressions import SharedBytes
from .untraced import hide, untraced
from .variables import Storage, Variables
from .watch import TextFile, rereads, watching

__all__ = ["Kernel", "all_kernels"]


class Kernel(Configurable, Listed):
    """One ``__global__`` function of a CUDA C++ text.

    Args:
        text: CUDA C++, or the :class:`~pathlib.Path` of a ``.cu`` file. The headers of a file lie in its folder. The
            arrays of each call decide the type ``scalar_t`` and every other undeclared type name. ``acc_t`` is float if
            ``scalar_t`` is a 16-bit float, else ``scalar_t``.
        name: the name of the ``__global__`` function, also with namespaces and template arguments: ``"a::f<float, 128>"``.
            The arrays' dtypes and ``constants`` decide other arguments. A text of one kernel needs no name.
        geometry: a policy of :mod:`cupyops.launch.geometry`. Without a policy each call configures its launch:
            ``kernel[n](x, y, n)`` or ``kernel[grid, block](x, y, n)``. An integer sets the threads of a block of the first form.
        dtypes: the dtypes allowed for ``scalar_t`` and the other undeclared types, as names or as dtypes of PyTorch or
            NumPy; the floating dtypes by default.
        constants: values of macros, ``{"TANH": 1}``.
        shared: bytes of dynamic shared memory per block: a number, an expression of size parameters and constants such as
            ``"4 * n"``, or a function of parameters by their names, ``lambda n: 4 * n``.
        filename: the file name of the text in messages; by default the file from which the text was loaded.
        headers: header texts by name for ``#include "name"``, in addition to the shared headers.
        options: NVRTC options in addition to :data:`cupyops.compile.compiler.OPTIONS`.
        since: the least compute capability that the text needs, 90 for clusters of blocks and bulk copies.
        exactly: the text needs the compute capability ``since`` itself, because it uses instructions of this
            architecture only, such as wgmma on sm_90. It is compiled for ``sm_90a``.
        cooperative: blocks wait for one another, so all blocks must run at once. The driver refuses a grid of more than
            :meth:`resident_blocks` blocks.
        choices: the dtypes of the undeclared types that :func:`cupyops.warmup` and the compile command compile; by
            default one choice for each of ``dtypes``, with this dtype for all undeclared types.
        watch: follow the edits of the file that ``text`` names, see :func:`cupyops.watch`.
        link: texts, or paths of files, that are compiled apart and linked with this text. ``options=("-dlto",)`` optimizes
            across them.
        storage: of a :class:`.module.Module`, whose kernels share code.
        nullable: a call may give None for every array, as host code in C++ may pass any null pointer. A launch without
            any array runs on the current GPU.

    Raises:
        ValueError: the text has no kernel of this name; a parameter of a template has no argument; the policy's block is
            larger than CUDA allows; an integer is out of range; or the name of a constant is not a macro name.
        TypeError: a parameter of the kernel has an unsupported type; or an argument of ``Kernel`` has a wrong type.
        OSError: the file cannot be read.

    The declaration of a :mod:`kernels_cu` text is parsed at the first use. The first use raises its errors.

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
        shared: int | str | Callable[..., int] = 0,
        filename: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        since: int = 0,
        exactly: bool = False,
        cooperative: bool = False,
        choices: Sequence[Mapping[str, str]] | None = None,
        watch: bool = False,
        link: Sequence[str | os.PathLike[str]] = (),
        storage: Storage | None = None,
        nullable: bool = False,
    ) -> None:
        hide()
        self.file = TextFile(text, headers, watch) if isinstance(text, os.PathLike) else None
        if isinstance(text, os.PathLike):
            filename = filename or os.path.basename(text)
        elif watch:
            raise TypeError(expected(name or "Kernel", "watch", "be given with the Path of a text", "a text"))
        if filename is not None:
            filename = checked_filename(name or "Kernel", os.fspath(filename))
        text, beside = read(text, options, headers, constants)
        check_text(text, name or "Kernel")
        text, known, options = prepared(text, name, {**beside, **(headers or {})}, filename, options, constants)
        self.name = name = the_kernel(text) if name is None else name
        self.geometry = geometry = policy(name, geometry)
        self.shared_bytes = SharedBytes.given(name, shared, {**geometry.constants, **(constants or {})})
        self.hardware = Hardware.checked(name, since, exactly, cooperative, 0 if self.shared_bytes else shared)
        self.choices = choices
        self.dtypes = dtype_names(name, dtypes)
        self.nullable = nullable
        self.source = KernelSource(
            text,
            name,
            str(filename or getattr(text, "filename", file_name(name))),
            macros(name, {**numbers(text, name), **(constants or {})}, {} if storage else geometry.constants),
            known,
            (*options, *self.hardware.options),
            declaring_file(),
            linked_texts(name, link),
            () if storage is None else storage.kernels,
        )
        self.storage = Storage() if storage is None else storage
        self.storage.members[name] = self
        self.variables = Variables(self)
        # The copies with another block or other bytes of shared memory. `base` of a copy is the kernel that it was made of.
        self.copies: dict[tuple[Any, ...], Kernel] = {}
        self.base: Kernel | None = None
        self._variants: dict[tuple[Any, ...], Variant] = {}
        # The choices of types in past calls, also on fake arrays. A bundle has these choices and the declared ones.
        self.met: dict[tuple[str, ...], dict[str, str]] = {}
        # Operator bodies call this attribute. The generated launch replaces it once a kernel is loaded.
        self.launch: Callable[..., None] = self.checked_launch
        # For bodies that have checked shapes and layouts and have allocated the outputs: this launch checks neither.
        self.launch_vouched: Callable[..., None] = self.checked_vouched
        self._generated_variants: dict[tuple[Any, ...], Variant] = {}
        hooks.KERNELS.add(self)
        # A text of kernels_cu is read at the first use, so that importing cupyops reads no text.
        if self.by_an_author and not isinstance(text, kernels_cu.Text):
            self.source.signature(self._sizes, self.dtypes, asked=False)  # raises, and asks no compiler

    @property
    def text(self) -> str:
        """The CUDA C++ text."""
        return self.source.text

    @property
    def filename(self) -> str:
        """The file name of the text in messages."""
        return self.source.filename

    @property
    def constants(self) -> Mapping[str, int]:
        """The values of macros, with those of the launch policy."""
        return self.source.constants

    @property
    def headers(self) -> Mapping[str, str]:
        """Header texts by name, in addition to the shared headers."""
        return self.source.headers

    @property
    def options(self) -> tuple[str, ...]:
        """The NVRTC options, in addition to those of every kernel."""
        return self.source.options

    @computed_once
    def signature(self) -> Signature:
        """The parameters, parsed from the declaration in the text."""
        found = self.source.signature(self._sizes, self.dtypes)
        return found.nullable() if self.nullable else found

    @property
    def _sizes(self) -> tuple[str, ...]:
        """The parameters that count blocks or bytes of shared memory."""
        return (*self.geometry.sizes, *(self.shared_bytes.names if self.shared_bytes else ()))

    @untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Launches the kernel on the arrays' GPU and its current stream.

        Arguments are given in the order of the text, or by name.

        Raises:
            TypeError: an argument is missing, is unknown, or has another type than declared.
            ValueError: the arrays are on different devices; an array has another layout or size than declared; a number
                is out of range; a tensor has the negative bit; an output is read-only.
            RuntimeError: an output requires grad while gradients are recorded.
            LaunchError: the driver refused the launch.
        """
        if kwargs or len(args) != len(self.signature.parameters):
            self.checked_launch(*args, **kwargs)
        else:
            self.launch(*args)

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self.filename}: {', '.join(self.signature.names)}>"

    # Compiling

    def final_text(self, types: Mapping[str, str], twins: Mapping[str, str] | None = None) -> str:
        """Returns the final text for NVRTC under a choice of types. See :meth:`.KernelSource.final`."""
        return self.source.final(types, twins)

    # Whether the text may have mistakes in its declaration, which the construction of the kernel finds.
    by_an_author = True
    # Conditions on the sizes that the code which launches the kernel meets, for `cupyops.testing.prove_bounds`.
    assumed: tuple[str, ...] = ()

    def syntax(self, text: str) -> str:
        """Returns the parts of a final text that decide whether a compiler accepts it."""
        return text

    def compare(self, answers: Sequence[str], types: Mapping[str, str]) -> None:
        """Compares the parameters of the compiled kernel with the signature.

        Args:
            answers: the types of the kernels of the source, as the compiler reports them; empty if it was not asked.
            types: the choice of types.

        Raises:
            CompileError: the compiler has another type than the launch passes.
        """
        number = self.source.kernels().index(self.name)
        spelled = split_types(answers[number].partition("(*)(")[2][:-1]) if answers else []
        if problem := self.signature.compare(spelled, types):
            place = placed(self.text, self.filename, declarations(scan(self.text), self.name)[0].named)
            raise CompileError(f"{self.describe(types)} does not compile: {place}: {self.name}: {problem}")

    def type_choices(self) -> Iterator[dict[str, str]]:
        """Yields the given choices of types.

        Without given choices, yields one choice per dtype, with this dtype for every undeclared type. Yields one empty
        choice if the text has no undeclared type. A type that only a compiler knows has the dtype ``""`` unless it is given.
        """
        bindings = self.signature.bindings
        if self.choices is not None:
            yield from (
                {n: choice[n] if n.isidentifier() else choice.get(n, "") for n in bindings} for choice in self.choices
            )
            return
        for dtype in self.dtypes if any(map(str.isidentifier, bindings)) else ("",):
            yield {name: dtype if name.isidentifier() else "" for name in bindings}

    def describe(self, types: Mapping[str, str]) -> str:
        """Returns the kernel's name with its dtypes for messages, ``gelu_forward<float16>``.

        The kernel's own constants follow the dtypes. The description includes the cluster size of the geometry, and the
        accesses of a thread if there are several.
        """
        hidden = {name: value for name, value in self.geometry.constants.items() if name != "CLUSTER"}
        if hidden.get("VECTORS", 1) != 1:
            del hidden["VECTORS"]
        extra = [f"{k}={v}" for k, v in self.constants.items() if k not in hidden]
        dtypes = [*filter(None, types.values())]
        return f"{self.name}<{', '.join((dtypes[:1] if len(set(dtypes)) == 1 else dtypes) + extra)}>"

    def variant(self, types: Mapping[str, str], device: int) -> Variant:
        """Returns the kernel for a choice of types, loaded on a GPU. The first use compiles the kernel."""
        key, variants = (device, *types.values()), self._variants
        found = variants.get(key)
        if found is None:
            found = once(
                (self, id(variants), *key),
                lambda: variants.get(key) or variants.setdefault(key, load(self, types, device)),
            )
        return found

    def runs_on(self, capability: int) -> bool:
        """Returns whether GPUs of a compute capability can run the kernel."""
        return self.hardware.met_by(capability)

    @rereads
    def resident_blocks(self, types: Mapping[str, str], device: Device) -> int:
        """Returns how many blocks of the kernel run on a device at once.

        A kernel of persistent blocks has a grid of this size.
        """
        if not isinstance(device, int):
            return device.resident_blocks(self)
        return self.variant(types, device).resident_blocks(device)

    # Checking and launching

    @untraced
    def checked_launch(self, /, *args: Any, **kwargs: Any) -> None:
        """Checks the arguments and launches.

        It accepts arrays of every known library and raises the errors of :meth:`__call__`.
        """
        hide()  # PyTorch may have been imported since the kernel was made
        self._check_and_launch(*args, **kwargs)

    @untraced
    def _check_and_launch(self, /, *args: Any, **kwargs: Any) -> None:
        if len(args) > 2 and all(isinstance(a, tuple) for a in args[:3]) and self.signature.parameters[0].pointer:
            form = f"{self.name}[grid, block](*args)" if self.geometry.per_call else f"{self.name}(*args)"
            raise TypeError(f"{self.name}(grid, block, args) is the form of RawKernel; write {form}")
        if self.geometry.per_call:
            raise TypeError(
                f"{self.name}: say how many threads: {self.name}[n](...), {self.name}.forall(N, M)(...), {self.name}[grid, "
                f"block](...); or declare a policy such as Threads('n')"
            )
        arguments = check(self, bind(self, args, kwargs))
        self.run(arguments, written=True)

    @untraced
    def checked_vouched(self, /, *args: Any, **kwargs: Any) -> None:
        """Checks the arguments and launches for a body that guarantees its outputs.

        The body has just allocated the outputs, so autograd has saved none of them, or the text does not write them.
        """
        self.run(check(self, bind(self, args, kwargs), vouched=True))

    @rereads
    @keeps_call
    @untraced
    def run(self, arguments: Arguments, threads: Sequence[int] = (), *, written: bool = False) -> None:
        """Launches on checked arguments.

        Args:
            arguments: the checked arguments.
            threads: threads in x, y, z, for a geometry whose calls give the number of threads.
            written: whether to record in the array library that the outputs are written.
        """
        lead = arguments.lead
        self.met.setdefault(tuple(arguments.types.values()), arguments.types)
        if lead.fake:
            recording.plan(self, arguments, threads)
            return
        if self.shared_bytes is not None:
            copy = configured(self, self.geometry, self.shared_bytes.of(arguments.values))
            copy.run(arguments, threads, written=written)
            return
        sizes = threads or [arguments.values[s] for s in self.geometry.sizes]
        if lead.place == "cpu" and host().enabled():
            if written:
                arguments.count_written(self.signature)  # a launch that fails may have written, too
            try:
                host().launch(self, arguments, sizes)
            except CompileError as error:
                raise self.source.located(error) from None
            except LaunchError as error:
                error.args = (in_python(str(error), self.filename, self.text, self.source.declared_in),)
                raise
            return
        if lead.device is None or lead.place != "cuda":
            words = expected(self.name, next(iter(arguments.infos)), "be on a CUDA device", lead)
            mend = ". On a CPU, kernels run within `with cupyops.simulate():`" if lead.place == "cpu" else ""
            raise ValueError(f"{words}{mend}")
        variant = self.variant(arguments.types, lead.device)
        grid = self.grid(variant, sizes)
        if 0 in grid:
            return
        recording.note(recording.Launch(self, arguments.types, lead.device, grid))
        recording.submitted(variant, arguments, grid)
        if written:
            arguments.count_written(self.signature)
        with arguments.library.device(lead.device):
            stream = arguments.library.stream(lead.device)
            debugged = debug.enabled()
            if debugged:
                debug.launch(variant, self.signature, arguments, grid, stream)
            else:
                self._submit(variant, arguments, grid, stream)
        repeatable = not self.geometry.per_call and self.base is None
        if repeatable and not (debugged or recording.recording() or watching(self)):
            open_launch(self, arguments, variant)

    def grid(self, variant: Any, sizes: Sequence[int]) -> Grid:
        """Returns the grid of a launch.

        Raises:
            ValueError: the grid is larger than CUDA allows.
        """
        try:
            grid = variant.grid(*sizes)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        if min(grid) < 0:
            raise ValueError(f"{self.name}: a grid of {' x '.join(map(str, grid))} blocks, counted by {self.geometry}")
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

    def close_generated_launch(self) -> None:
        """Sends calls through the checked launch. The next checked launch may install the generated launch again."""
        self.launch, self.launch_vouched = self.checked_launch, self.checked_vouched
