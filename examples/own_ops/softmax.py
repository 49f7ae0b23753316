"""softmax over the last dimension: y = e^(x - max x) / Σ e^(x - max x), of floating x (..., N).

grad_x = y·(grad_y - Σ grad_y·y). The backward recomputes y from x, because reading x costs no more than reading y.
"""

import torch

from cupyops.torch import row_reduce

softmax = row_reduce(
    "m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r",
    backward="""
        m = max(x)
        e = exp(x - m)
        r = 1 / sum(e)
        d = sum(grad_y * e) * r
        grad_x = e * r * (grad_y - d)
    """,
    name="own::softmax",
    reference=lambda x: torch.softmax(x, -1),
)


if __name__ == "__main__":
    from ..showing import DEVICE, run, show

    says = "A row program: a kernel reads each row once. The backward computes y again, and autograd saves x alone."
    run("own_ops.softmax", lambda: show(softmax, lambda x: x.softmax(-1), says, x=torch.randn(32, 1000, device=DEVICE)))
