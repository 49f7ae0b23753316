"""Several kernels of one text in one binary, which share the text's ``__device__`` and ``__constant__`` variables."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cupyops.compile.cuda_text import scan
from cupyops.compile.project_headers import read
from cupyops.errors import nearest

from .definitions import overload
from .geometry import Geometry
from .given_text import check_text
from .kernel import Kernel
from .variables import Storage, Variables

__all__ = ["Module"]


class Module:
    """The kernels of a text, compiled once and loaded once.

    A :class:`.Kernel` compiles one ``__global__`` function and has ``__device__`` and ``__constant__`` variables of its
    own. The kernels of a module share the variables.

    Args:
        text: CUDA C++, or the :class:`~pathlib.Path` of a ``.cu`` file. Its kernels are declared with C types: no array
            decides a type such as ``scalar_t``, since one binary has one type.
        kernels: the names of the module's kernels, with the arguments of templates: ``["scale<float>", "scale<double>"]``;
            by default every ``__global__`` function that is not a template.
        constants: values of macros. The macros of launch policies, such as ``BLOCK_THREADS``, are not defined.
        headers, options, link, filename: as for :class:`.Kernel`.

    Raises:
        ValueError: the text has no kernel, or :class:`.Kernel` raises the error for one of them.
        TypeError: a kernel has a type that the arrays would decide; or an argument has a wrong type.
        OSError: the file cannot be read.

    Example:
        >>> import numpy, cupyops
        >>> from cupyops import Module, Threads
        >>> module = Module('''
        ... __device__ int total;
        ... extern "C" __global__ void add(const int* x, int n) {  // every thread adds one element
        ...     if (threadIdx.x < n) atomicAdd(&total, x[threadIdx.x]);
        ... }
        ... extern "C" __global__ void take(int* y) { y[0] = total; total = 0; }
        ... ''')
        >>> add, take = module.kernel("add", Threads("n")), module.kernel("take", 1)
        >>> y = numpy.zeros(1, "int32")
        >>> with cupyops.simulate():
        ...     add(numpy.arange(10, dtype="int32"), 10)
        ...     take[1](y)
        >>> y.tolist()
        [45]
    """

    def __init__(
        self,
        text: str | os.PathLike[str],
        *,
        kernels: Sequence[str] = (),
        constants: Mapping[str, int] | None = None,
        headers: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        link: Sequence[str | os.PathLike[str]] = (),
        filename: str | None = None,
    ) -> None:
        if isinstance(text, os.PathLike):
            filename = filename or os.path.basename(text)
        text, beside = read(text, options, headers, constants)
        check_text(text, "Module")
        self.text = text
        self._arguments: dict[str, Any] = {
            "constants": constants,
            "headers": {**beside, **(headers or {})},
            "options": tuple(options),
            "link": link,
            "filename": filename or "module.cu",
        }
        functions = [f for f in scan(text).functions if not f.special]
        self.names = tuple(kernels or dict.fromkeys(f.path for f in functions if f.template is None))
        if not self.names:
            templates = "" if not functions else " that is no template; name the instances, kernels=['scale<float>']"
            raise ValueError(f"Module: the text has no __global__ function{templates}")
        if named := next((name for name in self.names if overload(name) is not None), None):
            raise ValueError(f"Module: {named!r} is one of several functions of a name; make a Kernel of it")
        self._storage = Storage(self.names)
        made = [self.kernel(name) for name in self.names]
        for kernel in made:
            if undecided := list(kernel.signature.bindings):
                raise TypeError(
                    f"Module: the arrays of a call would decide {undecided[0]} of {kernel.name}, and the kernels of a module "
                    f"are compiled once, together; declare its parameters with C types"
                )
        self.variables: Variables = made[0].variables

    def kernel(self, name: str, geometry: Geometry | int | None = None, **options: Any) -> Kernel:
        """Returns a kernel of the module.

        Args:
            name: the name of the ``__global__`` function, also without its namespaces.
            geometry: the launch policy.
            options: ``shared``, ``since`` and ``cooperative`` of :class:`.Kernel`.

        Raises:
            ValueError: the text has no such kernel.
        """
        found = [known for known in self.names if f"::{known}".endswith(f"::{name}")]
        if len(found) != 1:
            raise ValueError(
                f"no __global__ function {name!r} in the module; it has {', '.join(self.names)}{nearest(name, self.names)}"
            )
        return Kernel(self.text, found[0], geometry, storage=self._storage, **self._arguments, **options)

    def __repr__(self) -> str:
        return f"<Module of {', '.join(self.names)}>"
