"""Logits of a language model's head that are computed only if something else than their loss reads them."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from cupyops.torch.ops.linear_cross_entropy import linear_cross_entropy

from .fused import operands_of
from .single_calls import is_hooked
from .small import PLAIN, is_traced

__all__ = ["LazyLogits", "lazy_head", "lazy_linear", "passed_on"]


def lazy_linear(owner: nn.Module, linear: Any, x: Any) -> Any:
    """Returns ``linear(x)``, which is a :class:`LazyLogits` in a training step if the layer has more columns than x.

    Args:
        owner: the module that calls the layer. Its mode decides.
        linear: a linear layer, or its replacement.
        x: the operand.
    """
    # nn.DataParallel gathers results by their types.
    if not owner.training or getattr(owner, "_is_replica", False) or is_traced():
        return linear(x)
    if type(x) not in PLAIN or not torch.is_grad_enabled() or x.dim() < 2:
        return linear(x)
    operands = operands_of(linear, False)
    if operands is None or type(operands[0]) not in (nn.Parameter, *PLAIN):
        return linear(x)
    weight, bias = operands
    n, k = weight.shape
    dtypes = {t.dtype for t in (x, weight, bias) if t is not None}
    cast = torch.is_autocast_enabled(x.device.type)
    if n <= k or x.size(-1) != k or x.device != weight.device or not (len(dtypes) == 1 or cast):
        return linear(x)
    if not x.is_floating_point() or not (x.requires_grad or weight.requires_grad):
        return linear(x)
    head = _Head(linear, x, weight, bias)
    like = torch.empty((*x.shape[:-1], n), dtype=head.dtype, device="meta")
    return LazyLogits(head, x, like, head.compute)


def lazy_head(owner: nn.Module, linear: Any, x: Any) -> Any:
    """Returns ``linear(x)`` as :func:`lazy_linear` does, for a module that returns it. A hook of the module gets a tensor."""
    return linear(x) if is_hooked(owner, False) else lazy_linear(owner, linear, x)


def passed_on(owner: nn.Module, logits: Any) -> Any:
    """Returns the logits of a part of a module, for a module that returns them. A hook of the module gets a tensor."""
    return logits.tensor() if isinstance(logits, LazyLogits) and is_hooked(owner, False) else logits


class _Head:
    """A call of a linear layer that has not been made.

    Attributes:
        linear, x, weight, bias: the layer, and its operands.
        dtype: the dtype of the result.
    """

    def __init__(self, linear: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        device = x.device.type
        self.linear, self.x, self.weight, self.bias = linear, x, weight, bias
        cast = torch.is_autocast_enabled(device) and x.dtype is not torch.float64
        self.dtype = torch.get_autocast_dtype(device) if cast else x.dtype
        self.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        self.versions = self._versions()
        self.logits: Tensor | None = None

    def _versions(self) -> tuple[int, ...]:
        return tuple(t._version for t in (self.x, self.weight, self.bias) if t is not None)

    def check(self) -> None:
        """Raises a RuntimeError if an operand has changed since the call."""
        if self._versions() != self.versions:
            raise RuntimeError(
                "the head of the model or its argument has changed since the model was called, and these logits have not been "
                "computed before: optimize(model, lazy_logits=True) computes logits when they are read, in training "
                "mode. Read them before the optimizer's step, call the model in eval mode, or leave lazy_logits out"
            )

    def compute(self) -> Tensor:
        """Returns the logits, computed as the call would have computed them."""
        if self.logits is None:
            self.check()
            with torch.autocast(*self.autocast):
                self.logits = self.linear(self.x)
        return self.logits


class LazyLogits:
    """The result of a linear layer, z = x·Wᵀ + b, before it is computed.

    ``F.cross_entropy`` of it is :func:`autograd_bridge.linear_cross_entropy`. Until then, views that keep the rows of z whole, a
    cast to float32, a soft cap, c·tanh(z/c), and a scale by a power of two are remembered. Any other reader, such as a
    function of PyTorch or a method of tensors, gets the tensor, with its gradient: ``logits.argmax(-1)`` needs nothing
    special. For ``isinstance`` it is not a ``Tensor``; :meth:`tensor` returns one.
    """

    def __init__(
        self,
        head: _Head,
        rows: Tensor,
        like: Tensor,
        made: Callable[[], Tensor],
        cap: tuple[str, float] | None = None,
    ) -> None:
        """
        Args:
            head: the call that makes the logits.
            rows: the rows of x of these logits.
            like: a tensor on the meta device, with the shape, dtype and strides of these logits.
            made: computes these logits.
            cap: what is known about a soft cap, and its number c.
        """
        self._head, self._rows, self._like, self._made, self._cap = head, rows, like, made, cap
        self._tensor: Tensor | None = None
        self.shape, self.dtype, self.device = like.shape, like.dtype, rows.device

    def tensor(self) -> Tensor:
        """Returns the logits as a tensor.

        Raises:
            RuntimeError: the weight of the head has changed since the model was called.
        """
        if self._tensor is None:
            with torch.enable_grad():
                self._tensor = self._made()
        return self._tensor

    def _then(
        self, step: Callable[[Any], Any], rows: Tensor | None = None, cap: tuple[str, float] | None = None
    ) -> Any:
        """Returns ``step(logits)``. Logits that are in memory may have been changed in place, so that they are used from then
        on. Without gradients, the result has none."""
        if self._head.logits is not None or not torch.is_grad_enabled():
            return step(self.tensor())
        rows = self._rows if rows is None else rows
        return LazyLogits(self._head, rows, step(self._like), lambda: step(self.tensor()), cap or self._cap)

    def __repr__(self) -> str:
        return f"LazyLogits(shape={tuple(self.shape)}, dtype={self.dtype}, device={str(self.device)!r})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.tensor().__reduce_ex__(protocol)

    __hash__ = object.__hash__

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        return True

    # Views of the rows, a cast, a soft cap

    def _viewed(self, name: str, args: tuple[Any, ...]) -> Any:
        shape = getattr(self._like, name)(*args).shape
        if shape[-1:] != self.shape[-1:]:
            return getattr(self.tensor(), name)(*args)
        rows = self._rows.reshape(*shape[:-1], self._rows.size(-1))
        return self._then(lambda y: getattr(y, name)(*args), rows)

    def view(self, *args: Any) -> Any:
        return self.tensor().view(*args) if isinstance(args[0], torch.dtype) else self._viewed("view", args)

    def reshape(self, *args: Any) -> Any:
        return self._viewed("reshape", args)

    def __getitem__(self, index: Any) -> Any:
        each = index if isinstance(index, tuple) else (index,)
        if not all(i is Ellipsis or isinstance(i, slice) for i in each):
            return self.tensor()[index]
        of_columns = len(each) == self.dim() or (Ellipsis in each and each[-1] is not Ellipsis)
        if of_columns and each[-1] != slice(None):
            return self.tensor()[index]
        return self._then(lambda y: y[index], self._rows[index])

    def contiguous(self) -> Any:
        return self._then(Tensor.contiguous)

    def float(self) -> Any:
        return self.to(torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if args == (torch.float32,) and not kwargs and self.dtype is not torch.float64:
            return self._then(Tensor.float)
        return self.tensor().to(*args, **kwargs)

    def __truediv__(self, c: Any) -> Any:
        if self._cap is None and type(c) in (int, float) and c > 0:
            return self._then(lambda y: y / c, cap=("divided", c))
        return self.tensor() / c

    def tanh(self) -> Any:
        if self._cap is not None and self._cap[0] == "divided":
            return self._then(torch.tanh, cap=("bounded", self._cap[1]))
        return self.tensor().tanh()

    def __mul__(self, c: Any) -> Any:
        if type(c) in (int, float) and self._cap == ("bounded", c):
            return self._then(lambda y: y * c, cap=("capped", c))
        if self._cap is None and type(c) in (int, float) and _is_power_of_two(c):
            return self._then(lambda y: y * c, cap=("divided", 1 / c))
        return self.tensor() * c

    # Functions of PyTorch

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], cls):
            if function is torch.tanh and len(args) == 1 and not kwargs:
                return args[0].tanh()
            if function is F.cross_entropy and (loss := args[0].loss(*args[1:], **kwargs)) is not None:
                return loss
        args, kwargs = tree_map_only(cls, cls.tensor, (args, kwargs))
        return function(*args, **kwargs)

    def loss(
        self,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: Any = 0.0,
    ) -> Tensor | None:
        """Returns ``F.cross_entropy`` of the logits by one operator, or None if the operator does not compute it."""
        head, rows, bias = self._head, self._rows, self._head.bias
        plain = type(target) in PLAIN and target.dtype is torch.int64 and target.device == self.device
        if not plain or rows.dim() != 2 or target.shape != rows.shape[:1] or head.logits is not None:
            return None
        if size_average is not None or reduce is not None or reduction not in ("mean", "sum", "none"):
            return None
        if not (weight is None or (type(weight) in PLAIN and weight.dtype is self.dtype)):
            return None
        state, c = self._cap or ("", 1.0)
        if state == "divided" and _is_power_of_two(c) and rows.dtype is not torch.float16:
            # The division is exact, of the rows as of the logits. In float16, small rows might become 0.
            rows, bias = rows / c, None if bias is None else bias / c
        elif state not in ("", "capped"):
            return None
        head.check()
        with torch.autocast(*head.autocast):
            found = linear_cross_entropy(
                *(rows, head.weight, target, bias),
                class_weight=weight,
                ignore_index=ignore_index,
                reduction=reduction,
                label_smoothing=label_smoothing,
                softcap=c if state == "capped" else None,
            )
        # Autocast computes the loss of 16-bit logits in float32.
        cast = torch.is_autocast_enabled(self.device.type) and self.dtype is not torch.float64
        return found.to(torch.float32 if cast else self.dtype)


def _is_power_of_two(c: float) -> bool:
    return math.frexp(c)[0] == 0.5


def _by_tensor(name: str) -> Callable[..., Any]:
    def method(self: LazyLogits, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*tree_map_only(LazyLogits, LazyLogits.tensor, args))

    return method


# Python looks operators up in the class, and not by __getattr__.
for _name in {*dir(Tensor)} - {*dir(object), *vars(LazyLogits)}:
    if _name.startswith("__") and not _name.startswith("__torch_") and callable(getattr(Tensor, _name)):
        setattr(LazyLogits, _name, _by_tensor(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"):
    setattr(LazyLogits, _name, _by_tensor(_name))
