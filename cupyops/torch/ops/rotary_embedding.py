"""The PyTorch operator rotary_embedding: rotary position embedding, by ``kernels_cu/rotary_embedding.cu``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupyops.arrays import check_devices
from cupyops.errors import expected
from cupyops.ops.checks import check_floating
from cupyops.ops.rotary_embedding import MOST_HEADS, kernel_of
from cupyops.tiling.broadcasting import collapse, divider, spread
from cupyops.torch.core.operator import Operator
from cupyops.torch.core.tensors import DTYPE_NAMES, TorchLibrary, symbolic_call, wide_dtype

from .onnx_values import cast, in_float32

__all__ = ["rotary_embedding"]

_NAME = "rotary_embedding"
_library = TorchLibrary()


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check_floating(_NAME, name, DTYPE_NAMES[tensor.dtype])
    if x.dim() == 0 or cos.dim() == 0:
        name, given = ("x", x) if x.dim() == 0 else ("cos", cos)
        raise ValueError(expected(_NAME, name, "have at least one dimension", tuple(given.shape)))
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        wanted = f"have the shape and dtype of `cos`, {tuple(cos.shape)} {DTYPE_NAMES[cos.dtype]}"
        raise ValueError(expected(_NAME, "sin", wanted, f"{tuple(sin.shape)} {DTYPE_NAMES[sin.dtype]}"))
    n, d = cos.shape[-1], x.shape[-1]
    if n % 2 or n > d:
        raise ValueError(expected(_NAME, "cos", f"have an even last dimension of at most {d}", tuple(cos.shape)))
    lead = x.shape[:-1]
    broadcast = cos.dim() <= x.dim() and all(a in (1, b) for a, b in zip(cos.shape[-2::-1], lead[::-1], strict=False))
    if not broadcast:
        wanted = f"broadcast to the rows of `x`, {tuple(lead)}"
        raise ValueError(expected(_NAME, "cos", wanted, tuple(cos.shape[:-1])))


def _by_stride(x: Tensor) -> list[int]:
    """Returns the dimensions of x in the order in which memory has them, and the last dimension last."""
    strides = x.stride()
    return [*sorted(range(x.dim() - 1), key=lambda d: strides[d], reverse=True), x.dim() - 1]


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backward: bool) -> Tensor:
    """Returns x turned by the angles, or turned back. The layout of the result is that of x: attention gets the heads of a
    projection, and the projection their gradient, without copies."""
    _check(x, cos, sin)
    check_devices(_NAME, x=x, cos=cos, sin=sin)
    order = _by_stride(x)
    memory = x.new_empty([x.shape[d] for d in order])
    y = memory.permute(_inverse(order))
    if _library.is_fake(x) or not y.numel():
        return y
    x, cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (x, cos, sin))
    half, tail = cos.shape[-1] // 2, x.shape[-1] - cos.shape[-1]
    each = 16 // x.dtype.itemsize
    while half % each or tail % each:
        each //= 2
    lead = [x.shape[d] for d in order[:-1]]
    views = [spread(t.shape[:-1], t.stride()[:-1], x.shape[:-1]) for t in (x, y, cos, sin)]
    sizes, *strides = collapse(lead, *([view[d] for d in order[:-1]] for view in views))
    # The rows of a thread lie along the innermost dimension whose rows have the same angles.
    shared = next((d for d, (c, s) in enumerate(zip(*strides[2:], strict=True)) if not c and not s), None)
    heads, x_head, y_head = 1, 0, 0
    rest = list(range(len(sizes)))
    if shared is not None:
        heads, x_head, y_head = sizes[shared], strides[0][shared], strides[1][shared]
        rest.remove(shared)
    at_once = next(n for n in (MOST_HEADS, 2, 1) if n <= max(1, heads))
    apart = -(-heads // at_once)
    packs = (half + tail) // each
    loop = (packs, apart, *(sizes[d] for d in rest))
    firsts = (x_head, y_head, 0, 0)
    moves = [(0, first, *(view[d] for d in rest)) for first, view in zip(firsts, strides, strict=True)]
    groups = packs * apart
    for d in rest:
        groups *= sizes[d]
    farthest = max(sum((n - 1) * abs(s) for n, s in zip(sizes, view, strict=True)) for view in strides)
    wide = max(groups, farthest) >= 2**31
    kernel = kernel_of(len(loop), each, at_once, interleaved, backward, wide)
    kernel.launch_vouched(
        *(x, cos, sin, memory, half, heads, apart, x_head * apart, y_head * apart, groups, y.numel()),
        *(loop, tuple(map(divider, loop)), *moves),
    )
    return y


def _reference(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    _check(x, cos, sin)
    n, dtype = cos.shape[-1], wide_dtype(x.dtype)
    given = x[..., :n].to(dtype)
    if interleaved:
        other = torch.stack((-given[..., 1::2], given[..., ::2]), -1).flatten(-2)
    else:
        other = torch.cat((-given[..., n // 2 :], given[..., : n // 2]), -1)
    turned = (given * cos.to(dtype) + other * sin.to(dtype)).to(x.dtype)
    order = _by_stride(x)
    whole = turned if n == x.shape[-1] else torch.cat((turned, x[..., n:]), -1)
    y = whole.permute(order).contiguous()
    return y.permute(_inverse(order))


def _onnx(op: Any, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Returns the ONNX form, with slices of the last dimension."""
    n, d = cos.shape[-1], x.shape[-1]
    wide, c, s = in_float32(op, x, cos, sin)
    c, s = cast(op, c, wide.dtype), cast(op, s, wide.dtype)

    def part(first: int, end: int, step: int = 1) -> Any:
        return op.Slice(wide, [first], [end], [-1], [step])

    if interleaved:
        v, u = (op.Unsqueeze(part(i, n, 2), [-1]) for i in (1, 0))
        other = op.Reshape(op.Concat(op.Neg(v), u, axis=-1), op.Shape(part(0, n)))
    else:
        other = op.Concat(op.Neg(part(n // 2, n)), part(0, n // 2), axis=-1)
    turned = cast(op, op.Add(op.Mul(part(0, n), c), op.Mul(other, s)), x.dtype)
    return turned if n == d else op.Concat(turned, op.Slice(x, [n], [d], [-1]), axis=-1)


def _sharding(x: Any, cos: Any, *_: Any) -> Any:
    """Splits along each dimension of the rows, with the tables that broadcast along it whole."""
    new = x.ndim - cos.ndim
    for dim in range(x.ndim - 1):
        along = dim - new
        table = along if along >= 0 and cos.shape[along] == x.shape[dim] and x.shape[dim] != 1 else None
        yield [dim], [dim, table, table]


_SCHEMA = "cupyops::rotary_embedding{}(Tensor {}, Tensor cos, Tensor sin, bool interleaved) -> Tensor{}"
_backward = Operator(
    _SCHEMA.format("_backward", "grad_y", ""),
    lambda grad_y, cos, sin, interleaved: _turned(grad_y, cos, sin, interleaved, True),
    # The map is linear, and its transpose has the angles of the pair exchanged and negated.
    reference=lambda grad_y, cos, sin, interleaved: _reference(
        grad_y, cos, -_other_of_pair(sin, interleaved), interleaved
    ),
    compiled="auto",
    sharding=_sharding,
    repeats=True,
)
_rotary_embedding = Operator(
    _SCHEMA.format("", "x", " y"),
    lambda x, cos, sin, interleaved: _turned(x, cos, sin, interleaved, False),
    backward=_backward,
    wrt=["x"],
    reference=_reference,
    compiled="auto",
    onnx=_onnx,
    sharding=_sharding,
    repeats=True,
)


def _other_of_pair(table: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return table.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    first, second = table.chunk(2, -1)
    return torch.cat((second, first), -1)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Applies rotary position embedding: y = x·cos + rotate(x)·sin, with the tables of transformers and timm.

    In halves, the columns i and n/2 + i are a pair, and rotate(x) = (-x₂, x₁) of the halves of the row; with
    ``interleaved``, the columns 2i and 2i + 1 are a pair, and rotate(x) = (-x₁, x₀, -x₃, x₂, ...). Only the first n
    columns are turned, where n is the last dimension of the tables (partial rotary embedding); the others are copied.

    A kernel reads the tables once for up to four heads. The result is rounded once. It has the order of dimensions in
    memory of x.

    Args:
        x: the queries or keys (..., D), float16, bfloat16, float32 or float64, any strides.
        cos, sin: tables (..., n) with n ≤ D even, of equal shape and floating dtype, whose leading dimensions broadcast
            to those of x. Each pair has its angle twice, in the layout of the pairs.
        interleaved: the layout of the pairs. transformers' ``rotate_half`` has halves, timm's ``rot`` is interleaved.

    Returns:
        A new tensor of x's shape and dtype. Gradients are those of x; for tables that require grad, PyTorch's operations
        compute the result.

    Raises:
        TypeError: an argument is not a floating tensor.
        ValueError: the shapes do not fit, or the tensors are on different devices.
        MissingDependencyError: the tensors are on a GPU, and CuPy or a library that CuPy needs is missing. The message
            ends with the command that installs it.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.

    >>> angle = torch.tensor([torch.pi / 2, 0.0, torch.pi / 2, 0.0])
    >>> rotary_embedding(torch.tensor([1.0, 2.0, 3.0, 4.0]), angle.cos(), angle.sin()).round()
    tensor([-3.,  2.,  1.,  4.])
    """
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        if not isinstance(tensor, Tensor):
            if (proxy := symbolic_call(rotary_embedding, (x, cos, sin), interleaved=interleaved)) is not None:
                return proxy
            raise TypeError(expected(_NAME, name, "be a Tensor", type(tensor).__name__))
    if (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return _reference(x, cos, sin, interleaved)
    y: Tensor = _rotary_embedding.call(x, cos, sin, interleaved)
    return y
