"""Compares results: the error in eps, the error that is allowed, and the message of a larger error."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .registry import Fault

__all__ = ["Results", "assert_close", "assert_same_bits", "error_in_eps", "least_allowed"]

# Outputs and gradients by name: "output", or "output 0" of several; "gradient of x". A None gradient has no entry.
Results = Mapping[str, Tensor]

# The error that any correct kernel stays below, in eps of the dtype. float32 arithmetic rounded once to 16 bits has an
# error of half an eps, and of one eps after a double rounding. In float32 and float64 each operation adds about one
# eps, and cancellation multiplies the error. The error of a wrong formula is thousands of eps.
_LEAST = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 16.0, torch.float64: 64.0}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def least_allowed(dtype: torch.dtype) -> float:
    """Returns the error in eps that is always allowed for a dtype; 0 for integers."""
    return _LEAST.get(dtype, 0.0)


def error_in_eps(got: Tensor, exact: Tensor) -> float:
    """Returns max |got - exact| / (|exact| + rms(exact)), in units of the eps of got's dtype; for integers, 0 or inf.

    The root mean square is added to the denominator because cancellation leaves small values with a large relative
    error. Where the exact value is NaN or infinite in got's dtype, got must have the same value; otherwise the error is
    infinite.
    """
    return _worst(got, exact)[0]


def _worst(got: Tensor, exact: Tensor) -> tuple[float, int]:
    """Returns the largest error in eps, and its index in the flattened tensors."""
    if not got.numel():
        return 0.0, 0
    got, exact = got.detach().flatten(), exact.detach().to(got.device).flatten()
    if not got.dtype.is_floating_point:
        different = got != exact.to(got.dtype)
        return (math.inf if bool(different.any()) else 0.0), int(different.int().argmax())
    rounded = exact.to(got.dtype)
    finite = rounded.isfinite()
    alike = (got == rounded) | (got.isnan() & rounded.isnan())
    exact = torch.where(finite, exact.double(), 0.0)
    scale = exact.square().sum().div(finite.sum().clamp(min=1)).sqrt()
    relative = (got.double() - exact).abs() / (exact.abs() + scale)
    relative = torch.where(alike, 0.0, torch.where(finite, relative.nan_to_num(nan=math.inf), math.inf))
    at = int(relative.argmax())
    return float(relative[at]) / torch.finfo(got.dtype).eps, at


def assert_close(
    what: str, got: Results, wanted: Results, allowed: Mapping[str, float] | None = None, than: str = "it should be"
) -> float:
    """Raises unless each result in ``got`` is close to the result in ``wanted``; returns the largest error, in eps.

    Args:
        what: names the call, in the message.
        allowed: by name of the result, the allowed error in eps; by default :func:`least_allowed` of the dtype.
        than: names the source of ``wanted``, in the message.

    Raises:
        Fault: a result is missing, or has another shape, or its error is larger than allowed.
    """
    largest = 0.0
    for name, right in wanted.items():
        if name not in got:
            raise Fault(f"{what}: {name} is None, and {than} a tensor")
        found = got[name]
        if found.shape != right.shape:
            raise Fault(f"{what}: {name} has shape {tuple(found.shape)}, and {than} {tuple(right.shape)}")
        error, at = _worst(found, right)
        limit = least_allowed(found.dtype) if allowed is None else allowed[name]
        if not error <= limit:
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), found.shape)) if found.dim() else ()
            raise Fault(
                f"{what}: {name}{list(place)} is {found[place].item()!r}, and {than} {right[place].item()!r}: "
                f"off by {error:.3g} eps of {str(found.dtype).removeprefix('torch.')}, {limit:.3g} are allowed"
            )
        largest = max(largest, error)
    return largest


def assert_same_bits(what: str, got: Results, wanted: Results, than: str) -> None:
    """Raises unless ``got`` has each result of ``wanted`` with the same dtype, shape and bits.

    NaNs with the same bits are equal; -0 and 0 differ.

    Raises:
        Fault: a result differs.
    """
    for name, right in wanted.items():
        found = got.get(name)
        if found is None or (found.shape, found.dtype) != (right.shape, right.dtype):
            raise Fault(f"{what}: {name} is {_kind(found)}, and {than} {_kind(right)}")
        kind = _BITS[found.element_size()]
        different = found.detach().contiguous().view(kind) != right.detach().contiguous().view(kind).to(found.device)
        if bool(different.any()):
            at = tuple(int(i) for i in different.nonzero()[0])
            raise Fault(
                f"{what}: {int(different.sum())} of {different.numel()} elements of {name} differ, the first at "
                f"{list(at)}: {found[at].item()!r}, and {than} {right[at].item()!r}"
            )


def _kind(x: Tensor | None) -> str:
    return "None" if x is None else f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
