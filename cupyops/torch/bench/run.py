"""Times an operator and other implementations of it, and reports the bounds of their speed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cupyops.compile import toolchain
from cupyops.compile.compiler import binary_for, target_for
from cupyops.errors import expected
from cupyops.launch import recording as launches
from cupyops.torch.check.compare import error_in_eps, least_allowed
from cupyops.torch.check.failures import first_words
from cupyops.torch.check.inputs import Arguments, fresh, tensors_in
from cupyops.torch.check.run import operator_of, samples_of
from cupyops.torch.check.subject import Subject

from .report import BenchReport, BenchRow, KernelFacts
from .timing import (
    EventTimer,
    GraphTimer,
    Spread,
    Timer,
    copy_bandwidth,
    faster_than_memory,
    gigabytes_per_second,
    interleave,
    l2_bytes,
    repeatable_backward,
    rotation,
    synchronize,
)

__all__ = ["OtherResults", "bench_op"]

ROUNDS = 15
OURS = "this operator"
NO_GPU = "PyTorch sees no GPU here, and times in the simulator do not predict times on a GPU"
# A peer computes something else if its error is larger than this factor times the error of any correct kernel.
_OTHER_RESULTS = 64.0
# The sets of inputs take at most 1 / _PART_OF_MEMORY of the free memory: results and gradients need memory as well.
_PART_OF_MEMORY = 4


def bench_op(
    op: Any,
    inputs: Any,
    peers: Mapping[str, Callable[..., Any]] | None = None,
    *,
    backward: bool = True,
    rounds: int = ROUNDS,
) -> BenchReport:
    """Times an operator on a GPU compared with its peers, prints a table, and returns the report.

    ::

        report = bench_op(swiglu, (a, b), {"compile": torch.compile(reference)})
        report.roofline("swiglu.svg")

    Forward calls are captured in a CUDA graph, and replays are timed between two CUDA events after a warm-up. Calls
    rotate through sets of inputs that are larger than the L2 cache together. The implementations are timed in turn, and
    the report has median, 10th and 90th percentile of ``rounds`` samples. Backward calls, and forward calls that a CUDA
    graph cannot capture, run eagerly between two events. A peer with other results is not timed; the report names the
    peer and the reason. Without a GPU nothing is timed, and the report says so.

    Args:
        op: a :class:`cupyops.torch.Operator`, or a function whose attribute ``op`` is one.
        inputs: a tuple of the operator's arguments on a GPU, or a list of tuples, such as several sizes and dtypes.
        peers: other implementations by name, functions of the same arguments; by default the operator's reference.
        backward: whether to time the backward as well, if the operator has one.
        rounds: samples per implementation.

    Raises:
        ValueError: the machine has a GPU, and the inputs are not all on one GPU; or the inputs do not fit the schema.
        TypeError: ``op`` is not an operator, ``inputs`` is neither a tuple nor a list of tuples, or a peer is not callable.
        RuntimeError: the operator takes less time than the GPU's memory needs for its operands and results, and a peer does not.
    """
    operator = operator_of(op, "bench_op")
    samples = samples_of(operator, inputs, "bench_op", "inputs")
    if not torch.cuda.is_available():
        # Scripts that call bench_op should run on any machine, and a CPU's time would be misleading.
        nothing = BenchReport(str(operator.op._schema), "no GPU", math.nan, math.nan, (), (), ((OURS, NO_GPU),))
        print(nothing)
        return nothing
    device = _device(samples)
    if peers is None:
        peers = {} if operator.reference is None else {"reference": operator.reference}
    for name, peer in peers.items():
        if not callable(peer):
            raise TypeError(
                expected("bench_op", f"peers[{name!r}]", "be a function of the arguments", type(peer).__name__)
            )
    implementations = {OURS: operator.call, **peers}
    rows: list[BenchRow] = []
    used: list[KernelFacts] = []
    skipped: dict[tuple[str, str], None] = {}
    with torch.cuda.device(device), repeatable_backward():
        copy = copy_bandwidth(device)[0].median
        launch = _launch_time(device)
        for args in samples:
            subject = Subject(operator, [args], "cuda")
            used += _kernels(subject, args, device, backward)
            for direction in (
                ("forward", "backward") if backward and subject.differentiable(fresh(args)) else ("forward",)
            ):
                measured = _measure(subject, args, direction, implementations, rounds, device, skipped)
                rows += [_row(args, direction, found, copy) for found in measured]
    facts = {k.what: k for k in used}.values()
    machine = torch.cuda.get_device_name(device)
    report = BenchReport(str(operator.op._schema), machine, copy, launch, tuple(rows), tuple(facts), tuple(skipped))
    print(report)
    return report


def _device(samples: Sequence[Arguments]) -> torch.device:
    """Returns the GPU of all tensors.

    Raises:
        ValueError: a tensor is on the CPU, or the tensors are on several GPUs.
    """
    found = {args[i].device for args in samples for i in tensors_in(args)}
    if len(found) == 1 and (device := next(iter(found))).type == "cuda":
        return device
    where = " and ".join(sorted(map(str, found)))
    raise ValueError(expected("bench_op", "inputs", "be on one CUDA device", where))


def _launch_time(device: torch.device) -> float:
    """Returns the microseconds of a kernel over one element, in a CUDA graph of such kernels."""
    one = torch.zeros(1, device=device)
    timer = GraphTimer([partial(one.add_, 1)] * 64, torch.cuda.graph_pool_handle())
    timer.calibrate()
    return interleave({"launch": timer}, 5)["launch"].median


def _label(args: Arguments) -> str:
    tensors = [args[i] for i in tensors_in(args)]
    words = [f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in tensors]
    return ", ".join(f"{words.count(w)} × {w}" if words.count(w) > 1 else w for w in dict.fromkeys(words))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


Call = Callable[[], Any]


@dataclass(frozen=True)
class _Found:
    """The timing of one implementation by :func:`_measure`."""

    implementation: str
    microseconds: Spread
    nbytes: int
    timer: str
    sets: int


def _row(args: Arguments, direction: str, found: _Found, copy: float) -> BenchRow:
    share = gigabytes_per_second(found.nbytes, found.microseconds.median) / copy
    return BenchRow(
        _label(args), direction, found.implementation, found.microseconds, found.nbytes, share, found.timer, found.sets
    )


def _measure(
    subject: Subject,
    args: Arguments,
    direction: str,
    implementations: Mapping[str, Callable[..., Any]],
    rounds: int,
    device: torch.device,
    skipped: dict[tuple[str, str], None],
) -> list[_Found]:
    """Times all implementations in one direction; skips an implementation that fails or computes something else."""
    ours = subject.results(fresh(args)) if direction == "backward" else subject.outputs(fresh(args))
    given = _bytes([args[i] for i in tensors_in(args)])
    if direction == "forward":
        nbytes = given + _bytes(list(ours.values()))
    else:
        gradients = [x for name, x in ours.items() if name.startswith("gradient")]
        nbytes = given + _bytes(gradients) + _bytes(list(subject.differentiable(fresh(args)).values()))
    room = torch.cuda.mem_get_info(device)[0] // _PART_OF_MEMORY // max(nbytes, 1)
    sets = max(1, min(rotation(nbytes, l2_bytes(device)), room))
    inputs = [fresh(args) for _ in range(sets)]
    pool = torch.cuda.graph_pool_handle()
    timers: dict[str, Timer] = {}
    for name, function in implementations.items():
        try:
            if name != OURS:
                _assert_agrees(subject, args, direction, function, ours)
            calls = [_call(subject, x, direction, function) for x in inputs]
            timer = _timer(calls, direction, pool, device)
            timer.calibrate()
            timers[name] = timer
        except Exception as error:
            if name == OURS:
                raise
            skipped[f"{name}, {direction}", first_words(error)] = None
            synchronize(device)  # raises again if the GPU is lost to this process
    spreads = interleave(timers, rounds)
    for name, words in faster_than_memory(spreads, nbytes, device).items():
        if name == OURS:
            raise FasterThanMemory(f"bench_op: {subject.op.qualified_name}, {direction}, {words}")
        skipped[f"{name}, {direction}", f"FasterThanMemory: it {words}"] = None
        del timers[name]
    return [_Found(name, spreads[name], nbytes, timer.name, sets) for name, timer in timers.items()]


class FasterThanMemory(RuntimeError):
    """Raised for an operator that takes less time than the GPU's memory needs for its operands and results, unlike a peer."""


class OtherResults(RuntimeError):
    """Raised when a peer's results differ from the operator's results."""


def _assert_agrees(
    subject: Subject, args: Arguments, direction: str, function: Callable[..., Any], ours: Mapping[str, Tensor]
) -> None:
    theirs = (
        subject.results(fresh(args), function, wanted=subject.wanted(args))
        if direction == "backward"
        else subject.outputs(fresh(args), function)
    )
    if direction == "backward":
        gradients = [name for name in ours if name.startswith("gradient")]
        if missing := [name for name in gradients if name not in theirs]:
            raise OtherResults(f"it gives no {missing[0]}")
        pairs = [(ours[name], theirs[name]) for name in gradients]
    else:  # a peer may return only the first outputs
        pairs = list(zip(ours.values(), theirs.values(), strict=False))
    for x, y in pairs:
        allowed = max(least_allowed(x.dtype), least_allowed(y.dtype)) * _OTHER_RESULTS
        if x.shape != y.shape or not (error := error_in_eps(y, x.to(torch.float64))) <= allowed:
            off = f"shape {tuple(y.shape)}" if x.shape != y.shape else f"results that are off by {error:.3g} eps"
            raise OtherResults(f"it gives {off}")


def _call(subject: Subject, args: Arguments, direction: str, function: Callable[..., Any]) -> Call:
    plain = tuple(x.detach() if isinstance(x, Tensor) else x for x in args)
    if direction == "forward":
        return partial(_without_gradients, function, plain)
    wanted = subject.wanted(args)
    leaves = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(args)]
    with torch.enable_grad():
        found = function(*leaves)
    outputs = [y for y in ([found] if isinstance(found, Tensor) else found) if y.requires_grad]
    seeds = [torch.randn_like(y) for y in outputs]
    by = [leaves[i] for i in wanted]
    return partial(torch.autograd.grad, outputs, by, seeds, retain_graph=True, allow_unused=True)


def _without_gradients(function: Callable[..., Any], args: Arguments) -> Any:
    with torch.no_grad():
        return function(*args)


def _timer(calls: Sequence[Call], direction: str, pool: Any, device: torch.device) -> Timer:
    for call in calls[:3]:  # compilation and tuning happen in the first calls, outside the timing
        call()
    synchronize(device)
    if direction == "backward":
        return EventTimer(calls)
    try:
        timer = GraphTimer(calls, pool)
    except RuntimeError:
        synchronize(device)
        return EventTimer(calls)
    timer.outputs = []
    return timer


def _kernels(subject: Subject, args: Arguments, device: torch.device, backward: bool) -> list[KernelFacts]:
    """Returns the kernels that one forward and one backward launch, with their resources and occupancy."""
    with launches.recorded() as record:
        if backward:
            subject.results(fresh(args))
        else:
            subject.outputs(fresh(args))
    last = {launch.kernel.describe(launch.types): launch for launch in record}
    counts = [launch.kernel.describe(launch.types) for launch in record]
    return [_facts(what, counts.count(what), launch, device) for what, launch in last.items()]


def _facts(what: str, count: int, launch: launches.Launch, device: torch.device) -> KernelFacts:
    kernel = launch.kernel
    gpu = toolchain.cupy().cuda.Device(device.index)
    binary = binary_for(kernel.final_text(launch.types), what, target_for(int(gpu.compute_capability)), kernel.options)
    registers, spilled = binary.resources.get(kernel.source.named(binary), (None, None))
    variant = kernel.variant(launch.types, launch.device)
    room = gpu.attributes["MultiProcessorCount"] * gpu.attributes["MaxThreadsPerMultiProcessor"]
    occupancy = variant.resident_blocks(launch.device) * math.prod(variant.threads) / room
    return KernelFacts(what, count, launch.grid, variant.threads, registers, spilled, occupancy)
