"""RMSNorm: y = x·weight / √(mean of x² over the row + eps), of floating x (..., N) and weight (N).

With r = 1/√(mean x² + eps): grad_x = r·(grad_y·weight - x·r²·mean(grad_y·weight·x)), grad_weight = Σ over rows of grad_y·x·r.
Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

import torch
from torch import Tensor

from cupyops.torch import row_reduce


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


rms_norm = row_reduce(
    "r = rsqrt(sum(x * x) / N + eps); y = x * r * weight",
    backward="""
        r = rsqrt(sum(x * x) / N + eps)
        d = sum(grad_y * weight * x) / N * r * r
        grad_x = r * (grad_y * weight - x * d)
        grad_weight = column_sum(grad_y * x * r)
    """,
    name="own::rms_norm",
    columns=["weight"],
    scalars=["eps"],
    reference=reference,
)
