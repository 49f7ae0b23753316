"""A model's training step: forward, backward and AdamW, in one of four modes and with one of three kinds of kernels."""

import copy
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.pgo import reset_code_state

from cupyops.torch import Fusions, optimize

from .zoo import Model, Tensors

__all__ = [
    "MODES",
    "MORE_VARIANTS",
    "VARIANTS",
    "Steps",
    "Timing",
    "losses",
    "measure",
    "order",
    "prepared",
    "ratio",
    "rows",
    "timed",
    "variants_of",
]

# "eager" and the compiled modes have bfloat16 parameters; "autocast" has float32 parameters and autocast to bfloat16.
MODES = ("eager", "autocast", "compile", "graphs")
# "again" is a second copy of PyTorch's model: its speedup shows how far two equal variants lie apart.
VARIANTS = ("torch", "again", "optimize", "fusions")
# Of further models: optimize(lazy_logits=True), optimize(step=...), and Liger's layers.
MORE_VARIANTS = ("lazy", "measured", "liger")


def variants_of(mode: str, asked: Sequence[str] = VARIANTS) -> list[str]:
    """Returns the variants that differ in a mode. Fusions compiles models."""
    return [v for v in asked if v != "fusions" or mode in ("compile", "graphs")]


class Steps:
    """A model that takes training steps.

    Args:
        model: the model; it is moved and cast in place.
        loss: (model, inputs) to a loss.
        inputs: moved to the device, and cast where they are floating.
        mode: one of :data:`MODES`, or "float64" for a reference.
        variant: one of :data:`VARIANTS` and :data:`MORE_VARIANTS`.
        lr: learning rate of AdamW.

    Attributes:
        last: the loss of the last step.
        patches: what Liger exchanges (:func:`liger_layers`).
    """

    last: Tensor | None = None

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Tensors], Tensor],
        inputs: Sequence[Tensors],
        device: torch.device,
        mode: str,
        variant: str,
        lr: float = 1e-4,
    ) -> None:
        self.device, self.variant, self.mode, self.loss, self.taken = device, variant, mode, loss, 0
        dtype = {"autocast": torch.float32, "float64": torch.float64}.get(mode, torch.bfloat16)
        self.inputs = [
            {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in given.items()}
            for given in inputs
        ]
        self.model: Any = model.to(device, dtype).train()
        self.patches: list[tuple[Any, str, Any]] = []
        if variant in ("optimize", "lazy"):
            optimize(self.model, lazy_logits=variant == "lazy")
        elif variant == "measured":
            print(optimize(self.model, step=lambda: loss(self.model, self.inputs[0]).backward()), flush=True)
            self.model.zero_grad(set_to_none=True)
        elif variant == "liger":
            self.patches = liger_layers(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=device.type == "cuda")
        self.lower = mode == "autocast"
        if mode in ("compile", "graphs"):
            how: dict[str, Any] = {"mode": "reduce-overhead" if mode == "graphs" else None}
            if variant == "fusions":
                how["backend"] = Fusions()
            elif variant == "again":
                # Dynamo gives two copies of a model one graph, unless their options differ. False is the default.
                named = torch._inductor.list_mode_options("reduce-overhead") if mode == "graphs" else {}
                how = {"options": {**named, "max_autotune": False}}
            self.model = torch.compile(self.model, **how)

    def step(self) -> Tensor:
        """Takes one step on the next inputs, and returns the loss without waiting for it."""
        given = self.inputs[self.taken % len(self.inputs)]
        self.taken += 1
        lower: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if self.lower else nullcontext()
        )
        with lower, patched(self.patches):
            found = self.loss(self.model, given)
            found.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.last = found.detach()
        return self.last

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def liger_layers(model: nn.Module) -> list[tuple[Any, str, Any]]:
    """Gives a model of transformers the layers of Liger, and returns what Liger exchanges in the file of the model for all
    models: (file, name, Liger's function). The file is left as it was, since the other variants use it, too."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    file = sys.modules[type(model).__module__]
    before = dict(vars(file))
    _apply_liger_kernel_to_instance(model=model)
    found = [(file, name, value) for name, value in vars(file).items() if before.get(name) is not value]
    for _, name, _ in found:
        setattr(file, name, before[name])
    return found


@contextmanager
def patched(patches: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Has the functions of :func:`liger_layers` in place."""
    before = [(file, name, getattr(file, name)) for file, name, _ in patches]
    for file, name, value in patches:
        setattr(file, name, value)
    try:
        yield
    finally:
        for file, name, value in before:
            setattr(file, name, value)


@dataclass
class Timing:
    """Milliseconds of one variant's steps.

    Attributes:
        wall: of the timed step of each turn, from an idle GPU to an idle GPU.
        host: of the same steps, until the last launch of the step was queued.
        gpu: the sum of the kernels' times in one step; None without a GPU.
        requested: MiB that a step asks PyTorch's allocator for at its peak, beyond what is held between the steps; None
            without a GPU or with CUDA graphs, which keep their memory.
        peak: the same in blocks of the allocator, which it does not split where less than 1 MiB would remain: which blocks
            are free depends on all allocations before.
        loss: the loss of the last step. All variants take as many steps.
    """

    wall: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    gpu: float | None = None
    requested: float | None = None
    peak: float | None = None
    loss: float | None = None

    def row(self) -> dict[str, Any]:
        """The figures for a results file."""
        ordered = sorted(self.wall)
        return {
            "wall": round(statistics.median(ordered), 4),
            "least": round(ordered[0], 4),
            "p90": round(ordered[int(0.9 * (len(ordered) - 1))], 4),
            "host": round(statistics.median(self.host), 4),
            "gpu": None if self.gpu is None else round(self.gpu, 4),
            "requested_mib": None if self.requested is None else round(self.requested, 1),
            "peak_mib": None if self.peak is None else round(self.peak, 1),
            "loss": self.loss,
            "samples": len(ordered),
        }


def measure(
    model: Model,
    batch: int,
    mode: str,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    warm_up: int = 4,
) -> dict[str, Timing]:
    """Times the steps of a model's variants in turns. See :func:`prepared` and :func:`timed`."""
    return timed(prepared(model, batch, mode, variants, device), rounds, warm_up)


def prepared(model: Model, batch: int, mode: str, variants: Sequence[str], device: torch.device) -> dict[str, Steps]:
    """Returns the variants of a model after a first step, which compiles. They begin with the same weights and take the
    same inputs. The memory of the step is free again: CUDA graphs are recorded in later steps.

    Args:
        batch: samples of a step.
    """
    torch.compiler.reset()  # else the compiled models of earlier measurements count against the limit of recompilations
    generator = torch.Generator().manual_seed(1)
    inputs = [model.draw(batch, generator)]
    torch.manual_seed(0)
    first = model.build()
    built = {v: Steps(copy.deepcopy(first), model.loss, inputs, device, mode, v) for v in variants}
    for steps in built.values():
        # Dynamo makes sizes and strides symbols that differ from those in an earlier call of the same code, and the
        # variants share their code.
        reset_code_state()
        steps.step()
        steps.wait()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return built


def timed(built: dict[str, Steps], rounds: int, warm_up: int = 4) -> dict[str, Timing]:
    """Times the steps of prepared variants in turns.

    Args:
        rounds: turns of each variant.
        warm_up: steps of each variant before the first turn. They allocate memory, and record CUDA graphs.

    A turn is two steps, of which the second is timed. In a training loop, a step finds the host's caches as a step of the
    same model has left them. Dynamo keeps the graphs of all variants by the code of ``forward``, which they share, and
    checks the guards of the graph first that was used last. A turn is no longer than that: a machine that slows down for
    a moment should slow the turns of all variants down.

    Python's collector of garbage runs between the turns, and leaves out what exists before the first turn: a collection
    takes as long as a small step.
    """
    timings = {v: Timing() for v in built}
    for steps in built.values():
        for _ in range(warm_up):
            steps.step()
        steps.wait()
    gc.collect()
    gc.freeze()
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            for v in order(list(built), number):
                gc.collect()
                wall, host = _turn(built[v])
                timings[v].wall.append(wall)
                timings[v].host.append(host)
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
    for v, steps in built.items():
        timings[v].loss = None if steps.last is None else float(steps.last)
        if steps.device.type == "cuda":
            if steps.mode != "graphs":
                timings[v].requested, timings[v].peak = _peaks(steps)
            timings[v].gpu = _kernel_time(steps)
    return timings


def _turn(steps: Steps) -> tuple[float, float]:
    """Takes two steps, and returns the times of the second in ms: until the GPU was idle, and until all was queued."""
    steps.step()
    steps.wait()
    began = time.perf_counter()
    steps.step()
    queued = time.perf_counter()
    steps.wait()
    ended = time.perf_counter()
    return (ended - began) * 1e3, (queued - began) * 1e3


def order(names: Sequence[str], number: int) -> list[str]:
    """Returns the order of the variants in a round.

    A turn may slow the next one down, so the rounds are a Williams design: in 2n rounds of n variants, each variant has
    each place in a round twice, and follows each other variant equally often. The first order is 0, 1, n-1, 2, n-2, ...:
    the steps between neighbours, 1, -2, 3, -4, ... modulo n, differ if n is even. The next orders add 1 to each number,
    so that each variant takes part in each of the steps. If n is odd, each step has its opposite in the reversed orders.
    Source: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949.
    """
    count = len(names)
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    turns = [names[(place + number // 2) % count] for place in zigzag]
    return turns[::-1] if number % 2 else turns


def rows(timings: Mapping[str, Timing]) -> dict[str, dict[str, Any]]:
    """Returns the figures for a results file by variant. A variant other than PyTorch's has a speedup, too.

    The speedup is the ratio of PyTorch's step times to the variant's; "speedup_low" and "speedup_high" are its limits
    (:func:`ratio`).
    """
    found = {v: timing.row() for v, timing in timings.items()}
    for v, timing in timings.items():
        if v != "torch" and "torch" in timings:
            middle, low, high = ratio(timings["torch"].wall, timing.wall)
            found[v] |= {"speedup": middle, "speedup_low": low, "speedup_high": high}
    return found


def ratio(times: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median of the ratios of two variants' times, round by round, and its limits.

    A machine that slows down for a moment slows both turns of a round down. The limits are those of a 95 % confidence
    interval of the median, for independent rounds.
    """
    ratios = sorted(a / b for a, b in zip(times, others, strict=True))
    low, high = _limits(len(ratios))
    return round(statistics.median(ratios), 4), round(ratios[low], 4), round(ratios[high], 4)


def _limits(count: int) -> tuple[int, int]:
    """Returns the places, among sorted numbers, of the limits of their median.

    The number of the values below the median of the distribution is binomial, with the mean count/2. The numbers below
    ``low`` and above ``high`` have a probability of at most 2.5 % each.
    """
    below, low = 0.0, 0
    while low < count // 2:
        below += math.comb(count, low) / 2**count
        if below > 0.025:
            break
        low += 1
    low = max(low - 1, 0)
    return low, count - 1 - low


def _peaks(steps: Steps) -> tuple[float, float]:
    """Returns the MiB that a step asks for at its peak, and those of the allocator's blocks."""
    steps.wait()
    torch.cuda.reset_peak_memory_stats(steps.device)
    before = torch.cuda.memory_stats(steps.device)
    steps.step()
    steps.wait()
    after = torch.cuda.memory_stats(steps.device)
    kinds = ("requested_bytes", "allocated_bytes")
    asked, blocks = ((after[f"{k}.all.peak"] - before[f"{k}.all.current"]) / 2**20 for k in kinds)
    return asked, blocks


def _kernel_time(steps: Steps) -> float:
    from torch.profiler import ProfilerActivity, profile

    steps.wait()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        steps.step()
        steps.wait()
    on_gpu = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.time_range.elapsed_us() for e in on_gpu) / 1e3


def losses(
    model: Model, batch: int, variants: Sequence[str], device: torch.device, count: int
) -> dict[str, dict[str, float]]:
    """Returns how far the losses of `count` steps lie from those of float64, by variant.

    Each variant starts from the same weights, rounded to bfloat16, and runs in eager mode on the same inputs. The
    float64 run starts from the rounded weights, too.

    Returns:
        by variant, "distance": the mean of |loss - loss in float64| over the steps, and "last": the last loss; also for
        "float64".
    """
    generator = torch.Generator().manual_seed(2)
    inputs = [model.draw(batch, generator) for _ in range(4)]
    torch.manual_seed(0)
    first = model.build().to(torch.bfloat16)
    found: dict[str, Tensor] = {}
    for v in ("float64", *variants):
        mode, variant = ("float64", "torch") if v == "float64" else ("eager", v)
        steps = Steps(copy.deepcopy(first), model.loss, inputs, device, mode, variant)
        found[v] = torch.stack([steps.step() for _ in range(count)]).double().cpu()
        del steps
    exact = found["float64"]
    return {v: {"distance": float((x - exact).abs().mean()), "last": float(x[-1])} for v, x in found.items()}
