"""The allowed error of a result: twice the error of PyTorch's own operator, plus one rounding."""

import torch
from torch import Tensor

# bits of the significand, and the exponent of the smallest subnormal
_FORMATS = {
    torch.float16: (11, -24),
    torch.bfloat16: (8, -133),
    torch.float32: (24, -149),
    torch.float64: (53, -1074),
}


def spacing(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbouring numbers of a dtype at each exact (float64) value: one ULP."""
    bits, smallest = _FORMATS[dtype]
    exponent = torch.frexp(exact.abs().double())[1] - bits
    return torch.ldexp(torch.ones_like(exact, dtype=torch.float64), exponent.clamp_min(smallest).to(torch.int32))


def assert_as_accurate(ours: Tensor, theirs: Tensor, exact: Tensor, *, order: Tensor) -> None:
    """Every element of ours is within 2·(theirs' error + half a ULP) of the exact value.

    Both the ULP and theirs' error are the largest among the neighbours in ``order`` (a twenty-fifth of the sample):
    where a function crosses zero its result has no scale of its own, and any one result of theirs may be exact by luck.
    """
    assert ours.dtype == theirs.dtype
    position = order.flatten().argsort()
    reach = max(order.numel() // 50, 16)

    def neighbours(x: Tensor) -> Tensor:
        """The largest within reach of each, from those of windows twice as wide each time."""
        found = torch.nn.functional.pad(x, (reach, reach), value=-torch.inf)
        width = 1
        while 2 * width <= 2 * reach + 1:
            found = torch.maximum(found[:-width], found[width:])
            width *= 2
        return torch.maximum(found[: len(x)], found[2 * reach + 1 - width :])

    exact = exact.flatten()[position]
    finite = torch.isfinite(exact)
    ulp = neighbours(torch.where(finite, spacing(exact, ours.dtype), 0.0))
    our_error = torch.where(finite, (ours.double().flatten()[position] - exact).abs() / ulp, 0.0)
    their_error = torch.where(finite, (theirs.double().flatten()[position] - exact).abs() / ulp, 0.0)
    allowed = 2 * (neighbours(their_error.nan_to_num(nan=torch.inf)) + 0.5)
    worst = int((our_error - allowed).nan_to_num(nan=torch.inf).argmax())
    assert bool((our_error <= allowed).all()), (
        f"{int((~(our_error <= allowed)).sum())} of {our_error.numel()} elements err too much; the worst at x = "
        f"{float(order.flatten()[position][worst])!r}: {float(our_error[worst]):.3g} ULP, allowed {float(allowed[worst]):.3g}"
    )


def added_as_on_a_gpu(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Tensor:
    """Returns torch.add as a GPU computes it, in float64 arithmetic. PyTorch's loops for a CPU round more often. A
    number, or a 0-d tensor beside one with dimensions, is not rounded to the result's dtype."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return torch.add(a, b, alpha=alpha)
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    x, y = (v if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64) for v in (a, b))
    first, second = (
        (v if v.dim() == 0 and other.dim() else v.to(dtype)).to(acc).double()
        for v, other in ((x, y), (y, x if isinstance(b, Tensor) else x.reshape(-1)))
    )
    return fused(second, torch.tensor(alpha, dtype=acc).double(), first, acc).to(dtype)


def fused(a: Tensor, b: Tensor, c: Tensor, acc: torch.dtype) -> Tensor:
    """a·b + c in float64 with the roundings' errors added again (Dekker, 1971; Knuth, 1969), rounded to ``acc``."""
    product = a * b
    if acc == torch.float32:
        return (product + c).float()  # the product of two such numbers is exact

    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        high = x * 134217729.0
        high = high - (high - x)
        return high, x - high

    (a1, a2), (b1, b2) = split(a), split(b)
    rest = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    part = total - product
    return total + (((product - (total - part)) + (c - part)) + rest)
