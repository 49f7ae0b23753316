"""The arrays of a launch, as the simulator passes them to a kernel.

Unless checks are off, the kernel works on copies of its arrays. Gaps of 64 KiB separate the copies: an index just outside one
array never falls into another array. After the launch, written copies are copied back. Overlapping arrays share one
copy, since a kernel may rely on the overlap. Arrays above 256 MiB are not copied, and none whose address other memory has.
"""

import ctypes
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cupyops.arrays import Info
from cupyops.dtypes import DTYPES
from cupyops.launch import hooks
from cupyops.launch.saved_memory import extent
from cupyops.launch.signature import Signature

from .abi import Range

__all__ = ["Memory", "Place"]

_GAP = 65536  # bytes between arrays
_LARGE = 2**28  # bytes above which an array is not copied: the copy would take longer than the launch


@dataclass(frozen=True)
class Place:
    """The memory of one array during a launch.

    Attributes:
        name: the parameter's name.
        info: the array's shape, strides and dtype.
        pointer: the address of the array's first element.
        begin, end: the first address of the array's bytes, and the address after its last byte.
        writable: whether the parameter is not const.
    """

    name: str
    info: Info
    pointer: int
    begin: int
    end: int
    writable: bool


class Memory:
    """The arrays of one launch.

    Args:
        signature: the kernel's signature.
        infos: the arrays by parameter name.
        guarded: True passes copies with gaps in between; False passes the arrays themselves.
        held: the names of the arrays of structs by value that kernels may write.
        bases: the address at which the memory of each array was allocated. A copy then lies in memory as on a GPU,
            whose allocations begin at multiples of 256 bytes. By default a copy keeps the alignment of its array.
    """

    def __init__(
        self,
        signature: Signature,
        infos: Mapping[str, Info],
        guarded: bool,
        bases: Mapping[str, int] | None = None,
        held: Collection[str] = (),
    ) -> None:
        self._copies: list[tuple[int, int, int, bool]] = []  # original address, copy address, bytes, written
        self._handed = hooks.handed_over()
        moves = dict.fromkeys(infos, 0)
        extents = {name: extent(info) for name, info in infos.items()}
        written = {p.name for p in signature.parameters if p.pointer and not p.const} | {*held}
        if guarded:
            moves = self._guard(extents, written, bases or {})
        self.places = [
            Place(
                name, infos[name], infos[name].pointer + moves[name], b + moves[name], e + moves[name], name in written
            )
            for name, (b, e) in extents.items()
        ]
        self.pointers = {place.name: place.pointer for place in self.places}

    def _guard(
        self, extents: Mapping[str, tuple[int, int]], written: set[str], bases: Mapping[str, int]
    ) -> dict[str, int]:
        """Copies the arrays; returns the offset in bytes from each array to its copy."""
        spans: list[tuple[int, int, list[str]]] = []
        for name, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
            if spans and begin < spans[-1][1]:
                last = spans.pop()
                spans.append((last[0], max(last[1], end), [*last[2], name]))
            else:
                spans.append((begin, end, [name]))
        spans = [span for span in spans if span[1] - span[0] <= _LARGE and not self._is_handed(*span[:2])]
        total = sum(end - begin + 2 * _GAP for begin, end, _ in spans) + _GAP
        self._memory = ctypes.create_string_buffer(total)
        at = ctypes.addressof(self._memory) + _GAP
        moves = dict.fromkeys(extents, 0)
        for begin, end, names in spans:
            # keeps the alignment of the array, since kernels choose code by alignment
            at += (begin - bases.get(names[0], 0) - at) % 256
            ctypes.memmove(at, begin, end - begin)
            self._copies.append((begin, at, end - begin, not written.isdisjoint(names)))
            moves.update(dict.fromkeys(names, at - begin))
            at += end - begin + _GAP
        return moves

    def _is_handed(self, begin: int, end: int) -> bool:
        return any(b < end and begin < e for b, e in self._handed)

    @property
    def count(self) -> int:
        """The number of ranges."""
        return len(self.places) + len(self._handed)

    def ranges(self) -> ctypes.Array[Range]:
        """Returns the byte ranges of the arrays for the runtime, and of memory whose address other memory has.

        Writable ranges come first: the runtime takes the first match where arrays overlap.
        """
        found = [(p.begin, p.end, p.writable) for p in self.places] + [(*span, True) for span in self._handed]
        return (Range * max(self.count, 1))(*(Range(*one) for one in sorted(found, key=lambda one: not one[2])))

    def finish(self) -> None:
        """Copies the contents of written copies back to their arrays."""
        for original, copy, count, written in self._copies:
            if written:
                ctypes.memmove(original, copy, count)

    def name(self, address: int) -> str:
        """Returns the element at an address, like ``element 1024 of `y` (float32[1024] on cpu)``.

        Returns an empty string if the address is neither in an array nor in a gap beside one.
        """
        near = [p for p in self.places if p.begin - _GAP <= address < p.end + _GAP]
        if not near:
            return ""
        place = min(near, key=lambda p: max(p.begin - address, address - p.end + 1, 0))
        element = (address - place.pointer) // DTYPES[place.info.dtype].itemsize
        return f"element {element} of `{place.name}` ({place.info})"
