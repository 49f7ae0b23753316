"""softmax over the last dimension: y = e^(x - max x) / Σ e^(x - max x), of floating x (..., N).

grad_x = y·(grad_y - Σ grad_y·y). The backward makes y again from x, which it has to read as it would y.
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
