"""Makes arguments from a sample: the values in another dtype or layout, another number of rows, or other values."""

from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch import Tensor

__all__ = [
    *("WAYS", "Arguments", "converted", "doubled", "expanded", "form_of", "fresh", "laid_out", "lead_of"),
    *("misaligned_all", "moved_on", "near_numbers", "other_values", "tensors_in", "to_device", "transposed"),
    *("with_rows", "with_sizes", "words_of"),
]

Arguments = tuple[Any, ...]


def tensors_in(args: Arguments) -> list[int]:
    """Returns the positions of the tensors."""
    return [i for i, x in enumerate(args) if isinstance(x, Tensor)]


def form_of(args: Arguments) -> str:
    """Returns the shapes and dtypes of the tensors, and the other arguments, as a key, which ignores the values of
    tensors."""
    return repr([(tuple(x.shape), x.dtype, x.stride()) if isinstance(x, Tensor) else x for x in args])


def lead_of(args: Arguments) -> Tensor:
    """Returns the lead of a sample: its first floating tensor, else its first tensor."""
    tensors = [args[i] for i in tensors_in(args)]
    return next((x for x in tensors if x.is_floating_point()), tensors[0])


def _each(args: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    """Applies `change` to each tensor; the new tensors are leaves with the same `requires_grad`."""
    return tuple(
        change(x.detach()).requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.is_floating_point()
        else change(x) if isinstance(x, Tensor)
        else x
        for x in args
    )  # fmt: skip


def to_device(args: Arguments, device: torch.device) -> Arguments:
    """Returns the sample on a device."""
    return _each(args, lambda x: x.to(device))


def fresh(args: Arguments) -> Arguments:
    """Copies each tensor; the copy has the same strides if the tensor is dense, as in `torch.clone`."""
    return _each(args, torch.clone)


def converted(args: Arguments, dtype: torch.dtype, *, alone: bool = False) -> Arguments:
    """Converts the tensors that have the lead's dtype to another dtype; with `alone`, converts only the lead.

    Tensors of a different dtype keep it: some operators take float32 statistics with 16-bit values.
    """
    lead = lead_of(args)
    own = lead.dtype
    if alone:
        at = next(i for i, x in enumerate(args) if x is lead)
        return (*fresh(args[:at]), *_each(args[at : at + 1], lambda x: x.to(dtype)), *fresh(args[at + 1 :]))
    return _each(args, lambda x: x.to(dtype) if x.dtype == own else x.clone())


def doubled(args: Arguments) -> Arguments:
    """Returns the sample with its floating tensors in float64; the others stay the same objects."""
    return _each(args, lambda x: x.double() if x.is_floating_point() else x)


def moved_on(args: Arguments, by: int) -> Arguments:
    """Rotates the values of each tensor by `by` elements, as `torch.roll` of the flattened tensor."""
    return _each(args, lambda x: x.flatten().roll(by).view(x.shape))


def with_rows(args: Arguments, count: int, *, by_row: bool = False) -> Arguments:
    """Gives the sample `count` rows: drops rows of the first dimension, or repeats them.

    Changes the lead, and tensors with as many dimensions and rows as the lead. A sample whose lead has no dimensions
    keeps its shapes.

    Args:
        by_row: also change tensors whose shape is the leading part of the lead's shape, such as the targets of a loss.
    """
    lead = lead_of(args)
    if lead.dim() == 0:
        return fresh(args)

    def change(x: Tensor) -> Tensor:
        alike = x.dim() == lead.dim() or (by_row and x.dim() > 0 and x.shape == lead.shape[: x.dim()])
        if not alike or x.shape[0] != lead.shape[0] or not x.shape[0]:
            return x.clone()
        return x[torch.arange(count, device=x.device) % x.shape[0]]

    return _each(args, change)


# Ways to give other sizes to the tensors of a sample together. "tied" and "with numbers" change every dimension of the
# size, the latter integers of this value as well; "from the right" and "from the left" change the dimensions in the place
# of the lead's.
WAYS = ("tied", "with numbers", "from the right", "from the left")


def with_sizes(args: Arguments, sizes: Mapping[int, int], way: str) -> Arguments:
    """Changes the sizes of dimensions of the lead, and of the corresponding dimensions of the other tensors.

    Elements are dropped, or repeated from the first.

    Args:
        sizes: the new size by the dimension of the lead.
        way: one of `WAYS`.
    """
    lead = lead_of(args)
    by_size = {lead.shape[d]: n for d, n in sizes.items()}

    def place(x: Tensor, d: int) -> int | None:
        of_lead = d if way == "from the left" else d - x.dim() + lead.dim()
        return of_lead if 0 <= of_lead < lead.dim() and x.shape[d] == lead.shape[of_lead] else None

    def change(x: Tensor) -> Tensor:
        for d in range(x.dim()):
            n = by_size.get(x.shape[d]) if way in WAYS[:2] else sizes.get(-1 if (at := place(x, d)) is None else at)
            if n is not None and x.shape[d]:
                x = x.index_select(d, torch.arange(n, device=x.device) % x.shape[d])
        return x.clone(memory_format=torch.contiguous_format)

    changed = _each(args, change)
    if way != "with numbers":
        return changed

    def number(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(map(number, x))
        return by_size.get(x, x) if isinstance(x, int) and not isinstance(x, bool) else x

    return tuple(x if isinstance(x, Tensor) else number(x) for x in changed)


def expanded(args: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yields the sample with tensors expanded along the first or the last dimension: the stride there is 0."""
    if lead_of(args).dim():
        yield "expanded along the first dimension", _each(args, lambda x: _first_along(x, 0))
        yield "expanded along the last dimension", _each(args, lambda x: _first_along(x, -1))


def _first_along(x: Tensor, dim: int) -> Tensor:
    return x.narrow(dim, 0, 1).expand(x.shape) if x.numel() and x.dim() else x.clone()


def transposed(x: Tensor) -> Tensor:
    """Copies `x` to memory in which the first dimension is the fastest."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _sliced(x: Tensor) -> Tensor:
    """Copies `x` into every second element along the last dimension of a buffer twice as long."""
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.dim() else (2,))
    part = wide[..., 1::2] if x.dim() else wide[1]
    return part.copy_(x)


def _padded(x: Tensor) -> Tensor:
    """Copies `x` into a buffer with one more column: rows lie one element apart."""
    if not x.dim():
        return x.clone()
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 1)
    return wide[..., 1:].copy_(x)


def _misaligned(x: Tensor) -> Tensor:
    """Copies `x` to memory that starts one element after an aligned address; the copy is contiguous."""
    return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)


def laid_out(args: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yields the sample in other layouts: first all tensors in one layout, then one tensor at a time."""
    makers: dict[str, Callable[[Tensor], Tensor]] = {"sliced": _sliced}
    if lead_of(args).dim() > 1:
        makers = {"transposed": transposed, "sliced": _sliced, "padded": _padded}
    for name, change in makers.items():
        yield name, _each(args, change)
    positions = tensors_in(args)
    if len(positions) > 1:
        name, change = next(iter(makers.items()))
        for i in positions:
            one = fresh(args)
            yield f"argument {i} {name}", (*one[:i], *_each(one[i : i + 1], change), *one[i + 1 :])


def channels_last(args: Arguments) -> Arguments | None:
    """Returns the sample with its tensors of four dimensions in the layout of images, or None if there are none."""
    if not any(args[i].dim() == 4 for i in tensors_in(args)):
        return None
    return _each(args, lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.clone())


def restrided(args: Arguments, generator: torch.Generator) -> Arguments:
    """Copies each tensor into random memory: dimensions in another order, steps of 1 to 3, and elements before and after."""

    def change(x: Tensor) -> Tensor:
        order = torch.randperm(x.dim(), generator=generator).tolist()
        steps = torch.randint(1, 4, (x.dim(),), generator=generator).tolist()
        first = torch.randint(0, 3, (x.dim(),), generator=generator).tolist()
        wide = x.new_zeros([x.shape[d] * steps[d] + first[d] for d in order])
        part = wide[tuple(slice(first[d], first[d] + x.shape[d] * steps[d], steps[d]) for d in order)]
        return part.permute([order.index(d) for d in range(x.dim())]).copy_(x)

    return _each(args, change)


def misaligned_all(args: Arguments) -> Arguments:
    """Returns the sample with each tensor's first element one element after a multiple of 16 bytes."""
    return _each(args, _misaligned)


def near_numbers(value: float) -> list[Any]:
    """Returns other numbers of the same type, of which an operator may accept one."""
    if isinstance(value, bool):
        return [not value]
    return [value + 1, value - 1] if isinstance(value, int) else [2 * value or 0.5, value / 2 or -0.5]


def other_values(value: Any) -> list[Any]:
    """Returns other values for a number or a list of numbers: of the other sign, 0, below 1, above 1, and close to
    it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, -value, 0, 1, 2 * value]
    if isinstance(value, float):
        return [-value, 2 * value, value * (1 + 2.0**-6), 0.0, 0.375, 1.0, 2.5, -1.25, 100.0, 1e-3]
    if isinstance(value, (list, tuple)) and value and all(isinstance(x, (int, float)) for x in value):
        first, last = other_values(value[0])[:1], other_values(value[-1])[:1]
        return [[*value[::-1]], [*first, *value[1:]], [*value[:-1], *last], [type(x)(0) for x in value], [*value[:-1]]]
    return []


def words_of(function: Any) -> list[str]:
    """Returns the words that the code of a reference has as constants: one may be a choice of an argument that is a text.

    The names of its functions' arguments are not constants, and texts that are not names are docstrings and messages.
    """
    found, met = list[Any](getattr(getattr(function, "__code__", None), "co_consts", ())), list[str]()
    while found:
        one = found.pop(0)
        if isinstance(one, (tuple, frozenset)):
            found += sorted(one, key=repr)
        elif isinstance(one, CodeType):
            found += one.co_consts
        elif isinstance(one, str) and one.isidentifier():
            met.append(one)
    return [*dict.fromkeys(met)]
