"""SwiGLU's gate: y = a·σ(a)·b, of floating a and b that broadcast.

With s = σ(a): grad_a = grad_y·b·s·(1 + a·(1 - s)), grad_b = grad_y·a·s. Source: Shazeer, "GLU Variants Improve
Transformer", 2020.
"""

import torch

from cupyops.torch import elementwise

swiglu = elementwise(
    "y = a / (1 + exp(-a)) * b",
    backward="""
        s = 1 / (1 + exp(-a))
        grad_a = grad_y * b * s * (1 + a * (1 - s))
        grad_b = grad_y * a * s
    """,
    name="own::swiglu",
    reference=lambda a, b: torch.nn.functional.silu(a) * b,
)


if __name__ == "__main__":
    from ..showing import DEVICE, run, show

    says = "An elementwise program: b broadcasts, and the gradient of b is summed to the shape of b."
    a, b = torch.randn(64, 100, device=DEVICE), torch.randn(100, device=DEVICE)
    run("own_ops.swiglu", lambda: show(swiglu, lambda a, b: torch.nn.functional.silu(a) * b, says, a=a, b=b))
