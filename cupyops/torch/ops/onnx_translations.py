"""The shipped operators in ONNX's standard operators, opset 20.

A translation gets ``op``, whose attributes are ONNX's operators (``op.Mul(x, 2.0)``), and the operator's own arguments in
order: tensors as values that know their ``dtype`` and ``shape``, absent ones as None, everything else as it was given. It
returns a value for each result. Numbers beside values take their dtype.

16-bit floats are computed in float32, as the kernels compute them. Where a runtime's operator is not as wide as float64
(constants and attributes of float32, or no implementation at all), float64 is written out.
"""

import math
from typing import Any

import torch

__all__ = [
    *("add2", "add_layer_norm", "gelu", "layer_norm", "layer_norm_inference"),
    *("linear", "linear_gelu", "lltm", "lltm_cell"),
]

# onnx.TensorProto.DataType
FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
_FLOATS = {"float32": FLOAT, "float16": FLOAT16, "float64": DOUBLE, "bfloat16": BFLOAT16}


def _in_float32(op: Any, *values: Any) -> Any:
    """16-bit floats as float32, others as they are; None stays None."""
    wide = [op.Cast(x, to=FLOAT) if x is not None and x.dtype in (FLOAT16, BFLOAT16) else x for x in values]
    return wide[0] if len(wide) == 1 else wide


def _as(op: Any, x: Any, dtype: int) -> Any:
    return x if x.dtype == dtype else op.Cast(x, to=dtype)


def _promoted(*values: Any) -> torch.dtype:
    """The dtype that PyTorch promotes to, for which a tensor without dimensions counts less."""
    from onnx_ir.tensor_adapters import to_torch_dtype

    a, b = (torch.empty((1,) * len(x.shape), dtype=to_torch_dtype(x.dtype), device="meta") for x in values)
    return torch.result_type(a, b)


def add2(op: Any, a: Any, b: Any, alpha: float) -> Any:
    """a + alpha·b in the promoted dtype; integers wrap."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    dtype = from_torch_dtype(_promoted(a, b))
    # Beside a tensor with dimensions, one without is a number, which is not rounded to the result's dtype first.
    ranks = len(a.shape), len(b.shape)
    a, b = (x if rank == 0 and max(ranks) else _as(op, x, dtype) for x, rank in zip((a, b), ranks, strict=True))
    arithmetic = FLOAT if dtype in (FLOAT16, BFLOAT16) else dtype
    a, b = _as(op, a, arithmetic), _as(op, b, arithmetic)
    if alpha != 1:
        integer = not dtype.is_floating_point()
        b = op.Mul(b, op.Cast(op.Constant(value_int=alpha), to=dtype) if integer else float(alpha))
    return _as(op, op.Add(a, b), dtype)


# exp(z²)·erfc(z)·(4 + z)/4 as a polynomial in (4 - z)/(4 + z) for z ≥ 0, the constant last: interpolated at Chebyshev's
# nodes with 60 digits, within 4e-17 everywhere.
_ERFC = (
    *(1.9860046213777094e-11, 3.0140315157436664e-10, -1.8056061492473584e-10, -3.8163851917190945e-09),
    *(7.955304769237317e-11, 3.062640513773187e-08, 1.858538071376256e-08, -2.1090510064839227e-07),
    *(-3.5587254786027525e-07, 1.1730894595205767e-06, 4.715155967402764e-06, -9.085474539335742e-07),
    *(-4.420318895616758e-05, -0.00011376324412131493, 7.023971404404158e-05, 0.001528013927356252),
    *(0.00659251333528659, 0.0190953787258951, 0.04350273430997378, 0.08271289696958106),
    *(0.13521345782830899, 0.19330217556630763, 0.2441371822702205, 0.27399891525012277),
)


def _gelu_float64(op: Any, x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        cubic = op.Mul(x, op.Add(op.Mul(op.Mul(x, x), 0.044715), 1.0))
        return op.Mul(x, op.Sigmoid(op.Mul(cubic, math.sqrt(8 / math.pi))))  # 1 + tanh(u) is 2·sigmoid(2u), and cancels
    # Erf of float64 is in the standard and in few runtimes. Φ(-|x|) = erfc(z)/2 keeps its relative accuracy in the tail.
    z = op.Mul(op.Abs(x), math.sqrt(0.5))
    beyond = op.Add(z, 4.0)
    s = op.Div(op.Sub(4.0, z), beyond)
    p = op.Add(op.Mul(s, _ERFC[0]), _ERFC[1])
    for coefficient in _ERFC[2:]:
        p = op.Add(op.Mul(p, s), coefficient)
    tail = op.Mul(op.Div(op.Mul(p, 2.0), beyond), op.Exp(op.Mul(op.Mul(x, x), -0.5)))
    return op.Mul(x, op.Where(op.Greater(x, 0.0), op.Sub(1.0, tail), tail))


def gelu(op: Any, x: Any, approximate: str) -> Any:
    """x·Φ(x), or its tanh form."""
    if x.dtype == DOUBLE:
        return _gelu_float64(op, x, approximate)
    return _as(op, op.Gelu(_in_float32(op, x), approximate=approximate), x.dtype)


def _layer_norm_float64(op: Any, x: Any, weight: Any, bias: Any, axis: int, eps: float) -> tuple[Any, Any, Any]:
    axes = list(range(axis, 0))
    mean = op.ReduceMean(x, axes, keepdims=1)
    centered = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=1)
    rstd = op.Reciprocal(op.Sqrt(op.Add(variance, eps)))
    y = op.Mul(centered, rstd)
    y = y if weight is None else op.Mul(y, weight)
    return y if bias is None else op.Add(y, bias), mean, rstd


def layer_norm(
    op: Any, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> tuple[Any, Any]:
    """(x - mean)/√(var + eps)·weight + bias by rows, and the statistics."""
    axis, result = -len(normalized_shape), x.dtype if dtype is None else _FLOATS[dtype]
    if x.dtype == DOUBLE:
        y, mean, rstd = _layer_norm_float64(op, x, weight, bias, axis, eps)
    else:
        x, weight, bias = _in_float32(op, x, weight, bias)
        if weight is None:
            weight = op.Expand(op.CastLike(1.0, x), op.Shape(x, start=axis))
        operands = (x, weight) if bias is None else (x, weight, bias)
        y, mean, rstd = op.LayerNormalization(*operands, axis=axis, epsilon=eps, _outputs=3)
    return _as(op, y, result), op.Concat(op.Unsqueeze(mean, [0]), op.Unsqueeze(rstd, [0]), axis=0)


def layer_norm_inference(
    op: Any, x: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> Any:
    """(x - mean)/√(var + eps)·weight + bias by rows."""
    return layer_norm(op, x, weight, bias, normalized_shape, eps, dtype)[0]


def add_layer_norm(
    op: Any, x: Any, residual: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, dtype: str | None = None
) -> tuple[Any, Any, Any]:
    """layer_norm(s), s and the statistics, of s = x + residual."""
    s = add2(op, x, residual, 1)
    y, stats = layer_norm(op, s, weight, bias, normalized_shape, eps, dtype)
    return y, s, stats


def linear(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    """x·Wᵀ + b. bfloat16, which few runtimes multiply on a CPU, is multiplied in float32."""
    dtype = x.dtype
    if dtype == BFLOAT16:
        x, weight, bias = _in_float32(op, x, weight, bias)
    if len(x.shape) == 2 and len(weight.shape) == 2:
        operands = (x, weight) if bias is None else (x, weight, bias)
        return _as(op, op.Gemm(*operands, transB=1), dtype)
    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]) if len(weight.shape) == 2 else weight)
    return _as(op, y if bias is None else op.Add(y, bias), dtype)


def linear_gelu(op: Any, x: Any, weight: Any, bias: Any, approximate: str) -> tuple[Any, Any]:
    """gelu(pre) and pre = x·Wᵀ + b."""
    pre = linear(op, x, weight, bias)
    return gelu(op, pre, approximate), pre


def _lltm_pointwise(op: Any, gates: Any, old_cell: Any) -> tuple[Any, Any]:
    """new_h and new_cell of the gates' sums (..., 3S)."""
    i, o, z = op.Split(gates, axis=-1, num_outputs=3, _outputs=3)
    # elu(z) with exp(z) - 1 = 2t/(1 - t), t = tanh(z/2), which does not cancel near 0.
    t = op.Tanh(op.Mul(z, 0.5))
    candidate = op.Where(op.Greater(z, 0.0), z, op.Div(op.Mul(t, 2.0), op.Sub(1.0, t)))
    new_cell = op.Add(old_cell, op.Mul(candidate, op.Sigmoid(i)))
    return op.Mul(op.Tanh(new_cell), op.Sigmoid(o)), new_cell


def lltm_cell(op: Any, input: Any, weights: Any, bias: Any, old_h: Any, old_cell: Any) -> tuple[Any, Any, Any]:
    """new_h and new_cell (B, S) of one step, and the gates' sums z = [old_h, input]·Wᵀ + b (B, 3S), W (3S, S+F)."""
    dtype = input.dtype
    input, weights, bias, old_h, old_cell = _in_float32(op, input, weights, bias, old_h, old_cell)
    gates = linear(op, op.Concat(old_h, input, axis=1), weights, bias)
    new_h, new_cell = _lltm_pointwise(op, gates, old_cell)
    return _as(op, new_h, dtype), _as(op, new_cell, dtype), _as(op, gates, dtype)


def lltm(op: Any, input: Any, weights: Any, bias: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any, Any]:
    """Of all steps h and cells (T, B, S) and the gates' sums (T, B, 3S), and the last state (2, B, S), of input (T, B, F): a
    Scan over the steps. The products with the input are one product in front of it."""
    dtype = input.dtype
    input, weights, bias, h0, c0 = _in_float32(op, input, weights, bias, h0, c0)
    S = weights.shape[0] // 3
    recurrent = op.Transpose(op.Slice(weights, [0], [S], [1]), perm=[1, 0])
    given = linear(op, input, op.Slice(weights, [S], [weights.shape[1]], [1]), bias)

    def step(op: Any, h: Any, cell: Any, given: Any) -> tuple[Any, Any, Any, Any]:
        new_h, new_cell = _lltm_pointwise(op, op.Add(given, op.MatMul(h, recurrent)), cell)
        return new_h, new_cell, op.Identity(new_h), op.Identity(new_cell)

    body = _subgraph(op, step, inputs={"h": h0, "cell": c0, "given": given}, outputs=4)
    last_h, last_cell, h, cells = op.Scan(h0, c0, given, body=body, num_scan_inputs=1, _outputs=4)
    last = op.Concat(op.Unsqueeze(last_h, [0]), op.Unsqueeze(last_cell, [0]), axis=0)
    # For the gradient alone: outside of the loop, it goes where nothing uses it.
    before = op.Concat(op.Unsqueeze(h0, [0]), op.Slice(h, [0], [-1], [0]), axis=0)
    gates = op.Add(given, op.MatMul(before, recurrent))
    return _as(op, h, dtype), _as(op, last, dtype), _as(op, cells, dtype), _as(op, gates, dtype)


def _subgraph(op: Any, function: Any, *, inputs: dict[str, Any], outputs: int) -> Any:
    """The graph of a function of values of these names and these values' dtypes, as ONNX's loops take it."""
    import onnx_ir as ir

    values = [ir.Value(name=name, type=ir.TensorType(x.dtype)) for name, x in inputs.items()]
    results = [ir.Value(name=f"next_{i}") for i in range(outputs)]
    return op.builder.subgraph(function, values, results, name="step")
