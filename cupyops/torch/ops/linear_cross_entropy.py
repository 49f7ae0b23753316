"""The function linear_cross_entropy, the loss of a language model's head, and its module."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cupyops.errors import expected
from cupyops.launch.untraced import untraced
from cupyops.torch.core.autocast import autocast_dtypes
from cupyops.torch.core.conditions import forward_mode, grad_enabled, is_compiling, transforms_active
from cupyops.torch.core.tensors import PLAIN_TENSORS, symbolic_call, wide_dtype
from cupyops.torch.scale.distributed import is_dtensor

from .cross_entropy import cross_entropy, exact_ignore_index, known_options
from .linear import linear
from .projected_loss import check_operands, loss_sum, losses, losses_backward
from .sharded_vocabulary import as_dtensor, losses_of_shards, shards_vocabulary

__all__ = ["LinearCrossEntropyLoss", "linear_cross_entropy"]


class _Sum(torch.autograd.Function):
    """The operator ``linear_cross_entropy`` on plain tensors. The backward multiplies the gradients in their own memory and hands
    them out; a backward that runs again computes them anew."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        loss, *ctx.gradients = loss_sum.call(*args, *ctx.needs_input_grad[:3])
        ctx.save_for_backward(*args[:6])
        ctx.numbers = args[6:]
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), needs = grads, ctx.needs_input_grad[:3]
        if grad_enabled():  # the gradient is to be differentiated
            *operands, scale = ctx.saved_tensors
            gradient = (grad * scale).expand(operands[3].shape)
            found = losses_backward.call(gradient, *operands, *ctx.numbers, *needs)
        else:
            found, ctx.gradients = ctx.gradients or loss_sum.call(*ctx.saved_tensors, *ctx.numbers, *needs)[1:], None
            for made, need in zip(found, needs, strict=True):
                if need:
                    made.mul_(grad)
        return *(g if need else None for g, need in zip(found, needs, strict=True)), *(None,) * (len(ctx.numbers) + 3)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """Computes the cross entropy of the logits z = x·Wᵀ + b of a language model's head, without z in memory as a whole.

    loss = w[t]·(log Σ e^z - z[t]) for each row of x with target t, with the label smoothing and the reductions of
    :func:`.cross_entropy.cross_entropy`. With ``softcap`` the logits are softcap·tanh(z/softcap). ``z_loss`` adds
    z_loss·(log Σ e^z)² to the loss of each row.

    On a GPU, a tenth of the rows is computed at a time: the product, then one kernel that writes the losses, and the
    gradient over the logits, then the products that make the gradients of x and W. The backward multiplies these gradients
    by the gradient of the loss. The loss of float16 rows, and losses without a reduction, compute the logits again in the
    backward, which has the gradient of the loss. The loss is computed in float32, or in float64 for float64, and is not
    rounded to the dtype of x.

    If ``weight`` is a DTensor whose classes the ranks of a mesh divide (``Shard(0)``, as ``ColwiseParallel`` places it), each rank
    computes the logits of its classes, and sends four numbers for each row. x and the target are then equal on every rank, or
    DTensors; the loss is a DTensor if x is one. Such a loss has no second derivative, and breaks a compiled graph. With class
    weights, label smoothing, a soft cap or class probabilities the weight is gathered.

    Args:
        x: (..., K), float16, bfloat16, float32 or float64.
        weight: (N, K), a row for each class, of x's dtype.
        target: class indices (...), int64. A target that is neither a class nor ``ignore_index`` gives a loss of NaN on a
            GPU; on a CPU it raises an error. Or class probabilities (..., N), floating: these are as large as the logits,
            which are then computed as a whole.
        bias: (N), of x's dtype, or None.
        class_weight: a weight for each class, (N), floating, or None. It has no gradient. PyTorch's functions call it
            ``weight``.
        ignore_index: a target whose rows have loss 0 and gradient 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. ``"mean"`` divides the sum by Σ w[t] of the rows that are not ignored.
        label_smoothing: from 0 to 1.
        softcap: a positive number, or None.
        z_loss: a factor; 0 adds nothing.

    Returns:
        A new tensor in float32, or in float64 for float64: a number, or for ``"none"`` a loss for each target.

    Raises:
        TypeError: an argument is neither a tensor nor a number, x or class_weight is not floating, or target is not int64.
        RuntimeError: the operands do not fit each other, in PyTorch's words, or label_smoothing is not between 0 and 1.
        ValueError: target or class_weight has another shape or device, weight has no classes, softcap is not positive, or
            ``reduction`` is unknown.

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024; ``torch.nn.functional.linear_cross_entropy``.

    >>> x, weight = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    >>> linear_cross_entropy(x, weight, torch.tensor([0]))
    tensor(0.4076)
    """
    options: dict[str, Any] = {"class_weight": class_weight, "ignore_index": ignore_index, "reduction": reduction}
    options |= {"label_smoothing": label_smoothing, "softcap": softcap, "z_loss": z_loss}
    if is_compiling() and type(weight).__name__ == "DTensor":
        eager: Tensor = _outside_of_graphs(x, weight, target, bias, **options)
        return eager
    for name, given in {"x": x, "weight": weight, "target": target, "bias": bias, "class_weight": class_weight}.items():
        optional = name in ("bias", "class_weight")
        if not isinstance(given, Tensor) and not (optional and given is None):
            if (proxy := symbolic_call(linear_cross_entropy, (x, weight, target, bias), **options)) is not None:
                return proxy
            wanted = "be a Tensor or None" if optional else "be a Tensor"
            raise TypeError(expected("linear_cross_entropy", name, wanted, type(given).__name__))
    for name, number in (("softcap", softcap), ("z_loss", z_loss)):
        if isinstance(number, str | Tensor):
            raise TypeError(expected("linear_cross_entropy", name, "be a number", type(number).__name__))
    ignore_index, reduction = known_options(ignore_index, reduction, label_smoothing)
    if softcap is not None and not softcap > 0:
        raise ValueError(expected("linear_cross_entropy", "softcap", "be a positive number or None", softcap))
    x, weight, bias = _cast(x, weight, bias)
    if is_dtensor(weight):  # plain tensors are equal on every rank
        plain = not is_dtensor(x)
        x, target, bias, class_weight = (as_dtensor(t, weight) for t in (x, target, bias, class_weight))
        if plain:
            loss: Any = linear_cross_entropy(x, weight, target, bias, **options | {"class_weight": class_weight})
            found: Tensor = loss.full_tensor()
            return found
    if target.is_floating_point() and target.dim() == x.dim():
        if z_loss:
            raise ValueError("linear_cross_entropy: `z_loss` takes class indices as targets, not class probabilities")
        return _of_probabilities(x, weight, target, bias, class_weight, reduction, label_smoothing, softcap)
    check_operands(x, weight, bias, target, class_weight)
    target, ignore_index = exact_ignore_index(target, ignore_index)
    numbers = float(ignore_index), max(0.0, float(label_smoothing)), float(softcap or 0), float(z_loss)
    tensors = x, weight, bias, target, class_weight
    simple = numbers[1:3] == (0, 0) and class_weight is None and not (transforms_active() or forward_mode())
    if simple and is_dtensor(weight) and shards_vocabulary(weight, bias):
        target = target.full_tensor()  # type: ignore[attr-defined]
        scale = None if reduction == "none" else _scale(x, target, None, ignore_index, reduction)
        placed: Tensor = as_dtensor(losses_of_shards(x, weight, bias, target, scale, ignore_index, numbers[3]), weight)
        return placed
    wants = [t is not None and t.requires_grad and grad_enabled() for t in (x, weight, bias)]
    if reduction == "none":
        return losses.call(*tensors, *numbers)
    scale = _scale(x, target, class_weight, ignore_index, reduction)
    # Only the backward knows the factor of a gradient scaler, such as 65536, which keeps gradients above float16's
    # least number.
    direct = x.dtype is not torch.float16 and any(wants) and not (transforms_active() or forward_mode())
    if not (direct and all(t is None or _is_dense(t) for t in tensors)):
        return losses.call(*tensors, *numbers).sum() * scale
    if is_compiling():
        return loss_sum.call(*tensors, scale, *numbers, *wants)[0]
    return _Sum.apply(*tensors, scale, *numbers)


@untraced
def _outside_of_graphs(*args: Any, **options: Any) -> Tensor:
    """Returns the loss of DTensors, whose ranks communicate between kernels. Dynamo breaks the graph here."""
    return linear_cross_entropy(*args, **options)


def _is_dense(x: Tensor) -> bool:
    """Returns whether x is a plain tensor. Losses of wrappers, such as DTensors and jagged tensors, are computed by
    rows."""
    return type(x) in PLAIN_TENSORS or (is_compiling() and not is_traceable_wrapper_subclass(x))


def _cast(*tensors: Tensor | None) -> list[Any]:
    """Returns the operands of the product, converted as autocast converts those of PyTorch's linear."""
    dtypes = autocast_dtypes({"cuda": "lower", "cpu": "lower"})
    wanted = [None if t is None else dtypes.get(t.device.type) for t in tensors]
    return [
        t if d is None or t is None or not t.is_floating_point() or t.dtype is torch.float64 else t.to(d)
        for t, d in zip(tensors, wanted, strict=True)
    ]


def _scale(x: Tensor, target: Tensor, class_weight: Tensor | None, ignore: int, reduction: str) -> Tensor:
    """Returns the number by which the sum of the losses is multiplied."""
    dtype = wide_dtype(x.dtype)
    if reduction == "sum":
        return torch.ones((), dtype=dtype, device=x.device)
    kept = target != ignore
    if class_weight is None:
        return kept.sum().to(dtype).reciprocal()
    # A target that is not a class must not end the process: its loss is NaN.
    share = class_weight.detach().to(dtype)[target.clamp(0, class_weight.shape[0] - 1)]
    return torch.where(kept, share, 0).sum().reciprocal()


def _of_probabilities(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    reduction: str,
    smoothing: float,
    softcap: float | None,
) -> Tensor:
    z = linear(x, weight, bias)
    if z.dim() > 2:
        loss = cross_entropy(
            z.flatten(0, -2), target.flatten(0, -2), class_weight, -100, reduction, smoothing, softcap=softcap
        )
        return loss.view(z.shape[:-1]) if reduction == "none" else loss
    return cross_entropy(z, target, class_weight, -100, reduction, smoothing, softcap=softcap)


class LinearCrossEntropyLoss(nn.Module):
    """The head of a language model and its loss: a linear layer whose parameters :func:`linear_cross_entropy` reads.

    The parameters have the names of PyTorch's ``LinearCrossEntropyLoss``, ``linear.weight`` and ``linear.bias``. To share
    the weight of an embedding, assign it: ``loss.linear.weight = embedding.weight``.

    Args:
        in_features: K.
        num_classes: N.
        bias: whether the logits have a bias.
        device, dtype: of the parameters.
        weight: a weight for each class, (N), or None.
        options: the other arguments of :func:`linear_cross_entropy`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.softcap, self.z_loss = softcap, z_loss

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        class_weight: Any = self.weight
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            self.linear.bias,
            class_weight=class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            softcap=self.softcap,
            z_loss=self.z_loss,
        )
