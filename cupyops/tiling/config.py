"""Kernels that are cut in several ways: a config is chosen in Python, by sizes, dtype and GPU, and the text compiled for it."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from cupyops.deprecated import renamed
from cupyops.launch.geometry import Geometry
from cupyops.launch.kernel import Kernel

__all__ = ["CLUSTERS_SINCE", "THREADS_AT_ONCE", "Config", "threads_for", "vector_width_for"]

CLUSTERS_SINCE = 90  # compute capability that has clusters of blocks and bulk copies
# Of a multiprocessor, by compute capability, where not 2048.
THREADS_AT_ONCE = {75: 1024, 86: 1536, 87: 1536, 88: 1536, 89: 1536, 110: 1536, 120: 1536, 121: 1536}


@dataclass(frozen=True)
class Config:
    """One way. A subclass is a frozen dataclass; what compilations differ in are its fields, so equal configs share one.

    A field is a macro of the text by its name in capitals, left out where it has its default, which is then the text's, too.

    Attributes:
        launch_only: fields that are no macros.
        cluster: blocks of a cluster, a field or property where there are several.
        shared: bytes of dynamic shared memory of a block, likewise.

    >>> @dataclass(frozen=True)
    ... class Tiles(Config):
    ...     width: int
    ...     rows_each: int = 1
    >>> Tiles(32).constants, Tiles(32, 2).constants
    ({'WIDTH': 32}, {'WIDTH': 32, 'ROWS_EACH': 2})
    """

    launch_only: ClassVar[frozenset[str]] = frozenset()
    # Not annotated: as fields of a subclass they come where it names them.
    cluster = 1
    shared = 0

    @property
    def geometry(self) -> Geometry:
        """How many threads a launch has."""
        raise NotImplementedError

    @property
    def constants(self) -> dict[str, int]:
        """Macros of the text."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self) if f.name not in self.launch_only}
        return {name.upper(): int(value) for name, (value, default) in values.items() if value != default}

    @property
    def since(self) -> int:
        """The compute capability that it needs."""
        return CLUSTERS_SINCE if self.cluster > 1 else 0

    def kernel(
        self,
        text: str,
        name: str,
        *choices: Mapping[str, str],
        geometry: Geometry | None = None,
        constants: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Kernel:
        """The kernel of a text that is cut so.

        Args:
            choices: of types, to be compiled ahead; by default each dtype for all of them.
            geometry: in place of the config's own.
            constants: further macros.
            options: as for :class:`cupyops.Kernel`.
        """
        return Kernel(
            text,
            name,
            geometry or self.geometry,
            constants=_with_former_names({**self.constants, **(constants or {})}, text),
            shared=self.shared,
            choices=choices or None,
            **{"since": self.since, **options},
        )


def _with_former_names(constants: dict[str, int], text: str) -> dict[str, int]:
    """The macros, and VECTOR_WIDTH as LANES too where the text says LANES."""
    if "LANES" not in text or "VECTOR_WIDTH" not in constants or "LANES" in constants:
        return constants
    if not re.search(r"\bLANES\b", text):
        return constants
    warnings.warn("LANES is VECTOR_WIDTH now; the next release drops the former name", DeprecationWarning, stacklevel=3)
    return {**constants, "LANES": constants["VECTOR_WIDTH"]}


def vector_width_for(n: int, itemsize: int) -> int:
    """Elements of the widest access that divides a row, up to 16 bytes."""
    vector_width = 16 // itemsize
    while n % vector_width:
        vector_width //= 2
    return vector_width


def lanes_for(n: int, itemsize: int) -> int:
    """The former name of :func:`vector_width_for`."""
    warnings.warn(
        "lanes_for is vector_width_for now; the next release drops the former name", DeprecationWarning, stacklevel=2
    )
    return vector_width_for(n, itemsize)


def threads_for(accesses: int, vectors: int) -> int:
    """Threads that make so many accesses at so many each: a power of 2, or whole warps."""
    threads = -(-accesses // vectors)
    return max(4, 1 << (threads - 1).bit_length()) if threads <= 32 else -(-threads // 32) * 32


__getattr__ = renamed(__name__, {"Plan": "Config"})
