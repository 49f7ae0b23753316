"""linear_cross_entropy of a vocabulary that ranks divide: the weight is a DTensor with the placement Shard(0).

Each rank computes the logits of its classes for all rows, a chunk of the rows at a time. For each row, a rank has m =
max z, s = Σ e^(z - m), whether the target is one of its classes, and the target's logit. An all-gather of these four
numbers for the rows of the chunk gives every rank log Σ e^z of all classes, and with it the loss, and the gradient of
its own logits.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cupyops.torch.core.tensors import wide_dtype
from cupyops.torch.programs.overwriting import overwriting
from cupyops.torch.programs.row_reduce import row_reduce
from cupyops.torch.scale.distributed import dtensor, is_dtensor

from .cross_entropy_programs import OF_INDICES
from .projected_loss import add_gradients, padded_width, product_of, rows_of_chunk

__all__ = ["as_dtensor", "losses_of_shards", "shards_vocabulary"]

_NO_CLASS = -1


def _reference(x: Tensor, m: Tensor, r: Tensor, grad_loss: Tensor, target: Tensor) -> Tensor:
    p = (x.to(m.dtype) - m.unsqueeze(-1)).exp() * r.unsqueeze(-1)
    classes = torch.arange(x.shape[-1], device=x.device)
    return ((p - (classes == target.unsqueeze(-1)).to(p.dtype)) * grad_loss.unsqueeze(-1)).to(x.dtype)


_of_rows = OF_INDICES[0]
# The gradient of the logits x of some of the classes, over them; m and r are those of all classes.
_gradient = row_reduce(
    "grad_x = (exp(x - m) * r - (j == target ? 1.0 : 0.0)) * grad_loss",
    name="cupyops::linear_cross_entropy_of_classes",
    rows=["m", "r", "grad_loss"],
    indices=["target"],
    reference=_reference,
)
_gradient_over = overwriting(_gradient, "x")


def shards_vocabulary(weight: Any, bias: Any) -> bool:
    """Returns whether the ranks of a mesh of one dimension have some rows of the weight each, and the bias likewise."""
    from torch.distributed.tensor import Shard

    if weight.device_mesh.ndim != 1 or any(type(p) is not Shard or p.dim != 0 for p in weight.placements):
        return False
    return bias is None or (is_dtensor(bias) and bias.placements == weight.placements)


def as_dtensor(x: Any, weight: Any) -> Any:
    """Returns a replicated tensor as a DTensor on the mesh of the weight, and a DTensor unchanged."""
    if x is None or is_dtensor(x):
        return x
    from torch.distributed.tensor import Replicate

    mesh = weight.device_mesh
    return dtensor().from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def losses_of_shards(
    x: Any, weight: Any, bias: Any, target: Tensor, scale: Tensor | None, ignore: int, z_loss: float
) -> Tensor:
    """Returns the loss of each row, or with ``scale`` their sum times ``scale``, as a plain tensor that is equal on every rank.

    Args:
        x: (..., K), a DTensor.
        weight, bias: DTensors that :func:`shards_vocabulary` takes.
        target: (...), plain, equal on every rank.
        scale: a number as a tensor, equal on every rank, or None.
        ignore, z_loss: as for :func:`.linear_cross_entropy.linear_cross_entropy`.
    """
    from torch.distributed.tensor import Partial, Replicate

    mesh = weight.device_mesh
    each = -(-weight.shape[0] // mesh.size())  # Shard gives as many rows to each rank, until there are none left
    first = min(mesh.get_local_rank() * each, weight.shape[0])
    # Every rank has the whole x, and computes a summand of its gradient.
    rows = x.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])
    own = None if bias is None else bias.to_local()
    graded = torch.is_grad_enabled()
    found: Tensor = _Shards.apply(
        rows, weight.to_local(), own, target, scale, first, mesh.get_group(), ignore, z_loss, graded
    )
    return found


class _Shards(torch.autograd.Function):
    """The losses over the classes of all ranks, computed with this rank's rows of the weight. With ``scale`` the forward
    also computes the gradients, and the backward scales them. Without it, each loss has a gradient of its own, which is
    known in the backward alone: the backward then computes the logits again."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        x, weight, bias, target, scale, first, group, ignore, z_loss, graded = args
        ctx.wants = [graded and need for need in ctx.needs_input_grad[:3]]
        rows = x.reshape(-1, x.shape[-1])
        flat = target.reshape(-1)
        # A target that is not a class belongs to no rank, and its loss is NaN.
        kept = flat != ignore
        mine = kept & (flat >= first) & (flat < first + weight.shape[0])
        own = torch.where(mine, flat - first, _NO_CLASS)
        # Only the backward knows the factor of a gradient scaler, such as 65536, which keeps gradients above float16's
        # least number.
        direct = scale is not None and any(ctx.wants) and x.dtype is not torch.float16
        sums = _Gradients(rows, weight, bias, ctx.wants) if direct else None
        loss = rows.new_empty(len(rows), dtype=wide_dtype(x.dtype))
        maxima, shares = torch.empty_like(loss), torch.empty_like(loss)
        for part, z in _chunks(rows, weight, bias):
            m, s, of_target = _of_all_ranks(z, own[part], weight.shape[0], group)
            log = m + s.log()
            each = m - of_target + s.log()
            loss[part] = torch.where(kept[part], each + z_loss * log * log if z_loss else each, 0)
            # p·(1 + 2·z_loss·log Σ e^z) is the first summand of the gradient of the logits
            maxima[part], shares[part] = m, (1 + 2 * z_loss * log) / s
            if sums is not None:
                sums.add(part, z, scale * kept[part], maxima[part], shares[part], own[part])
        ctx.direct, ctx.shapes = direct, (x.shape, target.shape)
        if sums is not None:
            ctx.save_for_backward(*sums.found())
        elif any(ctx.wants):
            ctx.save_for_backward(rows, weight, bias, own, kept, maxima, shares, scale)
        return loss.view(target.shape) if scale is None else loss.sum() * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy: the loss of a vocabulary that ranks divide has no second derivative, and the backward has "
                "create_graph=True: gather the weight first, by weight.redistribute(placements=[Replicate()])"
            )
        (grad,) = grads
        shape_of_x, shape = ctx.shapes
        if ctx.direct:
            found = [None if g is None else (g * grad).to(g.dtype) for g in ctx.saved_tensors]
        else:
            rows, weight, bias, own, kept, maxima, shares, scale = ctx.saved_tensors
            sums = _Gradients(rows, weight, bias, ctx.wants)
            each = (grad if scale is None else grad * scale).expand(shape).reshape(-1) * kept
            for part, z in _chunks(rows, weight, bias):
                sums.add(part, z, each[part], maxima[part], shares[part], own[part])
            found = sums.found()
        return None if found[0] is None else found[0].view(shape_of_x), *found[1:], *(None,) * 7


def _chunks(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """Yields slices of the rows, and their logits. The logits are rows of a whole number of 16 bytes, which end with -inf."""
    n, count = weight.shape[0], len(rows)
    if count == 0:
        return
    each, width = min(count, rows_of_chunk(count)), padded_width(rows, max(n, 1))
    logits = rows.new_empty(each, width)
    for i in range(0, count, each):
        part = slice(i, min(count, i + each))
        z = logits[: part.stop - i]
        product_of(rows[part], weight, z)
        if bias is not None:
            z[:, :n] += bias
        z[:, n:] = -torch.inf
        yield part, z


def _of_all_ranks(z: Tensor, own: Tensor, n: int, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns m = max z, Σ e^(z - m) and the logit of the target of each row, over the classes of all ranks."""
    mine = own >= 0
    if n:
        place = torch.where(mine, own, 0)
        _, m, r = _of_rows.call(z, place, float(_NO_CLASS))
        of_target = torch.where(mine, z.gather(1, place.unsqueeze(1)).squeeze(1).to(m.dtype), 0)
        local = torch.stack([m, r.reciprocal(), of_target, mine.to(m.dtype)])
    else:  # more ranks than classes
        local = z.new_zeros(4, len(z), dtype=wide_dtype(z.dtype))
        local[0] = -torch.inf
    parts = local.new_empty(dist.get_world_size(group), *local.shape)
    dist.all_gather_into_tensor(parts.view(-1, local.shape[-1]), local, group=group)
    maxima, shares, targets, found = parts.unbind(1)
    m = maxima.amax(0)
    s = (shares * (maxima - m).exp()).sum(0)
    return m, s, torch.where(found.sum(0) > 0, targets.sum(0), torch.nan)


class _Gradients:
    """The gradients of x, weight and bias, to which chunks of the rows are added."""

    def __init__(self, rows: Tensor, weight: Tensor, bias: Tensor | None, wants: Any) -> None:
        self.rows, self.weight, self.bias = rows, weight, bias
        x, w, b = wants
        self.of_x = torch.zeros_like(rows, memory_format=torch.contiguous_format) if x else None
        self.of_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format) if w else None
        self.of_bias = bias.new_zeros(bias.shape, dtype=wide_dtype(bias.dtype)) if b and bias is not None else None

    def add(self, part: slice, z: Tensor, grad: Tensor, m: Tensor, r: Tensor, own: Tensor) -> None:
        """Writes the gradient over the logits z of some rows, and adds its products.

        Args:
            grad: the gradients of the losses of the rows.
            m, r: the rows' softmax is e^(z - m)·r.
            own: the targets among the classes of this rank.
        """
        if not len(self.weight):
            return
        _gradient_over.call(z, m, r, grad, own)
        of_x = None if self.of_x is None else self.of_x[part]
        add_gradients(z, self.rows[part], self.weight, of_x, self.of_weight, first=part.start == 0)
        if self.of_bias is not None:
            self.of_bias += z[:, : len(self.weight)].sum(0, dtype=self.of_bias.dtype)

    def found(self) -> list[Tensor | None]:
        of_bias = None if self.of_bias is None or self.bias is None else self.of_bias.to(self.bias.dtype)
        return [self.of_x, self.of_weight, of_bias]
