"""Overrides of ATen's operators by this project's kernels, for a block of code or for the rest of the process."""

import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from cupyops.compile import toolchain
from cupyops.errors import expected
from cupyops.sharing import held_across_fork

from .aten import OVERRIDES, Kernel
from .small import LEAST_ELEMENTS
from .watch import Sizes, watch

__all__ = ["native", "set_native"]

DEVICES = tuple(OVERRIDES)

_lock = held_across_fork(threading.Lock())
_entries: Counter[str] = Counter()  # by device: the running blocks, plus 1 for set_native()
_switched: tuple[str, ...] = ()  # the devices that set_native() has turned on
_libraries: dict[str, torch.library.Library] = {}
# By the type of device: references that keep the registered kernels alive.
_registered: dict[str, list[Any]] = {}
# Registered kernels that are not wanted any more, by the type of device: a thread, and the time since which no other thread
# has called them. These kernels call PyTorch's. The dispatcher changes its entry of an operator word by word and without a
# lock: a call in another thread, while kernels are removed, could take the function of one kernel and the object of another.
# While kernels are registered, such a call takes PyTorch's function, which reads no object, until the last word is written.
_unused: dict[str, tuple[int, float]] = {}
_QUIET = 1.0  # seconds without a call by another thread after which the kernels are removed
# The code of the function that every computation of gradients enters.
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
# The removed kernels and the times of their removal. A thread may have found a kernel and wait for the interpreter's
# lock while another thread removes the kernel. The dispatcher holds no reference for the thread.
_removed: deque[tuple[float, list[Any]]] = deque()
_KEPT = 60.0  # seconds, much longer than a thread waits for the interpreter's lock
# By the type of device: the least number of elements of a call that this project's kernels compute. The simulator runs
# the kernels of small tensors.
LEAST = {"cuda": LEAST_ELEMENTS, "cpu": 0}
_sizes: dict[str, Sizes] = {}  # kept from block to block
_watches: dict[str, Callable[[], None]] = {}  # by the type of device, what ends the watch of the sizes


@contextmanager
def native(devices: Sequence[str] = ("cuda",)) -> Iterator[None]:
    """Runs PyTorch's own GELU, layer norm and RMS norm on this project's kernels inside a ``with`` block.

    Inside the block, ATen's ``gelu``, ``native_layer_norm``, ``_fused_rms_norm`` and their backwards call this
    project's kernels. Any model uses them, with no edit: its modules and functions call these operators. Autograd's
    nodes, autocast and ``torch.func`` stay PyTorch's. PyTorch's own kernel computes each call that this project's
    kernel does not take: another dtype, another device, a tensor subclass. ``out=`` overloads stay PyTorch's.

    PyTorch's own kernel also computes calls of CUDA tensors with at most 2^23 elements, which wait for the host. After
    256 calls of ``F.layer_norm`` on few elements and none on many, the overrides are removed, so that such a program takes
    PyTorch's time. The first call of ``F.layer_norm`` on many elements registers the overrides again. For this, a Python
    function takes the place of ``torch.layer_norm`` inside the block.

    The block holds for all threads of the process, since PyTorch computes gradients in threads of its own. Blocks may
    be nested, and may run in several threads. When the last block has ended, PyTorch's dispatch tables are what they
    were. If other threads of Python run then, the overrides stay and call PyTorch's kernels: the first call after a second
    without calls in other threads removes them. A forward inside a block may have its backward outside of the block, and
    the other way round. A call that runs while another thread enters or leaves a block, or registers or removes the
    overrides, takes either kernel.

    ``torch.compile`` and ``torch.export`` make the same graphs as without the block. Inductor generates its own kernels
    for these operators.

    Args:
        devices: the types of devices whose tensors take this project's kernels: ``"cuda"``, ``"cpu"``. CPU tensors take
            them inside ``cupyops.simulate()`` only. A device that this build of PyTorch lacks is skipped.

    Raises:
        ValueError: a device is neither ``"cuda"`` nor ``"cpu"``.
        TypeError: ``devices`` is not a sequence of strings.
        MissingDependencyError: PyTorch sees a GPU, and CuPy is missing; the message says what installs it.

    >>> import cupyops
    >>> layer = torch.nn.GELU()
    >>> with native(devices=["cpu"]), cupyops.simulate():
    ...     layer(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if torch.compiler.is_dynamo_compiling():  # a compiled block contains no kernel that this project could replace
        yield
        return
    found = _checked("native", devices)
    _enter(found)
    try:
        yield
    finally:
        _leave(found)


def set_native(on: bool = True, devices: Sequence[str] = ("cuda",)) -> None:
    """Turns the overrides of :func:`native` on or off for the process.

    A second call with ``on=True`` replaces the first one's devices. ``on=False`` ends what this function has turned on;
    running :func:`native` blocks stay in force until they end.

    Args:
        on: whether ATen's operators call this project's kernels.
        devices: as for :func:`native`.

    Raises:
        ValueError, TypeError, MissingDependencyError: as for :func:`native`.
    """
    global _switched
    found = _checked("set_native", devices) if on else ()
    _enter(found)
    before, _switched = _switched, found
    _leave(before)


def _checked(where: str, devices: Sequence[str]) -> tuple[str, ...]:
    """Returns the devices, each once.

    Raises:
        TypeError: ``devices`` is not a sequence of strings.
        ValueError: a device is unknown.
    """
    given = None if isinstance(devices, str) or not isinstance(devices, Sequence) else tuple(devices)
    if given is None or not all(isinstance(d, str) for d in given):
        raise TypeError(expected(where, "devices", "be a sequence of types of devices", repr(devices)))
    for device in given:
        if device not in DEVICES:
            raise ValueError(expected(where, "devices", f"name {' or '.join(map(repr, DEVICES))}", repr(device)))
    return tuple(dict.fromkeys(given))


def _enter(devices: Sequence[str]) -> None:
    """Registers the kernels of each device that has no entry yet, and counts an entry for each device."""
    done: list[str] = []
    with _lock:
        try:
            for device in devices:
                if not _entries[device]:
                    _open(device)
                _entries[device] += 1
                done.append(device)
        except BaseException:
            _count_out(done)
            raise


def _leave(devices: Sequence[str]) -> None:
    """Removes one entry of each device, and the kernels of a device without entries."""
    with _lock:
        _count_out(devices)


def _count_out(devices: Sequence[str]) -> None:
    for device in devices:
        _entries[device] -= 1
        if not _entries[device]:
            _remove(device)
            if (end := _watches.pop(device, None)) is not None:
                end()


def _open(device: str) -> None:
    """Registers the kernels of a device, unless the calls before were on few elements, and watches the sizes of calls.

    Raises:
        MissingDependencyError: PyTorch sees a GPU, and CuPy is missing.
    """
    if device == "cuda" and not torch.backends.cuda.is_built():
        return
    if device == "cuda" and torch.cuda.is_available():
        toolchain.cupy()
    sizes = _sizes.get(device)
    if sizes is None or sizes.least != LEAST[device]:
        sizes = _sizes[device] = Sizes(device, LEAST[device], partial(_change, device))
    if sizes.wanted:
        _register(device)
    if sizes.least:
        _watches[device] = watch(sizes.see)


def _change(device: str) -> None:
    """Registers or removes the kernels of a device inside a block, as the sizes of the calls say."""
    with _lock:
        # Another thread may have changed the decision since the call.
        wanted = _sizes[device].wanted
        if _entries[device] and wanted != (device in _libraries and device not in _unused):
            (_register if wanted else _remove)(device)


def _register(device: str) -> None:
    """Registers the kernels of a device with PyTorch's dispatcher, if they are not."""
    _unused.pop(device, None)
    if device in _libraries:
        return
    key = device.upper()
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    library = torch.library.Library("aten", "IMPL")
    _registered[device] = []
    try:
        with _without_the_warning():
            for name, make in OVERRIDES[device].items():
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                    continue  # this build of PyTorch computes the operator by other operators, which autograd records
                own = partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed, keys)
                # In PyTorch 2.11, an override of an override is an error otherwise.
                library.impl(name, _for_many(device, make(own), own), key, allow_override=True)
                _registered[device].append(torch.library.get_kernel(f"aten::{name}", key))
    except BaseException:
        library._destroy()
        raise
    _libraries[device] = library


def _remove(device: str) -> None:
    """Removes the kernels of a device: at once, or in a later call if other threads may be calling them."""
    if device in _libraries:
        _unused[device] = threading.get_ident(), time.monotonic()
        _remove_if_quiet(device)


def _remove_if_quiet(device: str) -> None:
    own, now = threading.get_ident(), time.monotonic()
    # Autograd computes gradients in threads that Python has not started, while the thread that asks for them waits.
    running = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
    if own not in running or any(map(_computes_gradients, running - {own})):
        return
    caller, since = _unused[device]
    if caller != own:
        since = now
        _unused[device] = own, since
    if running == {own} or now - since >= _QUIET:
        del _unused[device]
        while _removed and now - _removed[0][0] > _KEPT:
            _removed.popleft()
        _removed.append((now, _registered.pop(device)))
        _libraries.pop(device)._destroy()


def _computes_gradients(thread: int | None) -> bool:
    """Returns whether a thread of Python is inside of autograd's engine."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not _ENGINE:
        frame = frame.f_back
    return frame is not None


def _see_unused(device: str) -> None:
    """Takes note of a call of kernels that are not wanted any more, and removes them if no other thread calls them."""
    if _lock.acquire(blocking=False):
        try:
            if device in _unused:
                _remove_if_quiet(device)
        finally:
            _lock.release()


def _for_many(device: str, ours: Kernel, own: Kernel) -> Kernel:
    """Returns the kernel that calls ``own`` for few elements and outside of blocks, and ``ours`` for many."""

    def kernel(x: Any, *args: Any, **options: Any) -> Any:
        if device in _unused:
            _see_unused(device)
            return own(x, *args, **options)
        sizes = _sizes[device]
        return (own if sizes.least and sizes.is_few(x) else ours)(x, *args, **options)

    return kernel


@contextmanager
def _without_the_warning() -> Iterator[None]:
    """Hides PyTorch's warning that a kernel is overridden, and no other warning.

    PyTorch gives this warning once a process. While ``set_warn_always`` is on, PyTorch does not count a warning as
    given, so that a later override of the user's own still warns.
    """
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            yield
    finally:
        torch.set_warn_always(always)
