"""The PyTorch operator cross_entropy, made by :func:`cupyops.torch.row_reduce`."""

from operator import index as operator_index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn._reduction import get_enum

from cupyops.errors import expected
from cupyops.ops.checks import check_floating, check_shapes
from cupyops.torch.core.dispatch import forward_mode, grad_enabled, is_compiling, transforms_active
from cupyops.torch.core.tensors import DTYPE_NAMES, PLAIN_TENSORS, symbolic_call, wide_dtype
from cupyops.torch.programs.overwriting import recorded_over
from cupyops.torch.programs.row_reduce import row_reduce
from cupyops.torch.scale.distributed import with_whole_rows

from .onnx_values import cast, in_float32

__all__ = ["CrossEntropyLoss", "cross_entropy"]


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
# these sums lose digits of x - m, but the loss itself is then as large as m - o. A target that is no column gives NaN.
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

# The same operators, with a backward that writes grad_x over x. Nothing reads x behind the pass that writes grad_x.
_OVER = {op.name: recorded_over(op, "x") for op in (_cross_entropy, _cross_entropy_smoothed, _cross_entropy_weighted)}
_REDUCTIONS = ("none", "mean", "sum")  # by PyTorch's numbers
_SCALARS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
_EXACT = 2**24  # the kernels compare targets with `ignore` in float32


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    inplace_backward: bool = False,
) -> Tensor:
    """Computes the cross entropy of logits and class indices; a drop-in for ``torch.nn.functional.cross_entropy``.

    loss = w[t]·(log Σ e^x - x[t]) for each row x of logits with target t, and with label smoothing ε
    (1 - ε)·loss + ε/C·Σ_c w[c]·(log Σ e^x - x[c]). ``"mean"`` divides the sum by Σ w[t]. Ignored rows count in neither.

    The probabilities are never written to memory. The forward reads x once, and saves x and a number for each row. The
    backward reads x once and writes the gradient. The loss is computed in float32, or in float64 for float64 logits,
    and rounded once. Under autocast on a GPU the result is float32, as PyTorch's own is.

    Args:
        x: logits (C), (B, C) or (B, C, ...), float16, bfloat16, float32 or float64. With more than two dimensions, x is
            copied so that the classes are the last dimension.
        target: class indices, int64, of x's shape without the classes, or uint8 for x of one or two dimensions; beside x
            of shape (C) also (1), without label smoothing. A target that is neither a class nor
            ``ignore_index`` gives a loss of NaN on a GPU; on a CPU it raises an error.
        weight: a weight for each class, (C), of x's dtype, or float32 beside 16-bit x; or None. It has no gradient.
        ignore_index: a target whose rows have loss 0 and gradient 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: ε, up to 1. A negative one counts as 0, as in PyTorch.
        inplace_backward: whether the backward writes the gradient over x, so that it needs no memory for the gradient.
            x is the result of an operation, and no parameter. It then holds its gradient. Rows that do not follow each
            other without a gap, such as those of :func:`.linear.linear` with an odd number of classes, are copied a few
            at a time. Autograd then refuses every later backward that reads the logits, and a second
            run of this backward. In a compiled graph, under transforms of ``torch.func`` and for tensor subclasses, the
            gradient has memory of its own.

    Returns:
        A new tensor of x's dtype: a number, or for ``"none"`` a loss for each target.

    Raises:
        TypeError: x is not a floating tensor, target is not int64 or uint8, or ``ignore_index`` is no integer.
        ValueError: the shapes do not fit, ``reduction`` is unknown, or ``inplace_backward`` is True and the classes of a
            row are not side by side in memory, or rows overlap.
        RuntimeError: weight has another shape or dtype, or label_smoothing is more than 1. Also raised if
            ``inplace_backward`` is True and x is a leaf of autograd or a view of one, and then by a backward with
            ``create_graph=True``.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015 (label smoothing).

    >>> cross_entropy(torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1672)
    """
    if not isinstance(x, Tensor) or not isinstance(target, Tensor) or not isinstance(weight, Tensor | None):
        arguments = (x, target, weight, ignore_index, reduction, label_smoothing)
        if (proxy := symbolic_call(cross_entropy, arguments, inplace_backward=inplace_backward)) is not None:
            return proxy
        given = {"x": x, "target": target, "weight": weight}
        name, other = next((k, v) for k, v in given.items() if not isinstance(v, Tensor))
        raise TypeError(expected("cross_entropy", name, "be a Tensor", type(other).__name__))
    ignore_index, reduction = known_options(ignore_index, reduction, label_smoothing)
    _check(x, target, weight, label_smoothing)
    if label_smoothing < 0 or label_smoothing != label_smoothing:
        label_smoothing = 0.0  # as PyTorch takes it
    if x.dim() and not x.shape[min(1, x.dim() - 1)]:  # no class: no kernel has rows without elements
        options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
        return F.cross_entropy(x, target, weight, **options)  # type: ignore[arg-type]
    if target.dtype is torch.uint8:
        target = target.long()
    if x.dim() == 1:
        target = target.reshape(())
    rows = x if x.dim() <= 2 else x.movedim(1, -1)
    target, ignore_index = exact_ignore_index(target, ignore_index)
    over = inplace_backward and _overwrites(x, rows)
    share = None
    operator, arguments = _cross_entropy, [rows, target, ignore_index]
    if weight is not None:
        operator = _cross_entropy_weighted
        arguments = [rows, target, weight.detach() if over else weight, ignore_index, label_smoothing]
    elif label_smoothing:
        operator, arguments = _cross_entropy_smoothed, [*arguments, label_smoothing]
    loss, *others = (_OVER[operator.name] if over else operator)(*arguments)
    if weight is not None:
        share = others[2]
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum() if share is None else loss / share.detach().sum()
    return loss if x.is_cuda and torch.is_autocast_enabled("cuda") else loss.to(x.dtype)


def _overwrites(x: Tensor, rows: Tensor) -> bool:
    """Returns whether the backward of a call may write over the rows of x.

    Raises:
        ValueError: the elements of a row are not side by side, or two rows overlap.
        RuntimeError: x is a leaf of autograd, or a view of one. The message has the words of PyTorch's.
    """
    if not (grad_enabled() and rows.requires_grad):
        return False
    if not _apart(rows):
        words = "have its classes side by side in memory, and rows that do not overlap, for inplace_backward=True"
        raise ValueError(expected("cross_entropy", "x", words, f"strides {rows.stride()} of the rows"))
    if type(rows) not in PLAIN_TENSORS or is_compiling() or transforms_active() or forward_mode():
        return False
    base = x._base
    if x.is_leaf or (base is not None and base.is_leaf and base.requires_grad):
        of = "a leaf" if x.is_leaf else "a view of a leaf"
        raise RuntimeError(
            f"cross_entropy: {of} Variable that requires grad is being used in an in-place operation; its gradient would "
            "take the place of its values: call it with inplace_backward=False"
        )
    return True


def _apart(rows: Tensor) -> bool:
    """Returns whether the elements of each row are side by side, and no two rows overlap. So are contiguous rows, and those of
    a product whose rows begin at multiples of 16 bytes."""
    if rows.is_contiguous():
        return True
    end = rows.shape[-1]
    for stride, size in sorted((s, n) for s, n in zip(rows.stride()[:-1], rows.shape[:-1], strict=True) if n > 1):
        if stride < end:
            return False
        end = stride * size
    return rows.shape[-1] == 1 or rows.stride(-1) == 1


def _check(x: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float) -> None:
    check_floating("cross_entropy", "x", DTYPE_NAMES[x.dtype])
    if target.dtype is not torch.int64 and (target.dtype is not torch.uint8 or x.dim() > 2):
        words = "be class indices in int64; class probabilities are not supported"
        raise TypeError(expected("cross_entropy", "target", words, target.dtype))
    if x.dim() == 0:
        raise ValueError(expected("cross_entropy", "x", "have classes, at least one dimension", "a tensor of shape ()"))
    classes = min(1, x.dim() - 1)
    wanted = (*x.shape[:classes], *x.shape[classes + 1 :])
    one = x.dim() == 1 and target.shape == (1,) and not label_smoothing > 0  # as PyTorch
    if target.shape != wanted and not one:
        words = f"have x's shape without the classes, {tuple(wanted)}"
        raise ValueError(expected("cross_entropy", "target", words, tuple(target.shape)))
    if weight is not None and weight.shape != (x.shape[classes],):
        raise RuntimeError(
            f"cross_entropy: weight tensor should be defined either for all {x.shape[classes]} classes or no classes but"
            f" got weight tensor of shape: {list(weight.shape)}"
        )
    if weight is not None and weight.dtype is not x.dtype and not _takes_weight(x, weight):
        raise RuntimeError(
            f"cross_entropy: expected scalar type {_SCALARS.get(x.dtype, x.dtype)} but found "
            f"{_SCALARS.get(weight.dtype, weight.dtype)}: `weight` must have x's dtype, or float32 beside 16-bit x"
        )


def known_options(ignore_index: Any, reduction: str, label_smoothing: float) -> tuple[int, str]:
    """Returns ``ignore_index`` as an int, and the name of the reduction.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`cross_entropy`.
    """
    if type(ignore_index) is not int or not -(2**63) <= ignore_index < 2**63:
        # PyTorch says which other types are classes.
        F.cross_entropy(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), ignore_index=ignore_index)
        ignore_index = operator_index(ignore_index)
    if reduction not in _REDUCTIONS:
        reduction = _REDUCTIONS[get_enum(reduction)]  # raises, or warns of a former name
    if label_smoothing > 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    return ignore_index, reduction


def exact_ignore_index(target: Tensor, ignore_index: int) -> tuple[Tensor, int]:
    """Returns the targets and the ignored one, which float32 holds exactly."""
    if abs(ignore_index) > _EXACT:
        return torch.where(target == ignore_index, -100, target), -100
    return target, ignore_index


def _takes_weight(x: Tensor, weight: Tensor) -> bool:
    """Returns whether the weights of another dtype than x's are taken: float32 beside 16 bits; and under autocast, which
    converts all but float64 for PyTorch's function."""
    if weight.dtype is torch.float32 and x.dtype.itemsize == 2:
        return True
    cast = x.is_cuda and torch.is_autocast_enabled("cuda")
    return cast and all(t.is_floating_point() and t.dtype.itemsize < 8 for t in (x, weight))


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """A ``torch.nn.CrossEntropyLoss`` that calls :func:`cross_entropy`, with the same arguments and ``state_dict``, and
    with ``inplace_backward``."""

    inplace_backward = False

    def __init__(self, *args: Any, inplace_backward: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inplace_backward = inplace_backward

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight: Tensor | None = self.weight
        options = self.ignore_index, self.reduction, self.label_smoothing
        return cross_entropy(input, target, weight, *options, inplace_backward=self.inplace_backward)
