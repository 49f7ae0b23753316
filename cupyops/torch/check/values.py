"""Checks of an operator's values and gradients, in every dtype."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from .compare import assert_close, error_in_eps, least_allowed
from .inputs import Arguments, form_of, fresh, lead_of, moved_on, tensors_in
from .nearby import Refused, filled, holds
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject, first_words, quiet, refuses_gradient

__all__ = [
    *(
        "Target",
        "common",
        "inplace",
        "data",
        "gradcheck",
        "gradgradcheck",
        "gradients",
        "numbers",
        "recompute",
        "special_values",
        "subsets",
        "target",
        "values",
        "written",
    ),
]

# With at most this many elements, gradcheck differentiates by each element; with more, along random directions.
FEW = 64
# All subsets of at most this many inputs are tried; with more inputs, each input alone and all inputs.
MANY_INPUTS = 4
# A tensor with few elements is tried with this many groups of special points, one after the other.
MOST_POINTS = 4
# The numbers of the first sample are all varied; of the other samples and dtypes together, so many values are tried.
MOST_EXTRA_NUMBERS = 60


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


def _doubled(args: Arguments) -> Arguments:
    return tuple(
        x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in args
    )


@dataclass(frozen=True)
class Target:
    """The right results and the allowed errors.

    Attributes:
        exact: the results in float64, by name.
        allowed: the allowed error in eps, by name.
        than: names the source of `exact`, in messages.
    """

    exact: Mapping[str, Tensor]
    allowed: Mapping[str, float]
    than: str


def target(subject: Subject, args: Arguments, got: Mapping[str, Tensor], seeds: Mapping[str, Tensor]) -> Target:
    """Returns the right results in float64, and the allowed errors.

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
        exact = subject.results(_doubled(args), subject.reference, wanted=wanted, seeds=wide)
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
    """Holds results to the bound of :func:`values`, and notes the greatest error of the dtype."""
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
    """A result that common= declares changes with no input as long as what it follows from stays the same."""
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


@check(
    "Look at comparisons, clamps and divisions in the kernel: a comparison with NaN is false, and inf - inf and 0·inf "
    "are NaN. If finite values differ: look at the cases that the kernel has for them.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def special_values(subject: Subject) -> str:
    """NaN and inf are where the reference has them, also for huge inputs; 0, ±1 and the like give its values."""
    reference, tried = subject.reference, 0
    for dtype, args in subject.each:
        for i in tensors_in(args):
            if args[i].is_floating_point() and args[i].numel() and i not in subject.mutated:
                for what, x in _at_points(args[i]):
                    changed = (*fresh(args[:i]), x.requires_grad_(args[i].requires_grad), *fresh(args[i + 1 :]))
                    with contextlib.suppress(Refused):
                        holds(subject, f"{dtype}, with {what} in `{subject.schema[i].name}`", changed)
                        tried += 1
    for dtype, args in subject.each:
        lead = lead_of(args)
        if not lead.is_floating_point() or not lead.numel():
            continue
        info = torch.finfo(lead.dtype)
        tiny = info.smallest_normal / 4
        special = [
            (lead, value) for value in (math.nan, math.inf, -math.inf, 0.0, -0.0, tiny, -tiny, info.max, info.min)
        ]
        others = [x for x in args if isinstance(x, Tensor) and x is not lead and x.is_floating_point() and x.numel()]
        # A derivative at inf may be its limit, where that of the reference is NaN.
        special += [(x, math.nan) for x in others]
        for given, value in special:
            at = next(i for i, x in enumerate(args) if x is given)
            other = given.detach().clone(memory_format=torch.contiguous_format)
            other.view(-1)[given.numel() // 2] = value
            changed = (*fresh(args[:at]), other, *fresh(args[at + 1 :]))
            got = subject.outputs(changed)
            same = subject.outputs(changed, reference)
            exact = subject.outputs(_doubled(changed), reference)
            for name, x in got.items():
                if not x.dtype.is_floating_point:
                    continue
                kinds = [_kind(y) for y in (x, same[name].to(x.dtype), exact[name].to(x.dtype))]
                strange = (kinds[0] != kinds[1]) & (kinds[0] != kinds[2])
                if math.isfinite(value):  # where the reference overflows, the operator's terms may, or need not
                    strange &= (kinds[1] == 0) & (kinds[2] == 0)
                if bool(strange.any()):
                    place = tuple(int(j) for j in strange.nonzero()[0])
                    raise Fault(
                        f"{dtype}: with {value} as element {given.numel() // 2} of `{subject.schema[at].name}`, {name}"
                        f"{list(place)} is {x[place].item()}, and the reference gives {same[name][place].item()}"
                    )
                tried += 1
    if not tried:
        raise Skip("the samples have no floating elements")
    return subject.told(tried, "results")


def _at_points(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensor with elements at which functions often have a case of their own."""
    info = torch.finfo(x.dtype)
    powers = [2.0**k for k in (-8, -4, -2, -1, 1, 2, 3, 4, 8)]
    points = [0.0, 1.0, -1.0, -0.0, *powers, *(-p for p in powers)]
    points += [sign * n for n in (3.0, 5.0, 6.0, 7.0, 9.0, 10.0) for sign in (1, -1)]
    points += [sign * y for y in (info.smallest_normal, info.smallest_normal / 4) for sign in (1, -1)]
    yield from _placed(x, points, "0, ±1, powers of 2 and integers")
    # Apart from the others, whose errors would be small beside these: the ends of integers, and of consecutive ones.
    # None in float16, in which sums of products of them are beyond the range.
    large = [sign * 2.0**k for k in (15, 16, 24, 31, 32, 53, 63, 64) for sign in (1, -1) if 2.0**k <= info.max / 4096]
    if large:
        yield from _placed(x, large, "large powers of 2")
    yield "0 as every element", torch.zeros_like(x, memory_format=torch.contiguous_format)
    yield "1 as every element", torch.ones_like(x, memory_format=torch.contiguous_format)


def _placed(x: Tensor, points: list[float], what: str) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensor with the points as elements, in groups if it has fewer elements."""
    step, count = max(1, x.numel() // len(points)), min(x.numel(), len(points))
    for first in range(0, len(points), count):
        some = points[first : first + count]
        mixed = x.detach().clone(memory_format=torch.contiguous_format)
        mixed.view(-1)[: step * len(some) : step] = torch.tensor(some, dtype=x.dtype, device=x.device)
        yield f"{what} as every {_ordinal(step)} element", mixed
        if first >= MOST_POINTS * count:
            return


def _ordinal(n: int) -> str:
    return {1: "single", 2: "second", 3: "third"}.get(n, f"{n}th")


def _kind(x: Tensor) -> Tensor:
    """Returns 0 for finite numbers, 1 for inf, 2 for -inf, and 3 for NaN."""
    return x.isposinf().int() + 2 * x.isneginf().int() + 3 * x.isnan().int()


def _scalar_function(subject: Subject, args: Arguments) -> tuple[Any, list[Tensor]]:
    """Returns the operator as a function of the tensors to differentiate by, and these tensors as leaves."""
    names = list(subject.need_gradients(args))
    wanted = subject.wanted(args)

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for i, x in zip(wanted, leaves, strict=True):
            full[i] = x
        outputs = subject.call(full)
        return tuple(outputs) if len(outputs) == 1 else tuple(outputs[int(n.partition(" ")[2])] for n in names)

    return function, [args[i].detach().clone().requires_grad_() for i in wanted]


def _gradcheck(subject: Subject, of: Any) -> str:
    samples = subject.of_dtype("float64")
    counted = 0
    for args in samples:
        function, leaves = _scalar_function(subject, args)
        elements = sum(x.numel() for x in leaves)
        try:
            with quiet():
                of(function, leaves, fast_mode=elements > FEW, nondet_tol=0.0)
        except RuntimeError as error:  # GradcheckError and errors of a backward are RuntimeErrors
            if of is torch.autograd.gradgradcheck and refuses_gradient(error):
                raise Skip(f"the operator has no second derivative: {first_words(error)}") from None
            raise Fault(" ".join(str(error).split())) from error
        counted += elements
    return f"{len(samples)} samples, {counted} elements"


@check(
    "Look at the backward's algebra: it is not the derivative of the forward. If an input has no gradient on purpose, "
    "set requires_grad on the other tensors of the sample.",
    needs=("gradients",),
)
def gradcheck(subject: Subject) -> str:
    """The gradients are the finite differences of the forward, in float64, also with undefined incoming gradients."""
    return _gradcheck(subject, torch.autograd.gradcheck)


@check(
    "Let the backward call operators, not kernels, and save inputs rather than what was computed from them. An "
    "operator without a torch.autograd.Function differentiates its reference.",
    needs=("gradcheck",),
)
def gradgradcheck(subject: Subject) -> str:
    """The second derivatives are the finite differences of the gradients, in float64."""
    return _gradcheck(subject, torch.autograd.gradgradcheck)


@check(
    "Have the backward read ctx.needs_input_grad, return None where it is False, and accept None as the gradient of an "
    "unused output.",
    needs=("gradients",),
)
def subsets(subject: Subject) -> str:
    """Gradients by each subset of the inputs, and of each output alone, equal the gradients of a full backward."""
    tried = 0
    for args in subject.samples:
        ready = subject.need_gradients(args)
        positions = subject.wanted(args)
        sizes = range(1, len(positions) + 1) if len(positions) <= MANY_INPUTS else (1, len(positions))
        every = subject.results(fresh(args))
        for some in chain.from_iterable(combinations(positions, size) for size in sizes):
            names = [subject.schema[i].name for i in some]
            try:
                got = subject.results(fresh(args), wanted=some)
            except Exception as error:
                raise Fault(f"with gradients wanted by {', '.join(names)} alone: {first_words(error)}") from error
            wanted = {n: x for n, x in every.items() if n.removeprefix("gradient of ") in names}
            assert_close(f"gradients wanted by {', '.join(names)} alone", got, wanted, than="a full backward gives")
            tried += 1
        for name in ready:
            seeds = {n: torch.zeros_like(g) if n != name else g for n, g in subject.seeds(ready).items()}
            zeros = subject.results(fresh(args), seeds=seeds)
            try:
                got = subject.results(fresh(args), seeds={name: seeds[name]})
            except Exception as error:
                raise Fault(f"with {name} alone in use: {first_words(error)}") from error
            for n, x in zeros.items():  # a missing gradient is zero
                if n.startswith("gradient") and (n in got or bool(x.any())):
                    assert_close(f"{name} alone in use", got, {n: x}, than="zeros as the other gradients give")
            tried += 1
    return f"{tried} subsets"


@check(
    "Have kernel and backward use the argument as the reference does. If the operator does not take the value, raise "
    "ValueError in the body.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def numbers(subject: Subject) -> str:
    """Other values of numbers, flags, texts, lists and optional arguments give the results of the reference."""
    subject.reference  # noqa: B018 (skips the check where there is none)
    refused, tried, known, extra = list[str](), 0, set[str](), 0
    first = subject.of_dtype(subject.one_dtype)
    for dtype, number, sample in _most_telling_first(subject):
        for i, argument in enumerate(subject.schema):
            others = [] if i in tensors_in(sample) else [args[i] for args in first]
            for value in subject.other_values(i, sample[i], others):
                args = (*sample[:i], value, *sample[i + 1 :])
                # Samples that differ in this argument alone would repeat the calls of one another.
                leading = sample is first[0]
                if (form := form_of(args)) in known or (not leading and extra >= MOST_EXTRA_NUMBERS):
                    continue
                known.add(form)
                extra += not leading
                what = f"{dtype}, {f'sample {number + 1}, ' * bool(number)}with {argument.name}={value!r}"
                try:
                    holds(subject, what, args)
                    if leading:  # other tensors: an operator may keep what belongs to the value
                        holds(subject, f"{what} and other data", moved_on(args, 1))
                    tried += 1
                except Refused:
                    refused.append(f"{argument.name}={value!r}")
    refused = [*dict.fromkeys(refused)]
    if not tried:
        raise Skip(f"the operator takes no other values{' than given: ' * bool(refused)}{', '.join(refused)}")
    with contextlib.suppress(Refused):
        holds(subject, f"{subject.one_dtype}, as given, after calls with other values", first[0])
    return f"{tried} values{'; not comparable: ' * bool(refused)}{', '.join(refused)}"


def _most_telling_first(subject: Subject) -> list[tuple[str, int, Arguments]]:
    """Returns dtype, number and arguments of the samples: of one dtype first, and of each dtype the first sample first."""
    numbers = dict[str, int]()
    found = list[tuple[str, int, Arguments]]()
    for dtype, args in subject.variants:
        numbers[dtype] = numbers.get(dtype, -1) + 1
        found.append((dtype, numbers[dtype], args))
    return sorted(found, key=lambda one: (one[0] != subject.one_dtype, one[1]))


@check(
    "Have the kernel read every input, for large and small values, too.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def data(subject: Subject) -> str:
    """Other data in each floating tensor, large and small, give the results of the reference."""
    subject.reference  # noqa: B018 (skips the check where there is none)
    tried = 0
    for args in subject.of_dtype(subject.one_dtype):
        for i in tensors_in(args):
            if not args[i].is_floating_point() or not args[i].numel() or i in subject.mutated:
                continue
            for what, x in _other_data(args[i].detach()):
                given = (*fresh(args[:i]), x.requires_grad_(args[i].requires_grad), *fresh(args[i + 1 :]))
                with contextlib.suppress(Refused):
                    holds(subject, f"{subject.one_dtype}, {what} in `{subject.schema[i].name}`", given)
                    tried += 1
    if not tried:
        raise Skip("the samples have no floating elements")
    return f"{tried} tensors of {subject.one_dtype}"


def _other_data(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields other values for a tensor, which are not negative if those of the sample are not."""
    generator = torch.Generator().manual_seed(20240301)
    other = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype)
    other = other.abs() if bool((x >= 0).all()) else other
    yield "other data", other
    yield "large data", 1024 * other
    yield "small data", other / 1024
