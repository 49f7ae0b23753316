"""CUB's algorithms over device memory, which host code calls: scans, reductions and sorts, by PyTorch.

Each is called twice: without temporary memory it returns the bytes that it needs, and with the memory it runs.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import cublas  # noqa: F401  its C++ text comes first
from .errors import NotTranslated
from .memory import DevicePointer
from .references import Reference
from .words import declare, word

__all__ = ["array_of", "wide"]

declare("""namespace cub {
struct DeviceScan {
  template <class I, class O, class N> static cudaError_t InclusiveSum(void*, size_t&, I, O, N, cudaStream_t = 0, bool = false);
  template <class I, class O, class N> static cudaError_t ExclusiveSum(void*, size_t&, I, O, N, cudaStream_t = 0, bool = false); };
struct DeviceReduce {
  template <class I, class O> static cudaError_t Sum(void*, size_t&, I, O, int, cudaStream_t = 0, bool = false);
  template <class I, class O> static cudaError_t Max(void*, size_t&, I, O, int, cudaStream_t = 0, bool = false);
  template <class I, class O> static cudaError_t Min(void*, size_t&, I, O, int, cudaStream_t = 0, bool = false); };
struct DeviceRadixSort {
  template <class K, class N> static cudaError_t SortKeys(void*, size_t&, const K*, K*, N, int = 0, int = sizeof(K) * 8, cudaStream_t = 0);
  template <class K, class N> static cudaError_t SortKeysDescending(void*, size_t&, const K*, K*, N, int = 0, int = sizeof(K) * 8,
    cudaStream_t = 0);
  template <class K, class V, class N> static cudaError_t SortPairs(void*, size_t&, const K*, K*, const V*, V*, N, int = 0,
    int = sizeof(K) * 8, cudaStream_t = 0);
  template <class K, class V, class N> static cudaError_t SortPairsDescending(void*, size_t&, const K*, K*, const V*, V*, N, int = 0,
    int = sizeof(K) * 8, cudaStream_t = 0); };
}
#define CubDebug(e) (e)
#define CubDebugExit(e) ::cupyops::cuda_check(e)
""")  # fmt: skip


def array_of(pointer: Any, count: int) -> torch.Tensor:
    """Returns device memory as a tensor."""
    if not isinstance(pointer, DevicePointer) or getattr(pointer.kind, "dtype", None) is None:
        raise NotTranslated("cub: an array that is not device memory of numbers")
    return pointer.memory.flat(pointer.offset, pointer.kind.dtype, count)


def _algorithm(name: str, arrays: int, run: Callable[..., None]) -> None:
    """Declares an algorithm of some arrays, which are followed by their number of elements."""

    def call(memory: Any, needed: Reference, *arguments: Any) -> int:
        if memory is None:
            needed.value = 1
            return 0
        count = int(arguments[arrays])
        if count:
            run([*arguments[:arrays]], count, *arguments[arrays + 1 :])
        return 0

    word(f"cub::{name}")(call)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Returns integers as int64, which wraps as the types of 64 bits do. PyTorch computes on few unsigned types."""
    return x if x.dtype.is_floating_point else x.to(torch.int64)


def _inclusive(arrays: list[Any], count: int, *_: Any) -> None:
    source, target = (array_of(a, count) for a in arrays)
    target.copy_(wide(source).cumsum(0))


def _exclusive(arrays: list[Any], count: int, *_: Any) -> None:
    source, target = (array_of(a, count) for a in arrays)
    sums = wide(source).cumsum(0)
    target[1:].copy_(sums[:-1])
    target[:1].fill_(0)


def _reduced(reduce: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    def run(arrays: list[Any], count: int, *_: Any) -> None:
        array_of(arrays[1], 1).copy_(reduce(wide(array_of(arrays[0], count))).reshape(1))

    return run


def _order(keys: torch.Tensor, descending: bool, bits: tuple[int, ...]) -> torch.Tensor:
    """Returns the stable order of keys by some of their bits."""
    first, last = bits or (0, 8 * keys.element_size())
    if (first, last) != (0, 8 * keys.element_size()):
        if keys.dtype.is_floating_point or keys.dtype.is_signed:
            raise NotTranslated("cub: a sort by some bits of signed keys")
        last = min(last, 63)
        keys = keys.to(torch.int64) >> first & ((1 << last - first) - 1)
    elif keys.dtype == torch.uint64:
        keys = keys.view(torch.int64) ^ -(1 << 63)
    return torch.sort(wide(keys), stable=True, descending=descending).indices


def _sorted(descending: bool) -> Callable[..., None]:
    def run(arrays: list[Any], count: int, *rest: Any) -> None:
        keys, *values = (array_of(a, count) for a in arrays)
        order = _order(keys, descending, tuple(rest[:2]))
        for source, target in ((keys, values[0]), *([tuple(values[1:])] if values[1:] else [])):
            target.copy_(source.view(_BITS[source.element_size()])[order].view(source.dtype))

    return run


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_algorithm("DeviceScan::InclusiveSum", 2, _inclusive)
_algorithm("DeviceScan::ExclusiveSum", 2, _exclusive)
_algorithm("DeviceReduce::Sum", 2, _reduced(torch.sum))
_algorithm("DeviceReduce::Max", 2, _reduced(torch.max))
_algorithm("DeviceReduce::Min", 2, _reduced(torch.min))
for _end, _descending in (("", False), ("Descending", True)):
    _algorithm(f"DeviceRadixSort::SortKeys{_end}", 2, _sorted(_descending))
    _algorithm(f"DeviceRadixSort::SortPairs{_end}", 4, _sorted(_descending))
