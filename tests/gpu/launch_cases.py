"""Calls whose launches the GPU record knows: those of the shipped operators (:mod:`tests.cases`) and of the examples'."""

from collections.abc import Iterator

import torch

from examples.own_ops.cross_entropy import cross_entropy
from examples.own_ops.dropout import dropout
from examples.own_ops.rms_norm import rms_norm
from examples.own_ops.rotary import rotary
from examples.own_ops.softmax import softmax
from examples.own_ops.swiglu import swiglu
from tests.cases import FAMILIES, LaunchCase
from tests.cases.data import dtype_name, launch_case


def _examples() -> Iterator[LaunchCase]:
    for dtype in (torch.bfloat16, torch.float32):
        d = dtype_name(dtype)
        for n in (100, 1024, 32768):
            x, weight = ((64, n), dtype), ((n,), dtype)
            yield launch_case("own::rms_norm", f"{d} {n}", lambda x, w: rms_norm(x, w, 1e-5), x, weight)
            yield launch_case("own::softmax", f"{d} {n}", softmax, x)
            yield launch_case("own::cross_entropy", f"{d} {n}", cross_entropy, x, ((64,), torch.int64))
        yield launch_case("own::swiglu", d, swiglu, ((64, 128), dtype), ((64, 128), dtype))
        yield launch_case("own::swiglu", f"broadcast {d}", swiglu, ((64, 128), dtype), ((128,), dtype))
        key = ((1,), torch.int64)
        yield launch_case("own::dropout", d, lambda x, key: dropout(x, key, 0.1), ((37, 19), dtype), key)
        tables = ((16, 32), torch.float32, False)
        yield launch_case("own::rotary", d, rotary, ((2, 16, 3, 64), dtype), tables, tables)


def launch_cases() -> Iterator[LaunchCase]:
    """All of them."""
    for data in FAMILIES.values():
        yield from data.launches()
    yield from _examples()
