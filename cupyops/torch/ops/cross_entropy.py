"""The function cross_entropy and its module."""

from operator import index as operator_index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn._reduction import get_enum

from cupyops.errors import expected
from cupyops.ops.checks import check_floating
from cupyops.torch.core.conditions import forward_mode, grad_enabled, is_compiling, transforms_active
from cupyops.torch.core.tensors import DTYPE_NAMES, PLAIN_TENSORS, symbolic_call

from .cross_entropy_programs import OF_INDICES, OF_PROBABILITIES, OVER, softcapped

__all__ = ["CrossEntropyLoss", "cross_entropy", "exact_ignore_index", "known_options"]


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
    softcap: float | None = None,
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
        target: class probabilities, floating, of x's shape; their loss is Σ_c w[c]·q[c]·(log Σ e^x - x[c]) with
            q = (1 - ε)·target + ε/C, and ``"mean"`` divides by the number of rows. Or class indices, of x's shape
            without the classes: int64, or uint8 for x of one or two dimensions. For x of shape (C), the shape (1) is
            accepted, too, without label smoothing. A target that is neither a class nor
            ``ignore_index`` gives a loss of NaN on a GPU; on a CPU it raises an error.
        weight: a weight for each class, (C), of x's dtype, or float32 with 16-bit x; or None. It has no gradient.
        ignore_index: a target whose rows have loss 0 and gradient 0.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: ε, up to 1. A negative one counts as 0, as in PyTorch.
        softcap: if given, softcap·tanh(x/softcap) takes the place of x.
        inplace_backward: whether the backward writes the gradient over x, so that it needs no memory for the gradient.
            x is the result of an operation, and no parameter. It then holds its gradient. Rows that do not follow each
            other without a gap, such as those of :func:`.linear.linear` with an odd number of classes, are copied a few
            at a time. Autograd then refuses every later backward that reads the logits, and a second
            run of this backward. In a compiled graph, under transforms of ``torch.func``, for tensor subclasses and
            beside class probabilities, the gradient has memory of its own.

    Returns:
        A new tensor of x's dtype: a number, or for ``"none"`` a loss for each target.

    Raises:
        TypeError: x is not a floating tensor, target is not int64 or uint8, or ``ignore_index`` is not an integer.
        ValueError: the shapes do not fit, ``reduction`` is unknown, ``softcap`` is not positive, or ``inplace_backward`` is True and the classes of a
            row are not side by side in memory, or rows overlap.
        RuntimeError: weight has another shape or dtype, label_smoothing is more than 1, or ``ignore_index`` is a class
            beside class probabilities. Also raised if
            ``inplace_backward`` is True and x is a leaf of autograd or a view of one, and then by a backward with
            ``create_graph=True``.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015 (label smoothing).

    >>> cross_entropy(torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 1]))
    tensor(0.1672)
    """
    if not isinstance(x, Tensor) or not isinstance(target, Tensor) or not isinstance(weight, Tensor | None):
        arguments = (x, target, weight, ignore_index, reduction, label_smoothing)
        if (
            proxy := symbolic_call(cross_entropy, arguments, softcap=softcap, inplace_backward=inplace_backward)
        ) is not None:
            return proxy
        given = {"x": x, "target": target, "weight": weight}
        name, other = next((k, v) for k, v in given.items() if not isinstance(v, Tensor))
        raise TypeError(expected("cross_entropy", name, "be a Tensor", type(other).__name__))
    ignore_index, reduction = known_options(ignore_index, reduction, label_smoothing)
    _check(x, target, weight, label_smoothing, ignore_index)
    if label_smoothing < 0 or label_smoothing != label_smoothing:
        label_smoothing = 0.0  # as PyTorch takes it
    if x.dim() and not x.shape[min(1, x.dim() - 1)]:  # no class: no kernel has rows without elements
        options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
        return F.cross_entropy(x, target, weight, **options)  # type: ignore[arg-type]
    if softcap is not None:
        if not softcap > 0:
            raise ValueError(expected("cross_entropy", "softcap", "be a positive number or None", softcap))
        x = softcapped(x, float(softcap))
    if target.shape == x.shape:
        return _with_probabilities(x, target, weight, reduction, label_smoothing)
    if target.dtype is torch.uint8:
        target = target.long()
    if x.dim() == 1:
        target = target.reshape(())
    rows = x if x.dim() <= 2 else x.movedim(1, -1)
    target, ignore_index = exact_ignore_index(target, ignore_index)
    over = inplace_backward and _overwrites(x, rows)
    share = None
    plain, smoothed, weighted = OF_INDICES
    operator, arguments = plain, [rows, target, ignore_index]
    if weight is not None:
        operator = weighted
        arguments = [rows, target, weight.detach() if over else weight, ignore_index, label_smoothing]
    elif label_smoothing:
        operator, arguments = smoothed, [*arguments, label_smoothing]
    loss, *others = (OVER[operator.name] if over else operator)(*arguments)
    if weight is not None:
        share = others[2]
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum() if share is None else loss / share.detach().sum()
    return loss if x.is_cuda and torch.is_autocast_enabled("cuda") else loss.to(x.dtype)


def _with_probabilities(x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> Tensor:
    dtype = torch.promote_types(x.dtype, target.dtype)
    if x.dim() > 2:
        x, target = x.movedim(1, -1), target.movedim(1, -1)
    if weight is None:
        loss = OF_PROBABILITIES[0](x, target, smoothing)[0]
    else:
        loss = OF_PROBABILITIES[1](x, target, weight, smoothing)[0]
    if reduction != "none":
        rows = loss.numel()
        loss = loss.sum()
        if reduction == "mean":
            loss = loss / rows if rows else loss * float("nan")
    return loss if x.is_cuda and torch.is_autocast_enabled("cuda") else loss.to(dtype)


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


def _check(x: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float, ignore_index: int) -> None:
    check_floating("cross_entropy", "x", DTYPE_NAMES[x.dtype])
    if x.dim() == 0:
        raise ValueError(expected("cross_entropy", "x", "have classes, at least one dimension", "a tensor of shape ()"))
    probabilities = target.shape == x.shape  # as PyTorch decides
    classes = min(1, x.dim() - 1)
    wanted = (*x.shape[:classes], *x.shape[classes + 1 :])
    one = x.dim() == 1 and target.shape == (1,) and not label_smoothing > 0  # as PyTorch
    if probabilities:
        check_floating("cross_entropy", "target", DTYPE_NAMES[target.dtype], "be class probabilities in")
        if ignore_index >= 0:
            raise RuntimeError("cross_entropy: ignore_index is not supported for floating point target")
    elif target.dtype is not torch.int64 and (target.dtype is not torch.uint8 or x.dim() > 2):
        words = "be class indices in int64, or class probabilities of x's shape"
        raise TypeError(expected("cross_entropy", "target", words, target.dtype))
    elif target.shape != wanted and not one:
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
        # PyTorch decides which other types are class indices.
        F.cross_entropy(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), ignore_index=ignore_index)
        ignore_index = operator_index(ignore_index)
    if reduction not in _REDUCTIONS:
        reduction = _REDUCTIONS[get_enum(reduction)]  # raises, or warns of a former name
    if label_smoothing > 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    return ignore_index, reduction


def exact_ignore_index(target: Tensor, ignore_index: int) -> tuple[Tensor, int]:
    """Returns the targets and ignore_index as values that float32 represents exactly."""
    if abs(ignore_index) > _EXACT:
        return torch.where(target == ignore_index, -100, target), -100
    return target, ignore_index


def _takes_weight(x: Tensor, weight: Tensor) -> bool:
    """Returns whether weights may have another dtype than x: float32 weights with 16-bit x, and under autocast all but
    float64, as in PyTorch's function."""
    if weight.dtype is torch.float32 and x.dtype.itemsize == 2:
        return True
    cast = x.is_cuda and torch.is_autocast_enabled("cuda")
    return cast and all(t.is_floating_point() and t.dtype.itemsize < 8 for t in (x, weight))


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """A ``torch.nn.CrossEntropyLoss`` that calls :func:`cross_entropy`, with the same arguments and ``state_dict``, and
    with ``softcap`` and ``inplace_backward``."""

    inplace_backward = False
    softcap: float | None = None

    def __init__(
        self, *args: Any, softcap: float | None = None, inplace_backward: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.softcap, self.inplace_backward = softcap, inplace_backward

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight: Tensor | None = self.weight
        options = self.ignore_index, self.reduction, self.label_smoothing
        further: dict[str, Any] = {"softcap": self.softcap, "inplace_backward": self.inplace_backward}
        return cross_entropy(input, target, weight, *options, **further)
