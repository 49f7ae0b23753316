"""Calls of the shipped operators whose launches the GPU record knows: forward and backward, shapes and dtypes by which they choose
other kernels, geometries and arguments.

Tensors are of memory that nobody has written: :mod:`tests.gpu.stub_h200` runs no kernel.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import autograd_bridge as bridge
from cupyops.torch.ops.layer_norm import _layer_norm_inference
from examples.own_ops.cross_entropy import cross_entropy
from examples.own_ops.dropout import dropout
from examples.own_ops.rms_norm import rms_norm
from examples.own_ops.rotary import rotary
from examples.own_ops.softmax import softmax
from examples.own_ops.swiglu import swiglu

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


class LaunchCase(NamedTuple):
    """One call.

    Attributes:
        operator: whose it is.
        about: shapes, dtypes and what else tells it from others.
        inputs: makes the tensors.
        call: of these; what it returns is differentiated by those that require grad.
    """

    operator: str
    about: str
    inputs: Callable[[], list[Tensor]]
    call: Callable[..., Any]

    def run(self, inputs: list[Tensor]) -> None:
        """The call and, where a tensor requires grad, its backward."""
        found = self.call(*inputs)
        results = [y for y in (found if isinstance(found, tuple) else (found,)) if y.requires_grad]
        if results:
            wanted = [x for x in inputs if x.requires_grad]
            torch.autograd.grad(results, wanted, [torch.empty_like(y) for y in results], allow_unused=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _empty(shape: tuple[int, ...], dtype: torch.dtype, grad: bool = True) -> Tensor:
    return torch.empty(shape, dtype=dtype).requires_grad_(grad and dtype.is_floating_point)


def _case(operator: str, about: str, call: Callable[..., Any], *tensors: Any) -> LaunchCase:
    """Tensors are (shape, dtype), (shape, dtype, whether it wants a gradient), or functions that make one."""
    return LaunchCase(operator, about, lambda: [t() if callable(t) else _empty(*t) for t in tensors], call)


def _number(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A tensor without dimensions in host memory, which a kernel is given by value."""

    def made() -> Tensor:
        found = torch.ones((), dtype=dtype)
        found.on_host = True  # type: ignore[attr-defined]
        return found

    return made


def _add2() -> Iterator[LaunchCase]:
    for dtype in (*FLOATS, *INTEGERS, torch.uint16, torch.uint32, torch.uint64):
        d = _name(dtype)
        yield _case("add2", f"alike {d}", bridge.add2, ((64, 128), dtype), ((64, 128), dtype))
        yield _case("add2", f"broadcast {d}", bridge.add2, ((64, 1), dtype), ((1, 48), dtype))
        yield _case("add2", f"a number behind {d}", bridge.add2, ((37, 19), dtype), _number(dtype))
        yield _case("add2", f"a number in front {d}", bridge.add2, _number(dtype), ((37, 19), dtype))
    f = torch.float32
    yield _case("add2", "a row", bridge.add2, ((33, 35), f), ((35,), f))
    yield _case("add2", "alpha", lambda a, b: bridge.add2(a, b, alpha=-0.3), ((5, 7), f), ((5, 7), f))
    yield _case("add2", "mixed dtypes", bridge.add2, ((64, 128), torch.float16), ((64, 128), f))
    yield _case("add2", "transposed both", lambda a, b: bridge.add2(a.T, b.T), ((48, 64), f), ((48, 64), f))
    yield _case("add2", "transposed one", lambda a, b: bridge.add2(a.T, b), ((48, 64), f), ((64, 48), f))
    yield _case("add2", "three dimensions", bridge.add2, ((4, 1, 16), f), ((6, 1), f))
    yield _case("add2", "every second", lambda a, b: bridge.add2(a[:, ::2], b), ((8, 64), f), ((8, 32), f))
    yield _case("add2", "off the beginning", lambda a, b: bridge.add2(a[1:], b[1:]), ((33,), f), ((33,), f))
    yield _case("add2", "large", bridge.add2, ((1 << 24,), torch.bfloat16), ((1 << 24,), torch.bfloat16))


def _gelu() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for form in ("none", "tanh"):
            for shape in ((37, 19), (4096, 1024)):
                yield _case(
                    "gelu", f"{form} {_name(dtype)} {shape}", lambda x, form=form: bridge.gelu(x, form), (shape, dtype)
                )
    f = torch.float32
    yield _case("gelu", "transposed", lambda x: bridge.gelu(x.T), ((48, 64), f))
    yield _case("gelu", "every second", lambda x: bridge.gelu(x[:, ::2]), ((48, 64), f))
    yield _case("gelu", "off the beginning", lambda x: bridge.gelu(x[3:]), ((67,), f))
    yield _case("gelu_backward", "alike", bridge.gelu_backward, ((37, 19), f, False), ((37, 19), f, False))


# Lengths of rows whose ways differ: by a warp, a block, persistent blocks with stages, clusters, streams; odd ones.
ROWS = (1, 7, 64, 100, 128, 384, 768, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 200000)


def _layer_norm() -> Iterator[LaunchCase]:
    def plain(x: Tensor, *affine: Tensor) -> Tensor:
        return bridge.layer_norm(x, x.shape[-1:], *affine)

    for dtype in FLOATS:
        for n in ROWS if dtype != torch.float16 else (100, 1024):
            for rows in (3, 5000) if n <= 4096 else (3,):
                d = f"{_name(dtype)} {rows} x {n}"
                yield _case("layer_norm", f"affine {d}", plain, ((rows, n), dtype), ((n,), dtype), ((n,), dtype))
            if n in (1024, 32768):
                x, weight = ((2500, n), dtype), ((n,), dtype)
                d = f"{_name(dtype)} 2500 x {n}"
                frozen = ((n,), dtype, False)
                yield _case("layer_norm", f"plain {d}", plain, x)
                yield _case("layer_norm", f"gradient of x alone {d}", plain, x, frozen, frozen)
                yield _case("layer_norm", f"gradient of weight alone {d}", plain, (*x, False), weight, weight)
                yield _case("layer_norm", f"bias alone {d}", lambda x, b: plain(x, None, b), x, weight)
                add = lambda x, r, w, b: bridge.add_layer_norm(x, r, x.shape[-1:], w, b)  # noqa: E731
                yield _case("add_layer_norm", d, add, x, x, weight, weight)
                infer = lambda x, w, b: _layer_norm_inference(x, w, b, x.shape[-1:], 1e-5)  # noqa: E731
                yield _case("layer_norm_inference", d, infer, (*x, False), frozen, frozen)
    for dtype in FLOATS[:2]:
        f = torch.float32
        for n in (1024, 16384):
            d = f"{_name(dtype)}, weight float32, {n}"
            yield _case("layer_norm", d, plain, ((300, n), dtype), ((n,), f), ((n,), f))
            to_wide = lambda x, w, b: bridge.layer_norm(x, x.shape[-1:], w, b, dtype=torch.float32)  # noqa: E731
            yield _case("layer_norm", f"result float32 {d}", to_wide, ((300, n), dtype), ((n,), f), ((n,), f))
    yield _case("layer_norm", "off the beginning", lambda x: plain(x[1:, :]), ((9, 33), torch.float32))
    yield _case("layer_norm", "transposed", lambda x: plain(x.T), ((64, 48), torch.float32))


# M, N, K of products that take other ways: few rows of x or of the weight, the matrix units of sm_90, the library's.
NARROW = ((1, 1, 2), (1, 4096, 4096), (2, 512, 512), (8, 64, 127), (16, 1024, 1024), (16384, 1, 768), (16384, 4, 768))
LARGE = ((37, 19, 41), (4096, 3072, 768), (16384, 768, 3072))


def _linear() -> Iterator[LaunchCase]:
    def narrow(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.no_grad():  # with gradients, small products are PyTorch's own
            return bridge.linear(x, weight, bias)

    # A float32 product that is made without the bias.
    x, weight, bias = ((128, 4096), torch.float32), ((1024, 4096), torch.float32), ((1024,), torch.float32)
    yield _case("linear_gelu", "bias in a pass of its own", bridge.linear_gelu, x, weight, bias)
    yield _case("linear", "bias in a pass of its own", narrow, x, weight, bias)
    for dtype in FLOATS:
        for m, n, k in NARROW + LARGE:
            d = f"{_name(dtype)} {m} x {n} x {k}"
            x, weight, bias = ((m, k), dtype), ((n, k), dtype), ((n,), dtype)
            yield _case("linear", f"without gradients {d}", narrow, x, weight, bias)
            for form in ("none", "tanh"):
                gelu = lambda x, w, b, form=form: bridge.linear_gelu(x, w, b, form)  # noqa: E731
                yield _case("linear_gelu", f"{form} {d}", gelu, x, weight, bias)
        d = _name(dtype)
        x, weight, bias = ((16384, 32), dtype), ((768, 32), dtype), ((768,), dtype)
        yield _case("linear", f"gradients {d}", bridge.linear, x, weight, bias)
        yield _case("linear", f"gradient of bias alone {d}", bridge.linear, (*x, False), (*weight, False), bias)
        yield _case("linear_gelu", f"without bias {d}", bridge.linear_gelu, x, weight)
        yield _case("linear_gelu", f"gradient of x alone {d}", bridge.linear_gelu, x, (*weight, False), (*bias, False))


def _lltm() -> Iterator[LaunchCase]:
    def cell(inputs: int, state: int, batch: int, dtype: torch.dtype) -> list[Any]:
        sizes = (batch, inputs), (3 * state, state + inputs), (3 * state,), (batch, state), (batch, state)
        return [(size, dtype) for size in sizes]

    for dtype in FLOATS:
        for inputs, state, batch in ((32, 16, 4), (33, 65, 7), (256, 128, 64), (1024, 1024, 64), (512, 1024, 2048)):
            d = f"{_name(dtype)} {batch} x {inputs} x {state}"
            yield _case("lltm_cell", d, bridge.lltm_cell, *cell(inputs, state, batch, dtype))
        sequences = (
            (16, 16, 3),
            (32, 64, 64),
            (64, 256, 16),
            (64, 256, 4096),
            (64, 512, 64),
            (64, 1024, 64),
            (8, 1500, 4),
        )
        for inputs, state, batch in sequences:
            _, weights, bias, h, c = cell(inputs, state, batch, dtype)
            sequence = ((5, batch, inputs), dtype)
            run = lambda x, w, b, h, c: (lambda y, s: (y, *s))(*bridge.lltm(x, (h, c), w, b))  # noqa: E731
            yield _case("lltm", f"{_name(dtype)} 5 x {batch} x {inputs} x {state}", run, sequence, weights, bias, h, c)


def _rms_norm() -> Iterator[LaunchCase]:
    for dtype in FLOATS:
        for n in (100, 1024, 32768):
            x, weight, about = ((64, n), dtype), ((n,), dtype), f"{_name(dtype)} {n}"
            yield _case("rms_norm", about, lambda x, w: bridge.rms_norm(x, (w.shape[0],), w), x, weight)
            yield _case("rms_norm", f"{about} no weight", lambda x: bridge.rms_norm(x, (x.shape[-1],)), x)


def _examples() -> Iterator[LaunchCase]:
    for dtype in (torch.bfloat16, torch.float32):
        d = _name(dtype)
        for n in (100, 1024, 32768):
            x, weight = ((64, n), dtype), ((n,), dtype)
            yield _case("own::rms_norm", f"{d} {n}", lambda x, w: rms_norm(x, w, 1e-5), x, weight)
            yield _case("own::softmax", f"{d} {n}", softmax, x)
            yield _case("own::cross_entropy", f"{d} {n}", cross_entropy, x, ((64,), torch.int64))
        yield _case("own::swiglu", d, swiglu, ((64, 128), dtype), ((64, 128), dtype))
        yield _case("own::swiglu", f"broadcast {d}", swiglu, ((64, 128), dtype), ((128,), dtype))
        key = ((1,), torch.int64)
        yield _case("own::dropout", d, lambda x, key: dropout(x, key, 0.1), ((37, 19), dtype), key)
        tables = ((16, 32), torch.float32, False)
        yield _case("own::rotary", d, rotary, ((2, 16, 3, 64), dtype), tables, tables)


def launch_cases() -> Iterator[LaunchCase]:
    """All of them."""
    for cases in (_add2, _gelu, _layer_norm, _rms_norm, _linear, _lltm, _examples):
        yield from cases()
