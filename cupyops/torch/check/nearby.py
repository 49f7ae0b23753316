"""Compares an operator with its reference at arguments other than the sample's: the reference decides what is right."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cupyops.errors import LaunchError

from .compare import least_allowed
from .failures import does_not_compile, first_words
from .inputs import Arguments, fresh
from .registry import Fault
from .subject import Subject

__all__ = ["Refused", "filled", "holds"]

# Factor on the least allowed error. These comparisons look for results that are wrong, and not for the last digits.
SLACK = 16.0
# Changed inputs show how much roundings of the inputs change a result, and whether the function has a step or a kink.
NUDGES = 4
# A step of the function is larger than this part of the results; the effect of a rounding is smaller.
STEP = 0.01
# A result that is smaller than this part of the inputs may be a sum that cancels.
CANCELLED = 2.0**-6


class Refused(Exception):
    """Raised where arguments cannot be compared: the reference or the operator does not take them."""


@contextmanager
def filled() -> Iterator[None]:
    """Makes ``torch.empty`` and similar functions fill memory with NaN, or an integer's largest value, in the block."""
    import warnings

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


def _wide(args: Arguments, change: Callable[[Tensor], Tensor] = lambda x: x) -> Arguments:
    return tuple(change(x.detach().double()) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)


def holds(subject: Subject, what: str, args: Arguments, *, gradients: bool = True) -> None:
    """Raises unless the operator's results at these arguments equal the reference's, in its dtype or in float64.

    At a kink, such as that of abs at 0, a derivative may have any value between those on both sides, since PyTorch
    and a kernel may choose different ones. Elements that the reference itself computes with a large
    error in the dtype are not compared.

    Raises:
        Refused: the reference or the operator does not take the arguments, or the reference gives NaN.
        Fault: a result has another shape, or an element is neither near the reference's in the dtype nor in float64.
    """
    wanted = subject.wanted(args) if gradients else []

    def of_reference(given: Arguments) -> dict[str, Tensor]:
        return subject.results(fresh(given), subject.reference, wanted=wanted, seeds=seeds)

    seeds: Any = None
    try:
        if subject.backend == "cuda":
            # An index out of bounds is an error on a CPU. On a GPU it ends the process's use of the GPU.
            subject.outputs(tuple(x.cpu() if isinstance(x, Tensor) else x for x in args), subject.reference)
        same = of_reference(args)
        outputs = {n: x for n, x in same.items() if n in subject.taken}
        seeds = subject.seeds(outputs)
        same = of_reference(args)
        seeds = {name: g.double() for name, g in seeds.items()}
        exact = of_reference(_wide(args))
    except Exception as error:
        raise Refused(f"the reference: {first_words(error)}") from error
    if any(bool(x.isnan().any()) for x in exact.values() if x.is_floating_point()):
        raise Refused("the reference gives NaN")
    seeds = {name: g.to(same[name].dtype) for name, g in seeds.items()}
    try:
        with filled():
            got = subject.results(fresh(args), wanted=wanted, seeds=seeds)
    except LaunchError as error:
        raise Fault(f"{what}: {first_words(error)}, and the reference takes these arguments") from error
    except Exception as error:
        if does_not_compile(error):
            raise
        _same_shapes(subject, what, args, same)  # results of another shape would make PyTorch refuse the gradient
        raise Refused(first_words(error)) from error
    nudged: list[dict[str, Tensor]] = []
    for name, x in got.items():
        if name not in exact:
            continue
        right, theirs = exact[name], same[name]
        _same_shape(what, name, x, theirs)
        # The terms of a result may cancel for all inputs, as those of the gradient of a norm of two elements do.
        of_gradient = [*seeds.values()] if name.startswith("gradient") else []
        terms = [y for y in (*args, *of_gradient) if isinstance(y, Tensor) and y.is_floating_point() and y.numel()]
        least = CANCELLED * max((float(y.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) for y in terms), default=0.0)
        if not x.numel() or (off := wrong(x, theirs, right, subject.tolerance, least)) is None:
            continue
        if x.dtype.is_floating_point:
            if not nudged:
                seeds = {n: g.double() for n, g in seeds.items()}
                nudged = [of_reference(_wide(args, _nudge(x.dtype, i))) for i in range(NUDGES)]
            off = off & ~_within(x, right, [near[name] for near in nudged], name.startswith("gradient"))
        if bool(off.any()):
            at = tuple(int(i) for i in off.nonzero()[0])
            raise Fault(
                f"{what}: {name}{list(at)} is {x[at].item()!r}, and the reference gives {theirs[at].item()!r}"
                f"{'' if theirs.dtype == right.dtype else f', and in float64 {right[at].item()!r}'}"
            )


def _same_shape(what: str, name: str, got: Tensor, right: Tensor) -> None:
    if got.shape != right.shape:
        raise Fault(f"{what}: {name} has shape {tuple(got.shape)}, and the reference gives {tuple(right.shape)}")


def _same_shapes(subject: Subject, what: str, args: Arguments, right: Mapping[str, Tensor]) -> None:
    """Raises if the operator gives results without a gradient, and one has another shape than the reference's."""
    try:
        found = subject.outputs(fresh(args))
    except Exception:
        return
    for name, x in found.items():
        if name in right:
            _same_shape(what, name, x, right[name])


def wrong(got: Tensor, same: Tensor, exact: Tensor, tolerance: float, least: float) -> Tensor | None:
    """Returns a mask of the elements that are near neither of the reference's results; None if there is none.

    Args:
        least: the least size of values beside which an error is measured.
    """
    same, exact = same.to(got.device), exact.to(got.device)
    if not got.dtype.is_floating_point:
        off = (got != same) & (got != exact.to(got.dtype))
        return off if bool(off.any()) else None
    limit = SLACK * tolerance * least_allowed(got.dtype) * torch.finfo(got.dtype).eps
    off = ~(_near(got, same, limit, least) | _near(got, exact, limit, least))
    # Where the reference itself loses its digits in the dtype, or leaves its range, the operator may as well.
    doubtful = exact.isfinite() & ~_near(same.to(got.dtype), exact, max(limit, STEP), least)
    # A result beyond the range of the dtype may have terms beyond it, whose difference is NaN.
    doubtful |= exact.isfinite() & ~exact.to(got.dtype).isfinite() & ~got.isfinite()
    # Where terms cancel, roundings of the terms are larger than those of the result.
    own = (same.double() - exact.double()).abs().masked_fill(doubtful, 0.0).nan_to_num(0.0, 0.0, 0.0).amax()
    off &= ~(doubtful | ((got.double() - exact.double()).abs() <= SLACK * own))
    return off if bool(off.any()) else None


def _near(got: Tensor, right: Tensor, limit: float, least: float) -> Tensor:
    rounded = right.to(got.dtype)
    finite = rounded.isfinite()
    alike = (got == rounded) | (got.isnan() & rounded.isnan())
    values = torch.where(finite, right.double(), 0.0)
    off = (got.double() - values).abs()
    return alike | (
        finite & (off <= limit * (values.abs() + _scale(values, finite).clamp(min=least)) + torch.finfo(got.dtype).tiny)
    )


def _scale(values: Tensor, finite: Tensor) -> Tensor:
    """Returns the root mean square, without an overflow."""
    largest = values.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    return largest * (values / largest).square().sum().div(finite.sum().clamp(min=1)).sqrt()


def _nudge(dtype: torch.dtype, number: int) -> Callable[[Tensor], Tensor]:
    eps = torch.finfo(dtype).eps

    def change(x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(number // 2)
        signs = 2 * torch.randint(0, 2, tuple(x.shape), generator=generator).to(x.device).double() - 1
        if number % 2:
            signs = -signs
        finite = x.isfinite()
        values = torch.where(finite, x, 0.0)
        # Zeros move as well: functions have steps and kinks there.
        least = values.abs().clamp(max=1.0).amax() if x.numel() else 0.0
        return torch.where(
            finite, x + eps * signs * torch.maximum(values.abs(), values.new_tensor(float(least) or 1.0)), x
        )

    return change


def _within(got: Tensor, exact: Tensor, nudged: list[Tensor], gradient: bool) -> Tensor:
    """Returns a mask of the elements that roundings of the inputs, a step or a kink explain."""
    values = torch.stack([exact.double(), *(x.double() for x in nudged)])
    low, high = values.amin(0), values.amax(0)
    spread, x = (high - low).nan_to_num(0.0, 0.0, 0.0), got.double()
    scale = exact.double().abs() + _scale(exact.double().nan_to_num(0.0, 0.0, 0.0), exact.isfinite())
    more = torch.where(spread <= STEP * scale, SLACK * spread, 1e-3 * scale)
    if gradient:
        return (x >= low - more) & (x <= high + more)
    return ((x - values).abs() <= more).any(0)
