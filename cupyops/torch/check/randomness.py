"""Finds out whether an operator draws random numbers, so that differences between its results are not faults.

Two correct operators may draw other numbers from one seed. Only their distributions are comparable: here, the mean of
each element.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .inputs import Arguments, fresh
from .subject import Subject

__all__ = ["randomness"]

# So many seeds are drawn. The means are wrong if their mean squared difference exceeds LIMIT times its expectation: a
# standard normal number exceeds the root of it once in 2 million times, and all elements may follow from one number.
DRAWS, LIMIT = 256, 25.0
# The names of arguments that are seeds, for references that compute their random numbers from them. A result that changes
# with another argument is not random.
NAMES = ("seed", "rng", "generator")


class _Drawn(TorchDispatchMode):
    """Lists the seeds of the generators by which PyTorch's functions draw.

    Attributes:
        seeds: the seeds, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            generators = (x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Generator))
            self.seeds.append(next(generators, torch.default_generator).initial_seed())
        return func(*args, **(kwargs or {}))


def randomness(subject: Subject, compares: str) -> str:
    """Returns why a difference that a check has found is not a fault, or an empty string.

    Args:
        compares: :attr:`cupyops.torch.check.registry.Check.compares` of the check.
    """
    if not compares or subject.op.reference is None or subject.mutated:
        return ""
    try:
        with subject.mode(), torch.no_grad():
            if (found := _known(subject))[0] == "reference" and compares != "reference":
                return ""
    except Exception:  # the check that meets the error reports it
        return ""
    return found[1]


def _known(subject: Subject) -> tuple[str, str]:
    """Returns which comparisons mean nothing, and why; the answer is kept at the subject."""
    kept: dict[str, tuple[str, str]] = subject.__dict__.setdefault("_randomness", {})
    if "" not in kept:
        kept[""] = "", ""  # an error leaves this answer
        kept[""] = _asked(subject)
    return kept[""]


def _asked(subject: Subject) -> tuple[str, str]:
    for args in subject.samples:
        if _differ(*(_of(subject, args, subject.reference) for _ in range(2))):
            right = _alike(subject, lambda k, args=args: args)  # type: ignore[misc]
            words = "the operator is random: two calls of the reference with equal arguments give different results"
            return ("calls", words) if right else ("", "")
    for i, argument in enumerate(subject.schema):
        named = any(word in argument.name for word in NAMES)
        for args in subject.samples:
            seeded = _seeded(args, i)
            if (
                seeded is None
                or not (named or _draws_by(subject, args, seeded(1)))
                or not all(
                    _differ(_of(subject, args, f), _of(subject, seeded(1), f)) for f in (subject.reference, None)
                )
            ):
                continue
            words = (
                f"the operator is random: operator and reference draw other numbers by `{argument.name}`, and their means "
                f"over {DRAWS} values of it are alike"
            )
            return ("reference", words) if _alike(subject, seeded) else ("", "")
    return "", ""


def _seeded(args: Arguments, place: int) -> Callable[[int], Arguments] | None:
    """Returns a function from a number to the arguments with another seed; None if the argument is not a whole number."""
    seed = args[place]
    if isinstance(seed, Tensor):
        whole = not (seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool)
    else:
        whole = isinstance(seed, int) and not isinstance(seed, bool)
    return (lambda k: (*args[:place], seed + k, *args[place + 1 :])) if whole else None


def _draws_by(subject: Subject, args: Arguments, others: Arguments) -> bool:
    """Returns whether the reference draws by other seeds with other arguments. The reference is asked on the CPU: the other arguments
    may have an index beyond a tensor's end, which raises an error there, and on a GPU ends all work of the process."""
    try:
        return _drawn(subject, args) != _drawn(subject, others)
    except Exception:
        return False


def _drawn(subject: Subject, args: Arguments) -> list[int]:
    """Returns the seeds by which the reference draws."""
    with _Drawn() as drawn:
        _of(subject, tuple(x.cpu() if isinstance(x, Tensor) else x for x in args), subject.reference)
    return drawn.seeds


def _of(subject: Subject, args: Arguments, function: Any) -> Mapping[str, Tensor]:
    return subject.outputs(fresh(args), function)


def _differ(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return any(
        x.shape != b[name].shape or not torch.equal(x.nan_to_num(), b[name].nan_to_num()) for name, x in a.items()
    )


def _alike(subject: Subject, drawn: Callable[[int], Arguments]) -> bool:
    """Returns whether the means of operator and reference over many draws differ only by chance."""
    totals: list[dict[str, tuple[Tensor, Tensor]]] = [{}, {}]
    for k in range(DRAWS):
        for total, function in zip(totals, (None, subject.reference), strict=True):
            for name, x in _of(subject, drawn(k), function).items():
                wide = x.double()
                before = total.get(name, (torch.zeros_like(wide), torch.zeros_like(wide)))
                total[name] = before[0] + wide, before[1] + wide.square()
    for name, (ours, squares) in totals[0].items():
        theirs, others = totals[1][name]
        if ours.shape != theirs.shape:
            return False
        means = ours / DRAWS, theirs / DRAWS
        spread = (squares / DRAWS - means[0].square()) + (others / DRAWS - means[1].square())
        # Elements that are not random have roundings.
        least = 1e-9 * (means[1].square() + means[1].square().mean())
        if ours.numel() and float(((means[0] - means[1]).square() / (spread / DRAWS + least)).mean()) > LIMIT:
            return False
    return True
