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


if __name__ == "__main__":
    from ..showing import DEVICE, run, show

    says = (
        "A row program with a sum over the rows: grad_weight is summed in a fixed order, with equal bits in every run."
    )
    x, weight = torch.randn(32, 768, device=DEVICE), torch.rand(768, device=DEVICE)
    peer = lambda x, weight, eps: torch.nn.functional.rms_norm(x, weight.shape, weight, eps)  # noqa: E731
    run("own_ops.rms_norm", lambda: show(rms_norm, peer, says, x=x, weight=weight, eps=1e-5))
