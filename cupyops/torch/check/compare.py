"""How far a result may be from another, and the words for one that is further away."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .registry import Fault

__all__ = ["Results", "assert_close", "assert_same_bits", "error_in_eps", "least_allowed"]

# Outputs ("output 0") and gradients ("gradient of x") by name. A gradient that is None is left out.
Results = Mapping[str, Tensor]

# In eps of the dtype: what any correct kernel reaches. Arithmetic in float32 that is rounded once to 16 bits is good to
# half an eps, and to one after a double rounding; in the wider types a few operations each add one, and what cancels
# multiplies them. A formula that is wrong is off by thousands.
_LEAST = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 16.0, torch.float64: 64.0}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def least_allowed(dtype: torch.dtype) -> float:
    """The error in eps that is always allowed; 0 for integers."""
    return _LEAST.get(dtype, 0.0)


def error_in_eps(got: Tensor, exact: Tensor) -> float:
    """max |got - exact| / (|exact| + rms(exact)), in units of the eps of got's dtype; of integers, 0 or inf.

    The mean stands beside each value because a difference of larger terms cannot keep its relative error. Where the
    exact value is not finite in got's dtype, got has to be the same: NaN, or that infinity; else the error is infinite.
    """
    return _worst(got, exact)[0]


def _worst(got: Tensor, exact: Tensor) -> tuple[float, int]:
    """The error, and where in the flattened tensors it is."""
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
    """The largest error, in eps.

    Args:
        what: of which call, for the message.
        allowed: by name, the error in eps; by default what any correct kernel reaches.
        than: what ``wanted`` is, for the message.

    Raises:
        Fault: another shape or dtype, or an error beyond what is allowed, or a result that is missing.
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
    """The same names, dtypes, shapes and bits (NaN equals NaN, -0 does not equal 0).

    Raises:
        Fault: they differ.
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
