"""The function :func:`score`: whether a module computes the same as another, and how much faster."""

import contextlib
import copy
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from cupyops.errors import expected
from cupyops.launch import recording as launches
from cupyops.launch.debug import debug_mode
from cupyops.torch.check.report import Report, Row
from cupyops.torch.check.run import check_op
from cupyops.torch.core.operator import Operator

from .timing import EventTimer, Spread, Timer, faster_than_memory, host_timer, interleave, l2_bytes, rotation

__all__ = ["Score", "score"]

HONEST = ("returned", "inputs_kept", "written", "values", "storage", "side_effects")
"""The checks of :func:`cupyops.torch.check_op` that a module is held to. They call it with the shapes and the alignment that it is
for."""
# The checks after the times.
LAST = ("values", "data")
# Factor on the error that `values` allows. Another order of a sum, with more rounding than PyTorch's, is not a fault.
TOLERANCE = 16.0
SAMPLES = 25
_names = itertools.count()


@dataclass(frozen=True)
class Score:
    """What :func:`score` found.

    Attributes:
        report: the checks. ``report.failed`` has the faults.
        microseconds: the time of a call of each module, as ``"reference"`` and ``"candidate"``; empty if they were not timed.
    """

    report: Report = field(repr=False)
    microseconds: Mapping[str, Spread]

    @property
    def correct(self) -> bool:
        """Whether ``values`` passed, and no check failed."""
        return not self.report.failed and any(row.check == "values" for row in self.report.passed)

    @property
    def speedup(self) -> float:
        """The median of the reference divided by that of the candidate; 0 if it is not correct, NaN if it was not timed."""
        if not self.correct:
            return 0.0
        us = self.microseconds
        return us["reference"].median / us["candidate"].median if us else float("nan")

    def __str__(self) -> str:
        if not self.correct:
            rows = self.report.failed or self.report.skipped
            return "not correct: " + "; ".join(f"{row.check}: {row.words}" for row in rows)
        if not self.microseconds:
            return f"correct by {len(self.report.passed)} checks, not timed"
        times = ", ".join(f"{name} {us.median:.1f} µs" for name, us in self.microseconds.items())
        return f"correct by {len(self.report.passed)} checks, {self.speedup:.2f} × as fast ({times})"


def score(
    reference: nn.Module | type[nn.Module],
    candidate: nn.Module | type[nn.Module],
    get_inputs: Callable[[], Sequence[Any]],
    get_init_inputs: Callable[[], Sequence[Any]] = list,
    *,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 42,
    trials: int = 2,
    tolerance: float = TOLERANCE,
    timed: bool = True,
) -> Score:
    """Scores a module against a reference, such as the ``ModelNew`` that a program wrote for a ``Model``. Prints
    nothing.

    The candidate becomes the body of an operator with the reference, and passes checks of :func:`cupyops.torch.check_op`
    (:data:`HONEST`): right values to within the rounding of the reference, and a result that is computed anew in each call,
    from the arguments, without a trace in the process. Gradients are not checked. On a CPU, kernels run in the simulator, under the
    sanitizers.

    Then both are timed in turns, on copies of the inputs that together exceed the GPU's cache, until all streams are done. On a CPU,
    modules that launch kernels are not timed. After the times the values are checked again, and with other, large and small data,
    on a GPU in debug mode: a module may compute the first calls alone, or write outside its results. A candidate that takes less time than
    the GPU's memory needs for operands and results is not correct.

    A candidate whose equal calls differ, such as one that adds by atomics in any order, is not correct.

    Args:
        reference: the module that is right, or its class.
        candidate: the module to score, or its class.
        get_inputs: returns the arguments of a call: tensors and numbers.
        get_init_inputs: returns the arguments of both classes.
        device: where both run; by default the current GPU if PyTorch sees one, else the CPU.
        dtype: of the floating parameters and inputs.
        seed: set before each class is called, so that both draw equal parameters, and before the inputs.
        trials: how many inputs are drawn and checked.
        tolerance: factor on the error that ``values`` allows.
        timed: whether correct modules are timed.

    Raises:
        TypeError: a module or a function is none, ``get_inputs`` returns no list or tuple, an argument of a call is neither a tensor nor a
            number, or the reference returns something else than tensors, in
            tuples, lists and dicts. Exceptions of the reference and of the classes propagate; an exception of the
            candidate's calls is a fault.
        ValueError: ``trials`` is less than 1.

    >>> ours = nn.Sequential(nn.Flatten(), nn.GELU())
    >>> found = score(nn.GELU, ours, lambda: [torch.randn(5, 7)], device="cpu")
    >>> found.correct, score(nn.GELU, nn.SiLU, lambda: [torch.randn(5, 7)], device="cpu").speedup
    (True, 0.0)
    """
    if trials < 1:
        raise ValueError(expected("score", "trials", "be at least 1", trials))
    for name, module in {"reference": reference, "candidate": candidate}.items():
        if not (issubclass(module, nn.Module) if isinstance(module, type) else isinstance(module, nn.Module)):
            raise TypeError(expected("score", name, "be a module or its class", repr(module)))
    for name, function in {"get_inputs": get_inputs, "get_init_inputs": get_init_inputs}.items():
        if not callable(function):
            raise TypeError(expected("score", name, "be a function", repr(function)))
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def made(module: nn.Module | type[nn.Module]) -> nn.Module:
        torch.manual_seed(seed)
        new = module(*get_init_inputs()) if isinstance(module, type) else copy.deepcopy(module)
        return new.to(where, dtype).requires_grad_(False)

    def drawn(number: int) -> tuple[Any, ...]:
        torch.manual_seed(seed + number)
        inputs = get_inputs()
        if not isinstance(inputs, list | tuple):
            raise TypeError(expected("score", "get_inputs", "return a list of arguments", type(inputs).__name__))
        return tuple(_placed(x, where, dtype) for x in inputs)

    with torch.random.fork_rng([where] if where.type == "cuda" else []):
        right, ours = made(reference), made(candidate)
        samples = [drawn(number) for number in range(trials)]
    op = _operator(right, ours, samples[0], dtype)
    report = _checked(op, samples, HONEST, dtype, tolerance)
    found = Score(report, {})
    if not found.correct:
        return found
    times, nbytes = _timed({"reference": right, "candidate": ours}, samples[0], where) if timed else ({}, 0)
    with debug_mode(where.type == "cuda"):
        last = _checked(op, samples[:1], LAST, dtype, tolerance)
    rows = (*report.rows, *last.rows)
    if where.type == "cuda" and (words := faster_than_memory(times, nbytes, where).get("candidate")):
        rows += (Row("bandwidth", "cuda", "failed", f"the candidate {words}", "Compute the result in each call."),)
    found = Score(replace(report, rows=rows), times)
    return found if found.correct else replace(found, microseconds={})


def _placed(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if isinstance(x, Tensor):
        return x.to(device, dtype if x.is_floating_point() else x.dtype)
    if type(x) not in (bool, int, float):
        raise TypeError(expected("score", "get_inputs", "return tensors and numbers", type(x).__name__))
    return x


def _operator(right: nn.Module, ours: nn.Module, sample: tuple[Any, ...], dtype: torch.dtype) -> Operator:
    """Returns an operator whose body is the forward of one module, and whose reference is that of another."""
    names = {bool: "bool", int: "int", float: "float"}
    kinds = ["Tensor" if isinstance(x, Tensor) else names[type(x)] for x in sample]
    with torch.no_grad():
        like, form = tree_flatten(right(*sample))
    if not like or not all(isinstance(y, Tensor) for y in like):
        kinds = sorted({type(y).__name__ for y in like}) or ["nothing"]
        raise TypeError(expected("score", "reference", "return tensors", ", ".join(kinds)))
    copies: dict[Any, nn.Module] = {}

    def flat(results: Any, args: Sequence[Any]) -> Any:
        """Returns the tensors of a result. One that shares memory with an argument, or with one before it, is copied."""
        leaves, found = tree_flatten(results)
        if found != form or not all(isinstance(y, Tensor) for y in leaves):
            what = f"{type(results).__name__}, {found}"
            raise TypeError(f"the candidate returns {what}, and the reference {form}, where each * is a tensor")
        seen = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        for i, y in enumerate(leaves):
            if y.untyped_storage().data_ptr() in seen:
                leaves[i] = y.clone()
            seen.add(leaves[i].untyped_storage().data_ptr())
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def reference(*args: Any) -> Any:
        # The checks call it in float64, too, and on a CPU.
        tensors = [x for x in args if isinstance(x, Tensor)]
        key = tensors[0].device, next((x.dtype for x in tensors if x.is_floating_point()), dtype)
        if key not in copies:
            copies[key] = copy.deepcopy(right).to(*key)
        return flat(copies[key](*args), args)

    def body(*args: Any) -> Any:
        if all(type(x) is Tensor for x in args if isinstance(x, Tensor)):
            return flat(ours(*args), args)
        # A fake tensor, from which a gradient is declared: a module must not keep it. The checks change no shapes.
        made = tuple(torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in like)
        return made[0] if len(made) == 1 else made

    results = ", ".join("Tensor" for _ in like)
    arguments = ", ".join(f"{kind} x{i}" for i, kind in enumerate(kinds))
    return Operator(f"cupyops_score::candidate{next(_names)}({arguments}) -> ({results})", body, reference=reference)


def _checked(
    op: Operator, samples: list[tuple[Any, ...]], checks: Sequence[str], dtype: torch.dtype, tolerance: float
) -> Report:
    on_gpu = any(isinstance(x, Tensor) and x.is_cuda for x in samples[0])
    with contextlib.redirect_stdout(io.StringIO()):
        return check_op(
            op,
            samples,
            checks=checks,
            raises=False,
            backends=["cuda" if on_gpu else "simulator"],
            dtypes=dtype,
            tolerance=tolerance,
        )


def _timed(
    calls: Mapping[str, nn.Module], sample: tuple[Any, ...], device: torch.device
) -> tuple[Mapping[str, Spread], int]:
    """Returns the times of the modules, sampled in turns, and the bytes of operands and results; no times if the modules cannot run on
    the device."""
    timers: dict[str, Timer] = {}
    nbytes = 0
    with torch.no_grad():
        if device.type != "cuda":
            with contextlib.suppress(Exception), launches.recorded() as record:
                for call in calls.values():
                    call(*sample)
                if not record:
                    timers = {name: host_timer(partial(call, *sample), device) for name, call in calls.items()}
        else:
            tensors = (*sample, *tree_leaves(calls["reference"](*sample)))
            nbytes = sum(x.nbytes for x in tensors if isinstance(x, Tensor))
            count = min(
                rotation(nbytes, l2_bytes(device)), max(2, torch.cuda.mem_get_info(device)[0] // (4 * nbytes + 1))
            )
            sets = [tuple(x.clone() if isinstance(x, Tensor) else x for x in sample) for _ in range(count)]
            timers = {
                name: EventTimer([partial(call, *args) for args in sets], all_streams=True)
                for name, call in calls.items()
            }
        for timer in timers.values():
            timer.calibrate()
        return interleave(timers, SAMPLES) if timers else {}, nbytes
