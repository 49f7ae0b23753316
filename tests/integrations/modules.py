"""Modules that several tests of Hugging Face's layers use."""

import torch
from torch import Tensor, nn


class Zeroed(nn.Module):
    """An RMS norm that scales by 1 + weight."""

    kernel_layer_name = "RMSNormZeroCentered"

    def __init__(self, n: int) -> None:
        super().__init__()
        self.eps, self.weight = 1e-6, nn.Parameter(torch.randn(n) / 9)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class Turn(nn.Module):
    """A function for rotary embedding, as `kernels` makes a module of it."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        turned = (torch.cat((-x[..., 4:], x[..., :4]), -1) for x in (q, k))
        return tuple(x * cos + t * sin for x, t in zip((q, k), turned, strict=True))  # type: ignore[return-value]
