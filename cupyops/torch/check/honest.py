"""Checks that an operator computes its result anew in each call, and leaves the process as it was.

A kernel written to pass a test can keep results by address or by shape, patch a clock or a comparison, or change a
setting that later code reads. These checks call the operator in ways that expose such a kernel.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cupyops.launch import recording as launches

from .compare import assert_same_bits
from .inputs import Arguments, fresh, tensors_in
from .nearby import Refused, holds
from .registry import Fault, check
from .subject import Subject

__all__ = ["side_effects", "storage"]


@check(
    "Compute the results from the arguments in each call. Keep no result by the address, the shape or the number of calls.",
    needs=("values",),
    compares="reference",
)
def storage(subject: Subject) -> str:
    """New values in the same storage give new results, and equal values at other addresses give equal results."""
    tried = 0
    for dtype, args in subject.one_each:
        given = tuple(x.detach() if isinstance(x, Tensor) else x for x in fresh(args))
        first = {name: y.clone() for name, y in subject.outputs(fresh(given)).items()}
        kept = [fresh(given) for _ in range(3)]  # all alive, so that each has an address of its own
        for copy in kept:
            assert_same_bits(f"{dtype}, at a new address", subject.outputs(copy), first, "the first call gives")
        for what, change in _CHANGES.items():
            if subject.mutated or not _write(given, change):
                continue
            where = f"{dtype}, {what} in the same storage"
            got = {name: y.clone() for name, y in subject.outputs(given).items()}
            assert_same_bits(where, got, subject.outputs(fresh(given)), "a call with a copy gives")
            if subject.op.reference is not None:
                with contextlib.suppress(Refused):
                    holds(subject, where, fresh(given), gradients=False)
            tried += 1
    return subject.told(tried, "changes of samples")


# Values of the sample in another order, and with another sum: a result may be kept by an element or by a checksum.
_CHANGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "other values": lambda x: x.roll(1) * 0.75 if x.is_floating_point() else x.roll(1),
    "further values": lambda x: x.flip(0) * 0.5 if x.is_floating_point() else x.flip(0),
}


def _write(args: Arguments, change: Callable[[Tensor], Tensor]) -> bool:
    """Writes other values into the tensors of a sample. Returns whether there are elements."""
    with torch.no_grad():
        for i in tensors_in(args):
            args[i].copy_(change(args[i].flatten()).reshape(args[i].shape))
    return any(args[i].numel() for i in tensors_in(args))


@check(
    "Leave no thread running, patch no function, and restore each setting before the call returns.",
    compares="",
)
def side_effects(subject: Subject) -> str:
    """A call leaves no thread, no patched function and no changed setting behind, and its results are plain tensors."""
    dtype, args = subject.one_each[0]
    subject.outputs(fresh(args))  # what a first call sets up, such as a compiler's pool, may stay
    threads = set(threading.enumerate())
    with launches.recorded() as record:
        outputs = subject.outputs(fresh(args))
    for name, y in outputs.items():
        if type(y) is not Tensor:
            raise Fault(
                f"{dtype}: {name} is a {type(y).__name__}, which may compute its elements later: return a plain tensor"
            )
    if left := [t.name for t in threading.enumerate() if t not in threads and t.is_alive()]:
        raise Fault(f"{dtype}: the call leaves a thread running: {', '.join(left)}")
    now = _functions()
    if changed := [
        name for name, function in _AT_IMPORT.items() if now[name] is not function and _is_foreign(now[name])
    ]:
        raise Fault(f"{dtype}: the call, or an earlier one, replaces {', '.join(changed)}")
    _hold_settings(subject, dtype, args)
    names = dict.fromkeys(launch.kernel.name for launch in record)
    ran = f"{len(record)} launches of {', '.join(names)}" if names else "no launch of a kernel"
    return f"{ran}; {len(now)} functions and {len(_SETTINGS)} settings stay"


def _functions() -> dict[str, Any]:
    """Returns the functions by which a result or a time is judged, by name."""
    of: list[tuple[Any, str, str]] = [
        (time, "time", "perf_counter perf_counter_ns time time_ns monotonic process_time"),
        (torch, "torch", "allclose isclose equal empty empty_like zeros zeros_like ones randn rand manual_seed"),
        (torch.testing, "torch.testing", "assert_close"),
        (torch.cuda, "torch.cuda", "synchronize Event Stream current_stream stream"),
        (torch.cuda.Event, "torch.cuda.Event", "record elapsed_time synchronize"),
        (Tensor, "torch.Tensor", "allclose equal __eq__ item copy_ clone cpu to"),
    ]
    return {f"{path}.{name}": getattr(owner, name) for owner, path, names in of for name in names.split()}


_AT_IMPORT = _functions()
_OF_PYTORCH = os.path.dirname(torch.__file__)


def _is_foreign(function: Any) -> bool:
    """Returns whether a function is not PyTorch's own. PyTorch replaces some of its functions when Dynamo is imported."""
    code = getattr(function, "__code__", None)
    return code is None or not code.co_filename.startswith(_OF_PYTORCH)


@dataclass(frozen=True)
class _Setting:
    """A setting of the process that later code reads, how to change it, and two values of it."""

    get: Callable[[], Any]
    set: Callable[[Any], object]
    values: tuple[Any, Any]


def _flag(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), (False, True))


_SETTINGS: dict[str, _Setting] = {
    "the default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64)),
    "the number of threads": _Setting(torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "the precision of float32 products": _Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high")
    ),
    "reduced precision of float16 sums": _flag(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "reduced precision of bfloat16 sums": _flag(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "TF32 in cuDNN": _flag(torch.backends.cudnn, "allow_tf32"),
    "cuDNN's benchmark mode": _flag(torch.backends.cudnn, "benchmark"),
    "flushing of denormals": _Setting(
        lambda: bool((torch.tensor([1e-39]) * 1.0 == 0).item()), torch.set_flush_denormal, (False, True)
    ),
    "the seed of PyTorch's generator": _Setting(torch.initial_seed, torch.manual_seed, (97, 98)),
    "the recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit, (4001, 4002)),
}


def _hold_settings(subject: Subject, dtype: str, args: Arguments) -> None:
    """Raises if a call changes a setting, whichever of two values the setting has."""
    before = {name: setting.get() for name, setting in _SETTINGS.items()}
    streams = _current(subject)
    try:
        for which in (0, 1):
            for setting in _SETTINGS.values():
                setting.set(setting.values[which])
            given = {name: setting.get() for name, setting in _SETTINGS.items()}
            subject.outputs(fresh(args))
            after = {name: setting.get() for name, setting in _SETTINGS.items()}
            if other := [f"{name} from {given[name]} to {now}" for name, now in after.items() if now != given[name]]:
                raise Fault(f"{dtype}: the call changes {'; '.join(other)}")
    finally:
        for name, setting in _SETTINGS.items():
            setting.set(before[name])
    if _current(subject) != streams:
        raise Fault(f"{dtype}: the call leaves another device or stream current")


def _current(subject: Subject) -> tuple[int, int]:
    """Returns the current device and stream of the GPU."""
    if subject.backend != "cuda":
        return 0, 0
    return torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream
