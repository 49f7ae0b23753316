"""Rules that say along which dimensions an operator can be split into independent calls.

A rule is a function of the operator's arguments. A tensor among the arguments has at least ``shape`` and ``ndim``. The
rule returns splits. A split is a pair: the places of the results, and the places of the tensor arguments. A place is
one of three values:

=========  ============================================================================================
a number   Each part of the split has a piece of the tensor, cut along this dimension.
None       Each part has the whole tensor.
``"sum"``  The tensor is the sum of the tensors of the parts.
=========  ============================================================================================

The matrix product y = x·Wᵀ of x (M, K) and W (N, K), for instance, has three splits: ``((0,), (0, None))`` along M,
``((1,), (None, 0))`` along N, and ``(("sum",), (1, 1))`` along K.

:mod:`.distributed` makes DTensor's sharding strategies from the splits. :mod:`.jagged` uses the splits for jagged nested
tensors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cupyops.errors import expected

__all__ = ["CHOICES", "Place", "Rule", "Split", "elementwise", "of_gradient", "rows", "rule_of"]

Place = int | str | None
Split = tuple[Sequence[Place], Sequence[Place]]
Rule = Callable[..., Iterable[Split]]


def rule_of(
    sharding: str | Rule | None, is_elementwise: bool, tensors: int, results: int, mutates: bool
) -> Rule | None:
    """Returns the rule that ``Operator(sharding=..., elementwise=...)`` declares, or None.

    Args:
        sharding: a key of :data:`CHOICES`, a rule, or None.
        is_elementwise: whether an operator without ``sharding`` has the rule ``"elementwise"``.
        tensors, results: the numbers of the operator's tensor arguments and of its results.
        mutates: whether the operator writes to its arguments. DTensor may pass a copy of an argument.

    Raises:
        ValueError: ``sharding`` is none of the above, or is declared for an operator that writes to its arguments.
    """
    if mutates and sharding is not None:
        raise ValueError(
            expected("Operator", "sharding", "be None for an operator that writes to its arguments", sharding)
        )
    if isinstance(sharding, str):
        if sharding not in CHOICES:
            raise ValueError(expected("Operator", "sharding", "be 'elementwise', 'rows' or a rule", repr(sharding)))
        return CHOICES[sharding](tensors, results)
    return elementwise(tensors, results) if sharding is None and is_elementwise and not mutates else sharding


def elementwise(tensors: int, results: int) -> Rule:
    """Returns the rule of an operator whose results' elements depend on the inputs' elements at the same index.

    The inputs are broadcast. Each dimension of the result has a split. An input that is broadcast along the dimension is
    whole in each part.
    """

    def rule(*args: Any) -> Iterable[Split]:
        given = args[:tensors]
        rank = max((x.ndim for x in given if x is not None), default=0)
        for dim in range(rank):
            own = [None if x is None or dim < rank - x.ndim else dim - rank + x.ndim for x in given]
            sizes = [1 if at is None else x.shape[at] for x, at in zip(given, own, strict=True)]
            if any(size != 1 for size in sizes):
                places = [None if size == 1 else at for at, size in zip(own, sizes, strict=True)]
                yield (dim,) * results, places

    return rule


def rows(tensors: int, results: int) -> Rule:
    """Returns the rule of an operator on rows, the last dimension of its first tensor of the highest rank.

    Each dimension of this tensor, except the last, has a split. Inputs of the same rank are split with the tensor, and so
    is an input with one value for each row. An input with the shape of a row, such as a weight, is whole in each part.
    There is no split if an input could be either by its shape. Results begin with the dimensions of the rows.
    """

    def rule(*args: Any) -> Iterable[Split]:
        given = args[:tensors]
        lead = max((x for x in given if x is not None), key=lambda x: x.ndim)
        leading, places = tuple(lead.shape[:-1]), []
        for x in given:
            by_row = x is not None and tuple(x.shape[: lead.ndim - 1]) == leading and x.ndim >= lead.ndim - 1
            by_column = (
                x is not None and x.ndim < lead.ndim and tuple(x.shape) == tuple(lead.shape[lead.ndim - x.ndim :])
            )
            if x is not None and by_row == by_column and x.ndim > 0:
                return
            places.append(by_row)
        for dim in range(lead.ndim - 1):
            yield (dim,) * results, [dim if split else None for split in places]

    return rule


CHOICES: Mapping[str, Callable[[int, int], Rule]] = {"elementwise": elementwise, "rows": rows}


class _NotGivenError(Exception):
    """Raised if a rule reads a tensor that the backward does not take."""


class _NotGiven:
    """Stands for a tensor that the backward does not take."""

    def __getattr__(self, name: str) -> Any:
        raise _NotGivenError(name)


def of_gradient(
    rule: Rule, forward: Any, backward: Sequence[str], wrt: Sequence[str], *, broadcasts: bool = False
) -> Rule:
    """Returns the rule of the operator that computes the gradients of an operator with the given rule.

    The gradient of a piece is a piece. A tensor that is whole in each part affects every part, so the gradients of the
    parts are summed. A sum passes its gradient to every part, whole.

    Args:
        rule: the rule of the forward operator.
        forward: the forward's schema (:class:`cupyops.torch.core.gradients.Schema`).
        backward: the names of the backward's arguments: ``grad_y``, an argument, a result, or ``want_x``.
        wrt: the inputs whose gradients the backward returns.
        broadcasts: whether the forward broadcasts its tensors. The rule then has no split for tensors of different
            shapes: a backward may return gradients before or after the sum over the broadcast dimensions.
    """
    tensors, results = list(forward.tensors), forward.results
    gradients = {f"grad_{r}": r for r in results}

    def gradient_rule(*args: Any) -> Iterable[Split]:
        given = dict(zip(backward, args, strict=False))
        if any(name not in given for name in forward.types if name not in tensors):
            return
        taken = [given[a] for a in backward if a in gradients or a in tensors or a in results]
        if broadcasts and len({tuple(x.shape) for x in taken if x is not None}) > 1:
            return
        missing = taken[0] if broadcasts else _NotGiven()
        try:
            splits = list(rule(*(given.get(name, missing) for name in forward.types)))
        except _NotGivenError:
            return
        for of_results, of_tensors in splits:
            values = {**dict(zip(tensors, of_tensors, strict=True)), **dict(zip(results, of_results, strict=True))}
            # The parts could not share the gradient of a result that each part has whole.
            if any(values[r] is None for g, r in gradients.items() if g in given):
                continue
            # The parts of a sum are not the value that the backward reads.
            if any(values[a] == "sum" for a in given if a in values):
                continue
            places = [
                _dual(values[gradients[a]]) if a in gradients else values[a]
                for a in given
                if a in gradients or a in values
            ]
            yield [_dual(values[x]) if given.get(f"want_{x}", True) else None for x in wrt], places

    return gradient_rule


def _dual(place: Place) -> Place:
    return "sum" if place is None else None if place == "sum" else place
