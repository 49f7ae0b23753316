"""Test data of layer_norm, its form without statistics, add_layer_norm, and their gradient."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from autograd_bridge import AddLayerNorm, LayerNorm, add_layer_norm, layer_norm, layer_norm_backward
from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.ops.layer_norm import _layer_norm_inference, _layer_norm_jvp
from tests.support import FLOATS

from .data import (
    COLUMNS,
    ROW,
    ROWS,
    Arguments,
    Case,
    FamilyData,
    LaunchCase,
    Model,
    dtype_name,
    last,
    launch_case,
    model_of,
    random,
    reference,
    wanted,
)


def _add_layer_norm_of_pytorch(x: Tensor, residual: Tensor) -> Tensor:
    s = x + residual
    return F.layer_norm(s, last(s)).to(s.dtype)


CASES = [
    Case(
        "layer_norm",
        lambda x: layer_norm(x, last(x)),
        lambda x: F.layer_norm(x, last(x)),
        torch.ops.cupyops.layer_norm.default,
        lambda x: (x, None, None, last(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "layer_norm_inference",
        lambda x: _layer_norm_inference(x, None, None, last(x), 1e-5),
        lambda x: F.layer_norm(x, last(x)),
        torch.ops.cupyops.layer_norm_inference.default,
        lambda x: (x, None, None, last(x), 1e-5),
        1,
        elementwise=False,
        atol=1e-3,
    ),
    Case(
        "add_layer_norm",
        lambda x, residual: add_layer_norm(x, residual, last(x))[0],
        _add_layer_norm_of_pytorch,
        torch.ops.cupyops.add_layer_norm.default,
        lambda x, residual: (x, residual, None, None, last(x), 1e-5),
        2,
        elementwise=False,
        atol=1e-3,
    ),
]
X, Z = random(ROWS, COLUMNS), random(ROWS, COLUMNS, seed=6)
WEIGHT, BIAS = random(COLUMNS, seed=7), random(COLUMNS, seed=8)
NORM = ([COLUMNS], 1e-5)


def _samples() -> list[Arguments]:
    return [(X, WEIGHT, BIAS, *NORM), (X, None, None, *NORM), (X, WEIGHT, None, *NORM)]


def _add_samples() -> list[Arguments]:
    return [(X, Z, WEIGHT, BIAS, *NORM), (X, Z, None, None, *NORM)]


def _backward_samples() -> list[Arguments]:
    # In float64, so that the statistics are those of x in every dtype.
    grad, x, weight = Z.double(), X.double(), WEIGHT.double()
    stats = reference("layer_norm", x, weight, None, *NORM)[1]
    everything, nothing = (True, True, True), (True, False, False)
    return [
        (wanted(grad), x, stats, wanted(weight), wanted(grad.flip(0)), *NORM, *everything),
        (wanted(grad), x, stats, None, None, *NORM, *nothing),
    ]


def _jvp_samples() -> list[Arguments]:
    # Not by x: a derivative takes the statistics for functions of x, and differences keep them.
    tangent, x = wanted(Z.double()), X.double()
    stats = reference("layer_norm", x, WEIGHT.double(), None, *NORM)[1]
    full = [wanted(p.double()) for p in (WEIGHT, BIAS, WEIGHT.flip(0))]
    return [(tangent, x, stats, *full, *NORM), (tangent, x, stats, None, None, None, *NORM)]


SAMPLES = {
    "layer_norm": _samples,
    "layer_norm_inference": _samples,
    "add_layer_norm": _add_samples,
    "layer_norm_backward": _backward_samples,
    "layer_norm_jvp": _jvp_samples,
}
# Row lengths of different kernels: a warp, a block, persistent blocks with stages, clusters, streams; odd lengths.
LENGTHS = (1, 7, 64, 100, 128, 384, 768, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 200000)


def _launches() -> Iterator[LaunchCase]:
    def plain(x: Tensor, *affine: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], *affine)

    def add(x: Tensor, residual: Tensor, *affine: Tensor) -> tuple[Tensor, Tensor]:
        return add_layer_norm(x, residual, x.shape[-1:], *affine)

    for dtype in FLOATS:
        for n in LENGTHS if dtype != torch.float16 else (100, 1024):
            for rows in (3, 5000) if n <= 4096 else (3,):
                d = f"{dtype_name(dtype)} {rows} x {n}"
                yield launch_case("layer_norm", f"affine {d}", plain, ((rows, n), dtype), ((n,), dtype), ((n,), dtype))
            if n in (1024, 32768):
                x, weight = ((2500, n), dtype), ((n,), dtype)
                d = f"{dtype_name(dtype)} 2500 x {n}"
                frozen = ((n,), dtype, False)
                yield launch_case("layer_norm", f"plain {d}", plain, x)
                yield launch_case("layer_norm", f"gradient of x alone {d}", plain, x, frozen, frozen)
                yield launch_case("layer_norm", f"gradient of weight alone {d}", plain, (*x, False), weight, weight)
                yield launch_case("layer_norm", f"bias alone {d}", lambda x, b: plain(x, None, b), x, weight)
                yield launch_case("add_layer_norm", d, add, x, x, weight, weight)
                moved = lambda t, x, s, w, u, b: _layer_norm_jvp(t, x, s, w, u, b, x.shape[-1:], 1e-5)  # noqa: E731
                given = (*x, False), (*x, False), ((2, 2500, 1), wide_dtype(dtype), False), *[frozen] * 3
                yield launch_case("layer_norm_jvp", d, moved, *given)
                infer = lambda x, w, b: _layer_norm_inference(x, w, b, x.shape[-1:], 1e-5)  # noqa: E731
                yield launch_case("layer_norm_inference", d, infer, (*x, False), frozen, frozen)
    for dtype in (torch.float32, torch.bfloat16):  # many rows that are longer than the registers of a cluster hold
        x, weight = ((150, 262144), dtype), ((262144,), dtype)
        d = f"{dtype_name(dtype)} 150 x 262144"
        yield launch_case("layer_norm", f"affine {d}", plain, x, weight, weight)
        yield launch_case("layer_norm", f"plain {d}", plain, x)
        moved = lambda t, x, s, w, u, b: _layer_norm_jvp(t, x, s, w, u, b, x.shape[-1:], 1e-5)  # noqa: E731
        for m in (3, 150):
            rows, frozen = ((m, 262144), dtype, False), ((262144,), dtype, False)
            given = rows, rows, ((2, m, 1), torch.float32, False), *[frozen] * 3
            yield launch_case("layer_norm_jvp", f"{dtype_name(dtype)} {m} x 262144", moved, *given)
        # The sum of two such arrays; the last rows are few.
        for m, n in ((40, 65536), (40, 131072), (40, 262144), (3, 131072), (3, 262144)):
            x, weight = ((m, n), dtype), ((n,), dtype)
            d = f"{dtype_name(dtype)} {m} x {n}"
            yield launch_case("add_layer_norm", f"affine {d}", add, x, x, weight, weight)
            yield launch_case("add_layer_norm", f"plain {d}", add, x, x)
    for n in (131072, 262144):
        x, weight = ((40, n), torch.bfloat16), ((n,), torch.float32)
        yield launch_case("add_layer_norm", f"bfloat16 40 x {n}, weight float32", add, x, x, weight, weight)
    x, weight = ((40, 131072), torch.float32), ((131072,), torch.float32)
    yield launch_case("layer_norm", "affine float32 40 x 131072", plain, x, weight, weight)
    moved = lambda t, x, s: _layer_norm_jvp(t, x, s, None, None, None, x.shape[-1:], 1e-5)  # noqa: E731
    x = (3, 10**6), torch.float32, False
    yield launch_case("layer_norm_jvp", "streaming", moved, x, x, ((2, 3, 1), torch.float32, False))
    for dtype in FLOATS[:2]:
        f = torch.float32
        for n in (1024, 16384):
            d = f"{dtype_name(dtype)}, weight float32, {n}"
            yield launch_case("layer_norm", d, plain, ((300, n), dtype), ((n,), f), ((n,), f))
            to_wide = lambda x, w, b: layer_norm(x, x.shape[-1:], w, b, dtype=torch.float32)  # noqa: E731
            yield launch_case("layer_norm", f"result float32 {d}", to_wide, ((300, n), dtype), ((n,), f), ((n,), f))
    yield launch_case("layer_norm", "off the beginning", lambda x: plain(x[1:, :]), ((9, 33), torch.float32))
    yield launch_case("layer_norm", "transposed", lambda x: plain(x.T), ((64, 48), torch.float32))


W = random(8, seed=9)


def _gradient(grad: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
    _, mean, rstd = layer_norm(x, 8, W.to(x.dtype), None, return_stats=True)
    return layer_norm_backward(grad, x, torch.stack((mean, rstd)), 8, W.to(x.dtype))


MODELS = {
    "LayerNorm": Model(LayerNorm(8), (ROW,)),
    "AddLayerNorm": Model(AddLayerNorm(8), (ROW, ROW)),
    "layer_norm": model_of(lambda x: layer_norm(x, 8, return_stats=True), ROW),
    "layer_norm_backward": model_of(_gradient, ROW, ROW),
    "add_layer_norm": model_of(lambda x, y: add_layer_norm(x, y, 8, W.to(x.dtype)), ROW, ROW),
}
DATA = FamilyData(CASES, SAMPLES, _launches, MODELS)
