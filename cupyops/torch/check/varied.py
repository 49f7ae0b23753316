"""Checks with other values than those of the samples: special numbers, other arguments, other data."""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .inputs import Arguments, doubled, form_of, fresh, lead_of, moved_on, tensors_in
from .nearby import Refused, holds
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject

__all__ = ["data", "numbers", "special_values"]

# A tensor with few elements is tried with this many groups of special points, one after the other.
MOST_POINTS = 4
# The numbers of the first sample are all varied; of the other samples and dtypes together, so many values are tried.
MOST_EXTRA_NUMBERS = 60
# The share of equal elements among integers: enough for several in each warp.
SKEW = 0.75


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
            exact = subject.outputs(doubled(changed), reference)
            for name, x in got.items():
                if not x.dtype.is_floating_point:
                    continue
                kinds = [_kind(y) for y in (x, same[name].to(x.dtype), exact[name].to(x.dtype))]
                strange = (kinds[0] != kinds[1]) & (kinds[0] != kinds[2])
                if math.isfinite(value):  # where the reference overflows, the operator may overflow or not
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
    """Yields the tensor with elements for which functions often have a special case."""
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
    "Have the kernel read every input, for large and small values, too. If equal indices fail: add with atomicAdd, or sort.",
    backends=KERNEL_BACKENDS,
    needs=("values", "gradients"),
    compares="reference",
)
def data(subject: Subject) -> str:
    """Other data in each tensor, also large and small data and repeated integers, give the results of the reference."""
    subject.reference  # noqa: B018 (skips the check where there is none)
    tried = 0
    for args in subject.of_dtype(subject.one_dtype):
        for i in tensors_in(args):
            if not args[i].numel() or i in subject.mutated:
                continue
            for what, x in _other_data(args[i].detach()):
                given = (*fresh(args[:i]), x.requires_grad_(args[i].requires_grad), *fresh(args[i + 1 :]))
                with contextlib.suppress(Refused):
                    holds(subject, f"{subject.one_dtype}, {what} in `{subject.schema[i].name}`", given)
                    tried += 1
    if not tried:
        raise Skip("the samples have no elements of numbers")
    return f"{tried} tensors of {subject.one_dtype}"


def _other_data(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields other values for a tensor, which are not negative if those of the sample are not.

    An integer may be an index, so those of the sample stand for others.
    """
    generator = torch.Generator().manual_seed(20240301)
    if x.dtype.is_floating_point:
        other = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype)
        other = other.abs() if bool((x >= 0).all()) else other
        yield "other data", other
        yield "large data", 2**13 * other
        yield "small data", other / 2**13
        yield "data about 128", other + 128
    elif not x.dtype.is_complex and x.dtype is not torch.bool and x.unique().numel() > 1:
        skewed = torch.rand(x.shape, generator=generator).to(x.device) < SKEW
        yield "one integer in most places", torch.where(skewed, x.flatten()[-1], x)
