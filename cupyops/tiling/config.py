"""Configs of kernels: Python chooses a config by sizes, dtype and GPU, and compiles the CUDA source with the config's
macros."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from cupyops.launch.geometry import Geometry
from cupyops.launch.kernel import Kernel

__all__ = ["CLUSTERS_SINCE", "THREADS_AT_ONCE", "Config", "threads_for", "vector_width_for"]

CLUSTERS_SINCE = 90  # compute capability that has clusters of blocks and bulk copies
# The most resident threads of a multiprocessor by compute capability, where the number is not 2048.
THREADS_AT_ONCE = {75: 1024, 86: 1536, 87: 1536, 88: 1536, 89: 1536, 110: 1536, 120: 1536, 121: 1536}


@dataclass(frozen=True)
class Config:
    """The compile-time macros and launch parameters of a kernel.

    A subclass is a frozen dataclass. Compilations differ in the fields, so equal configs share one compilation. A field
    defines a macro with the field's name in capitals. A field that has its default value defines no macro: the CUDA
    source has the same default.

    Attributes:
        launch_only: names of the fields that define no macro.
        cluster: blocks of a cluster. A subclass with clusters defines a field or a property of this name.
        shared: bytes of dynamic shared memory of a block. A subclass with dynamic shared memory defines a field or a
            property of this name.

    >>> @dataclass(frozen=True)
    ... class Tiles(Config):
    ...     width: int
    ...     rows_each: int = 1
    >>> Tiles(32).constants, Tiles(32, 2).constants
    ({'WIDTH': 32}, {'WIDTH': 32, 'ROWS_EACH': 2})
    """

    launch_only: ClassVar[frozenset[str]] = frozenset()
    # `cluster` and `shared` have no annotations, so they are not dataclass fields. A subclass that annotates them
    # chooses their position among its fields.
    cluster = 1
    shared = 0

    @property
    def geometry(self) -> Geometry:
        """The geometry of a launch: the block, and the grid as a function of the kernel's sizes."""
        raise NotImplementedError

    @property
    def constants(self) -> dict[str, int]:
        """The macros of the CUDA source and their values."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self) if f.name not in self.launch_only}
        return {name.upper(): int(value) for name, (value, default) in values.items() if value != default}

    @property
    def since(self) -> int:
        """The least compute capability that the kernel needs, or 0."""
        return CLUSTERS_SINCE if self.cluster > 1 else 0

    def kernel(
        self,
        text: str,
        name: str,
        *choices: Mapping[str, str],
        geometry: Geometry | None = None,
        constants: Mapping[str, int] | None = None,
        made: type[Kernel] = Kernel,
        **options: Any,
    ) -> Kernel:
        """Returns the kernel of a CUDA source, compiled with the config's macros.

        Args:
            text: the CUDA source.
            name: the kernel's name in the source.
            choices: the dtypes by type name of each compilation that :func:`cupyops.warmup` and the compile command
                make. By default there is one compilation for each dtype, in which all types have the dtype.
            geometry: replaces the config's geometry.
            constants: further macros.
            made: the class of the kernel.
            options: further arguments of :class:`cupyops.Kernel`.
        """
        return made(
            text,
            name,
            geometry or self.geometry,
            constants={**self.constants, **(constants or {})},
            shared=self.shared,
            choices=choices or None,
            **{"since": self.since, **options},
        )


def vector_width_for(n: int, itemsize: int) -> int:
    """Returns the elements of the widest access, up to 16 bytes, that divides a row of n elements."""
    vector_width = 16 // itemsize
    while n % vector_width:
        vector_width //= 2
    return vector_width


def threads_for(accesses: int, vectors: int) -> int:
    """Returns the threads that make ``accesses`` accesses, at most ``vectors`` each: a power of 2 from 4 to 32, or
    whole warps."""
    threads = -(-accesses // vectors)
    return max(4, 1 << (threads - 1).bit_length()) if threads <= 32 else -(-threads // 32) * 32
