"""Cross entropy by rows: loss = log Σ e^x - x[target], of floating logits x (..., N) and int64 target (...).

grad_x = grad_loss·(softmax(x) - [column = target]). A target outside 0 to N - 1 selects no column: its loss is log Σ
e^x.
"""

import torch
from torch import Tensor

from cupyops.torch import row_reduce


def reference(x: Tensor, target: Tensor) -> Tensor:
    columns = torch.arange(x.shape[-1], device=x.device)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    m = wide.detach().amax(-1)
    chosen = torch.where(columns == target[..., None], wide, 0).sum(-1)
    return ((wide - m[..., None]).exp().sum(-1).log() + (m - chosen)).to(x.dtype)


cross_entropy = row_reduce(
    "m = max(x); s = sum(exp(x - m)); t = sum(j == target ? x : 0); loss = log(s) + (m - t)",
    backward="""
        m = max(x)
        e = exp(x - m)
        r = grad_loss / sum(e)
        grad_x = e * r - (j == target ? grad_loss : 0)
    """,
    name="own::cross_entropy",
    indices=["target"],
    reference=reference,
)


if __name__ == "__main__":
    from ..showing import DEVICE, run, show

    says = "A row program with an integer for each row. No softmax is written: the backward computes it from x."
    x, target = torch.randn(32, 1000, device=DEVICE), torch.randint(1000, (32,), device=DEVICE)
    peer = lambda x, target: torch.nn.functional.cross_entropy(x, target, reduction="none")  # noqa: E731
    run("own_ops.cross_entropy", lambda: show(cross_entropy, peer, says, x=x, target=target))
