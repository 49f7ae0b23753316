"""The row programs of cross_entropy: the loss of each row for class indices and for class probabilities."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.ops.checks import check_shapes
from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.programs.elementwise import elementwise
from cupyops.torch.programs.overwriting import recorded_over
from cupyops.torch.programs.row_reduce import row_reduce
from cupyops.torch.scale.distributed import with_whole_rows

from .onnx_values import cast, in_float32

__all__ = ["OF_INDICES", "OF_PROBABILITIES", "OVER", "softcapped"]


def _reference(x: Tensor, target: Tensor, ignore: float) -> tuple[Tensor, Tensor, Tensor]:
    _, of_target, m, r = _rows(x, target, ignore)
    return torch.where(target == ignore, 0, -of_target), m, r


def _reference_smoothed(x: Tensor, target: Tensor, ignore: float, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    logs, of_target, m, r = _rows(x, target, ignore)
    loss = (smoothing - 1) * of_target - smoothing / x.shape[-1] * logs.sum(-1)
    return torch.where(target == ignore, 0, loss), m, r


def _reference_weighted(
    x: Tensor, target: Tensor, weight: Tensor, ignore: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    logs, of_target, m, r = _rows(x, target, ignore)
    weights = weight.to(logs.dtype)
    share = weights[torch.where(target == ignore, 0, target)]
    loss = (smoothing - 1) * share * of_target
    if smoothing:
        loss = loss - smoothing / x.shape[-1] * (weights * logs).sum(-1)
    total = weights.sum().expand(m.shape).clone()
    return torch.where(target == ignore, 0, loss), m, r, torch.where(target == ignore, 0, share), total


def _rows(x: Tensor, target: Tensor, ignore: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the logarithms of softmax and those of the targets, and m = max x and r = 1/Σ e^(x - m) of each row."""
    check_shapes("cross_entropy", target=(target, x.shape[:-1]))
    wide = x.to(wide_dtype(x.dtype))
    logs = wide.log_softmax(-1)
    of_target = logs.gather(-1, torch.where(target == ignore, 0, target).unsqueeze(-1)).squeeze(-1)
    most = with_whole_rows(wide.detach()).amax(-1, keepdim=True)
    r = (wide - most).exp().sum(-1).reciprocal()  # NaN for an infinite maximum, like the loss
    return logs, of_target, most.squeeze(-1), r


def _reference_probabilities(x: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, ...]:
    return _reference_probabilities_weighted(x, target, None, smoothing)


def _reference_probabilities_weighted(
    x: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> tuple[Tensor, ...]:
    wide = x.to(wide_dtype(x.dtype))
    q = target.to(wide.dtype)
    if smoothing:
        q = (1 - smoothing) * q + smoothing / x.shape[-1]
    if weight is not None:
        q = q * weight.to(wide.dtype)
    most = with_whole_rows(wide.detach()).amax(-1, keepdim=True)
    r = (wide - most).exp().sum(-1).reciprocal()
    return -(wide.log_softmax(-1) * q).sum(-1), most.squeeze(-1), r, q.sum(-1)


def _onnx_probabilities(op: Any, x: Any, target: Any, smoothing: float) -> Any:
    return _onnx_probabilities_weighted(op, x, target, None, smoothing)


def _onnx_probabilities_weighted(op: Any, x: Any, target: Any, weight: Any, smoothing: float) -> Any:
    wide = in_float32(op, x)
    q = cast(op, target, wide.dtype)
    if smoothing:
        # 1/N, since the sum of the probabilities is 1.
        uniform = op.ReduceMean(op.Softmax(wide, axis=-1), [-1], keepdims=1)
        q = op.Add(op.Mul(q, 1 - smoothing), op.Mul(uniform, smoothing))
    if weight is not None:
        q = op.Mul(q, cast(op, weight, wide.dtype))
    loss = op.Neg(op.ReduceSum(op.Mul(op.LogSoftmax(wide, axis=-1), q), [-1], keepdims=0))
    most = op.ReduceMax(wide, [-1], keepdims=1)
    r = op.Reciprocal(op.ReduceSum(op.Exp(op.Sub(wide, most)), [-1], keepdims=0))
    return loss, op.Squeeze(most, [-1]), r, op.ReduceSum(q, [-1], keepdims=0)


def _onnx(op: Any, x: Any, target: Any, ignore: float) -> Any:
    """Returns the ONNX form of the loss, and of m and r by rows."""
    _, ignored, of_target, m, r = _onnx_rows(op, x, target, ignore)
    return _onnx_kept(op, ignored, op.Neg(of_target)), m, r


def _onnx_smoothed(op: Any, x: Any, target: Any, ignore: float, smoothing: float) -> Any:
    logs, ignored, of_target, m, r = _onnx_rows(op, x, target, ignore)
    smooth = op.Mul(op.ReduceMean(logs, [-1], keepdims=0), -smoothing)
    return _onnx_kept(op, ignored, op.Add(op.Mul(of_target, smoothing - 1), smooth)), m, r


def _onnx_weighted(op: Any, x: Any, target: Any, weight: Any, ignore: float, smoothing: float) -> Any:
    logs, ignored, of_target, m, r = _onnx_rows(op, x, target, ignore)
    weights = cast(op, weight, logs.dtype)
    share = op.Gather(weights, op.Where(ignored, op.CastLike(0, target), target))
    loss = op.Mul(op.Mul(share, of_target), smoothing - 1)
    if smoothing:
        loss = op.Add(loss, op.Mul(op.ReduceMean(op.Mul(weights, logs), [-1], keepdims=0), -smoothing))
    total = op.Expand(op.ReduceSum(weights, [0], keepdims=0), op.Shape(m))
    return _onnx_kept(op, ignored, loss), m, r, _onnx_kept(op, ignored, share), total


def _onnx_rows(op: Any, x: Any, target: Any, ignore: float) -> tuple[Any, Any, Any, Any, Any]:
    wide = in_float32(op, x)
    logs = op.LogSoftmax(wide, axis=-1)
    ignored = op.Equal(target, op.CastLike(int(ignore), target))
    places = op.Unsqueeze(op.Where(ignored, op.CastLike(0, target), target), [-1])
    of_target = op.Squeeze(op.GatherElements(logs, places, axis=-1), [-1])
    most = op.ReduceMax(wide, [-1], keepdims=1)
    r = op.Reciprocal(op.ReduceSum(op.Exp(op.Sub(wide, most)), [-1], keepdims=0))
    return logs, ignored, of_target, op.Squeeze(most, [-1]), r


def _onnx_kept(op: Any, ignored: Any, value: Any) -> Any:
    return op.Where(ignored, op.CastLike(0, value), value)


# m = max x and r = 1/Σ e^(x - m) are saved for the backward, which therefore reads x once and reduces nothing. Apart from each
# other they lose nothing if all of x is large; log Σ e^x = m - log r would lose the digits of log r. For the same reason the
# sums are sums of x - o with o = x[target], which is known before the row is read, while m is not. Where o lies far below m,
# these sums lose digits of x - m, but the loss itself is then as large as m - o. A target that is not a column gives NaN.
# With p = softmax(x) = e^(x - m)·r, grad_x = grad_loss·(p - [column = target]); with smoothing and weights w, and t the target:
# grad_x = grad_loss·(p·((1 - smoothing)·w_t + smoothing/N·Σ w) - (1 - smoothing)·w_t·[column = t] - smoothing/N·w).
_LENGTHS = (1024, 32768, 131072)
_cross_entropy = row_reduce(
    """
        m = max(x)
        s = sum(exp(x - m))
        l = log(s)
        r = 1 / s
        of_target = target >= 0 && target < N ? m - x[target] + l : NAN
        loss = target == ignore ? 0 : of_target
    """,
    backward="""
        g = target == ignore ? 0 : grad_loss
        grad_x = (exp(x - m) * r - (j == target ? 1.0 : 0.0)) * g
    """,
    name="cupyops::cross_entropy",
    indices=["target"],
    scalars=["ignore"],
    results=["loss", "m", "r"],
    wide=["loss", "m", "r"],
    reference=_reference,
    onnx=_onnx,
    ahead=_LENGTHS,
)
_cross_entropy_smoothed = row_reduce(
    """
        o = abs(x[target]) < 1e30 ? x[target] : 0
        m = max(x)
        s = sum(exp(x - m))
        l = log(s)
        r = 1 / s
        of_target = target >= 0 && target < N ? m - x[target] + l : NAN
        of_all = m - o + l - sum(x - o) / N
        loss = target == ignore ? 0 : (1 - smoothing) * of_target + smoothing * of_all
    """,
    backward="""
        g = target == ignore ? 0 : grad_loss
        s = smoothing / N
        w = 1 - smoothing + s
        grad_x = (exp(x - m) * r - (j == target ? w : s)) * g
    """,
    name="cupyops::cross_entropy_smoothed",
    indices=["target"],
    scalars=["ignore", "smoothing"],
    results=["loss", "m", "r"],
    wide=["loss", "m", "r"],
    reference=_reference_smoothed,
    onnx=_onnx_smoothed,
    ahead=_LENGTHS,
)
_cross_entropy_weighted = row_reduce(
    """
        o = abs(x[target]) < 1e30 ? x[target] : 0
        m = max(x)
        s = sum(exp(x - m))
        l = log(s)
        r = 1 / s
        w = weight[target]
        of_target = target >= 0 && target < N ? m - x[target] + l : NAN
        total = sum(weight)
        of_all = smoothing == 0 ? 0 : smoothing / N * (total * (m - o + l) - sum(weight * (x - o)))
        loss = target == ignore ? 0 : (1 - smoothing) * w * of_target + of_all
        share = target == ignore ? 0 : w
    """,
    backward="""
        g = target == ignore ? 0 : grad_loss
        w = (1 - smoothing) * weight[target]
        s = smoothing / N
        p = (w + s * total) * r
        grad_x = (exp(x - m) * p - (j == target ? w : 0) - s * weight) * g
    """,
    name="cupyops::cross_entropy_weighted",
    indices=["target"],
    columns=["weight"],
    scalars=["ignore", "smoothing"],
    results=["loss", "m", "r", "share", "total"],
    wide=["loss", "m", "r", "share", "total"],
    reference=_reference_weighted,
    onnx=_onnx_weighted,
    ahead=_LENGTHS,
)


# Class probabilities as targets: q = (1 - smoothing)·t + smoothing/N, times the weights of the classes, takes the place of the
# target's column. The loss is Σ q·(log Σ e^x - x), and grad_x = grad_loss·(p·Σ q - q).
def _of_probabilities(name: str, columns: Sequence[str]) -> Any:
    share, factor = ("weight * ", " * weight") if columns else ("", "")
    return row_reduce(
        f"""
        m = max(x)
        s = sum(exp(x - m))
        l = log(s)
        r = 1 / s
        q = {share}((1 - smoothing) * target + smoothing / N)
        total = sum(q)
        loss = total * l + sum(q * (m - x))
        """,
        backward=f"""
        l = -log(r)
        q = {share}((1 - smoothing) * target + smoothing / N)
        grad_x = (exp(x - m) * r * total - q) * grad_loss
        grad_target = (m - x + l) * (1 - smoothing) * grad_loss{factor}
        """,
        name=f"cupyops::{name}",
        columns=columns,
        scalars=["smoothing"],
        results=["loss", "m", "r", "total"],
        wide=["loss", "m", "r", "total"],
        reference=_reference_probabilities_weighted if columns else _reference_probabilities,
        onnx=_onnx_probabilities_weighted if columns else _onnx_probabilities,
    )


_cross_entropy_probabilities = _of_probabilities("cross_entropy_probabilities", [])
_cross_entropy_probabilities_weighted = _of_probabilities("cross_entropy_probabilities_weighted", ["weight"])

softcapped = elementwise(
    "y = softcap * tanh(x / softcap)",
    backward="grad_x = grad_y * (1 - y / softcap * (y / softcap))",
    name="cupyops::softcap",
    scalars=["softcap"],
    reference=lambda x, softcap: softcap * torch.tanh(x / softcap),
    onnx=lambda op, x, softcap: cast(op, op.Mul(op.Tanh(op.Div(in_float32(op, x), softcap)), softcap), x.dtype),
)

# With weights last.
OF_INDICES = _cross_entropy, _cross_entropy_smoothed, _cross_entropy_weighted
OF_PROBABILITIES = _cross_entropy_probabilities, _cross_entropy_probabilities_weighted
# The operators of class indices, with a backward that writes grad_x over x. Nothing reads x after the pass that writes grad_x.
OVER = {op.name: recorded_over(op, "x") for op in OF_INDICES}
