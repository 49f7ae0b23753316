"""The operators of linear_cross_entropy: the cross entropy of x·Wᵀ + b, whose logits are never in memory as a whole."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cupyops.arrays import LIBRARIES
from cupyops.errors import expected
from cupyops.launch.hooks import declare_later
from cupyops.ops.linear.body import SUMS
from cupyops.ops.linear.products import check_product
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.scale.sharding import Split

from .linear import linear_flops
from .loss_rows import Form, columns_of, declare_ahead, loss_of_rows
from .onnx_values import cast, in_float32

__all__ = [
    "add_gradients",
    "check_operands",
    "loss_sum",
    "losses",
    "losses_backward",
    "padded_width",
    "product_of",
    "rows_of_chunk",
]

# A chunk of rows has at most a tenth of the logits, so that a tenth of their memory is taken, and a multiple of ROWS rows, which are
# whole tiles of a product. Each chunk adds its part to the gradient of the weight, which takes a pass over that gradient: with
# fewer rows than LEAST, the pass would take as long as the products.
SHARE, ROWS, LEAST = 10, 256, 512
# Products over a number of classes that is not a multiple of this are computed in two parts: of all but the last classes, and of these.
# PyTorch's product of 1536 rows, 768 columns and 50257 classes takes 1.26 ms on an H200, and its two parts take 0.19 ms.
CLASSES = 8


def rows_of_chunk(rows: int) -> int:
    """Returns how many of the rows are computed at once."""
    return max(LEAST, rows // SHARE // ROWS * ROWS)


def _body(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    grad_loss: Tensor | None,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
    wants: Sequence[bool] = (False, False, False),
) -> tuple[Tensor, ...]:
    """Returns the losses, and the gradients of x, weight and bias for a gradient of the losses; None for those that are
    not needed."""
    check_operands(x, weight, bias, target, class_weight)
    rows, n = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight.shape[0]
    target, m, graded = target.reshape(-1), rows.shape[0], any(wants)
    loss = x.new_empty(m, dtype=wide_dtype(x.dtype))
    grad_x = torch.empty_like(rows, memory_format=torch.contiguous_format) if wants[0] else None
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if wants[1] else None
    grad_bias = loss.new_zeros(n) if wants[2] else None
    if m == 0:
        return loss.view(target_shape(x)), *_results(x, bias, grad_x, _zeros(grad_weight), grad_bias)
    width = padded_width(x, n)
    form = Form(width != n, bias is not None, softcap > 0, smoothing > 0, class_weight is not None, z_loss != 0)
    numbers = {"ignore": ignore, "smoothing": smoothing, "softcap": softcap, "z_loss": z_loss, "classes": float(n)}
    scalars = [numbers[name] for name in form.scalars]
    columns = [F.pad(c, (0, width - n)) for c in columns_of(form, bias, class_weight)]
    compute = loss_of_rows(form, graded)
    if graded:
        assert grad_loss is not None
        grad_loss = grad_loss.reshape(-1).contiguous()
    each = min(m, rows_of_chunk(m))
    logits = x.new_empty(each, width)
    for i in range(0, m, each):
        part = slice(i, min(m, i + each))
        chunk, x_part = logits[: part.stop - i], rows[part]
        product_of(x_part, weight, chunk)
        if grad_loss is None:
            loss[part] = compute(chunk, target[part], *columns, *scalars)
            continue
        loss[part], _ = compute(
            chunk, grad_loss[part], target[part], *columns, *scalars
        )  # the gradient is in the chunk
        add_gradients(chunk, x_part, weight, None if grad_x is None else grad_x[part], grad_weight, first=i == 0)
        if grad_bias is not None:
            grad_bias += SUMS(LIBRARIES[type(chunk)], chunk)[:n]
    return loss.view(target_shape(x)), *_results(x, bias, grad_x, grad_weight, grad_bias)


def padded_width(x: Tensor, n: int) -> int:
    """Returns the width of the logits in memory: rows of logits begin at multiples of 16 bytes."""
    return -(-n * x.element_size() // 16) * 16 // x.element_size()


def product_of(x: Tensor, weight: Tensor, logits: Tensor) -> None:
    """Writes x·Wᵀ to the first columns of the logits."""
    for some in _classes(weight):
        torch.mm(x, weight[some].t(), out=logits[:, some])


def add_gradients(
    grad_logits: Tensor, x: Tensor, weight: Tensor, grad_x: Tensor | None, grad_weight: Tensor | None, *, first: bool
) -> None:
    """Writes the gradient of x, and adds to the gradient of the weight, or writes it if these rows are the first."""
    for i, some in enumerate(_classes(weight)):
        if grad_x is not None:
            _add_product(grad_x, grad_logits[:, some], weight[some], first=i == 0)
        if grad_weight is not None:
            _add_product(grad_weight[some], grad_logits[:, some].t(), x, first=first)


def _classes(weight: Tensor) -> list[slice]:
    n = weight.shape[0]
    whole = n // CLASSES * CLASSES
    return [slice(a, b) for a, b in ((0, whole), (whole, n)) if a < b]


def _add_product(out: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """Adds a·b to ``out``, or writes it there."""
    if first:
        torch.mm(a, b, out=out)
    else:
        out.addmm_(a, b)


def target_shape(x: Tensor) -> Any:
    return x.shape[:-1]


def _zeros(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.zero_()


def _results(
    x: Tensor, bias: Tensor | None, grad_x: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None
) -> list[Tensor]:
    """Returns the gradients in the shapes and dtypes of the operands. A gradient that is not needed is empty."""
    found = [
        None if grad_x is None else grad_x.view(x.shape),
        grad_weight,
        None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
    ]
    return [x.new_empty(0) if g is None else g for g in found]


def _forward(*args: Any) -> Tensor:
    x, weight, bias, target, class_weight, *numbers = args
    return _body(x, weight, bias, target, class_weight, None, *numbers)[0]


def _fake(*args: Any) -> Tensor:
    x = args[0]
    return x.new_empty(target_shape(x), dtype=wide_dtype(x.dtype))


def _reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
) -> Tensor:
    check_operands(x, weight, bias, target, class_weight)
    return _of_logits(F.linear(x, weight, bias), target, class_weight, ignore, smoothing, softcap, z_loss)


def _of_logits(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
) -> Tensor:
    logits = logits.to(wide_dtype(logits.dtype))
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    every = logits.logsumexp(-1)
    ignored = target == ignore
    place = torch.where(ignored, 0, target)
    logs = logits.log_softmax(-1)
    loss = -logs.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    weights = None if class_weight is None else class_weight.to(loss.dtype)
    if weights is not None:
        loss = loss * weights[place]
    if smoothing > 0:
        sums = logs.sum(-1) if weights is None else (logs * weights).sum(-1)
        loss = (1 - smoothing) * loss - smoothing / logits.shape[-1] * sums
    if z_loss:
        loss = loss + z_loss * every * every
    return torch.where(ignored, 0, loss)


def _backward(grad_loss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any) -> Sequence[Tensor]:
    """Computes the logits again, and from them the gradients."""
    target, class_weight, *numbers = args[:-3]
    wants = (*args[-3:-1], args[-1] and bias is not None)
    if not any(wants):
        return [x.new_empty(0) for _ in wants]
    ignore, smoothing, softcap, z_loss = numbers
    return _body(x, weight, bias, target, class_weight, grad_loss, ignore, smoothing, softcap, z_loss, wants)[1:]


def _gradients_reference(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
    want_x: bool,
    want_weight: bool,
    want_bias: bool,
) -> tuple[Tensor, ...]:
    """Returns the gradients of x, weight and bias by that of the logits z, which is g·(p·(Q + 2·z_loss·log Σ e^z) - q), where q is the
    smoothed and weighted target of each class, and Q = Σ q. A reference that called autograd would have a checkpoint around
    it compute itself again within its forward."""
    check_operands(x, weight, bias, target, class_weight)
    z = F.linear(x, weight, bias)
    z = z.to(wide_dtype(z.dtype))
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    classes = torch.arange(z.shape[-1], device=z.device)
    q = (classes == target.unsqueeze(-1)).to(z.dtype)
    if smoothing > 0:
        q = (1 - smoothing) * q + smoothing / z.shape[-1]
    if class_weight is not None:
        q = q * class_weight.to(z.dtype)
    total = q.sum(-1, keepdim=True)
    if z_loss:
        total = total + 2 * z_loss * z.logsumexp(-1, keepdim=True)
    of_logits = z.softmax(-1) * total - q
    if softcap > 0:
        of_logits = of_logits * (1 - (z / softcap) ** 2)
    of_logits = of_logits * torch.where(target == ignore, 0, grad_loss).unsqueeze(-1)
    rows = of_logits.to(x.dtype).reshape(-1, z.shape[-1])
    return (
        (rows @ weight).reshape(x.shape) if want_x else x.new_empty(0),
        rows.t() @ x.reshape(rows.shape[0], x.shape[-1]) if want_weight else x.new_empty(0),
        rows.sum(0) if want_bias and bias is not None else x.new_empty(0),
    )


def _sharding(x: Any, *args: Any) -> Iterable[Split]:
    """Splits the rows."""
    for dim in range(x.ndim - 1):
        yield (dim,), (dim, None, None, dim, None)


def _flops(x: Sequence[int], weight: Sequence[int], *_: Any) -> int:
    return linear_flops(x, weight)


def _onnx(
    op: Any,
    x: Any,
    weight: Any,
    bias: Any,
    target: Any,
    class_weight: Any,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
) -> Any:
    x, weight, bias, class_weight = in_float32(op, x, weight, bias, class_weight)
    logits = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    logits = logits if bias is None else op.Add(logits, bias)
    if softcap > 0:
        logits = op.Mul(op.Tanh(op.Div(logits, softcap)), softcap)
    logs = op.LogSoftmax(logits, axis=-1)
    ignored = op.Equal(target, op.CastLike(int(ignore), target))
    place = op.Where(ignored, op.CastLike(0, target), target)
    loss = op.Neg(op.Squeeze(op.GatherElements(logs, op.Unsqueeze(place, [-1]), axis=-1), [-1]))
    if class_weight is not None:
        class_weight = cast(op, class_weight, loss.dtype)
        loss = op.Mul(loss, op.Gather(class_weight, place))
    if smoothing > 0:
        every = logs if class_weight is None else op.Mul(logs, class_weight)
        loss = op.Sub(op.Mul(loss, 1 - smoothing), op.Mul(op.ReduceMean(every, [-1], keepdims=0), smoothing))
    if z_loss:
        most = op.ReduceMax(logits, [-1], keepdims=1)
        total = op.Log(op.ReduceSum(op.Exp(op.Sub(logits, most)), [-1], keepdims=1))
        norm = op.Squeeze(op.Add(total, most), [-1])
        loss = op.Add(loss, op.Mul(op.Mul(norm, norm), z_loss))
    return op.Where(ignored, op.CastLike(0, loss), loss)


def _backward_fake(grad_loss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any) -> list[Tensor]:
    return [
        torch.empty_like(t, memory_format=torch.contiguous_format) if wanted and t is not None else x.new_empty(0)
        for t, wanted in zip((x, weight, bias), args[-3:], strict=True)
    ]


def _backward_sharding(grad_loss: Any, *args: Any) -> Iterable[Split]:
    for dim in range(grad_loss.ndim):
        yield (dim, "sum", "sum"), (dim, dim, None, None, dim, None)


def _backward_flops(grad_loss: Any, x: Sequence[int], weight: Sequence[int], *args: Any) -> int:
    return linear_flops(x, weight) * (args[-3] + args[-2])  # without the logits, which are the forward's


_OPERANDS = "Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight"
_NUMBERS = "float ignore, float smoothing, float softcap, float z_loss"
_SCHEMA = f"cupyops::linear_cross_entropy_rows({_OPERANDS}, {_NUMBERS}) -> Tensor loss"
_SCHEMA_BACKWARD = (
    f"cupyops::linear_cross_entropy_rows_backward(Tensor grad_loss, {_OPERANDS}, {_NUMBERS}, bool want_x, bool want_weight,"
    " bool want_bias) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)"
)
_OPERANDS_OF_GRADIENT = ("x", "weight", "bias")
# The gradient for a gradient of each loss, which only the backward has: it computes the logits again.
losses_backward = Operator(
    _SCHEMA_BACKWARD,
    _backward,
    reference=_gradients_reference,
    sharding=_backward_sharding,
    flops=_backward_flops,
    fake=_backward_fake,
)
losses = Operator(
    _SCHEMA,
    _forward,
    backward=losses_backward,
    wrt=_OPERANDS_OF_GRADIENT,
    reference=_reference,
    onnx=_onnx,
    sharding=_sharding,
    flops=_flops,
    fake=_fake,
)


def _total(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    scale: Tensor,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
    *needs: bool,
) -> tuple[Tensor, ...]:
    wants = (*needs[:2], needs[2] and bias is not None)
    grad_loss = scale.expand(target.shape) if any(wants) else None
    numbers = ignore, smoothing, softcap, z_loss
    loss, *gradients = _body(x, weight, bias, target, class_weight, grad_loss, *numbers, wants)
    return loss.sum() * scale, *gradients


def _total_fake(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return x.new_empty((), dtype=wide_dtype(x.dtype)), *_backward_fake(x, x, *args)


def _total_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    scale: Tensor,
    *args: Any,
) -> tuple[Tensor, ...]:
    operands, (*numbers, _, _, _) = (x, weight, bias, target, class_weight), args
    loss = _reference(*operands, *numbers).sum() * scale
    return loss, *_gradients_reference(scale.expand(target.shape), *operands, *args)


def _total_backward(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    scale: Tensor,
    of_x: Tensor,
    of_weight: Tensor,
    of_bias: Tensor,
    ignore: float,
    smoothing: float,
    softcap: float,
    z_loss: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
    want_x: bool,
    want_weight: bool,
    want_bias: bool,
) -> Sequence[Tensor | None]:
    wants, needs = (want_x, want_weight, want_bias and bias is not None), (need_x, need_weight, need_bias)
    if any(want and not need for want, need in zip(wants, needs, strict=True)):
        grads = (grad_loss * scale).expand(target.shape)
        args = (grads, x, weight, bias, target, class_weight, ignore, smoothing, softcap, z_loss)
        return _backward(*args, *wants)
    made = (of_x, of_weight, of_bias)
    return [(g * grad_loss).to(g.dtype) if want else None for g, want in zip(made, wants, strict=True)]


# The sum of the losses times ``scale``, and the gradients that are needed, by one pass over the chunks.
loss_sum = Operator(
    f"cupyops::linear_cross_entropy({_OPERANDS}, Tensor scale, {_NUMBERS}, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor loss, Tensor of_x, Tensor of_weight, Tensor of_bias)",
    _total,
    backward=_total_backward,
    wrt=_OPERANDS_OF_GRADIENT,
    reference=_total_reference,
    flops=lambda x, weight, *args: linear_flops(x, weight) * (1 + args[-3] + args[-2]),
    fake=_total_fake,
)
# The vocabularies of Llama 2 and GPT-2.
declare_later(losses, partial(declare_ahead, ((32000, Form()), (50264, Form(padded=True)))))


def check_operands(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None) -> None:
    check_product("linear_cross_entropy", x, weight, bias)
    if weight.shape[0] == 0:
        raise ValueError(expected("linear_cross_entropy", "weight", "have a row for each class", tuple(weight.shape)))
    if class_weight is not None and not class_weight.is_floating_point():
        raise TypeError(expected("linear_cross_entropy", "class_weight", "be floating", class_weight.dtype))
    for name, t in (("target", target), ("class_weight", class_weight)):
        if t is not None and t.device != x.device:
            raise ValueError(expected("linear_cross_entropy", name, f"be on the device of `x` ({x.device})", t.device))
    if target.dtype is not torch.int64:
        words = "be class indices in int64, or class probabilities (..., N)"
        raise TypeError(expected("linear_cross_entropy", "target", words, target.dtype))
    if target.shape != x.shape[:-1]:
        words = f"have a class for each row of x, {tuple(x.shape[:-1])}"
        raise ValueError(expected("linear_cross_entropy", "target", words, tuple(target.shape)))
    if class_weight is not None and class_weight.shape != weight.shape[:1]:
        words = f"have a value for each class, {tuple(weight.shape[:1])}"
        raise ValueError(expected("linear_cross_entropy", "class_weight", words, tuple(class_weight.shape)))
