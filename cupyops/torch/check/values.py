"""Checks of an operator's values and gradients, in every dtype."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .compare import assert_close, error_in_eps, least_allowed
from .inputs import Arguments, doubled, fresh
from .nearby import filled
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject

__all__ = ["Target", "common", "gradients", "inplace", "recompute", "target", "values", "written"]


def _fill_of(x: Tensor) -> Tensor:
    """Returns a mask of the elements that have the value with which :func:`filled` fills memory."""
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return x.isnan()
    return x if x.dtype == torch.bool else x == torch.iinfo(x.dtype).max


@check(
    "Have the kernel write every element: look at the bound of its last block or tail. If the kernel adds to its "
    "output, allocate the output with zeros.",
    backends=KERNEL_BACKENDS,
    ground=True,
    compares="",
)
def written(subject: Subject) -> str:
    """Outputs and gradients do not depend on the previous content of their memory."""
    for dtype, args in subject.variants:
        plain = subject.results(fresh(args))
        # The allocator reuses freed memory: most likely, elements that the next call does not write are zeros.
        zeros = [torch.zeros_like(x) for x in plain.values()]
        del plain, zeros
        plain = subject.results(fresh(args))
        with filled():
            again = subject.results(fresh(args))
        for name, x in again.items():
            if not x.is_meta and name in plain:
                left = _fill_of(x) & ~_fill_of(plain[name])
                if bool(left.any()):
                    first = [int(i) for i in left.nonzero()[0]]
                    raise Fault(
                        f"{dtype}: {int(left.sum())} of {x.numel()} elements of {name} still hold what was in memory "
                        f"before, or were computed from it; the first is {first} of {list(x.shape)}"
                    )
    return subject.told(len(subject.variants), "samples")


@dataclass(frozen=True)
class Target:
    """The correct results and the allowed errors.

    Attributes:
        exact: the results in float64, by name.
        allowed: the allowed error in eps, by name.
        than: names the source of `exact`, in messages.
    """

    exact: Mapping[str, Tensor]
    allowed: Mapping[str, float]
    than: str


def target(subject: Subject, args: Arguments, got: Mapping[str, Tensor], seeds: Mapping[str, Tensor]) -> Target:
    """Returns the correct results in float64, and the allowed errors.

    The allowed error is 2 × (error of the reference in the dtype + half an eps), and at least :func:`least_allowed`.

    Raises:
        Skip: there is no reference, and the operator refuses float64.
        Fault: a result has another dtype than the reference's result.
    """
    wide = {name: g.double() for name, g in seeds.items()}
    wanted, theirs = subject.wanted(args), {}
    if subject.op.reference is None:
        exact, than = subject.results(subject.widened(args), seeds=wide), "in float64 the operator itself gives"
    else:
        exact = subject.results(doubled(args), subject.reference, wanted=wanted, seeds=wide)
        theirs, than = _reference_in_dtype(subject, args, seeds), "the reference in float64 gives"
    allowed = {}
    for name, x in got.items():
        if name in theirs and x.dtype != theirs[name].dtype:
            raise Fault(
                f"{name} has dtype {x.dtype}, and the reference gives {theirs[name].dtype}",
                "Allocate the output in the dtype that the reference returns, or let the reference return the body's.",
            )
        own = error_in_eps(theirs[name], exact[name]) if name in theirs and name in exact else 0.0
        least = least_allowed(x.dtype)
        allowed[name] = subject.tolerance * max(least, 2 * (own + 0.5) if math.isfinite(own) else least)
    return Target({name: x for name, x in exact.items() if name in got}, allowed, than)


def _compare(subject: Subject, dtype: str, args: Arguments, keep: str) -> float:
    """Returns the largest error of the results whose names begin with ``keep``, in eps, measured against float64."""
    seeds = subject.seeds(subject.differentiable(fresh(args)) if keep == "gradient" else {})
    found = subject.results(fresh(args), seeds=seeds) if seeds else subject.outputs(fresh(args))
    got = {name: x for name, x in found.items() if name.startswith(keep)}
    right = target(subject, args, got, seeds)
    return assert_close(dtype, got, right.exact, right.allowed, right.than)


def _reference_in_dtype(subject: Subject, args: Arguments, seeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the reference's results in the arguments' dtypes, or nothing if PyTorch does not implement the dtype."""
    try:
        return subject.results(fresh(args), subject.reference, wanted=subject.wanted(args), seeds=seeds)
    except RuntimeError as error:
        if "not implemented for" in str(error):
            return {}
        raise


def _told(subject: Subject, errors: Mapping[str, float]) -> str:
    beside = (
        "the reference" if subject.op.reference is not None else "the operator itself, since there is no reference,"
    )
    found = ", ".join(f"{dtype} {error:.2g}" for dtype, error in errors.items())
    refused = f"; refused: {', '.join(subject.refused)}" if subject.refused else ""
    return f"largest error in eps beside {beside} in float64: {found}{refused}"


def _all_dtypes(subject: Subject, keep: str) -> str:
    variants = subject.variants
    for name in subject.dtypes or ():
        if name in subject.refused:
            raise Fault(
                f"{name} is refused: {subject.refused[name]}",
                "Add the dtype to the kernel's dtypes, or remove it from `dtypes`.",
            )
    errors: dict[str, float] = {}
    for dtype, args in variants:
        errors[dtype] = max(errors.get(dtype, 0.0), _compare(subject, dtype, args, keep))
    return _told(subject, errors)


@check(
    "Look at the formula first. Then compute in acc_t, and round once when the result is stored.",
    backends=KERNEL_BACKENDS,
    compares="reference",
)
def values(subject: Subject) -> str:
    """The outputs have at most twice the error of the reference in the same dtype, measured against float64."""
    return _all_dtypes(subject, "output")


def _hold(
    subject: Subject, errors: dict[str, float], dtype: str, how: str, args: Arguments, got: dict[str, Tensor]
) -> None:
    """Compares results with the bound of :func:`values`, and records the greatest error of the dtype."""
    right = target(subject, args, got, {})
    error = assert_close(f"{dtype}, {how}", got, right.exact, right.allowed, right.than)
    errors[dtype] = max(errors.get(dtype, 0.0), error)


@check(
    "Have the function of `recompute=` compute the first result as the kernel does, in the dtype of the arithmetic, and "
    "round once.",
    backends=KERNEL_BACKENDS,
    needs=("values",),
    compares="reference",
)
def recompute(subject: Subject) -> str:
    """The function of recompute= gives the first result, with at most the error that the check of values allows."""
    again = subject.op._recomputation
    if again is None:
        raise Skip("the operator does not declare recompute=")
    errors: dict[str, float] = {}
    for dtype, args in subject.variants:
        outputs = subject.outputs(fresh(args))
        name = next(iter(outputs))
        values = {a.name: a.default_value for a in subject.schema if a.has_default_value()}
        values |= dict(zip(again.inputs, fresh(args), strict=False))  # arguments with a default may be left out
        values |= dict(zip(again.results, outputs.values(), strict=True))
        with torch.no_grad():
            got = {name: again.function(*(values[x] for x in again.names))}
        _hold(subject, errors, dtype, "recomputed", args, got)
    return _told(subject, errors)


@check(
    "Have the body of `inplace=` write the first result over the first argument, and return the other results.",
    backends=KERNEL_BACKENDS,
    needs=("values",),
    compares="reference",
)
def inplace(subject: Subject) -> str:
    """The operator of inplace= gives all results, with at most the error that the check of values allows."""
    form = subject.op.inplace
    if form is None:
        raise Skip("the operator does not declare inplace=")
    errors: dict[str, float] = {}
    for dtype, args in subject.variants:
        outputs, given = subject.outputs(fresh(args)), fresh(args)
        first, name = given[0], next(iter(outputs))
        if (first.shape, first.dtype) != (outputs[name].shape, outputs[name].dtype):
            continue
        with torch.no_grad():
            found = form.call(*given)
        others = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
        got = dict(zip(outputs, [first, *others], strict=True))
        _hold(subject, errors, dtype, "in place", args, got)
    if not errors:
        raise Skip("the first argument of no sample has the shape and the dtype of the first result")
    return _told(subject, errors)


@check(
    "Name in `common=` each input and result from which the result follows.",
    backends=KERNEL_BACKENDS,
    needs=("values",),
    compares="reference",
)
def common(subject: Subject) -> str:
    """A result that common= declares stays the same while the values that it is computed from stay the same."""
    declared = subject.op._common
    if declared is None:
        raise Skip("the operator does not declare common=")

    def results(args: Arguments) -> dict[str, Tensor]:
        return dict(zip(declared.results, subject.outputs(args).values(), strict=True))

    for dtype, args in subject.variants:
        before = results(fresh(args))
        for place, argument in enumerate(subject.schema[: len(args)]):
            given = args[place]
            if not isinstance(given, float) and not (isinstance(given, Tensor) and given.is_floating_point()):
                continue
            others = list(fresh(args))
            others[place] = 2 * (given.detach() if isinstance(given, Tensor) else given) + 1
            try:
                after = results(tuple(others))
            except ValueError:  # the operator does not take this value
                continue
            same = {name for name, x in before.items() if torch.allclose(x, after[name], 0, 0, equal_nan=True)}
            for result, (_, *read) in declared.computations.items():
                if result not in same and argument.name not in read and set(read) & {*before} <= same:
                    raise Fault(f"{dtype}: `{result}` changes with `{argument.name}`, which `common` does not name")
    return f"of other inputs independent: {', '.join(declared.computations)}"


@check(
    "Look at the backward's algebra, and at the saved tensors: save the forward's unchanged inputs, or its output.",
    backends=KERNEL_BACKENDS,
    needs=("values",),
    compares="reference",
)
def gradients(subject: Subject) -> str:
    """The gradients have at most twice the error of the reference's in the same dtype, measured against float64."""
    subject.need_gradients(subject.samples[0])
    return _all_dtypes(subject, "gradient")
