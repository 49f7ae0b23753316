"""Which changes of :func:`cupyops.torch.optimize` save time, measured in the model's own step."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cupyops.torch.bench.timing import samples_in_turn, settle, spread, synchronize

__all__ = ["TOGETHER", "Measured", "measured"]

# The name of the last result: all kinds that were kept.
TOGETHER = "together"

# A pass measures each state this often at least and at most, and tries to end within these seconds.
LEAST_SAMPLES, MOST_SAMPLES, SECONDS_OF_A_PASS = 7, 31, 4.0
# A sample takes at least this long, so that the clock and the two waits for the GPU are small beside it.
SAMPLE_SECONDS = 0.02

Classes = Mapping[nn.Module, type[nn.Module]]


@dataclass(frozen=True)
class Measured:
    """The effect of one kind of change on the time of a step, together with the kinds that were kept so far.

    Attributes:
        kind: the operators that the changed modules call.
        before: milliseconds of a step without the change.
        after: milliseconds with it: ``before`` less the median of the differences between samples of one turn.
        noise: milliseconds by which the two may differ by chance: twice the standard error of that median.
        kept: whether the change saves more than the noise, and stays.
    """

    kind: str
    before: float
    after: float
    noise: float
    kept: bool

    def __str__(self) -> str:
        verdict = "kept" if self.kept else "undone"
        return f"{self.kind}: {self.before:.3f} ms without, {self.after:.3f} with, noise {self.noise:.3f}: {verdict}"


def measured(
    model: nn.Module, kinds: Mapping[str, Classes], step: Callable[[], Any], before: Classes
) -> tuple[Measured, ...]:
    """Times a step in turns with all kinds of change and without each of them, and leaves those in place that save time.

    While one of them saves no time, the worst is undone and the others are measured again. The last pass measures all
    that stay
    together: they are undone, too, unless they save time.

    Args:
        model: the changed model.
        kinds: the new classes of the modules, by kind of change.
        step: runs the model as it will be used.
        before: the classes of the modules before any change.

    Returns:
        A result for each kind, and the last one for all that were kept together. Empty if there is no kind.
    """
    kept, found = dict(kinds), []
    timers: dict[frozenset[str], _StepTimer] = {}

    def place(names: frozenset[str]) -> None:
        for classes in (before, *(kinds[name] for name in names)):
            for module, cls in classes.items():
                module.__class__ = cls

    def timer(names: frozenset[str]) -> _StepTimer:
        if names not in timers:
            timers[names] = _StepTimer(step, partial(place, names), _devices(model))
            timers[names].calibrate()
        return timers[names]

    def samples(states: Sequence[frozenset[str]]) -> list[list[float]]:
        chosen = {str(i): timer(state) for i, state in enumerate(states)}
        seconds = sum(one.seconds for one in chosen.values())
        fitting = round(SECONDS_OF_A_PASS / max(seconds, 1e-6))
        rounds = _agreed(min(MOST_SAMPLES, max(LEAST_SAMPLES, fitting)))
        return list(_agreed(samples_in_turn(chosen, rounds)).values())

    with _restored(model):
        while kept:
            every = frozenset(kept)
            names = [*kept]
            whole, *without = samples([every, *(every - {name} for name in names)])
            results = [_compared(name, one, whole) for name, one in zip(names, without, strict=True)]
            worst = min(results, key=lambda one: one.before - one.after - one.noise)
            if worst.kept:
                found += results
                break
            found.append(worst)
            del kept[worst.kind]
        if kept:
            none, whole = samples([frozenset(), frozenset(kept)])
            found.append(_compared(TOGETHER, none, whole))
            if not found[-1].kept:
                kept = {}
    place(frozenset(kept))
    return tuple(found)


def _compared(kind: str, before: Sequence[float], after: Sequence[float]) -> Measured:
    # A machine that slows down for some turns slows both samples of a turn down, and leaves their difference as it is.
    saved = spread([b - a for b, a in zip(before, after, strict=True)])
    # The standard error of a median is 1.25 times that of a mean; 2.56 standard deviations lie between the two percentiles.
    noise = 2 * 1.25 * (saved.p90 - saved.p10) / 2.56 / math.sqrt(saved.samples)
    whole = spread(before).median
    return Measured(kind, whole / 1e3, (whole - saved.median) / 1e3, noise / 1e3, saved.median > noise)


def _devices(model: nn.Module) -> list[torch.device]:
    return sorted({t.device for t in (*model.parameters(), *model.buffers()) if t.is_cuda}, key=str)


def _agreed(value: Any) -> Any:
    """Returns the value of the first process of a distributed run: all processes make the same steps and the same choice."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


class _StepTimer:
    """Times steps of a model in one state, on the host's clock, with the wait for the GPU.

    Args:
        step: the step.
        place: gives the modules the classes of the state.
        devices: the GPUs of the model.

    Attributes:
        seconds: the approximate time of a sample.
    """

    name = "step"

    def __init__(self, step: Callable[[], Any], place: Callable[[], None], devices: Sequence[torch.device]) -> None:
        self._step, self._place, self._devices = step, place, devices
        self._steps, self.seconds = 1, 0.0

    def calibrate(self) -> None:
        """Runs steps until later ones do the same work, and chooses how many make a sample."""
        self._place()
        settle(self._step)
        once = self.sample() / 1e6
        self._steps = _agreed(max(1, math.ceil(SAMPLE_SECONDS / max(once, 1e-9))))
        self.seconds = once * (self._steps + 1)

    def sample(self) -> float:
        """Returns the microseconds of a step."""
        self._place()
        self._step()
        self._wait()
        began = time.perf_counter_ns()
        for _ in range(self._steps):
            self._step()
        self._wait()
        return (time.perf_counter_ns() - began) / self._steps / 1e3

    def _wait(self) -> None:
        for device in self._devices:
            synchronize(device)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Puts parameters, buffers, gradients and the states of random generators back at the end.

    The copies are kept in the host's memory, so that the steps have the GPU's memory that they have without them.
    """

    def copied(tensor: Tensor) -> Tensor:
        return _local(tensor).detach().to("cpu", copy=True)

    tensors = [*model.parameters(), *model.buffers()]
    values = [copied(t) for t in tensors]
    gradients = [(p, p.grad, None if p.grad is None else copied(p.grad)) for p in model.parameters()]
    devices = [device.index for device in _devices(model)]
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                _local(tensor).copy_(value)
            for parameter, gradient, kept in gradients:
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    _local(gradient).copy_(kept)


def _local(tensor: Any) -> Any:
    """Returns the part of a DTensor that this process has, and another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
