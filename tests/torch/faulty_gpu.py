"""Ways to break the operator of :mod:`.faulty_ops` that only a GPU shows: streams, captures and a second GPU."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .faulty_ops import FORWARD, Body, body


def on_the_default_stream(x: Tensor, w: Tensor, factor: float) -> Tensor:
    if isinstance(x, FakeTensor) or not x.is_cuda:
        return body(x, w, factor)
    x, w = x.contiguous(), w.contiguous()
    y = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.default_stream(x.device)):
        FORWARD(x, w, y, factor, x.numel())
    return y


def prefetched() -> Body:
    """In a capture it uses memory of an earlier call, which the replay does not fill again."""
    kept: dict[Any, Tensor] = {}

    def broken(x: Tensor, w: Tensor, factor: float) -> Tensor:
        if isinstance(x, FakeTensor) or not x.is_cuda:
            return body(x, w, factor)
        key = (x.dtype, x.device)
        if torch.cuda.is_current_stream_capturing():
            return body(x, kept[key], factor)
        kept[key] = w.detach().clone()
        return body(x, w, factor)

    return broken


def on_the_first_gpu(x: Tensor, w: Tensor, factor: float) -> Tensor:
    if isinstance(x, FakeTensor) or not x.is_cuda:
        return body(x, w, factor)
    return body(x.to("cuda:0"), w.to("cuda:0"), factor)
